//! `cargo xtask c-header` and `cargo xtask install-c`: the C library's header, and its installation.

use std::fs;
use std::path::PathBuf;

use crate::files::{copy, empty_directory, link, read, write};
use crate::shell::{Failure, cargo, program, root, target_directory};

const HEADER: &str = "crates/memferry-c/include/memferry.h";

fn package() -> PathBuf {
    root().join("crates/memferry-c")
}

/// The header that cbindgen makes of the crate.
fn generated() -> Result<String, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure(format!("cbindgen cannot make the header: {error}"));
    let config =
        cbindgen::Config::from_file(package().join("cbindgen.toml")).map_err(|error| failed(&error))?;
    let builder = cbindgen::Builder::new().with_config(config).with_crate(package());
    let mut text = Vec::new();
    builder.generate().map_err(|error| failed(&error))?.write(&mut text);
    String::from_utf8(text).map_err(|error| failed(&error))
}

/// Writes the header, or compares the kept one with the crate.
pub(crate) fn header(arguments: &[String]) -> Result<(), Failure> {
    let file = root().join(HEADER);
    match arguments {
        [option] if option == "--write" => {
            fs::write(&file, generated()?).map_err(|error| Failure(format!("cannot write {HEADER}: {error}")))
        }
        [option] if option == "--check" => {
            check(&fs::read_to_string(&file).unwrap_or_default(), &generated()?)
        }
        _ => Err(Failure("pass --write or --check".to_owned())),
    }
}

fn check(kept: &str, now: &str) -> Result<(), Failure> {
    if kept == now {
        return Ok(());
    }
    let line = kept.lines().zip(now.lines()).take_while(|(kept, now)| kept == now).count();
    let of = |text: &str| text.lines().nth(line).unwrap_or("the end").to_owned();
    Err(Failure(format!(
        "{HEADER} differs from the crate in line {}: `{}` should be `{}`; run `cargo xtask c-header --write`",
        line + 1,
        of(kept),
        of(now)
    )))
}

/// Options of `install-c`.
#[derive(Debug, PartialEq)]
struct Install {
    prefix: PathBuf,
    profile: &'static str,
}

impl Install {
    fn parse(arguments: &[String]) -> Result<Install, Failure> {
        let mut install = Install { prefix: PathBuf::new(), profile: "release" };
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            match (option.as_str(), rest.as_slice()) {
                ("--debug", _) => install.profile = "dev",
                ("--prefix", [directory, ..]) => {
                    install.prefix = std::path::absolute(directory)
                        .map_err(|error| Failure(format!("--prefix {directory}: {error}")))?;
                    rest.next();
                }
                _ => return Err(Failure(format!("{option} is not understood; pass --prefix DIR [--debug]"))),
            }
        }
        if install.prefix.as_os_str().is_empty() {
            return Err(Failure("pass --prefix DIR, such as --prefix /usr/local".to_owned()));
        }
        Ok(install)
    }
}

/// Builds the library and installs it below a prefix: libraries, headers, the files of pkg-config and CMake.
pub(crate) fn install(arguments: &[String]) -> Result<(), Failure> {
    let Install { prefix, profile } = Install::parse(arguments)?;
    cargo(["build", "--locked", "--package", "memferry-c", "--profile", profile]).run()?;
    let built = target_directory().join(if profile == "dev" { "debug" } else { profile });
    let version = env!("CARGO_PKG_VERSION");
    let (minor, _) = version.rsplit_once('.').expect("a version has three numbers");
    let include = package().join("include");
    let templates = package().join("install");
    let lib = prefix.join("lib");

    let shared = format!("libmemferry.so.{version}");
    copy(&built.join("libmemferry_c.so"), &lib.join(&shared))?;
    link(&shared, &lib.join(format!("libmemferry.so.{minor}")))?;
    link(&shared, &lib.join("libmemferry.so"))?;
    copy(&built.join("libmemferry_c.a"), &lib.join("libmemferry.a"))?;
    for header in ["memferry.h", "memferry.hpp"] {
        copy(&include.join(header), &prefix.join("include").join(header))?;
    }
    let cmake = lib.join("cmake/Memferry");
    for (template, target) in [
        ("memferry.pc", lib.join("pkgconfig/memferry.pc")),
        ("MemferryConfig.cmake", cmake.join("MemferryConfig.cmake")),
        ("MemferryConfigVersion.cmake", cmake.join("MemferryConfigVersion.cmake")),
    ] {
        let text = read(&templates.join(template))?;
        let text = text.replace("@VERSION@", version).replace("@PREFIX@", &prefix.to_string_lossy());
        write(&target, text.as_bytes())?;
    }
    eprintln!("installed below {}", prefix.display());
    Ok(())
}

/// Where CI has the library installed.
pub(crate) fn installed_prefix() -> PathBuf {
    target_directory().join("ci/c/prefix")
}

/// Installs the library below the target directory and uses it as programs do: by pkg-config, by CMake, in the benchmark.
/// The directory starts empty: CMake refuses a build directory that was made from another checkout.
pub(crate) fn try_installed() -> Result<(), Failure> {
    let prefix = installed_prefix();
    let directory = prefix.with_file_name("");
    empty_directory(&directory)?;
    install(&["--debug".to_owned(), "--prefix".to_owned(), prefix.display().to_string()])?;
    let found = program("pkg-config")
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .args(["--cflags", "--libs", "memferry"])
        .output()?;
    let example = directory.join("example").display().to_string();
    let source = package().join("examples/example.c").display().to_string();
    program("cc").args([source.as_str(), "-o", &example]).args(found.split_whitespace()).run()?;
    program(&example).env("LD_LIBRARY_PATH", prefix.join("lib")).run()?;

    let built = directory.join("cmake").display().to_string();
    let project = package().join("tests/cmake").display().to_string();
    program("cmake")
        .args(["-S", &project, "-B", &built])
        .arg(&format!("-DCMAKE_PREFIX_PATH={}", prefix.display()))
        .run()?;
    program("cmake").args(["--build", &built]).run()?;
    for name in ["example", "example_static", "pipeline"] {
        program(&format!("{built}/{name}")).run()?;
    }
    let prefix = prefix.display().to_string();
    cargo(["run", "--locked", "--", "bench", "bindings", "--quick", "--prefix", &prefix]).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step that compares the header in CI.
    #[test]
    fn the_header_is_that_of_the_crate() {
        header(&["--check".to_owned()]).unwrap();
    }

    #[test]
    fn differences_name_the_line() {
        assert!(check("a\nb\n", "a\nb\n").is_ok());
        let error = check("a\nb\n", "a\nc\n").unwrap_err().to_string();
        assert!(error.contains("line 2: `b` should be `c`"), "{error}");
        let error = check("a\n", "a\nc\n").unwrap_err().to_string();
        assert!(error.contains("line 2: `the end` should be `c`"), "{error}");
    }

    #[test]
    fn arguments_of_install() {
        let parse = |line: &str| Install::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let install = parse("--prefix /opt/x --debug").unwrap();
        assert_eq!(install, Install { prefix: "/opt/x".into(), profile: "dev" });
        assert_eq!(parse("--prefix /opt/x").unwrap().profile, "release");
        for wrong in ["--debug", "--prefix", "--prefix /x --fast"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

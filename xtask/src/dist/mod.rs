//! `cargo xtask dist`: a Debian package and an archive of the command, and bills of materials.
//!
//! The archive has a static command. Only the last step of the build differs: the libraries of Rust are linked into one
//! program in both, and the C library only in the static one. So the dependencies are compiled once, and the embedded preload
//! libraries, which must be dynamic, stay so.
//!
//! Reasons: `docs/decisions/packages.md`.

mod debian;
mod sbom;
pub(crate) mod trial;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::cargo_packages::{self, Id, Package, Packages};
use crate::files::{copy, empty_directory, failed, files_below, read, write};
use crate::licences;
use crate::shell::{self, Failure, cargo, program, root, target_directory};

const COMMAND: &str = "memferry-cli";

/// The programs of the distribution that this chore calls.
const PROGRAMS: &[&str] =
    &["dpkg-deb", "dpkg-shlibdeps", "strip", "gzip", "tar", "md5sum", "sha256sum", "getconf", "gcc"];

/// The licence that the C library of a static command has.
const LGPL: &str = "/usr/share/common-licenses/LGPL-2.1";

/// Options of the chore.
#[derive(Debug, PartialEq)]
struct Options {
    profile: String,
    out: PathBuf,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options, Failure> {
        let mut options = Options { profile: "release".to_owned(), out: target_directory().join("dist") };
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            match (option.as_str(), rest.next()) {
                ("--profile", Some(profile)) => options.profile.clone_from(profile),
                ("--out", Some(directory)) => {
                    options.out = std::path::absolute(directory)
                        .map_err(|error| Failure(format!("--out {directory}: {error}")))?;
                }
                _ => {
                    let usage = "pass --profile NAME and --out DIR, or neither";
                    return Err(Failure(format!("{option} is not understood; {usage}")));
                }
            }
        }
        Ok(options)
    }
}

/// The files that the chore has made.
struct Made {
    package: PathBuf,
    archive: PathBuf,
    bill: PathBuf,
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    make(&Options::parse(arguments)?).map(drop)
}

fn make(options: &Options) -> Result<Made, Failure> {
    if let Some(missing) = PROGRAMS.iter().find(|program| !shell::is_installed(program)) {
        return Err(Failure(format!(
            "{missing} is not installed; run `cargo xtask setup` on Debian or Ubuntu"
        )));
    }
    let (out, version) = (&options.out, env!("CARGO_PKG_VERSION"));
    let epoch = epoch()?;
    let packages = Packages::read()?;
    let target = cargo_packages::host()?;
    let contents = |linking| Contents::build(&packages, &options.profile, linking, &epoch, &target);
    let staging = out.join("staging");
    empty_directory(&staging)?;

    // First, because the other build then leaves its command in the target directory, where `cargo run` expects it.
    let name = format!("memferry-{version}-{}-linux-static", std::env::consts::ARCH);
    contents(Linking::Static)?.place(&staging.join(&name), "share/zsh/site-functions")?;
    let archive = out.join(format!("{name}.tar.gz"));
    pack(&staging, &name, &epoch, &archive)?;

    let tree = staging.join("debian");
    let contents = contents(Linking::Dynamic)?;
    contents.place(&tree.join("usr"), "share/zsh/vendor-completions")?;
    let package = debian::build(&tree, version, &epoch, out)?;

    let bill = out.join(format!("memferry-{version}.cdx.json"));
    write(&bill, &json(&contents.bill))?;
    empty_directory(&staging)?;
    std::fs::remove_dir(&staging).map_err(|error| failed("remove", &staging, &error))?;
    let made = [&package, &archive, &bill].map(|file| file.file_name().unwrap_or_default().to_owned());
    let sums = program("sha256sum").directory(out).args(made).output()?;
    write(&out.join("SHA256SUMS"), sums.as_bytes())?;
    print!("{sums}");
    eprintln!("the files are in {}", out.display());
    Ok(Made { package, archive, bill })
}

/// Whether the command contains the C library.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Linking {
    Dynamic,
    Static,
}

/// The files of an installation.
struct Contents {
    linking: Linking,
    command: PathBuf,
    /// The shared libraries that the command contains: name and file.
    libraries: Vec<(String, PathBuf)>,
    bill: Value,
    licences: String,
}

impl Contents {
    fn build(
        packages: &Packages,
        profile: &str,
        linking: Linking,
        epoch: &str,
        target: &str,
    ) -> Result<Contents, Failure> {
        let build = ["rustc", "--locked", "--package", COMMAND, "--bin", "memferry", "--profile", profile];
        let mut build = cargo(build).arg("--message-format=json-render-diagnostics");
        if linking == Linking::Static {
            // For the command alone, not for its dependencies: rustc makes no cdylib with this feature.
            build = build.args(["--", "-C", "target-feature=+crt-static"]);
        }
        let messages =
            build.output().map_err(|_| Failure("cannot build the command, see above".to_owned()))?;
        let built = Built::read(&messages, packages)?;
        let command = packages.named(COMMAND)?;
        let contained = packages.contained(&command.id, &built.packages);
        licences::check(packages.select(&contained).into_iter())?;
        let parts = parts(linking)?;
        let bill = sbom::bill(packages, command, &contained, &parts, &rfc3339(epoch)?, target)?;
        let of_others: Vec<&Package> =
            packages.select(&contained).into_iter().filter(|package| package.checksum.is_some()).collect();
        let licences = licences::texts(&of_others)?;
        Ok(Contents { linking, command: built.command, libraries: built.libraries, bill, licences })
    }

    /// Writes the files below a prefix such as `usr`. `zsh` is the directory of zsh's functions.
    fn place(&self, prefix: &Path, zsh: &str) -> Result<(), Failure> {
        let command = prefix.join("bin/memferry");
        strip(&self.command, &command)?;
        for (name, file) in &self.libraries {
            let library = prefix.join("lib/memferry").join(name);
            strip(file, &library)?;
            program("chmod").arg("a-x").args([library]).run()?;
        }
        let command = command.display().to_string();
        let completions = [
            ("bash", "share/bash-completion/completions/memferry".to_owned()),
            ("fish", "share/fish/vendor_completions.d/memferry.fish".to_owned()),
            ("zsh", format!("{zsh}/_memferry")),
        ];
        for (shell, file) in completions {
            let script = program(&command).args(["completions", shell]).output()?;
            write(&prefix.join(file), script.as_bytes())?;
        }
        let man = prefix.join("share/man/man1");
        program(&command).arg("man").args([&man]).run()?;

        let documents = prefix.join("share/doc/memferry");
        copy(&root().join("CHANGELOG.md"), &documents.join("changelog"))?;
        write(&documents.join("third-party-licences"), self.licences.as_bytes())?;
        write(&documents.join("memferry.cdx.json"), &json(&self.bill))?;
        program("gzip").arg("-9n").args(files_below(&man)?).args(files_below(&documents)?).run()?;
        // The files that Debian wants uncompressed.
        let copyright = debian::copyright(&read(&root().join("LICENSE-MIT"))?)?;
        write(&documents.join("copyright"), copyright.as_bytes())?;
        if self.linking == Linking::Static {
            copy(&root().join("LICENSE-APACHE"), &documents.join("LICENSE-APACHE"))?;
            copy(Path::new(LGPL), &documents.join("LGPL-2.1"))?;
        }
        // Whatever the umask is.
        program("chmod").args(["-R", "u=rwX,go=rX"]).args([prefix]).run()
    }
}

/// The results of a build, from cargo's messages.
#[derive(Debug, PartialEq)]
struct Built {
    command: PathBuf,
    libraries: Vec<(String, PathBuf)>,
    /// All packages that were compiled, also those of macros and build scripts.
    packages: BTreeSet<Id>,
}

impl Built {
    fn read(messages: &str, packages: &Packages) -> Result<Built, Failure> {
        let own: BTreeSet<&Id> =
            packages.all().filter(|package| package.checksum.is_none()).map(|package| &package.id).collect();
        let mut built = Built { command: PathBuf::new(), libraries: Vec::new(), packages: BTreeSet::new() };
        for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if message["reason"] != "compiler-artifact" {
                continue;
            }
            let id = message["package_id"].as_str().unwrap_or_default().to_owned();
            let target = &message["target"];
            if let (Some(command), "memferry") =
                (message["executable"].as_str(), target["name"].as_str().unwrap_or_default())
            {
                built.command = command.into();
            }
            let is_library = target["kind"].as_array().into_iter().flatten().any(|kind| kind == "cdylib");
            if is_library && own.contains(&id) {
                let files = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let name = format!("lib{}.so", target["name"].as_str().unwrap_or_default().replace('-', "_"));
                built.libraries.extend(
                    files
                        .filter(|file| file.ends_with(".so"))
                        .take(1)
                        .map(|file| (name.clone(), file.into())),
                );
            }
            built.packages.insert(id);
        }
        if built.command.as_os_str().is_empty() || built.libraries.is_empty() {
            let missing = "cargo's messages do not name the command and the libraries that it contains";
            return Err(Failure(format!("{missing}; adapt xtask/src/dist/mod.rs to this version of cargo")));
        }
        Ok(built)
    }
}

/// What a command contains beside packages: the standard library of Rust, and the libraries of the C compiler.
fn parts(linking: Linking) -> Result<Vec<sbom::Part>, Failure> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let second = |text: String| text.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let version = second(program(&rustc).arg("--version").output()?);
    let mut parts = vec![sbom::Part { name: "rust-std", version, license: "MIT OR Apache-2.0" }];
    if linking == Linking::Static {
        let version = second(program("getconf").arg("GNU_LIBC_VERSION").output()?);
        parts.push(sbom::Part { name: "glibc", version, license: "LGPL-2.1-or-later" });
        let version = program("gcc").arg("-dumpfullversion").output()?.trim().to_owned();
        let license = "GPL-3.0-or-later WITH GCC-exception-3.1";
        parts.push(sbom::Part { name: "libgcc", version, license });
    }
    Ok(parts)
}

/// Copies a program or library without the symbols that only debuggers read.
fn strip(from: &Path, to: &Path) -> Result<(), Failure> {
    let directory = to.parent().expect("files are in directories");
    std::fs::create_dir_all(directory).map_err(|error| failed("make", directory, &error))?;
    program("strip").args(["--strip-unneeded", "-o"]).args([to, from]).run()
}

/// Makes an archive of a directory that is the same for the same files.
fn pack(parent: &Path, name: &str, epoch: &str, archive: &Path) -> Result<(), Failure> {
    program("tar")
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--use-compress-program=gzip -n"])
        .args([format!("--mtime=@{epoch}")])
        .args(["--create", "--file"])
        .args([archive])
        .arg("--directory")
        .args([parent])
        .arg(name)
        .run()
}

/// The time of files and bills, in seconds: of the commit, or `SOURCE_DATE_EPOCH`, so that a second build makes the same
/// files. Outside of a checkout, now.
fn epoch() -> Result<String, Failure> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(given) => given,
        Err(_) => match program("git").args(["log", "-1", "--format=%ct"]).output() {
            Ok(time) => time.trim().to_owned(),
            Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs()).to_string(),
        },
    };
    match seconds.parse::<u64>() {
        Ok(_) => Ok(seconds),
        Err(_) => Err(Failure(format!("SOURCE_DATE_EPOCH is {seconds:?} and not a number of seconds"))),
    }
}

fn rfc3339(epoch: &str) -> Result<String, Failure> {
    let time =
        program("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"]).arg(&format!("--date=@{epoch}")).output()?;
    Ok(time.trim().to_owned())
}

fn json(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo_packages::tests::example;

    #[test]
    fn arguments_of_dist() {
        let parse =
            |line: &str| Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("").unwrap().profile, "release");
        let expected = Options { profile: "dev".to_owned(), out: "/tmp/x".into() };
        assert_eq!(parse("--out /tmp/x --profile dev").unwrap(), expected);
        for wrong in ["--profile", "--out", "--fast yes", "x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_of_a_build() {
        let message = |package: &str, kind: &str, name: &str, rest: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{package}#1.0.0","target":{{"kind":["{kind}"],"name":"{name}"}},{rest}}}"#
            )
        };
        let messages = [
            message("library", "cdylib", "other", r#""filenames":["/t/libother.so"],"executable":null"#),
            message(
                "command",
                "cdylib",
                "a-preload",
                r#""filenames":["/t/liba-1.rlib","/t/liba-1.so"],"executable":null"#,
            ),
            message(
                "command",
                "bin",
                "memferry",
                r#""filenames":["/t/memferry"],"executable":"/t/memferry""#,
            ),
            "not JSON".to_owned(),
        ];
        let built = Built::read(&messages.join("\n"), &example()).unwrap();
        assert_eq!(built.command, Path::new("/t/memferry"));
        assert_eq!(built.libraries, [("liba_preload.so".to_owned(), PathBuf::from("/t/liba-1.so"))]);
        assert_eq!(built.packages.len(), 2);
        let error = Built::read(&messages[2], &example()).unwrap_err().to_string();
        assert!(error.contains("this version of cargo"), "{error}");
    }
}

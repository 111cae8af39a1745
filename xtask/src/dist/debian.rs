//! The Debian package: a tree of files with a description, by dpkg's own programs.
//!
//! Source: Debian Policy 5.3, 8.6, 12.5; deb-control(5), deb-substvars(5).

use std::fs;
use std::path::{Path, PathBuf};

use crate::files::{self, files_below, write};
use crate::shell::{Failure, program};

/// The text below the one-line description, in the format of a control file.
const DESCRIPTION: &str = " memferry copies data between DDR, HBM, remote NUMA nodes, CXL and persistent
 memory while a program computes, with the Data Streaming Accelerator (DSA) of
 Intel's processors or with chosen cores.
 .
 The command runs SQL queries that read ahead, emulates DSA devices for
 unmodified programs, configures devices, finds what hinders them, and models
 and measures machines.
";

/// Packages whose programs memferry's guides use, and those of `memferry machine boot`.
const SUGGESTED: &str = "accel-config, pciutils, qemu-system-x86, xz-utils, zstd";

/// The architecture of this machine, as Debian names it.
pub(crate) fn architecture() -> Result<String, Failure> {
    Ok(program("dpkg").arg("--print-architecture").output()?.trim().to_owned())
}

/// Makes the package of a tree, which has `usr`, in `out`. Adds `DEBIAN` to the tree. Returns the file.
pub(crate) fn build(tree: &Path, version: &str, epoch: &str, out: &Path) -> Result<PathBuf, Failure> {
    let architecture = architecture()?;
    let files = files_below(tree)?;
    let depends = libraries(tree, &files, &architecture)?;
    let control = control(version, &architecture, &maintainer(), &depends, installed_kib(&files)?);
    write(&tree.join("DEBIAN/control"), control.as_bytes())?;
    let names = files.iter().map(|file| file.strip_prefix(tree).unwrap_or(file));
    let sums = program("md5sum").directory(tree).args(names).output()?;
    write(&tree.join("DEBIAN/md5sums"), sums.as_bytes())?;
    let package = out.join(format!("memferry_{version}_{architecture}.deb"));
    // Debian's dpkg reads zstd since 12, Ubuntu's since 18.04. It takes a tenth of the time of xz.
    program("dpkg-deb")
        .env("SOURCE_DATE_EPOCH", epoch)
        .args(["--root-owner-group", "-Zzstd", "--build"])
        .args([tree, &package])
        .run()?;
    Ok(package)
}

fn control(version: &str, architecture: &str, maintainer: &str, depends: &str, kib: u64) -> String {
    format!(
        "Package: memferry\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {maintainer}\n\
         Installed-Size: {kib}\nDepends: {depends}\nSuggests: {SUGGESTED}\nSection: utils\nPriority: optional\n\
         Description: move data between memory tiers, with Intel DSA or without\n{DESCRIPTION}"
    )
}

/// The one who builds the package, as Debian's tools name them: DEBFULLNAME and DEBEMAIL.
fn maintainer() -> String {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let name = variable("DEBFULLNAME").unwrap_or_else(|| "The memferry authors".to_owned());
    let address = variable("DEBEMAIL").unwrap_or_else(|| "memferry@localhost".to_owned());
    format!("{name} <{address}>")
}

/// The packages of the shared libraries that the programs of the tree need, with versions: dpkg-shlibdeps looks at the
/// symbols that they use.
fn libraries(tree: &Path, files: &[PathBuf], architecture: &str) -> Result<String, Failure> {
    let source = tempfile::tempdir().map_err(|error| Failure(format!("cannot make a directory: {error}")))?;
    let control = format!("Source: memferry\n\nPackage: memferry\nArchitecture: {architecture}\n");
    write(&source.path().join("debian/control"), control.as_bytes())?;
    let programs = files
        .iter()
        .filter(|file| ["usr/bin", "usr/lib"].iter().any(|directory| file.starts_with(tree.join(directory))));
    let variables = program("dpkg-shlibdeps").directory(source.path()).arg("-O").args(programs).output()?;
    let depends = variables.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    depends.map(str::to_owned).ok_or_else(|| {
        Failure(format!("dpkg-shlibdeps found no library that the programs need: {variables:?}"))
    })
}

/// The size of files in KiB; each is rounded up.
fn installed_kib(files: &[PathBuf]) -> Result<u64, Failure> {
    let size = |file: &PathBuf| {
        let size = fs::metadata(file).map(|it| it.len().div_ceil(1024));
        size.map_err(|error| files::failed("read", file, &error))
    };
    files.iter().map(size).sum()
}

/// `usr/share/doc/memferry/copyright`, in the machine-readable format of Debian.
pub(crate) fn copyright(mit: &str) -> Result<String, Failure> {
    let broken = || Failure("LICENSE-MIT has no line with Copyright".to_owned());
    let holder = mit.lines().find_map(|line| line.strip_prefix("Copyright ")).ok_or_else(broken)?;
    let indented = mit.lines().map(|line| if line.is_empty() { " .\n".into() } else { format!(" {line}\n") });
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: memferry\n\
         Comment:\n The command contains the packages of memferry.cdx.json.gz. Their licences are in\n \
         third-party-licences.gz.\n\n\
         Files: *\nCopyright: {holder}\nLicense: Apache-2.0 or Expat\n\n\
         License: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n\n\
         License: Expat\n{}",
        indented.collect::<String>()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_files_have_the_fields_of_the_policy() {
        let control = control("1.2.3", "amd64", "A <a@example.org>", "libc6 (>= 2.34)", 17);
        for line in ["Package: memferry", "Version: 1.2.3", "Depends: libc6 (>= 2.34)", "Installed-Size: 17"]
        {
            assert!(control.lines().any(|it| it == line), "{line} is not in:\n{control}");
        }
        // A line of the long description begins with a space, and an empty one is a dot.
        let (_, long) = control.split_once("Description: ").unwrap();
        assert!(long.lines().skip(1).all(|line| line.starts_with(' ') && line.len() <= 80), "{long}");
    }

    #[test]
    fn the_copyright_file_has_the_licence_of_this_project() {
        let mit = fs::read_to_string(crate::shell::root().join("LICENSE-MIT")).unwrap();
        let copyright = copyright(&mit).unwrap();
        assert!(copyright.contains("\nLicense: Expat\n ") && copyright.contains("\n .\n"), "{copyright}");
        assert!(super::copyright("no holder").is_err());
    }
}

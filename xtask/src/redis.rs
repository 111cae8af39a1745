//! The source package of the installed redis, which has its test suite. The tests of `memferry offload` run it.

use std::fs;
use std::path::{Path, PathBuf};

use memferry_guest::apt::{Apt, Release, archive};

use crate::shell::{self, Failure, program};

/// The file with the version of the kept source.
const VERSION: &str = "version";
/// The name of the kept source.
const SOURCE: &str = "source";

/// Fetches and unpacks the source of the installed version into the cache directory, unless it is there.
pub(crate) fn fetch() -> Result<(), Failure> {
    let installed =
        program("dpkg-query").args(["--show", "--showformat", "${source:Version}", "redis-server"]);
    let version = installed.output().map_err(|_| {
        Failure("redis-server is no Debian package here, so its test suite cannot be fetched".to_owned())
    })?;
    let directory = shell::cache("redis")?;
    if fs::read_to_string(directory.join(VERSION)).is_ok_and(|kept| kept == version) {
        return Ok(());
    }
    eprintln!(
        "the source of redis {version} is missing, whose test suite the tests of `memferry offload` run"
    );
    let failed = |error| Failure(format!("cannot write below {}: {error}", directory.display()));
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(failed)?;
    }
    let apt = Apt::new(&directory)?;
    apt.limit_to(&sources(&Release::of_this_machine(), &apt.indices()?)?)?;
    apt.update()?;
    apt.call("apt-get").args(["-q", "source", &format!("redis={version}")]).run().map_err(|failure| {
        Failure(format!("{failure}; if the archive has another version by now, upgrade redis-server"))
    })?;
    fs::rename(unpacked(&directory)?, directory.join(SOURCE)).map_err(failed)?;
    fs::write(directory.join(VERSION), version).map_err(failed)
}

/// The source packages of this machine's release, its updates and its security updates.
fn sources(release: &Release, indices: &str) -> Result<String, Failure> {
    let missing = || Failure("no apt source of this machine has source packages of redis".to_owned());
    let base = release.field("VERSION_CODENAME").ok_or_else(missing)?;
    let keys = release.keys().ok_or_else(missing)?;
    let mut sources = String::new();
    for suffix in ["", "-updates", "-security"] {
        for component in ["main", "universe"] {
            let suite = format!("{base}{suffix}");
            if let Some(archive) = archive(indices, &suite, component) {
                sources += &format!(
                    "Types: deb-src\nURIs: {archive}\nSuites: {suite}\nComponents: {component}\nSigned-By: {keys}\n\n"
                );
            }
        }
    }
    if sources.is_empty() { Err(missing()) } else { Ok(sources) }
}

/// The directory that `apt-get source` has made.
fn unpacked(directory: &Path) -> Result<PathBuf, Failure> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found = entries.filter(|path| path.join("runtest").is_file());
    found.next().ok_or_else(|| {
        Failure(format!("the source package of redis has no test suite; see {}", directory.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_packages_come_from_all_suites_of_the_release() {
        let release = Release::parse("ID=debian\nVERSION_CODENAME=bookworm\n".to_owned());
        let indices = "'scheme://a/dists/bookworm/main/binary-amd64/Packages.xz' a 0 \n\
                       'scheme://b/dists/bookworm-security/main/binary-amd64/Packages.xz' b 0 \n\
                       'scheme://c/dists/bookworm-pgdg/main/binary-amd64/Packages.xz' c 0 \n";
        let sources = sources(&release, indices).unwrap();
        assert_eq!(sources.matches("Types: deb-src\n").count(), 2, "{sources}");
        assert!(
            sources.contains("URIs: scheme://b\nSuites: bookworm-security\nComponents: main\n"),
            "{sources}"
        );
        assert!(super::sources(&release, "").is_err());
    }
}

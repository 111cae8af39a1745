//! apt with a state directory and a source file of our own. Packages are fetched from this machine's own archive with their
//! signatures; nothing is installed, and apt's own state does not change.
//!
//! Source: `apt-get(8)`, `sources.list(5)`, `os-release(5)`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::tools::Call;

/// The content of os-release.
pub struct Release(String);

impl Release {
    /// That of this machine; empty if it has none.
    pub fn of_this_machine() -> Release {
        Release(fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// A release with this content of os-release.
    pub fn parse(text: String) -> Release {
        Release(text)
    }

    /// The value of a field, without quotes.
    pub fn field(&self, name: &str) -> Option<String> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    }

    /// The key ring that the distribution signs its archive with.
    pub fn keys(&self) -> Option<&'static str> {
        match self.field("ID")?.as_str() {
            "debian" => Some("/usr/share/keyrings/debian-archive-keyring.gpg"),
            "ubuntu" => Some("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
            _ => None,
        }
    }
}

/// apt, limited to packages of one source file.
pub struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// Keeps its state below `directory`, where its programs run.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn new(directory: &Path) -> Result<Apt, Error> {
        let create = |path: &str| fs::create_dir_all(directory.join(path));
        create("state/lists/partial")
            .and_then(|()| create("cache/archives/partial"))
            .and_then(|()| fs::write(directory.join("state/status"), ""))
            .map_err(|error| not_written(directory, &error))?;
        Ok(Apt { directory: directory.to_owned() })
    }

    /// The addresses of the indices of this machine's sources, as `apt-get --print-uris update` prints them.
    ///
    /// # Errors
    /// apt-get cannot be run, or fails.
    pub fn indices(&self) -> Result<String, Error> {
        self.with_state("apt-get").args(["--print-uris", "update"]).output()
    }

    /// Writes the source file, in the deb822 format.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn limit_to(&self, sources: &str) -> Result<(), Error> {
        fs::write(self.sources(), sources).map_err(|error| not_written(&self.directory, &error))
    }

    /// Fetches the lists of the source file.
    ///
    /// # Errors
    /// A list cannot be fetched, or its signature is wrong.
    pub fn update(&self) -> Result<(), Error> {
        // By default apt only warns about a list that it cannot fetch.
        self.call("apt-get").args(["-q", "-o", "APT::Update::Error-Mode=any", "update"]).run()
    }

    /// A program of apt, limited to the source file and to signed packages.
    pub fn call(&self, program: &str) -> Call {
        let options = [
            format!("Dir::Etc::sourcelist={}", self.sources().display()),
            "Dir::Etc::sourceparts=-".to_owned(),
            "Acquire::AllowInsecureRepositories=false".to_owned(),
            "APT::Get::AllowUnauthenticated=false".to_owned(),
        ];
        self.with_state(program).args(options.iter().flat_map(|option| ["-o", option]))
    }

    fn sources(&self) -> PathBuf {
        self.directory.join("memferry.sources")
    }

    fn with_state(&self, program: &str) -> Call {
        let at = |name: &str, path: &str| format!("{name}={}", self.directory.join(path).display());
        let options = [
            at("Dir::State", "state"),
            at("Dir::State::status", "state/status"),
            at("Dir::Cache", "cache"),
            // apt's unprivileged user cannot write to this user's cache: apt would go on as root and warn.
            "APT::Sandbox::User=root".to_owned(),
        ];
        let call = Call::new(program).directory(&self.directory);
        call.args(options.iter().flat_map(|option| ["-o", option]))
    }
}

fn not_written(directory: &Path, error: &std::io::Error) -> Error {
    Error::Kernel(format!("cannot write below {}: {error}", directory.display()))
}

/// The archive with a component of a suite, from the addresses of indices.
///
/// Other archives have suites of the same name, but no such component.
pub fn archive<'a>(indices: &'a str, suite: &str, component: &str) -> Option<&'a str> {
    let index = format!("/dists/{suite}/{component}/binary-");
    indices.lines().find_map(|line| Some(line.strip_prefix('\'')?.split_once(&index)?.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_the_one_with_the_suite() {
        let indices = "'scheme://other/dists/bookworm/InRelease' other 0 \n\
                       'scheme://other/dists/bookworm/nonfree/binary-amd64/Packages.xz' other 0 \n\
                       'scheme://host/x/dists/bookworm-updates/main/binary-amd64/Packages.xz' host 0 \n\
                       'scheme://host/y/dists/bookworm/main/binary-amd64/Packages.xz' host 0 \n";
        assert_eq!(archive(indices, "bookworm", "main"), Some("scheme://host/y"));
        assert_eq!(archive(indices, "bookworm", "nonfree"), Some("scheme://other"));
        assert_eq!(archive(indices, "trixie", "main"), None);
    }

    #[test]
    fn releases_have_fields_and_keys() {
        let release = Release::parse("NAME=\"Debian GNU/Linux\"\nID=debian\nVERSION_ID=\"12\"\n".to_owned());
        assert_eq!(release.field("VERSION_ID").as_deref(), Some("12"));
        assert_eq!(release.field("VERSION"), None);
        assert!(release.keys().is_some_and(|keys| keys.contains("debian")));
        assert_eq!(Release::parse("ID=fedora\n".to_owned()).keys(), None);
    }
}

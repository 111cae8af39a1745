//! Test binaries: cargo builds them, and each lists its tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::shell::{Failure, cargo};

/// A program that cargo has built.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Binary {
    /// Name of the cargo target, for example `numa_discovery`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) is_test: bool,
}

/// Builds the tests that `selection` names, and the programs that they need.
pub(crate) fn build(selection: &[&str]) -> Result<Vec<Binary>, Failure> {
    let messages = cargo(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .args(selection)
        .output()
        // The failure's text is JSON for programs; cargo has printed the readable messages.
        .map_err(|_| Failure("cannot build the tests, see above".to_owned()))?;
    Ok(read(&messages))
}

/// Programs in cargo's messages, one JSON object per line.
fn read(messages: &str) -> Vec<Binary> {
    let objects = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let binary = |object: Value| {
        let path = object["executable"].as_str()?.into();
        let is_test = object["profile"]["test"] == true;
        Some(Binary { name: object["target"]["name"].as_str()?.to_owned(), path, is_test })
    };
    objects.filter_map(binary).collect()
}

/// The names of a binary's tests that match `arguments`, libtest's filters and options.
pub(crate) fn tests<A: AsRef<std::ffi::OsStr>>(
    binary: &Path,
    arguments: impl IntoIterator<Item = A>,
) -> Result<Vec<String>, Failure> {
    let listing = Command::new(binary).args(arguments).args(["--list", "--format", "terse"]).output();
    let listing =
        listing.map_err(|error| Failure(format!("{}: {error}; build it again", binary.display())))?;
    if !listing.status.success() {
        return Err(Failure(format!("{} does not list its tests ({})", binary.display(), listing.status)));
    }
    let text = String::from_utf8_lossy(&listing.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_in_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"memferry"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"numa_a"},"profile":{"test":true},"executable":"/t/numa_a-1"}
{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"memferry"},"profile":{"test":false},"executable":"/t/memferry"}
{"reason":"build-finished","success":true}
not JSON"#;
        let binary =
            |name: &str, path: &str, is_test| Binary { name: name.into(), path: path.into(), is_test };
        assert_eq!(
            read(messages),
            [binary("numa_a", "/t/numa_a-1", true), binary("memferry", "/t/memferry", false)]
        );
        assert_eq!(read(""), []);
    }

    #[test]
    fn tests_of_a_binary_are_listed() {
        let this = std::env::current_exe().unwrap();
        let name = "binaries::tests::tests_of_a_binary_are_listed";
        assert_eq!(tests(&this, ["tests_of_a_binary_are_listed"]).unwrap(), [name]);
        assert!(tests(&this, ["no-such-test"]).unwrap().is_empty());
        assert!(tests(&this, [""; 0]).unwrap().len() > 1);
        let error = tests(Path::new("/nowhere/numa_x"), [""; 0]).unwrap_err().to_string();
        assert!(error.contains("/nowhere/numa_x"), "{error}");
    }
}

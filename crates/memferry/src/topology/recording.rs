//! The files of a machine in memory, or as one JSON file.
//!
//! ```json
//! {
//!   "sys/devices/system/node/online": "0-15\n",
//!   "sys/bus/dax/devices/dax0.0": {"link": "../../../devices/platform/hmem.0/dax0.0"},
//!   "dev/dsa/wq0.0": {"mode": 384, "user": 0, "group": 0}
//! }
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use memferry_dsa::internals::system::{Directory, Files, Owner};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::TopologyError;

/// A tree in memory with the files that memferry reads: those of topologies, of DSA devices, and of free memory.
///
/// It contains the host name; [`with_name`](Recording::with_name) replaces it before you publish a recording. It also
/// contains the model of the CPU, the release of the kernel, and the user and cgroup of the recording process.
///
/// ```
/// use memferry::Machine;
/// use memferry::internals::Recording;
///
/// let recording = Recording::of("/")?.with_name("a laptop");
/// let json = serde_json::to_string_pretty(&recording)?;
/// let again: Recording = serde_json::from_str(&json)?;
/// assert_eq!(Machine::discover_in(&again)?.name(), "a laptop");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Recording {
    pub(super) entries: BTreeMap<String, Entry>,
    /// The file of origin.
    #[serde(skip)]
    file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Entry {
    Text(String),
    Link(Link),
    Device(CharacterDevice),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub(super) link: String,
}

/// The owner of a character device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CharacterDevice {
    /// Permission bits.
    pub(super) mode: u32,
    pub(super) user: u32,
    pub(super) group: u32,
}

/// Limit of a file. A machine with 1024 CPUs and as many nodes takes less.
const JSON_BYTES_MAX: usize = 64 << 20;

/// Limit of followed links; that of Linux (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

impl Recording {
    /// Reads the JSON file of a recording.
    ///
    /// # Errors
    /// [`TopologyError::Read`], [`Recording`](TopologyError::Recording).
    pub fn open(file: impl AsRef<Path>) -> Result<Recording, TopologyError> {
        let path = file.as_ref().to_owned();
        let advice = "give the JSON file of a recording, or a directory with sys and proc in it";
        let read = || -> io::Result<Vec<u8>> {
            let bytes = Directory::below("").head(&path.to_string_lossy(), JSON_BYTES_MAX + 1)?;
            match bytes.len() > JSON_BYTES_MAX {
                true => Err(io::Error::new(ErrorKind::FileTooLarge, "it is longer than 64 MiB")),
                false => Ok(bytes),
            }
        };
        let bytes = read().map_err(|source| TopologyError::Read { path: path.clone(), source, advice })?;
        match serde_json::from_slice::<Recording>(&bytes) {
            Ok(recording) => Ok(Recording { file: Some(path), ..recording }),
            Err(source) => Err(TopologyError::Recording { path, source }),
        }
    }

    /// The paths of all files and links, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The path with links resolved; the last one only if `follow_last`.
    pub(super) fn resolve(&self, path: &str, follow_last: bool) -> io::Result<String> {
        // Nothing is below a link, so this is a path without links.
        if let Some(Entry::Text(_)) = self.entries.get(path) {
            return Ok(path.to_owned());
        }
        let mut todo: Vec<&str> = path.split('/').rev().collect();
        let mut done = String::new();
        let mut links_count = 0;
        while let Some(name) = todo.pop() {
            match name {
                "" | "." => continue,
                ".." => {
                    done.truncate(done.rfind('/').unwrap_or(0));
                    continue;
                }
                _ => {}
            }
            let directory_bytes = done.len();
            if !done.is_empty() {
                done.push('/');
            }
            done.push_str(name);
            match self.entries.get(&done) {
                Some(Entry::Text(_) | Entry::Device(_)) if !todo.is_empty() => {
                    return Err(ErrorKind::NotADirectory.into());
                }
                Some(Entry::Link(Link { link })) if follow_last || !todo.is_empty() => {
                    links_count += 1;
                    if links_count > LINKS_MAX {
                        return Err(io::Error::new(
                            ErrorKind::InvalidInput,
                            "too many links, perhaps in a circle",
                        ));
                    }
                    // An absolute link starts at the root of the recording.
                    done.truncate(if link.starts_with('/') { 0 } else { directory_bytes });
                    todo.extend(link.split('/').rev());
                }
                _ => {}
            }
        }
        Ok(done)
    }

    /// The names in a directory, with repetitions.
    fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = &'a str> {
        let start = format!("{directory}/");
        let range = (Bound::Included(start.clone()), Bound::Unbounded);
        self.entries
            .range::<String, _>(range)
            .map_while(move |(path, _)| path.strip_prefix(&start))
            .filter_map(|rest| rest.split('/').next())
    }

    fn missing(&self, path: &str) -> io::Error {
        match self.below(path).next() {
            Some(_) => ErrorKind::IsADirectory.into(),
            None => ErrorKind::NotFound.into(),
        }
    }
}

impl Files for Recording {
    fn name(&self) -> String {
        self.file.as_ref().map_or("the recording".to_owned(), |file| file.display().to_string())
    }

    fn head(&self, file: &str, size_bytes_max: usize) -> io::Result<Vec<u8>> {
        let path = self.resolve(file, true)?;
        match self.entries.get(&path) {
            Some(Entry::Text(text)) => Ok(text.as_bytes()[..text.len().min(size_bytes_max)].to_vec()),
            Some(Entry::Device(_)) => {
                Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"))
            }
            _ => Err(self.missing(&path)),
        }
    }

    fn entries(&self, directory: &str) -> io::Result<Vec<String>> {
        let path = self.resolve(directory, true)?;
        let mut names: Vec<String> = self.below(&path).map(str::to_owned).collect();
        names.dedup();
        match (names.is_empty(), self.entries.contains_key(&path)) {
            (true, true) => Err(ErrorKind::NotADirectory.into()),
            (true, false) => Err(ErrorKind::NotFound.into()),
            (false, _) => Ok(names),
        }
    }

    fn link(&self, path: &str) -> io::Result<String> {
        let path = self.resolve(path, false)?;
        match self.entries.get(&path) {
            Some(Entry::Link(Link { link })) => Ok(link.clone()),
            Some(Entry::Text(_) | Entry::Device(_)) => Err(ErrorKind::InvalidInput.into()),
            None => match self.missing(&path).kind() {
                ErrorKind::IsADirectory => Err(ErrorKind::InvalidInput.into()),
                kind => Err(kind.into()),
            },
        }
    }

    fn owner(&self, path: &str) -> io::Result<Owner> {
        let path = self.resolve(path, true)?;
        match self.entries.get(&path) {
            Some(&Entry::Device(CharacterDevice { mode, user, group })) => {
                Ok(Owner { mode, user, group, is_device: true })
            }
            _ => Err(ErrorKind::NotFound.into()),
        }
    }
}

/// Whether it is a relative path without `.` and `..`.
pub(super) fn is_path(path: &str) -> bool {
    path.split('/').all(|name| !matches!(name, "" | "." | ".."))
}

impl<'de> Deserialize<'de> for Recording {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Recording, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Recording;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "an object of paths and texts, {\"sys/devices/system/node/online\": \"0\\n\", ...}",
                )
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Recording, M::Error> {
                let mut entries = BTreeMap::new();
                while let Some((path, entry)) = map.next_entry::<String, Entry>()? {
                    if !is_path(&path) {
                        return Err(de::Error::custom(format_args!("{path:?} is not a path below a root")));
                    }
                    match entries.entry(path) {
                        Slot::Vacant(slot) => slot.insert(entry),
                        Slot::Occupied(slot) => {
                            return Err(de::Error::custom(format_args!("{:?} occurs twice", slot.key())));
                        }
                    };
                }
                let recording = Recording { entries, file: None };
                if let Some(path) = recording.paths().find(|path| recording.below(path).next().is_some()) {
                    return Err(de::Error::custom(format_args!("{path:?} is a file and a directory")));
                }
                Ok(recording)
            }
        }

        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Recording, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn links_are_followed() {
        let recording = parse(
            r#"{"bus/a": {"link": "../devices/x/a"}, "devices/x/a/size": "7\n", "bus/loop": {"link": "loop"},
                "devices/x/a/up": {"link": ".."}, "bus/root": {"link": "/devices"}, "bus/out": {"link": "../../../../devices"}}"#,
        )
        .unwrap();
        for path in
            ["bus/a/size", "devices/x/a/size", "bus/a/up/a/size", "bus/root/x/a/size", "bus/out/x/a/size"]
        {
            assert_eq!(recording.head(path, 100).unwrap(), b"7\n", "{path}");
        }
        assert_eq!(recording.head("bus/a/size", 1).unwrap(), b"7");
        assert_eq!(recording.entries("bus/a").unwrap(), ["size", "up"]);
        assert_eq!(recording.entries("bus").unwrap(), ["a", "loop", "out", "root"]);
        assert_eq!(recording.link("bus/a").unwrap(), "../devices/x/a");
        for (path, kind) in [
            ("bus/loop", ErrorKind::InvalidInput),
            ("bus/a", ErrorKind::IsADirectory),
            ("bus/a/size/x", ErrorKind::NotADirectory),
            ("bus/b", ErrorKind::NotFound),
            ("devices/x/a/siz", ErrorKind::NotFound),
        ] {
            assert_eq!(recording.head(path, 9).unwrap_err().kind(), kind, "{path}");
        }
        assert_eq!(recording.entries("bus/a/size").unwrap_err().kind(), ErrorKind::NotADirectory);
        assert_eq!(recording.link("devices/x").unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn invalid_trees_are_refused() {
        for (json, words) in [
            ("[]", "an object of paths and texts"),
            (r#"{"a": 1}"#, "did not match"),
            (r#"{"a": {"link": "b", "size": "1"}}"#, "did not match"),
            (r#"{"/etc/passwd": ""}"#, "not a path below a root"),
            (r#"{"a/../b": ""}"#, "not a path below a root"),
            (r#"{"": ""}"#, "not a path below a root"),
            (r#"{"a": "1", "a": "2"}"#, "\"a\" occurs twice"),
            (r#"{"a": "1", "a-b": "", "a/b": "2"}"#, "\"a\" is a file and a directory"),
            (r#"{"a": {"link": "x"}, "a/b": "2"}"#, "\"a\" is a file and a directory"),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.contains(words), "{json}: {error}");
        }
    }

    #[test]
    fn files_replace_conflicting_ones() {
        let mut recording = parse(r#"{"a": "1", "b/c": "2", "bc": "3"}"#).unwrap();
        recording.insert("a/x", "4");
        recording.insert("b", "5");
        assert_eq!(recording.paths().collect::<Vec<_>>(), ["a/x", "b", "bc"]);
        assert!(recording.remove("a") && !recording.remove("a"));
        assert_eq!(recording.paths().collect::<Vec<_>>(), ["b", "bc"]);
    }
}

//! The files of a machine in memory, and as one JSON file that can be sent to somebody.
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

use memferry_dsa::internals::system::Owner;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::tree::{Directory, Tree};
use super::{TopologyError, recorder};

/// A tree in memory, with nothing in it but what the readers of topologies and of DSA devices and the check for free
/// memory use.
///
/// It names the machine as it is called on its network: give it another name
/// ([`with_name`](Recording::with_name)) before showing it to others. What else may be private in it are the
/// model of the CPU, the kernel's release, and who made the recording in which cgroup.
///
/// ```
/// use memferry::topology::{Machine, Recording};
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
    entries: BTreeMap<String, Entry>,
    /// The file that it was read from.
    #[serde(skip)]
    file: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Entry {
    Text(String),
    Link(Link),
    Device(CharacterDevice),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    link: String,
}

/// Whom a character device belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CharacterDevice {
    /// Permission bits.
    mode: u32,
    user: u32,
    group: u32,
}

const HOST_NAME: &str = "proc/sys/kernel/hostname";

/// A machine with 1024 CPUs and as many nodes takes less.
const JSON_BYTES_MAX: usize = 64 << 20;

/// Followed before it is called a loop; the limit of Linux (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

impl Recording {
    /// Nothing.
    pub fn new() -> Recording {
        Recording::default()
    }

    /// What is of use of the tree below `root`; `/` records this machine.
    ///
    /// All small text attributes of DSA devices are taken, those that cannot be read left out. The name of the host
    /// gets into it, and the path of this process' cgroup, in which a user's number and a program's name may be; where
    /// there is a DSA also the user, the groups and the capabilities of this process, which decide what it may open.
    ///
    /// # Errors
    /// [`TopologyError::Read`] for a file that is there, is needed and cannot be read. A machine whose files
    /// contradict each other is recorded as it is.
    pub fn of(root: impl AsRef<Path>) -> Result<Recording, TopologyError> {
        recorder::record(&Directory::new(root.as_ref()))
    }

    /// Reads the JSON file of a recording.
    ///
    /// # Errors
    /// [`TopologyError::Read`], [`Recording`](TopologyError::Recording).
    pub fn open(file: impl AsRef<Path>) -> Result<Recording, TopologyError> {
        let path = file.as_ref().to_owned();
        let advice = "give the JSON file of a recording, or a directory with sys and proc in it";
        let read = || -> io::Result<Vec<u8>> {
            let bytes = Directory::new("").read(&path.to_string_lossy(), JSON_BYTES_MAX + 1)?;
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

    /// The same with another host name.
    pub fn with_name(mut self, name: &str) -> Recording {
        self.insert(HOST_NAME, &format!("{name}\n"));
        self
    }

    /// Puts a file there, with the directories it needs; replaces what was there and cannot be beside it.
    ///
    /// # Panics
    /// If `path` is no path such as `sys/devices/system/node/online`: relative, without `.` and `..`.
    pub fn insert(&mut self, path: &str, text: &str) {
        self.put(path, Entry::Text(text.to_owned()));
    }

    /// Puts a symbolic link there, as [`insert`](Recording::insert) puts a file.
    ///
    /// # Panics
    /// As [`insert`](Recording::insert).
    pub fn insert_link(&mut self, path: &str, target: &str) {
        self.put(path, Entry::Link(Link { link: target.to_owned() }));
    }

    /// Puts the character device of a work queue there, as [`insert`](Recording::insert) puts a file.
    ///
    /// # Panics
    /// As [`insert`](Recording::insert).
    pub fn insert_owner(&mut self, path: &str, owner: Owner) {
        let Owner { mode, user, group, .. } = owner;
        self.put(path, Entry::Device(CharacterDevice { mode, user, group }));
    }

    /// Takes a file, a link, or a directory with all that is in it away; whether there was such a thing.
    pub fn remove(&mut self, path: &str) -> bool {
        let count = self.entries.len();
        let below = format!("{path}/");
        self.entries.retain(|at, _| at != path && !at.starts_with(&below));
        self.entries.len() < count
    }

    /// The text of a file that is recorded under exactly this path.
    pub fn text(&self, path: &str) -> Option<&str> {
        match self.entries.get(path) {
            Some(Entry::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The paths of all files and links, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    fn put(&mut self, path: &str, entry: Entry) {
        assert!(is_path(path), "{path:?} is no path below a root");
        let below = format!("{path}/");
        self.entries.retain(|at, _| {
            let around = path.strip_prefix(at.as_str()).is_some_and(|rest| rest.starts_with('/'));
            !around && !at.starts_with(&below)
        });
        self.entries.insert(path.to_owned(), entry);
    }

    /// The path without links in it, except a last one that is not to be followed.
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

    /// What is below a directory, the first name of each, with repetitions.
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

impl Tree for Recording {
    fn name(&self) -> String {
        self.file.as_ref().map_or("the recording".to_owned(), |file| file.display().to_string())
    }

    fn read(&self, file: &str, size_bytes_max: usize) -> io::Result<Vec<u8>> {
        let path = self.resolve(file, true)?;
        match self.entries.get(&path) {
            Some(Entry::Text(text)) => Ok(text.as_bytes()[..text.len().min(size_bytes_max)].to_vec()),
            Some(Entry::Device(_)) => Err(io::Error::new(ErrorKind::InvalidInput, "it is no regular file")),
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

/// Whether it leads below the root whatever it is appended to.
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
                        return Err(de::Error::custom(format_args!("{path:?} is no path below a root")));
                    }
                    match entries.entry(path) {
                        Slot::Vacant(slot) => slot.insert(entry),
                        Slot::Occupied(slot) => {
                            return Err(de::Error::custom(format_args!("{:?} is in it twice", slot.key())));
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
            assert_eq!(recording.read(path, 100).unwrap(), b"7\n", "{path}");
        }
        assert_eq!(recording.read("bus/a/size", 1).unwrap(), b"7");
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
            assert_eq!(recording.read(path, 9).unwrap_err().kind(), kind, "{path}");
        }
        assert_eq!(recording.entries("bus/a/size").unwrap_err().kind(), ErrorKind::NotADirectory);
        assert_eq!(recording.link("devices/x").unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        for (json, words) in [
            ("[]", "an object of paths and texts"),
            (r#"{"a": 1}"#, "did not match"),
            (r#"{"a": {"link": "b", "size": "1"}}"#, "did not match"),
            (r#"{"/etc/passwd": ""}"#, "no path below a root"),
            (r#"{"a/../b": ""}"#, "no path below a root"),
            (r#"{"": ""}"#, "no path below a root"),
            (r#"{"a": "1", "a": "2"}"#, "\"a\" is in it twice"),
            (r#"{"a": "1", "a-b": "", "a/b": "2"}"#, "\"a\" is a file and a directory"),
            (r#"{"a": {"link": "x"}, "a/b": "2"}"#, "\"a\" is a file and a directory"),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.contains(words), "{json}: {error}");
        }
    }

    #[test]
    fn files_replace_what_cannot_be_beside_them() {
        let mut recording = parse(r#"{"a": "1", "b/c": "2", "bc": "3"}"#).unwrap();
        recording.insert("a/x", "4");
        recording.insert("b", "5");
        assert_eq!(recording.paths().collect::<Vec<_>>(), ["a/x", "b", "bc"]);
        assert!(recording.remove("a") && !recording.remove("a"));
        assert_eq!(recording.paths().collect::<Vec<_>>(), ["b", "bc"]);
    }
}

//! The files of a machine as text, lists and numbers, with errors that name them.

use std::io::{self, ErrorKind};

use memferry_dsa::internals::system::{FILE_BYTES_MAX, Files as Source, Owner, shorten};

use super::{TopologyError, list};

/// The files of a source as text, lists and numbers, with errors that name them.
#[derive(Copy, Clone)]
pub(super) struct Files<'a> {
    source: &'a dyn Source,
}

impl<'a> Files<'a> {
    pub(super) fn new(source: &'a dyn Source) -> Files<'a> {
        Files { source }
    }

    pub(super) fn name(&self) -> String {
        self.source.name()
    }

    /// The text of a file that every machine has, without space around it.
    pub(super) fn required(&self, file: &str) -> Result<String, TopologyError> {
        self.text(file).map_err(|error| self.unreadable(file, error))
    }

    /// The text of a file that some machines have.
    pub(super) fn optional(&self, file: &str) -> Result<Option<String>, TopologyError> {
        match self.text(file) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreadable(file, error)),
        }
    }

    /// The first bytes of a file that some machines have. It may be long.
    pub(super) fn head(&self, file: &str, size_bytes_max: usize) -> Result<Option<String>, TopologyError> {
        match self.source.head(file, size_bytes_max) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreadable(file, error)),
        }
    }

    /// Names in a directory, sorted; `None` if there is no such directory.
    pub(super) fn directory(&self, directory: &str) -> Result<Option<Vec<String>>, TopologyError> {
        match self.source.entries(directory) {
            Ok(mut names) => {
                names.sort_unstable();
                Ok(Some(names))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.unreadable(directory, error)),
        }
    }

    /// Names in a directory, sorted; none if there is no such directory.
    pub(super) fn entries(&self, directory: &str) -> Result<Vec<String>, TopologyError> {
        Ok(self.directory(directory)?.unwrap_or_default())
    }

    /// The numbers `N` of the entries `prefixN` of a directory, ascending.
    pub(super) fn numbered(&self, directory: &str, prefix: &str) -> Result<Vec<u32>, TopologyError> {
        let mut numbers: Vec<u32> = (self.entries(directory)?.iter())
            .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        Ok(numbers)
    }

    /// The target of a link; `None` if it is not a link.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        self.source.link(path).ok()
    }

    /// The owner of a character device; `None` if there is none.
    pub(super) fn owner(&self, path: &str) -> Option<Owner> {
        self.source.owner(path).ok()
    }

    pub(super) fn list(&self, file: &str) -> Result<Vec<u32>, TopologyError> {
        self.parse_list(file, &self.required(file)?)
    }

    pub(super) fn optional_list(&self, file: &str) -> Result<Option<Vec<u32>>, TopologyError> {
        self.optional(file)?.map(|text| self.parse_list(file, &text)).transpose()
    }

    fn parse_list(&self, file: &str, text: &str) -> Result<Vec<u32>, TopologyError> {
        list::parse(text).ok_or_else(|| self.nonsense(file, text, "a list such as 0-3,8"))
    }

    pub(super) fn numbers(&self, file: &str) -> Result<Vec<u32>, TopologyError> {
        let text = self.required(file)?;
        let numbers: Result<_, _> = text.split_whitespace().map(str::parse).collect();
        numbers.map_err(|_| self.nonsense(file, &text, "numbers such as 10 21"))
    }

    pub(super) fn number<T: std::str::FromStr>(&self, file: &str) -> Result<Option<T>, TopologyError> {
        let Some(text) = self.optional(file)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.nonsense(file, &text, "a number"))
    }

    pub(super) fn switch(&self, file: &str) -> Result<Option<bool>, TopologyError> {
        let Some(text) = self.optional(file)? else { return Ok(None) };
        text.parse().map(Some).map_err(|_| self.nonsense(file, &text, "true or false"))
    }

    fn text(&self, file: &str) -> io::Result<String> {
        let bytes = self.source.head(file, FILE_BYTES_MAX + 1)?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::FileTooLarge, "it is longer than 1 MiB"));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(_) => Err(io::Error::new(ErrorKind::InvalidData, "it is not text (UTF-8)")),
        }
    }

    pub(super) fn unreadable(&self, file: &str, source: io::Error) -> TopologyError {
        let advice = match source.kind() {
            ErrorKind::NotFound => {
                "sysfs and procfs must be mounted and complete; if a node just went offline, try again"
            }
            ErrorKind::PermissionDenied => "make it readable for this user, or use a profile instead",
            ErrorKind::FileTooLarge | ErrorKind::InvalidData => {
                "the kernel writes no such file; repair the tree, or use a profile instead"
            }
            _ => "look at that file, or use a profile instead",
        };
        TopologyError::Read { path: self.source.display(file), source, advice }
    }

    pub(super) fn nonsense(&self, file: &str, text: &str, expected: &'static str) -> TopologyError {
        TopologyError::Parse { path: self.source.display(file), found: shorten(text), expected }
    }

    pub(super) fn contradiction(&self, what: String) -> TopologyError {
        TopologyError::Contradiction { machine: self.source.name(), what }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use memferry_dsa::internals::system::Directory;

    use super::*;

    #[test]
    fn only_text_files_are_read() {
        let root = tempfile::tempdir().unwrap();
        let tree = Directory::below(root.path());
        let files = Files::new(&tree);
        fs::write(root.path().join("binary"), [0xff, 0xfe, 0x00]).unwrap();
        fs::write(root.path().join("longest"), vec![b' '; FILE_BYTES_MAX]).unwrap();
        fs::write(root.path().join("too-long"), vec![b'1'; FILE_BYTES_MAX + 1]).unwrap();
        fs::create_dir(root.path().join("directory")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(root.path().join("pipe")).status().unwrap();
        assert!(pipe.success());
        for (file, words) in [
            ("binary", "not text (UTF-8)"),
            ("too-long", "longer than 1 MiB"),
            ("directory", "is a directory"),
            ("pipe", "not a regular file"),
            ("absent", "must be mounted"),
        ] {
            let error = files.required(file).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains(file), "{error}");
        }
        assert_eq!(files.required("longest").unwrap(), "");
        assert_eq!(files.head("too-long", 3).unwrap().unwrap(), "111");
        assert_eq!(files.optional("absent").unwrap(), None);
        assert!(files.optional("pipe").is_err());
    }
}

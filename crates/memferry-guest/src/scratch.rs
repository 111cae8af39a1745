//! Directories of running processes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

const PREFIX: &str = "run-";

/// A directory for the files of running guests; removed when dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory for this process below `directory`, and removes those of processes that were killed.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(directory: &Path) -> Result<Scratch, Error> {
        remove_stale(directory, PREFIX);
        let own = directory.join(format!("{PREFIX}{}", std::process::id()));
        let failed = |error| Error::Image(format!("cannot make {}: {error}", own.display()));
        fs::create_dir_all(&own).map_err(failed)?;
        Ok(Scratch(own))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed does no harm; the next run tries again.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes the directories `PREFIX<pid>` of processes that were killed before they removed them.
pub(crate) fn remove_stale(directory: &Path, prefix: &str) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
        if id.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            // A directory that cannot be removed does no harm.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_dead_processes_are_removed() {
        let all = tempfile::tempdir().unwrap();
        // Process numbers end at 2^22.
        let (dead, other) = (all.path().join("run-99999999"), all.path().join("6.12"));
        fs::create_dir(&dead).unwrap();
        fs::create_dir(&other).unwrap();
        let scratch = Scratch::new(all.path()).unwrap();
        let own = scratch.path().to_owned();
        fs::write(own.join("file"), "x").unwrap();
        assert!(own.is_dir() && !dead.exists() && other.exists());
        drop(scratch);
        assert!(!own.exists());
    }
}

//! The source of sysfs files: this machine, a directory, or a recording.

use std::path::{Path, PathBuf};

use memferry::internals::Recording;
use memferry::topology::{Machine, TopologyError};
use memferry_dsa::internals::system::{Directory, Files};

/// A source of sysfs files.
pub(crate) enum Source {
    Here,
    Directory(PathBuf),
    Recording(Box<Recording>),
}

impl Source {
    /// Opens the directory or recording at `path`, or this machine.
    pub(crate) fn open(path: Option<&Path>) -> Result<Source, TopologyError> {
        Ok(match path {
            None => Source::Here,
            Some(path) if path.is_dir() => Source::Directory(path.to_owned()),
            // Its error covers paths that are neither.
            Some(path) => Source::Recording(Box::new(Recording::open(path)?)),
        })
    }

    pub(crate) fn machine(&self) -> Result<Machine, TopologyError> {
        match self {
            Source::Here => Machine::discover(),
            Source::Directory(root) => Machine::discover_at(root),
            Source::Recording(recording) => Machine::discover_in(&**recording),
        }
    }

    /// The files for the reader of DSA devices.
    pub(crate) fn files(&self) -> Box<dyn Files + '_> {
        match self {
            Source::Here => Box::new(Directory::system()),
            Source::Directory(root) => Box::new(Directory::below(root)),
            Source::Recording(recording) => Box::new((**recording).clone()),
        }
    }
}

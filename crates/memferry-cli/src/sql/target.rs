//! The file of `--output`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::arguments::Format;
use crate::error::usage;
use crate::output::{Part, not_written};

/// Where rows go: a file that is replaced when the session ends well, or standard output.
pub(super) struct Target {
    file: Option<Output>,
    path: PathBuf,
    answers_count: usize,
}

enum Output {
    File(BufWriter<Part>),
    /// A pipe or a device, which cannot be replaced.
    Other(BufWriter<File>),
}

impl Target {
    /// Opens the file, or standard output for `None`.
    pub(super) fn open(path: Option<&Path>) -> Result<Target> {
        let Some(path) = path else {
            return Ok(Target { file: None, path: PathBuf::new(), answers_count: 0 });
        };
        let file = Output::open(path).with_context(|| not_written("rows", "--output", path))?;
        Ok(Target { file: Some(file), path: path.to_owned(), answers_count: 0 })
    }

    pub(super) fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// The writer for the next answer; `None`: standard output.
    pub(super) fn begin(&mut self, format: Format) -> Result<Option<&mut dyn Write>> {
        if format == Format::Arrow && self.answers_count > 0 {
            return Err(usage(format!(
                "a file of Arrow IPC holds one answer, and {} has one; run this query by itself",
                self.path.display()
            )));
        }
        self.answers_count += 1;
        Ok(self.file.as_mut().map(|file| match file {
            Output::File(part) => part as &mut dyn Write,
            Output::Other(file) => file,
        }))
    }

    /// Names the file in an error of writing.
    pub(super) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        if error.is::<io::Error>() {
            error.context(not_written("rows", "--output", &self.path))
        } else {
            error
        }
    }

    /// Puts the file in its place.
    pub(super) fn keep(self) -> Result<()> {
        let Some(file) = self.file else { return Ok(()) };
        file.keep().with_context(|| not_written("rows", "--output", &self.path))
    }
}

impl Output {
    fn open(path: &Path) -> io::Result<Output> {
        Ok(match fs::metadata(path) {
            Ok(old) if old.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(old) if !old.is_file() => {
                Output::Other(BufWriter::new(OpenOptions::new().write(true).open(path)?))
            }
            // Follow a symbolic link, which the rename would replace.
            Ok(_) => Output::File(BufWriter::new(Part::create(&fs::canonicalize(path)?)?)),
            Err(_) => Output::File(BufWriter::new(Part::create(path)?)),
        })
    }

    fn keep(self) -> io::Result<()> {
        match self {
            Output::File(part) => {
                let part = part.into_inner().map_err(io::IntoInnerError::into_error)?;
                part.sync()?;
                part.keep()
            }
            Output::Other(mut file) => file.flush(),
        }
    }
}

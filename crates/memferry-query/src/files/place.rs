//! Where the decoder of each partition is. Its errors do not name the file, so those of damaged pages take the place from here.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::FileError;
use super::chunks::Chunks;

/// The last request of each partition's decoder, for errors.
///
/// A partition decodes one row group of one file at a time, and decodes all of it before it requests the next one.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<usize, Place>>);

/// Column chunks of a file.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) file: Arc<str>,
    pub(super) chunks: Arc<Chunks>,
    pub(super) ranges: Vec<Range<u64>>,
}

impl Places {
    /// The decoder of `partition` continues with `place`.
    pub(super) fn enter(&self, partition: usize, place: Place) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(partition, place);
    }

    /// The error for damage that the decoder of `partition` met. `files` names the files of the scan.
    pub(super) fn damaged(&self, partition: usize, files: &str, why: String) -> FileError {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match places.get(&partition) {
            Some(Place { file, chunks, ranges }) => {
                FileError::Damaged { files: file.to_string(), place: chunks.describe(ranges), why }
            }
            None => FileError::Damaged { files: files.to_owned(), place: None, why },
        }
    }
}

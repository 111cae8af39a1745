//! Where the decoder of each partition is. Its errors do not name the file, so those of damaged pages take the place from here.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::FileError;
use super::chunks::Chunks;

/// The file that each partition has opened last, and the last request of its decoder, for errors.
///
/// A partition decodes one row group of one file at a time, and decodes all of it before it requests the next one, or opens
/// the next file. Executions of one plan at the same time share the places: errors of one may name a file of the other.
#[derive(Debug, Default)]
pub(super) struct Places(Mutex<HashMap<usize, Place>>);

/// A file, and the ranges that the decoder requested of its column chunks. Before the first request `None`.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) file: Arc<str>,
    pub(super) request: Option<(Arc<Chunks>, Vec<Range<u64>>)>,
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
            Some(Place { file, request }) => {
                let place = request.as_ref().and_then(|(chunks, ranges)| chunks.describe(ranges));
                FileError::Damaged { files: file.to_string(), place, why }
            }
            None => FileError::Damaged { files: files.to_owned(), place: None, why },
        }
    }
}

//! Files of an object store: requests with a time-out, each answer checked against the version that was planned for.
//!
//! A store takes milliseconds for a request whatever its size, so near ranges are merged across gaps that arrive in less
//! time than another request takes. Requests run as tasks, so that several are in flight; dropping a read aborts its task.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
use futures::FutureExt;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};

use super::FileError;
use super::ranges::Merging;
use super::source::{From, RangeSource, Read};

/// How requests are merged.
const MERGING: Merging = Merging {
    // What a connection of 300 Mbit/s transfers in 30 ms, the latency of common stores; as in the crate object_store.
    gap_bytes: 1 << 20,
    // Several connections transfer a long range faster than one.
    request_bytes_max: 8 << 20,
    alone_bytes: u64::MAX,
};

/// Time-out and window of reads from a store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreLimits {
    pub(crate) time_out: Duration,
    pub(crate) window_bytes: u64,
}

/// One version of an object.
#[derive(Debug)]
pub(crate) struct StoreObject {
    store: Arc<dyn ObjectStore>,
    planned: Arc<ObjectMeta>,
    name: Arc<str>,
    limits: StoreLimits,
}

impl StoreObject {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, planned: ObjectMeta, limits: StoreLimits) -> Self {
        let name = Arc::from(planned.location.as_ref());
        Self { store, planned: Arc::new(planned), name, limits }
    }
}

impl RangeSource for StoreObject {
    fn size_bytes(&self) -> u64 {
        self.planned.size
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, range: Range<u64>) -> Read {
        let request =
            get(Arc::clone(&self.store), Arc::clone(&self.planned), range.clone(), self.limits.time_out);
        let (task, file) = (SpawnedTask::spawn(request), Arc::clone(&self.name));
        let bytes =
            async move { task.join_unwind().await.unwrap_or_else(|error| Err(cancelled(&file, &error))) };
        Read { range, bytes: bytes.boxed(), from: From::FileUncached }
    }

    fn merge(&self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        MERGING.merge(ranges)
    }

    fn check_unchanged(&self) -> Result<(), FileError> {
        // Each answer was checked.
        Ok(())
    }

    fn window_bytes_max(&self) -> u64 {
        self.limits.window_bytes
    }
}

/// The runtime ended while the request was in flight.
fn cancelled(file: &str, error: &tokio::task::JoinError) -> FileError {
    let source = std::io::Error::other(error.to_string());
    FileError::Store {
        file: file.to_owned(),
        source: object_store::Error::Generic { store: "memferry", source: Box::new(source) },
    }
}

/// Reads `range` of the version `planned`.
async fn get(
    store: Arc<dyn ObjectStore>,
    planned: Arc<ObjectMeta>,
    range: Range<u64>,
    time_out: Duration,
) -> Result<Bytes, FileError> {
    let requested = range.end - range.start;
    let file = || planned.location.to_string();
    let read = async {
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let answer = store.get_opts(&planned.location, options).await?;
        let difference = difference(&planned, &answer.meta);
        Ok((difference, answer.bytes().await?))
    };
    let (difference, bytes) = match tokio::time::timeout(time_out, read).await {
        Err(_) => return Err(FileError::TimeOut { file: file(), requested, time_out }),
        Ok(Err(object_store::Error::NotFound { .. })) => return Err(FileError::Vanished { file: file() }),
        Ok(Err(source)) => return Err(refused(&*store, &planned, time_out, source).await),
        Ok(Ok(answer)) => answer,
    };
    if let Some(what) = difference {
        return Err(FileError::Changed { file: file(), what });
    }
    if bytes.len() as u64 != requested {
        return Err(FileError::WrongLength { file: file(), requested, returned: bytes.len() as u64 });
    }
    Ok(bytes)
}

/// The error of a request that the store refused: a range beyond the end of a file that shrank is refused as well.
async fn refused(
    store: &dyn ObjectStore,
    planned: &ObjectMeta,
    time_out: Duration,
    source: object_store::Error,
) -> FileError {
    let changed = change(store, planned, time_out).await;
    changed.unwrap_or_else(|| FileError::Store { file: planned.location.to_string(), source })
}

/// The change of a file since the version `planned`; `None` as well if the store does not tell.
pub(super) async fn change(
    store: &dyn ObjectStore,
    planned: &ObjectMeta,
    time_out: Duration,
) -> Option<FileError> {
    let file = planned.location.to_string();
    match tokio::time::timeout(time_out, store.head(&planned.location)).await.ok()? {
        Err(object_store::Error::NotFound { .. }) => Some(FileError::Vanished { file }),
        Err(_) => None,
        Ok(current) => difference(planned, &current).map(|what| FileError::Changed { file, what }),
    }
}

/// The attribute in which two versions of an object differ.
pub(super) fn difference(planned: &ObjectMeta, current: &ObjectMeta) -> Option<String> {
    if planned.size != current.size {
        return Some(format!("size {} instead of {} bytes", current.size, planned.size));
    }
    if let (Some(planned), Some(current)) = (&planned.e_tag, &current.e_tag) {
        // It covers the time, which listings of some stores round differently than answers.
        return (planned != current).then(|| format!("entity tag {current} instead of {planned}"));
    }
    (planned.last_modified != current.last_modified)
        .then(|| format!("modified {} instead of {}", current.last_modified, planned.last_modified))
}

//! The files that a scan has not opened yet. The beginning of the next one is read while the decoder works on the last row
//! groups of the one before.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::config::ConfigOptions;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSource;
use object_store::path::Path;

use super::ahead::ReadAhead;
use super::chunks::Chunks;
use super::contain::contained;
use super::factory::Readers;
use super::metrics::ReadMetrics;

/// The files of a scan that are not opened, and those of them whose beginning is being read.
///
/// The order is a guess: DataFusion does not say which file a partition opens next. A file that is begun and not opened
/// keeps its first reads until the plan is dropped.
#[derive(Default)]
pub(super) struct NextFiles(Mutex<State>);

#[derive(Default)]
struct State {
    /// One queue for all partitions, or one for each if they do not share their files. None before the scan is executed.
    queues: Vec<VecDeque<PartitionedFile>>,
    begun: HashMap<Key, SpawnedTask<Option<Begun>>>,
}

/// A queue and one of its files, or a part of it. Several queues may have the same file, with different row groups.
type Key = (usize, Path, Option<(i64, i64)>);

/// The first reads of a file. They count as in vain until the file is opened.
struct Begun {
    ahead: ReadAhead,
    metrics: ReadMetrics,
}

impl State {
    fn queue(&self, partition: usize) -> usize {
        if self.queues.len() == 1 { 0 } else { partition }
    }

    fn key(&self, partition: usize, file: &PartitionedFile) -> Key {
        let range = file.range.as_ref().map(|FileRange { start, end }| (*start, *end));
        (self.queue(partition), file.object_meta.location.clone(), range)
    }
}

impl NextFiles {
    /// Lists the files of a scan that is executed with `options`, unless an execution has done so.
    pub(super) fn list(&self, config: &FileScanConfig, options: &ConfigOptions) {
        let mut state = self.lock();
        if !state.queues.is_empty() {
            return;
        }
        let files = config.file_groups.iter().map(|group| group.files().iter().cloned());
        let is_shared = config.create_sibling_state(options).is_some();
        state.queues = match is_shared {
            true => vec![files.flatten().collect()],
            false => files.map(Iterator::collect).collect(),
        };
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `partition` opens `file`.
    pub(super) fn open(&self, partition: usize, file: &PartitionedFile) {
        let mut state = self.lock();
        if state.begun.contains_key(&state.key(partition, file)) {
            return;
        }
        let is_it = |other: &PartitionedFile| {
            other.object_meta.location == file.object_meta.location && other.range == file.range
        };
        let queue = state.queue(partition);
        let Some(files) = state.queues.get_mut(queue) else { return };
        // Mostly the first one.
        if let Some(position) = files.iter().position(is_it) {
            files.remove(position);
        }
    }

    /// Begins to read the file that `partition` may open next. `metrics` count the reads.
    pub(super) fn begin(&self, readers: &Readers, partition: usize, metrics: ReadMetrics) {
        let mut state = self.lock();
        let queue = state.queue(partition);
        let Some(file) = state.queues.get_mut(queue).and_then(VecDeque::pop_front) else { return };
        // The task must not keep itself alive.
        let (key, readers) =
            (state.key(partition, &file), Readers { next: Arc::default(), ..readers.clone() });
        let task = async move { contained(begin(&readers, &file, metrics)).await? };
        state.begun.insert(key, SpawnedTask::spawn(task));
    }

    /// The reads of the beginning of `file`, which `partition` opens. They are counted.
    pub(super) async fn take(&self, partition: usize, file: &PartitionedFile) -> Option<ReadAhead> {
        let begun = {
            let mut state = self.lock();
            let key = state.key(partition, file);
            state.begun.remove(&key)
        };
        let Begun { ahead, metrics } = begun?.join().await.ok()??;
        metrics.not_in_vain(ahead.unrequested_bytes());
        Some(ahead)
    }
}

/// Starts to read the first row group of a file. An error here occurs again at open, which reports it.
async fn begin(readers: &Readers, file: &PartitionedFile, metrics: ReadMetrics) -> Option<Begun> {
    let source = readers.source(&file.object_meta).ok()?;
    let metadata = readers.metadata(file.metadata_size_hint);
    let metadata = metadata.fetch(&file.object_meta, readers.policy(None)).await.ok()?;
    let chunks = Arc::new(Chunks::new(metadata, source.size_bytes()).ok()?);
    let mut ahead = readers.ahead(&*source, file, &chunks).ok()?;
    ahead.fill(&*source).into_iter().for_each(|read| metrics.started(read, true));
    metrics.in_vain(ahead.unrequested_bytes());
    Some(Begun { ahead, metrics })
}

impl fmt::Debug for NextFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextFiles").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::Schema;
    use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
    use datafusion::execution::object_store::ObjectStoreUrl;

    use super::*;

    /// Opening a file in one partition removed it from the queue of the other one.
    #[test]
    fn partitions_that_do_not_share_their_files_may_read_parts_of_the_same_one() {
        let file = PartitionedFile::new("a.parquet", 100);
        let source = Arc::new(ParquetSource::new(Arc::new(Schema::empty())));
        let config = FileScanConfigBuilder::new(ObjectStoreUrl::local_filesystem(), source)
            .with_file_groups(vec![FileGroup::new(vec![file.clone()]); 2])
            .with_preserve_order(true)
            .build();
        let next = NextFiles::default();
        next.list(&config, &ConfigOptions::default());
        next.open(1, &file);
        assert_eq!(next.lock().queues.iter().map(VecDeque::len).collect::<Vec<_>>(), [1, 0]);
    }
}

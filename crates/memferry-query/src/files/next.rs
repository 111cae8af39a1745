//! The files that a scan has not opened yet. The beginning of the next one is read while the decoder works on the last row
//! groups of the one before; that of the first ones while the plan works on the scans before.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::config::ConfigOptions;
use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSource;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use object_store::path::Path;

use super::ahead::ReadAhead;
use super::chunks::Chunks;
use super::contain::contained;
use super::factory::Readers;
use super::metrics::ReadMetrics;
use super::plan_ahead::{Held, InPlan, PlanAhead};

/// The files of a scan that are not opened, and those of them whose beginning is being read.
///
/// The order is a guess: DataFusion does not say which file a partition opens next. A file that is begun and not opened
/// keeps its first reads until the last stream of the scan is dropped.
#[derive(Default)]
pub(super) struct NextFiles(Mutex<State>);

#[derive(Default)]
struct State {
    /// One queue for all partitions, or one for each if they do not share their files. None before the scan is executed.
    queues: Vec<VecDeque<PartitionedFile>>,
    partitions_count: usize,
    is_one_file: bool,
    /// Of the scan, for reads before it is opened.
    metrics: ExecutionPlanMetricsSet,
    streams_count: usize,
    /// Whether a partition has opened a file.
    is_open: bool,
    begun: HashMap<Key, SpawnedTask<Option<Begun>>>,
}

/// A queue and one of its files, or a part of it. Several queues may have the same file, with different row groups.
type Key = (usize, Path, Option<(i64, i64)>);

/// The first reads of a file. They count as in vain until the file is opened.
pub(super) struct Begun {
    pub(super) ahead: ReadAhead,
    /// Whether a filter was not known yet, which may exclude row groups.
    pub(super) is_provisional: bool,
    metrics: ReadMetrics,
    /// Their part of the window of the plan, if the scan was not open.
    _held: Option<Held>,
}

/// How the first files of a scan are begun that is not open.
struct BeforeOpen {
    /// The file's part of the window.
    held: Held,
    window_bytes: u64,
    is_one_file: bool,
}

/// A stream of a scan. With the last one, the reads of files that were not opened are dropped.
pub(super) struct Streaming(Arc<NextFiles>);

impl Drop for Streaming {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.streams_count -= 1;
        let unopened =
            if state.streams_count == 0 { std::mem::take(&mut state.begun) } else { HashMap::new() };
        drop(state);
        drop(unopened);
    }
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
    pub(super) fn list(
        &self,
        config: &FileScanConfig,
        metrics: &ExecutionPlanMetricsSet,
        options: &ConfigOptions,
    ) {
        let mut state = self.lock();
        if !state.queues.is_empty() {
            return;
        }
        state.metrics = metrics.clone();
        state.partitions_count = config.file_groups.len();
        state.is_one_file = is_one_file(config);
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

    /// Counts a stream of the scan.
    pub(super) fn stream(self: &Arc<Self>) -> Streaming {
        self.lock().streams_count += 1;
        Streaming(Arc::clone(self))
    }

    /// `partition` opens `file`.
    pub(super) fn open(&self, partition: usize, file: &PartitionedFile) {
        let mut state = self.lock();
        state.is_open = true;
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

    /// Whether `partition` opens no further file.
    pub(super) fn is_last(&self, partition: usize) -> bool {
        let state = self.lock();
        state.queues.get(state.queue(partition)).is_some_and(VecDeque::is_empty)
    }

    /// Begins to read the file that `partition` may open next. `metrics` count the reads.
    pub(super) fn begin(&self, readers: &Readers, partition: usize, metrics: ReadMetrics) {
        let mut state = self.lock();
        let queue = state.queue(partition);
        let Some(file) = state.queues.get_mut(queue).and_then(VecDeque::pop_front) else { return };
        // The task must not keep itself alive.
        let (key, readers) =
            (state.key(partition, &file), Readers { next: Arc::default(), ..readers.clone() });
        let is_last = state.queues[queue].is_empty();
        let task = async move {
            let begun = contained(begin(&readers, &file, metrics, None)).await.flatten();
            // A file may have no row group for the scan, and then requests nothing.
            if is_last && begun.as_ref().is_some_and(|begun| begun.ahead.is_exhausted()) {
                readers.in_plan.get().into_iter().for_each(InPlan::all_started);
            }
            begun
        };
        state.begun.insert(key, SpawnedTask::spawn(task));
    }

    /// Begins to read the first file of each partition, if the scan is executed and not open. Returns their number. Each calls
    /// `begun` once, with whether neither the file nor the scan has a read to start later.
    pub(super) fn begin_before_open(
        &self,
        readers: &Readers,
        plan: &Arc<PlanAhead>,
        window_bytes: u64,
        begun: impl Fn(bool) + Clone + Send + 'static,
    ) -> usize {
        let mut state = self.lock();
        if state.is_open || state.streams_count == 0 || window_bytes == 0 {
            return 0;
        }
        let partitions = 0..state.partitions_count;
        let files = partitions.filter_map(|partition| {
            let queue = state.queue(partition);
            Some((partition, state.queues.get_mut(queue)?.pop_front()?))
        });
        let files: Vec<(usize, PartitionedFile)> = files.collect();
        let has_no_further = state.queues.iter().all(VecDeque::is_empty);
        let files_count = files.len();
        for (partition, file) in files {
            let window_bytes = window_bytes / files_count as u64;
            let held = plan.hold(window_bytes);
            let before_open = BeforeOpen { held, window_bytes, is_one_file: state.is_one_file };
            let metrics = ReadMetrics::new(&state.metrics, partition);
            let key = state.key(partition, &file);
            let readers = Readers { next: Arc::default(), ..readers.clone() };
            let done = begun.clone();
            let task = async move {
                let begun = contained(begin(&readers, &file, metrics, Some(before_open))).await.flatten();
                done(has_no_further && begun.as_ref().is_some_and(|begun| begun.ahead.is_exhausted()));
                begun
            };
            state.begun.insert(key, SpawnedTask::spawn(task));
        }
        files_count
    }

    /// The reads of the beginning of `file`, which `partition` opens. They are counted.
    pub(super) async fn take(&self, partition: usize, file: &PartitionedFile) -> Option<Begun> {
        let begun = {
            let mut state = self.lock();
            let key = state.key(partition, file);
            state.begun.remove(&key)
        };
        let begun = begun?.join().await.ok()??;
        begun.metrics.not_in_vain(begun.ahead.unrequested_bytes());
        Some(begun)
    }
}

/// Whether all partitions of a scan read the same file.
pub(super) fn is_one_file(config: &FileScanConfig) -> bool {
    let mut files = config.file_groups.iter().flat_map(FileGroup::files);
    let first = files.next();
    files.all(|file| first.is_some_and(|first| first.object_meta.location == file.object_meta.location))
}

/// Starts to read the first row group of a file. An error here occurs again at open, which reports it.
async fn begin(
    readers: &Readers,
    file: &PartitionedFile,
    metrics: ReadMetrics,
    before_open: Option<BeforeOpen>,
) -> Option<Begun> {
    let source = readers.source(&file.object_meta).ok()?;
    let metadata = readers.metadata(file.metadata_size_hint);
    let metadata = metadata.fetch(&file.object_meta, readers.policy(None)).await.ok()?;
    let chunks = Arc::new(Chunks::new(metadata, source.size_bytes()).ok()?);
    let is_provisional = readers.demand.tracking().watcher().is_some();
    let mut ahead = readers.ahead(&*source, file, &chunks).ok()?;
    let reads = match &before_open {
        None => ahead.fill(&*source),
        Some(BeforeOpen { window_bytes, is_one_file, .. }) => {
            if is_provisional && readers.demand.may_exclude_later(*is_one_file, chunks.metadata()).ok()? {
                return None;
            }
            ahead.fill_within(&*source, *window_bytes)
        }
    };
    for read in reads {
        metrics.started(read, true);
        if before_open.is_some() {
            metrics.started_before_open(read);
        }
    }
    metrics.in_vain(ahead.unrequested_bytes());
    let held = before_open.map(|BeforeOpen { mut held, .. }| {
        held.shrink(ahead.unrequested_bytes());
        held
    });
    Some(Begun { ahead, is_provisional, metrics, _held: held })
}

impl fmt::Debug for NextFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextFiles").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::Schema;
    use datafusion::datasource::physical_plan::{FileScanConfigBuilder, ParquetSource};
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
        next.list(&config, &ExecutionPlanMetricsSet::new(), &ConfigOptions::default());
        next.open(1, &file);
        assert_eq!(next.lock().queues.iter().map(VecDeque::len).collect::<Vec<_>>(), [1, 0]);
    }
}

//! The files that a scan has not opened yet. The beginning of the next one is read while the decoder works on the last row
//! groups of the one before.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion::common::runtime::SpawnedTask;
use datafusion::datasource::listing::{FileRange, PartitionedFile};
use datafusion::datasource::physical_plan::FileScanConfig;
use object_store::path::Path;

use super::ahead::ReadAhead;
use super::chunks::Chunks;
use super::contain::contained;
use super::factory::Readers;

/// The files of a scan that are not opened, and those of them whose beginning is being read.
///
/// The order is a guess: DataFusion does not say which file a partition opens next. A file that is begun and not opened
/// keeps its first reads until the plan is dropped.
#[derive(Default)]
pub(super) struct NextFiles(Mutex<State>);

#[derive(Default)]
struct State {
    /// One queue for all partitions, or one for each if they do not share their files.
    queues: Vec<VecDeque<PartitionedFile>>,
    begun: HashMap<Key, SpawnedTask<Option<ReadAhead>>>,
}

/// A file, or a part of one.
type Key = (Path, Option<(i64, i64)>);

fn key(file: &PartitionedFile) -> Key {
    let range = file.range.as_ref().map(|FileRange { start, end }| (*start, *end));
    (file.object_meta.location.clone(), range)
}

impl NextFiles {
    pub(super) fn of(config: &FileScanConfig) -> NextFiles {
        let files = config.file_groups.iter().map(|group| group.files().iter().cloned());
        // As FileScanConfig::create_sibling_state decides.
        let is_shared = !config.preserve_order && config.output_partitioning.is_none();
        let queues = match is_shared {
            true => vec![files.flatten().collect()],
            false => files.map(Iterator::collect).collect(),
        };
        NextFiles(Mutex::new(State { queues, begun: HashMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `file` is opened.
    pub(super) fn open(&self, file: &PartitionedFile) {
        let mut state = self.lock();
        if state.begun.contains_key(&key(file)) {
            return;
        }
        let is_it = |other: &PartitionedFile| {
            other.object_meta.location == file.object_meta.location && other.range == file.range
        };
        for files in &mut state.queues {
            // Mostly the first one.
            if let Some(position) = files.iter().position(is_it) {
                files.remove(position);
            }
        }
    }

    /// Begins to read the file that `partition` may open next.
    pub(super) fn begin(&self, readers: &Readers, partition: usize) {
        let mut state = self.lock();
        let queue = if state.queues.len() == 1 { 0 } else { partition };
        let Some(file) = state.queues.get_mut(queue).and_then(VecDeque::pop_front) else { return };
        // The task must not keep itself alive.
        let (key, readers) = (key(&file), Readers { next: Arc::default(), ..readers.clone() });
        state.begun.insert(key, SpawnedTask::spawn(async move { contained(begin(&readers, &file)).await? }));
    }

    /// The reads of the beginning of `file`, which is opened.
    pub(super) async fn take(&self, file: &PartitionedFile) -> Option<ReadAhead> {
        let begun = self.lock().begun.remove(&key(file));
        begun?.join().await.ok()?
    }
}

/// Starts to read the first row group of a file. What fails here fails again when the file is opened, and is reported then.
async fn begin(readers: &Readers, file: &PartitionedFile) -> Option<ReadAhead> {
    let source = readers.source(&file.object_meta).ok()?;
    let metadata = readers.metadata(file.metadata_size_hint);
    let metadata = metadata.fetch(&file.object_meta, readers.policy(None)).await.ok()?;
    let chunks = Arc::new(Chunks::new(metadata, source.size_bytes()).ok()?);
    let mut ahead = readers.ahead(&*source, file, &chunks).ok()?;
    ahead.fill(&*source);
    Some(ahead)
}

impl fmt::Debug for NextFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NextFiles").finish_non_exhaustive()
    }
}

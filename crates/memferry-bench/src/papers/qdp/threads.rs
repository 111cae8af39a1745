//! One run of the query, in threads.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use memferry::cache::{Access, AccessError, Cache, Location, Region};
use memferry::topology::NodeId;
use memferry_dsa::internals::affinity::confine;

use super::columns::{Columns, MASK_BYTES, aggregate, scan};
use super::query::TaskThreads;
use super::{Metric, Skipped, Synchronization};

/// A run, shared by its threads, which only read it. `masks` are atomic: SCAN_a writes them, AGGREGATE reads them after
/// the group's barrier.
pub(super) struct QueryRun<'a> {
    pub(super) columns: &'a Columns,
    /// One bit per row of column a; SCAN_a overwrites all of them.
    pub(super) masks: &'a [AtomicU64],
    pub(super) near: Option<Near<'a>>,
    pub(super) groups: usize,
    pub(super) task_threads: TaskThreads,
    pub(super) chunk_bytes: usize,
    pub(super) sync: Synchronization,
    /// CPUs of the threads; empty: any.
    pub(super) cpus: &'a [u32],
}

/// Column b in the cache.
pub(super) struct Near<'a> {
    pub(super) cache: &'a Cache,
    pub(super) region: &'a Region,
    pub(super) node: NodeId,
    /// Number of chunks of each group that are copied near: those that are read last.
    pub(super) chunks_count: usize,
}

/// Times and results of a run.
#[derive(Debug)]
pub(super) struct RunTimes {
    pub(super) total_s: f64,
    /// Mean time of a group in SCAN_a, SCAN_b and AGGREGATE.
    pub(super) tasks_s: [f64; 3],
    /// Chunks of b that were read near, and all chunks that AGGREGATE read.
    pub(super) hits: (usize, usize),
    pub(super) sum: u64,
}

/// The tasks, in the order of [`RunTimes::tasks_s`].
pub(super) const TASKS: [Metric; 3] = [Metric::SCAN_A, Metric::SCAN_B, Metric::AGGREGATE];

/// Chunks of a group, and the barrier before its AGGREGATE.
struct Group {
    chunks: Range<usize>,
    scanned: Barrier,
}

/// Result of a thread.
struct ThreadResult {
    group: usize,
    task: Metric,
    begin: Instant,
    end: Instant,
    hits: usize,
    chunks_count: usize,
    sum: u64,
}

impl QueryRun<'_> {
    /// Runs it once.
    ///
    /// # Errors
    /// [`Skipped::Failed`]: a thread cannot be started or confined, or the cache refuses an access.
    pub(super) fn once(&self) -> Result<RunTimes, Skipped> {
        let TaskThreads { scan_a, scan_b, aggregate } = self.task_threads;
        let chunks_count = self.columns.b.len().div_ceil(self.chunk_bytes);
        let group = |index: usize| Group {
            chunks: index * chunks_count / self.groups..(index + 1) * chunks_count / self.groups,
            scanned: Barrier::new(
                scan_a + aggregate + if self.sync == Synchronization::Barrier { scan_b } else { 0 },
            ),
        };
        let groups: Vec<Group> = (0..self.groups).map(group).collect();
        let gate = Gate::default();
        let done: Vec<ThreadResult> = thread::scope(|scope| {
            let mut threads = Vec::with_capacity(self.groups * self.task_threads.threads_count());
            let gate = &gate;
            for (index, group) in groups.iter().enumerate() {
                for (task, count) in TASKS.into_iter().zip([scan_a, scan_b, aggregate]) {
                    for turn in 0..count {
                        let work = move || self.work(group, index, task, (turn, count), gate);
                        let thread = thread::Builder::new().spawn_scoped(scope, work);
                        threads.push(thread.map_err(|error| {
                            // The threads at the gate must not wait for this one.
                            gate.open(false);
                            let what = format!("a thread cannot be started ({error}); use fewer of them");
                            Skipped::Failed(what.into())
                        })?);
                    }
                }
            }
            gate.open_for(threads.len());
            let done = threads.into_iter().map(|thread| thread.join().expect("no task panics"));
            // All threads are joined before the first error is returned.
            done.collect::<Vec<_>>().into_iter().filter_map(Result::transpose).collect::<Result<_, Skipped>>()
        })?;
        Ok(self.seen(&done))
    }

    /// The work of a thread: each `count`-th chunk of its group from `turn` on. `None` if the run was cancelled.
    fn work(
        &self,
        group: &Group,
        index: usize,
        task: Metric,
        (turn, count): (usize, usize),
        gate: &Gate,
    ) -> Result<Option<ThreadResult>, Skipped> {
        let confined = if self.cpus.is_empty() { Ok(()) } else { confine(self.cpus) };
        if !gate.wait() {
            return Ok(None);
        }
        let mine = || group.chunks.clone().skip(turn).step_by(count);
        if task == Metric::AGGREGATE {
            group.scanned.wait();
        }
        let (begin, mut hits, mut sum) = (Instant::now(), 0, 0);
        let mut refused = None;
        match task {
            Metric::SCAN_A => {
                mine().for_each(|chunk| scan(&self.columns.a[self.bytes(chunk)], self.masks(chunk)))
            }
            Metric::SCAN_B => refused = self.prefetch(group, mine()).err(),
            _ => {
                for chunk in mine() {
                    match self.aggregate(chunk) {
                        Ok((is_hit, part)) => (hits, sum) = (hits + usize::from(is_hit), sum + part),
                        Err(error) => refused = Some(error),
                    }
                }
            }
        }
        let end = Instant::now();
        // Also after an error: the other threads wait at the barrier.
        if task == Metric::SCAN_A || (task == Metric::SCAN_B && self.sync == Synchronization::Barrier) {
            group.scanned.wait();
        }
        if let Err(error) = confined {
            let what = format!("threads cannot be confined to the CPUs of the home node: {error}");
            return Err(Skipped::Failed(what.into()));
        }
        match refused {
            Some(error) => Err(Skipped::Failed(error.into())),
            None => Ok(Some(ThreadResult {
                group: index,
                task,
                begin,
                end,
                hits,
                chunks_count: mine().count(),
                sum,
            })),
        }
    }

    /// Requests copies of the chunks, and with a barrier waits for them.
    fn prefetch(&self, group: &Group, chunks: impl Iterator<Item = usize>) -> Result<(), AccessError> {
        let Some(Near { cache, region, node, chunks_count }) = &self.near else { return Ok(()) };
        let first = group.chunks.end.saturating_sub(*chunks_count);
        let asked = chunks
            .filter(|chunk| *chunk >= first)
            .map(|chunk| cache.access(region, self.bytes(chunk), Access::near(*node)))
            .collect::<Result<Vec<_>, _>>()?;
        if self.sync == Synchronization::Barrier {
            asked.iter().for_each(|entry| _ = entry.wait());
        }
        Ok(())
    }

    /// The sum of a chunk, and whether it was near.
    fn aggregate(&self, chunk: usize) -> Result<(bool, u64), AccessError> {
        let bytes = self.bytes(chunk);
        let entry = match &self.near {
            Some(Near { cache, region, node, .. }) => {
                cache.access_weak(region, bytes.clone(), Access::near(*node))?
            }
            None => None,
        };
        let Some(entry) = entry else {
            return Ok((false, aggregate(&self.columns.b[bytes], self.masks(chunk))));
        };
        let is_hit = matches!(entry.location(), Location::Near(_));
        // A copy that completes now is read from either place: the bytes are equal.
        Ok((is_hit, aggregate(entry.as_slice(), self.masks(chunk))))
    }

    fn bytes(&self, chunk: usize) -> Range<usize> {
        let begin = chunk * self.chunk_bytes;
        begin..(begin + self.chunk_bytes).min(self.columns.b.len())
    }

    fn masks(&self, chunk: usize) -> &[AtomicU64] {
        let bytes = self.bytes(chunk);
        &self.masks[bytes.start / MASK_BYTES..bytes.end / MASK_BYTES]
    }

    fn seen(&self, done: &[ThreadResult]) -> RunTimes {
        let task_s = |task: Metric| {
            let of_group = |index: usize| {
                let own = || done.iter().filter(move |done| done.task == task && done.group == index);
                let begin = own().map(|done| done.begin).min()?;
                let end = own().map(|done| done.end).max()?;
                Some((end - begin).as_secs_f64())
            };
            (0..self.groups).filter_map(of_group).sum::<f64>() / self.groups as f64
        };
        // The query ends when the last group has its sum, even if copies are still in flight.
        let last = done.iter().filter(|done| done.task == Metric::AGGREGATE).map(|done| done.end).max();
        let begin = done.iter().map(|done| done.begin).min();
        let reads = || done.iter().filter(|done| done.task == Metric::AGGREGATE);
        RunTimes {
            total_s: begin.zip(last).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64()),
            tasks_s: TASKS.map(task_s),
            hits: (done.iter().map(|done| done.hits).sum(), reads().map(|done| done.chunks_count).sum()),
            sum: done.iter().map(|done| done.sum).sum(),
        }
    }
}

/// A start line for threads. All fields are under the mutex: the number of waiting threads, and the decision to start.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, Option<bool>)>,
    changed: Condvar,
}

impl Gate {
    /// Waits until the gate opens; false if the run is cancelled.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        state.0 += 1;
        self.changed.notify_all();
        loop {
            match state.1 {
                Some(is_go) => return is_go,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, (usize, Option<bool>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, is_go: bool) {
        self.lock().1 = Some(is_go);
        self.changed.notify_all();
    }

    /// Opens the gate when `count` threads wait.
    fn open_for(&self, count: usize) {
        let mut state = self.lock();
        while state.0 < count {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.1 = Some(true);
        self.changed.notify_all();
    }
}

//! One run of the query, in threads.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use memferry::cache::{Access, AccessError, Cache, Location, Region};
use memferry::topology::NodeId;
use memferry_dsa::affinity::confine;

use super::columns::{Columns, MASK_BYTES, aggregate, scan};
use super::query::Crew;
use super::{Figure, Skipped, Synchronization};

/// What all threads see.
pub(super) struct Run<'a> {
    pub(super) columns: &'a Columns,
    /// Of all of column a; what is in it does not matter.
    pub(super) masks: &'a [AtomicU64],
    pub(super) near: Option<Near<'a>>,
    pub(super) groups: usize,
    pub(super) crew: Crew,
    pub(super) chunk_bytes: usize,
    pub(super) sync: Synchronization,
    /// Where the threads run; empty: anywhere.
    pub(super) cpus: &'a [u32],
}

/// Column b as the cache knows it.
pub(super) struct Near<'a> {
    pub(super) cache: &'a Cache,
    pub(super) region: &'a Region,
    pub(super) node: NodeId,
    /// How many chunks of each group are brought near, of those read last.
    pub(super) chunks_count: usize,
}

/// What came of a run.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) total_s: f64,
    /// Mean time of a group in SCAN_a, SCAN_b and AGGREGATE.
    pub(super) tasks_s: [f64; 3],
    /// Chunks of b that were read near, and all that AGGREGATE read.
    pub(super) hits: (usize, usize),
    pub(super) sum: u64,
}

/// The tasks, in the order of [`Seen::tasks_s`].
pub(super) const TASKS: [Figure; 3] = [Figure::ScanA, Figure::ScanB, Figure::Aggregate];

/// A group's chunks, and what its AGGREGATE waits at.
struct Group {
    chunks: Range<usize>,
    scanned: Barrier,
}

/// What a thread did.
struct Done {
    group: usize,
    task: Figure,
    begin: Instant,
    end: Instant,
    hits: usize,
    chunks_count: usize,
    sum: u64,
}

impl Run<'_> {
    /// Runs it once.
    ///
    /// # Errors
    /// [`Skipped::Failed`]: threads that cannot be started or confined, or a cache that refuses.
    pub(super) fn once(&self) -> Result<Seen, Skipped> {
        let Crew { scan_a, scan_b, aggregate } = self.crew;
        let chunks_count = self.columns.b.len().div_ceil(self.chunk_bytes);
        let group = |index: usize| Group {
            chunks: index * chunks_count / self.groups..(index + 1) * chunks_count / self.groups,
            scanned: Barrier::new(
                scan_a + aggregate + if self.sync == Synchronization::Barrier { scan_b } else { 0 },
            ),
        };
        let groups: Vec<Group> = (0..self.groups).map(group).collect();
        let gate = Gate::default();
        let done: Vec<Done> = thread::scope(|scope| {
            let mut threads = Vec::with_capacity(self.groups * self.crew.threads_count());
            let gate = &gate;
            for (index, group) in groups.iter().enumerate() {
                for (task, count) in TASKS.into_iter().zip([scan_a, scan_b, aggregate]) {
                    for turn in 0..count {
                        let work = move || self.work(group, index, task, (turn, count), gate);
                        let thread = thread::Builder::new().spawn_scoped(scope, work);
                        threads.push(thread.map_err(|error| {
                            // Those that wait already must not wait for it.
                            gate.open(false);
                            let what = format!("a thread cannot be started ({error}); use fewer of them");
                            Skipped::Failed(what.into())
                        })?);
                    }
                }
            }
            gate.open_for(threads.len());
            let done = threads.into_iter().map(|thread| thread.join().expect("no task panics"));
            // All of them, before the first error counts.
            done.collect::<Vec<_>>().into_iter().filter_map(Result::transpose).collect::<Result<_, Skipped>>()
        })?;
        Ok(self.seen(&done))
    }

    /// What a thread does: each `count`-th chunk of its group from `turn` on. `None` if there was no run.
    fn work(
        &self,
        group: &Group,
        index: usize,
        task: Figure,
        (turn, count): (usize, usize),
        gate: &Gate,
    ) -> Result<Option<Done>, Skipped> {
        let confined = if self.cpus.is_empty() { Ok(()) } else { confine(self.cpus) };
        if !gate.wait() {
            return Ok(None);
        }
        let mine = || group.chunks.clone().skip(turn).step_by(count);
        if task == Figure::Aggregate {
            group.scanned.wait();
        }
        let (begin, mut hits, mut sum) = (Instant::now(), 0, 0);
        let mut refused = None;
        match task {
            Figure::ScanA => {
                mine().for_each(|chunk| scan(&self.columns.a[self.bytes(chunk)], self.masks(chunk)))
            }
            Figure::ScanB => refused = self.prefetch(group, mine()).err(),
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
        // Also after an error: the others wait for all.
        if task == Figure::ScanA || (task == Figure::ScanB && self.sync == Synchronization::Barrier) {
            group.scanned.wait();
        }
        if let Err(error) = confined {
            let what = format!("threads cannot be confined to the CPUs of the home node: {error}");
            return Err(Skipped::Failed(what.into()));
        }
        match refused {
            Some(error) => Err(Skipped::Failed(error.into())),
            None => {
                Ok(Some(Done { group: index, task, begin, end, hits, chunks_count: mine().count(), sum }))
            }
        }
    }

    /// Asks for the chunks that are to come near, and with a barrier waits for them.
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
        // What arrives just now is read where it was when it was looked at, or, at the latest, near: both are right.
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

    fn seen(&self, done: &[Done]) -> Seen {
        let task_s = |task: Figure| {
            let of_group = |index: usize| {
                let own = || done.iter().filter(move |done| done.task == task && done.group == index);
                let begin = own().map(|done| done.begin).min()?;
                let end = own().map(|done| done.end).max()?;
                Some((end - begin).as_secs_f64())
            };
            (0..self.groups).filter_map(of_group).sum::<f64>() / self.groups as f64
        };
        // The query has ended when the last group has its sum, whatever is still on its way.
        let last = done.iter().filter(|done| done.task == Figure::Aggregate).map(|done| done.end).max();
        let begin = done.iter().map(|done| done.begin).min();
        let reads = || done.iter().filter(|done| done.task == Figure::Aggregate);
        Seen {
            total_s: begin.zip(last).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64()),
            tasks_s: TASKS.map(task_s),
            hits: (done.iter().map(|done| done.hits).sum(), reads().map(|done| done.chunks_count).sum()),
            sum: done.iter().map(|done| done.sum).sum(),
        }
    }
}

/// Where threads wait until all of them are there.
#[derive(Default)]
struct Gate {
    state: Mutex<(usize, Option<bool>)>,
    changed: Condvar,
}

impl Gate {
    /// Waits until it is opened; false if there is nothing to begin.
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

    /// Opens it as soon as so many wait.
    fn open_for(&self, count: usize) {
        let mut state = self.lock();
        while state.0 < count {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.1 = Some(true);
        self.changed.notify_all();
    }
}

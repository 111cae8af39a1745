//! A work queue as submitters see it: configuration, order of entries, counters.
//!
//! ```text
//! submitters --> ring (order) + entries (words) --> arbiter of the group --> engines
//! ```

pub(crate) mod arbiter;
pub(crate) mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memferry_dsa::{OperationSet, QueueMode, WorkQueueInfo};

use crate::arc_ref::ArcRef;
use crate::config::{DeviceCosts, FaultPlan, Random};
use crate::queue::ring::{CacheLine, ClientId, Entries, PushError, Ring, Stamp};

/// The parts of a queue for one client. A queue of zeroed parts refuses everything.
#[derive(Clone)]
pub(crate) struct QueueParts {
    pub(crate) config: ArcRef<QueueConfig>,
    pub(crate) order: ArcRef<QueueOrder>,
    /// The entries of this client alone.
    pub(crate) own: ArcRef<Entries>,
}

/// The part of a queue that all its users share, possibly in memory of several processes.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `counts` | submitters; `retired` the client or server that removes an entry | observers |
/// | `ring` | submitters, devices | both |
#[repr(C)]
pub(crate) struct QueueOrder {
    pub(crate) counts: CacheLine<QueueCounts>,
    pub(crate) ring: Ring,
}

/// A [`WorkQueueInfo`] without its name, and the cost of a submission. The process that configures the device writes it
/// while the queue is closed and empty; all processes read it.
#[derive(Default)]
#[repr(C, align(128))] // `CacheLine`'s
pub(crate) struct QueueConfig {
    mode: AtomicU32, // 0 none: takes nothing, 1 shared, 2 dedicated
    limit: AtomicU32,
    size: AtomicU32,
    threshold: AtomicU32,
    priority: AtomicU32,
    block_on_fault: AtomicU32,
    transfer_bytes_max: AtomicU32,
    batch_max: AtomicU32,
    node: AtomicU32,   // plus 1; 0 unknown
    closed: AtomicU32, // 1: the ring has to be closed, even if a hostile client has opened it
    retries_per_mille: AtomicU32,
    seed: AtomicU64,
    submit_ns: AtomicU64,
    operations: [AtomicU64; 4],
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct QueueCounts {
    submissions: AtomicU64, // attempts; the seed of each random retry is derived from it
    pub(crate) retried: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Entries of clients that have left: those that they dispatched, and those that were skipped.
    pub(crate) retired: AtomicU64,
}

/// The answer of a queue to a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SubmitOutcome {
    Accepted,
    Retry,
    /// A dedicated queue is full and drops the descriptor without telling the submitter.
    Lost,
    Closed,
}

impl QueueOrder {
    fn new() -> QueueOrder {
        QueueOrder { counts: CacheLine::default(), ring: Ring::new() }
    }
}

impl QueueParts {
    /// A queue of a device that one process uses alone.
    pub(crate) fn new() -> QueueParts {
        QueueParts {
            config: ArcRef::own(QueueConfig::default()),
            order: ArcRef::own(QueueOrder::new()),
            own: ArcRef::part_of(Arc::new(Entries::new()), |own| own),
        }
    }
}

impl QueueConfig {
    /// Configures the queue with this number of its device. The queue refuses submissions before and meanwhile.
    pub(crate) fn configure(
        &self,
        info: &WorkQueueInfo,
        number: usize,
        fault_plan: &FaultPlan,
        timing: Option<&DeviceCosts>,
    ) {
        let config = self;
        let (mode, limit, submit_ns) = match info.mode {
            QueueMode::Shared => {
                (SHARED, info.threshold.min(info.size), timing.map(|timing| timing.submit_shared_ns))
            }
            QueueMode::Dedicated => (DEDICATED, info.size, timing.map(|timing| timing.submit_dedicated_ns)),
        };
        for (word, value) in [
            (&config.limit, limit),
            (&config.size, info.size),
            (&config.threshold, info.threshold),
            (&config.priority, info.priority.into()),
            (&config.block_on_fault, info.block_on_fault.into()),
            (&config.transfer_bytes_max, info.transfer_bytes_max),
            (&config.batch_max, info.batch_max),
            (&config.node, info.node.map_or(0, |node| node.saturating_add(1))),
            (&config.retries_per_mille, fault_plan.retries_per_mille.into()),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        config.seed.store(fault_plan.seed ^ (number as u64 + 1) << 56, Ordering::Relaxed);
        config.submit_ns.store(submit_ns.unwrap_or(0), Ordering::Relaxed);
        for (word, value) in config.operations.iter().zip(info.operations.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        // ORDERING: Release pairs with the Acquire of `mode` in `mode()`: a reader of the mode sees the other words.
        config.mode.store(mode, Ordering::Release);
    }

    /// Removes the configuration of a closed and empty queue.
    pub(crate) fn unconfigure(&self) {
        // ORDERING: Release pairs with the Acquire of `mode` in `mode()`: earlier accesses of this thread come before
        // it. A reader that sees 0 reads no other word.
        self.mode.store(0, Ordering::Release);
    }

    /// Sets whether the ring has to be closed, for the server's maintenance.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        self.closed.store(is_closed.into(), Ordering::Relaxed);
    }

    /// Whether the ring has to be closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.mode().is_none() || self.closed.load(Ordering::Relaxed) != 0
    }

    /// The mode; `None` if the queue is not configured.
    #[inline]
    pub(crate) fn mode(&self) -> Option<QueueMode> {
        // ORDERING: Acquire pairs with the Release of `mode` in `configure`: the other words are complete.
        match self.mode.load(Ordering::Acquire) {
            SHARED => Some(QueueMode::Shared),
            DEDICATED => Some(QueueMode::Dedicated),
            _ => None,
        }
    }

    /// The configuration with a name; `None` if the queue is not configured.
    pub(crate) fn info(&self, name: String) -> Option<WorkQueueInfo> {
        let mode = self.mode()?;
        let config = self;
        let get = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let operations = std::array::from_fn(|index| config.operations[index].load(Ordering::Relaxed));
        Some(WorkQueueInfo {
            name,
            mode,
            size: get(&config.size),
            threshold: get(&config.threshold),
            priority: get(&config.priority) as u8,
            block_on_fault: get(&config.block_on_fault) != 0,
            transfer_bytes_max: get(&config.transfer_bytes_max),
            batch_max: get(&config.batch_max),
            operations: OperationSet::from_words(operations),
            node: get(&config.node).checked_sub(1),
        })
    }

    /// The duration of the submitting instruction; 0 without a timing.
    #[inline]
    pub(crate) fn submit_ns(&self) -> u64 {
        self.submit_ns.load(Ordering::Relaxed)
    }

    fn retries_at_random(&self, counts: &QueueCounts) -> bool {
        let per_mille = self.retries_per_mille.load(Ordering::Relaxed) as u16;
        if per_mille == 0 {
            return false;
        }
        let number = counts.submissions.fetch_add(1, Ordering::Relaxed);
        Random::new(self.seed.load(Ordering::Relaxed).wrapping_add(number)).chance(per_mille)
    }
}

impl QueueOrder {
    /// Submits an entry as the instruction of the queue's mode does. `own` are the client's entries.
    #[inline]
    pub(crate) fn submit(
        &self,
        config: &QueueConfig,
        own: &Entries,
        mode: QueueMode,
        client: ClientId,
        words: &[u64; 8],
        stamp: Stamp,
    ) -> SubmitOutcome {
        let counts = &self.counts.0;
        if mode == QueueMode::Shared && config.retries_at_random(counts) {
            counts.retried.fetch_add(1, Ordering::Relaxed);
            return SubmitOutcome::Retry;
        }
        let limit = config.limit.load(Ordering::Relaxed);
        match (self.ring.push(own, client, words, stamp, limit), mode) {
            (Ok(()), _) => SubmitOutcome::Accepted,
            (Err(PushError::Closed), _) => SubmitOutcome::Closed,
            (Err(PushError::Full), QueueMode::Shared) => {
                counts.retried.fetch_add(1, Ordering::Relaxed);
                SubmitOutcome::Retry
            }
            (Err(PushError::Full), QueueMode::Dedicated) => {
                counts.dropped.fetch_add(1, Ordering::Relaxed);
                SubmitOutcome::Lost
            }
        }
    }
}

const SHARED: u32 = 1;
const DEDICATED: u32 = 2;

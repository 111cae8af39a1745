//! A work queue as its submitters find it: its mode and limits, its order, and what it has counted.

pub(crate) mod arbiter;
pub(crate) mod ring;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memferry_dsa::OperationSet;
use memferry_dsa::portal::{QueueMode, WorkQueueInfo};

use crate::arc_ref::ArcRef;
use crate::config::Timing;
use crate::config::{FaultPlan, Random};
use crate::queue::ring::{ClientId, Entries, Line, PushError, Ring, Stamp};

/// What a queue consists of, for one client. All zero it takes nothing.
#[derive(Clone)]
pub(crate) struct QueueParts {
    pub(crate) config: ArcRef<QueueConfig>,
    pub(crate) order: ArcRef<QueueOrder>,
    /// The client's own.
    pub(crate) own: ArcRef<Entries>,
}

/// What all who use a queue have in common, which may lie in memory that several processes share.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `counts` | submitters | observers |
/// | `ring` | submitters, devices | both |
#[repr(C)]
pub(crate) struct QueueOrder {
    pub(crate) counts: Line<QueueCounts>,
    pub(crate) ring: Ring,
}

/// A [`WorkQueueInfo`] without its name, and what a submission costs. Who configures the device writes it, while the queue
/// is closed and empty; all read it.
#[derive(Default)]
#[repr(C, align(128))] // `Line`'s
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
    closed: AtomicU32, // 1: the ring takes nothing, whatever somebody has written into it
    retries_per_mille: AtomicU32,
    seed: AtomicU64,
    submit_ns: AtomicU64,
    operations: [AtomicU64; 4],
}

#[derive(Default)]
#[repr(C)]
pub(crate) struct QueueCounts {
    offered: AtomicU64, // submissions tried; counted only to number the dice of `retries_per_mille`
    pub(crate) retried: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Entries of clients that are no more: all that they took from the queue, and those that were skipped.
    pub(crate) retired: AtomicU64,
}

/// What a queue answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Accepted,
    Retry,
    /// A dedicated queue is full, and nobody is told.
    Lost,
    Closed,
}

impl QueueOrder {
    fn new() -> QueueOrder {
        QueueOrder { counts: Line::default(), ring: Ring::new() }
    }
}

impl QueueParts {
    /// A queue of a device that one process has for itself.
    pub(crate) fn new() -> QueueParts {
        QueueParts {
            config: ArcRef::own(QueueConfig::default()),
            order: ArcRef::own(QueueOrder::new()),
            own: ArcRef::part_of(Arc::new(Entries::new()), |own| own),
        }
    }
}

impl QueueConfig {
    /// Makes it the queue that `info` says, number `number` of its device. It takes nothing before and meanwhile.
    pub(crate) fn configure(
        &self,
        info: &WorkQueueInfo,
        number: usize,
        fault_plan: &FaultPlan,
        timing: Option<&Timing>,
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
        // ORDERING: Release pairs with the Acquire in `mode`: who sees the mode sees the rest.
        config.mode.store(mode, Ordering::Release);
    }

    /// Makes it a queue that is not there. It is closed and empty.
    pub(crate) fn unconfigure(&self) {
        self.mode.store(0, Ordering::Release);
    }

    /// Says for the server's look whether the ring is to be closed.
    pub(crate) fn set_closed(&self, is_closed: bool) {
        self.closed.store(is_closed.into(), Ordering::Relaxed);
    }

    /// Whether the ring is to be closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.mode().is_none() || self.closed.load(Ordering::Relaxed) != 0
    }

    /// The mode; none if it takes nothing.
    #[inline]
    pub(crate) fn mode(&self) -> Option<QueueMode> {
        // ORDERING: Acquire pairs with the Release in `configure`.
        match self.mode.load(Ordering::Acquire) {
            SHARED => Some(QueueMode::Shared),
            DEDICATED => Some(QueueMode::Dedicated),
            _ => None,
        }
    }

    /// What it was configured to be, under a name; `None` if it is not there.
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

    /// What the instruction takes that submits; 0 without a timing.
    #[inline]
    pub(crate) fn submit_ns(&self) -> u64 {
        self.submit_ns.load(Ordering::Relaxed)
    }

    fn retries_at_random(&self, counts: &QueueCounts) -> bool {
        let per_mille = self.retries_per_mille.load(Ordering::Relaxed) as u16;
        if per_mille == 0 {
            return false;
        }
        let number = counts.offered.fetch_add(1, Ordering::Relaxed);
        Random::new(self.seed.load(Ordering::Relaxed).wrapping_add(number)).chance(per_mille)
    }
}

impl QueueOrder {
    /// Offers an entry, as the instruction of the queue's mode does. `own` is the client's.
    #[inline]
    pub(crate) fn offer(
        &self,
        config: &QueueConfig,
        own: &Entries,
        mode: QueueMode,
        client: ClientId,
        words: &[u64; 8],
        stamp: Stamp,
    ) -> Answer {
        let counts = &self.counts.0;
        if mode == QueueMode::Shared && config.retries_at_random(counts) {
            counts.retried.fetch_add(1, Ordering::Relaxed);
            return Answer::Retry;
        }
        let limit = config.limit.load(Ordering::Relaxed);
        match (self.ring.push(own, client, words, stamp, limit), mode) {
            (Ok(()), _) => Answer::Accepted,
            (Err(PushError::Closed), _) => Answer::Closed,
            (Err(PushError::Full), QueueMode::Shared) => {
                counts.retried.fetch_add(1, Ordering::Relaxed);
                Answer::Retry
            }
            (Err(PushError::Full), QueueMode::Dedicated) => {
                counts.dropped.fetch_add(1, Ordering::Relaxed);
                Answer::Lost
            }
        }
    }
}

const SHARED: u32 = 1;
const DEDICATED: u32 = 2;

//! A work queue as its submitters find it: its mode and limits, its order, and what it has counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memferry_dsa::OperationSet;
use memferry_dsa::portal::{QueueMode, WorkQueueInfo};

use crate::fault_plan::{FaultPlan, Random};
use crate::held::Held;
use crate::ring::{ClientId, Entries, Line, Refusal, Ring, Stamp};
use crate::timing::Timing;

/// What a queue consists of, for one client. All zero it takes nothing.
#[derive(Clone)]
pub(super) struct QueueParts {
    pub(super) config: Held<QueueConfig>,
    pub(super) order: Held<QueueOrder>,
    /// The client's own.
    pub(super) own: Held<Entries>,
}

/// What all who use a queue have in common, which may lie in memory that several processes share.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `counts` | submitters | observers |
/// | `ring` | submitters, devices | both |
#[repr(C)]
pub(super) struct QueueOrder {
    pub(super) counts: Line<QueueCounts>,
    pub(super) ring: Ring,
}

/// A [`WorkQueueInfo`] without its name, and what a submission costs. Who configures the device writes it, while the queue
/// is closed and empty; all read it.
#[derive(Default)]
#[repr(C, align(128))] // `Line`'s
pub(super) struct QueueConfig {
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
pub(super) struct QueueCounts {
    offered: AtomicU64, // submissions tried; counted only to number the dice of `retries_per_mille`
    pub(super) retried: AtomicU64,
    pub(super) dropped: AtomicU64,
    /// Entries of clients that are no more: all that they took from the queue, and those that were skipped.
    pub(super) retired: AtomicU64,
}

/// What a queue answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
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
    pub(super) fn new() -> QueueParts {
        QueueParts {
            config: Held::own(QueueConfig::default()),
            order: Held::own(QueueOrder::new()),
            own: Held::part_of(Arc::new(Entries::new()), |own| own),
        }
    }
}

impl QueueConfig {
    /// Makes it the queue that `info` says, number `number` of its device. It takes nothing before and meanwhile.
    pub(super) fn configure(
        &self,
        info: &WorkQueueInfo,
        number: usize,
        nasty: &FaultPlan,
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
            (&config.retries_per_mille, nasty.retries_per_mille.into()),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        config.seed.store(nasty.seed ^ (number as u64 + 1) << 56, Ordering::Relaxed);
        config.submit_ns.store(submit_ns.unwrap_or(0), Ordering::Relaxed);
        for (word, value) in config.operations.iter().zip(info.operations.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        // ORDERING: Release pairs with the Acquire in `mode`: who sees the mode sees the rest.
        config.mode.store(mode, Ordering::Release);
    }

    /// Makes it a queue that is not there. It is closed and empty.
    pub(super) fn unconfigure(&self) {
        self.mode.store(0, Ordering::Release);
    }

    /// Says for the server's look whether the ring is to be closed.
    pub(super) fn set_closed(&self, is_closed: bool) {
        self.closed.store(is_closed.into(), Ordering::Relaxed);
    }

    /// Whether the ring is to be closed.
    pub(super) fn is_closed(&self) -> bool {
        self.mode().is_none() || self.closed.load(Ordering::Relaxed) != 0
    }

    /// The mode; none if it takes nothing.
    #[inline]
    pub(super) fn mode(&self) -> Option<QueueMode> {
        // ORDERING: Acquire pairs with the Release in `configure`.
        match self.mode.load(Ordering::Acquire) {
            SHARED => Some(QueueMode::Shared),
            DEDICATED => Some(QueueMode::Dedicated),
            _ => None,
        }
    }

    /// What it was configured to be, under a name; `None` if it is not there.
    pub(super) fn info(&self, name: String) -> Option<WorkQueueInfo> {
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
    pub(super) fn submit_ns(&self) -> u64 {
        self.submit_ns.load(Ordering::Relaxed)
    }

    fn retries_out_of_spite(&self, counts: &QueueCounts) -> bool {
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
    pub(super) fn offer(
        &self,
        config: &QueueConfig,
        own: &Entries,
        mode: QueueMode,
        client: ClientId,
        words: &[u64; 8],
        stamp: Stamp,
    ) -> Answer {
        let counts = &self.counts.0;
        if mode == QueueMode::Shared && config.retries_out_of_spite(counts) {
            counts.retried.fetch_add(1, Ordering::Relaxed);
            return Answer::Retry;
        }
        let limit = config.limit.load(Ordering::Relaxed);
        match (self.ring.push(own, client, words, stamp, limit), mode) {
            (Ok(()), _) => Answer::Accepted,
            (Err(Refusal::Closed), _) => Answer::Closed,
            (Err(Refusal::Full), QueueMode::Shared) => {
                counts.retried.fetch_add(1, Ordering::Relaxed);
                Answer::Retry
            }
            (Err(Refusal::Full), QueueMode::Dedicated) => {
                counts.dropped.fetch_add(1, Ordering::Relaxed);
                Answer::Lost
            }
        }
    }
}

const SHARED: u32 = 1;
const DEDICATED: u32 = 2;

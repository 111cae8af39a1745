//! The DSA engine: copies with work queues of Data Streaming Accelerators.
//!
//! ```text
//!   submit ──▶ lock: Driver ── descriptor ──▶ portal ──▶ device
//!                 ▲      │ page faults, work for the CPU       │
//!                 │      ▼                                     ▼
//!               lock: completer, a thread ◀──────── completion record, polled
//! ```
//!
//! The rules are those of [`memferry_dsa::internals::driver`]. A submission takes one lock, offers the copy to each queue once, and
//! never waits. One thread, the completer, does everything that takes time. No fallback is silent: the
//! [statistics](EngineStats) count each refusal, each resumption and each part that the CPU executes, and they add up.
//!
//! A descriptor without a completion is given up when the portal reports that the device is gone, or after
//! [`DsaOptions::completion_timeout`], because some errors never reach the record. The device may still write then. So
//! the engine leaks both buffers of the copy and the records of the queue, and the queue gets no more work.
//!
//! A forked child has neither the thread nor the portals of its parent. Its first submission creates a driver and
//! counters, and starts a completer; the portals open the queues again. Copies in flight remain the parent's.
//!
//! Source: DSA specification, sections 3.10 to 3.12 (page faults) and 5.8 (errors that reach no record).

mod completer;
mod counting;
mod discover;

use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memferry_dsa::internals::driver::{Driver, DriverOptions, Queues};
use memferry_dsa::internals::fork::{self, PerProcess};
use memferry_dsa::system::Version;
use memferry_dsa::{Opcode, OperationSet, Portal};

use super::{Engine, EngineKind, EngineStats, RawRequest, Refusal, Rejected};
use crate::mover::guidelines;
use crate::mover::stats::Counters;
use crate::mover::{CopyReport, MoverError};
use crate::topology::NodeId;

/// The options of a [`DsaEngine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DsaOptions {
    /// Name of the engine in reports, and prefix of its thread's name.
    pub name: String,
    /// Work items that may wait for a free slot. With as many waiting, the engine is full.
    pub backlog_max: usize,
    /// Consecutive refusals by all queues before the CPU executes a work item. The pause after each refusal doubles from
    /// 2 us to 1 ms.
    pub retries_max: u32,
    /// Page faults that may stop a work item before the CPU executes the rest of it.
    pub faults_max: u32,
    /// Members that a batch may have; below [`BATCH_LEN_MIN`](memferry_dsa::internals::driver::BATCH_LEN_MIN) there are no batches.
    pub batch_len_max: usize,
    /// Version of the devices, which decides about operations that are newer than 1.0.
    pub version: Version,
    /// A descriptor is lost if no descriptor ahead of it in its queue has completed for this time. Before the device has
    /// started with it, the time of as many largest transfers as the queue has entries is added, at 1 GB/s, because
    /// other processes may have submitted them. Time during which this process was stopped does not count.
    /// Precision: 100 ms, because of pauses of the scheduler.
    pub completion_timeout: Duration,
}

impl Default for DsaOptions {
    /// 64 waiting work items, 10 retries (2 ms), 8 faults, batches of 8, version 1.0, a time-out
    /// of 10 s, which is 100 times what a device needs for its largest descriptor of 2 GiB.
    fn default() -> DsaOptions {
        DsaOptions {
            name: "dsa".to_owned(),
            backlog_max: 64,
            retries_max: 10,
            faults_max: 8,
            batch_len_max: guidelines::BATCH_LEN_MAX,
            version: Version::V1_0,
            completion_timeout: Duration::from_secs(10),
        }
    }
}

impl DsaOptions {
    fn driver(&self) -> DriverOptions {
        DriverOptions {
            retries_max: self.retries_max,
            faults_max: self.faults_max,
            batch_len_max: self.batch_len_max,
            version: self.version,
            completion_timeout: self.completion_timeout,
        }
    }
}

/// An engine that copies with the devices behind some portals.
///
/// Dropping it finishes the accepted copies, then ends its thread.
pub struct DsaEngine {
    options: DsaOptions,
    portals: Box<[Arc<dyn Portal>]>,
    node: Option<NodeId>,
    /// The operations of all queues together.
    operations: OperationSet,
    life: PerProcess<Life>,
}

/// The engine in one process.
struct Life {
    shared: Arc<Shared>,
    completer: Option<JoinHandle<()>>,
}

/// The state that submitting threads share with the completer.
struct Shared {
    options: DsaOptions,
    queues: Arc<Queues>,
    /// The origin of the driver's time.
    start: Instant,
    state: Mutex<State>,
    /// Signalled after a submission if `state.completer_sleeps`.
    submitted: Condvar,
    counters: Counters,
}

/// The state under the lock.
struct State {
    driver: Driver<RawRequest>,
    /// The completer sleeps on the condition, and a submission wakes it.
    completer_sleeps: bool,
    /// Submissions so far. The completer polls without pauses again after a new one.
    submissions_count: u64,
    closing: bool,
}

impl DsaEngine {
    /// Starts an engine that uses all of `portals`, in turns. It is on the node of the first.
    ///
    /// A dedicated queue must have no other user: the engine counts its free entries.
    ///
    /// # Errors
    /// [`MoverError::NoPortals`], [`NoQueue`](MoverError::NoQueue), [`Thread`](MoverError::Thread).
    pub fn new(portals: Vec<Arc<dyn Portal>>, options: DsaOptions) -> Result<DsaEngine, MoverError> {
        let Some(first) = portals.first() else { return Err(MoverError::NoPortals) };
        if options.backlog_max == 0 {
            return Err(MoverError::NoQueue);
        }
        let node = first.work_queue().node.map(NodeId);
        let operations_of = |portal: &Arc<dyn Portal>| portal.work_queue().operations;
        let operations = portals.iter().map(operations_of).reduce(OperationSet::union).unwrap_or_default();
        fork::watch().map_err(MoverError::Forks)?;
        let engine =
            DsaEngine { options, portals: portals.into(), node, operations, life: PerProcess::new() };
        engine
            .life
            .get_or_try_init(|| Life::start(&engine.portals, &engine.options))
            .map_err(|source| MoverError::Thread { engine: engine.options.name.clone(), source })?;
        Ok(engine)
    }

    /// The engine in this process.
    fn life(&self) -> &Life {
        self.life.get_or_init(|| {
            // Without a thread, a child refuses every copy.
            Life::start(&self.portals, &self.options).unwrap_or_else(|_| Life::without_queues(&self.options))
        })
    }
}

impl Engine for DsaEngine {
    fn name(&self) -> &str {
        &self.options.name
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Dsa
    }

    fn node(&self) -> Option<NodeId> {
        self.node
    }

    /// The number of queues, possibly of several devices.
    fn width(&self) -> usize {
        self.portals.len()
    }

    fn supports(&self, opcode: Opcode) -> bool {
        self.operations.contains(opcode)
    }

    fn load(&self) -> usize {
        self.life.get().map_or(0, |life| life.shared.counters.load(&[]))
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        self.life().shared.submit(copy)
    }

    /// Takes the lock once, so that small copies form batches.
    fn submit_all(&self, copies: Vec<RawRequest>) -> Vec<Rejected> {
        self.life().shared.submit_all(copies)
    }

    fn stats(&self) -> EngineStats {
        let zeros = Counters::default();
        let counters = self.life.get().map_or(&zeros, |life| &life.shared.counters);
        let reopened = self.portals.iter().map(|portal| portal.counters().reopened).sum();
        EngineStats { reopened, ..counters.read(self.name(), self.kind(), self.node()) }
    }
}

impl Life {
    fn start(portals: &[Arc<dyn Portal>], options: &DsaOptions) -> io::Result<Life> {
        let shared = Arc::new(Shared::new(portals, options));
        let completer = thread::Builder::new().name(format!("{}-completer", options.name)).spawn({
            let shared = shared.clone();
            move || completer::run(&shared)
        })?;
        Ok(Life { shared, completer: Some(completer) })
    }

    fn without_queues(options: &DsaOptions) -> Life {
        Life { shared: Arc::new(Shared::new(&[], options)), completer: None }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.submitted.notify_one();
        // The callback of a copy may own the last handle of the engine. It runs on the completer, which cannot join itself.
        if let Some(completer) = self.completer.take()
            && completer.thread().id() != thread::current().id()
        {
            let _ = completer.join();
        }
    }
}

impl Shared {
    fn new(portals: &[Arc<dyn Portal>], options: &DsaOptions) -> Shared {
        let driver = Driver::new(portals.iter().cloned(), options.driver());
        Shared {
            options: options.clone(),
            queues: driver.queues().clone(),
            start: Instant::now(),
            state: Mutex::new(State {
                driver,
                completer_sleeps: false,
                submissions_count: 0,
                closing: false,
            }),
            submitted: Condvar::new(),
            counters: Counters::default(),
        }
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        let counters = &self.counters;
        counters.submission(|| {
            if copy.size_bytes() == 0 && !copy.is_operation() {
                // A device completes a copy of no bytes with an error.
                counters.end(copy.made(), Ok(CopyReport::default()));
                copy.finish(Ok(CopyReport::default()));
                return Ok(());
            }
            let mut state = self.lock();
            self.enter(&mut state, copy)?;
            self.feed(state);
            Ok(())
        })
    }

    fn submit_all(&self, copies: Vec<RawRequest>) -> Vec<Rejected> {
        let is_empty = |copy: &RawRequest| copy.size_bytes() == 0 && !copy.is_operation();
        let (empty, copies): (Vec<_>, Vec<_>) = copies.into_iter().partition(is_empty);
        let mut rejected: Vec<_> = empty.into_iter().filter_map(|copy| self.submit(copy).err()).collect();
        let mut state = self.lock();
        for copy in copies {
            // Submitting makes room in a full backlog.
            if state.driver.backlog_len() >= self.options.backlog_max {
                self.feed_driver(&mut state);
            }
            rejected.extend(self.counters.submission(|| self.enter(&mut state, copy)).err());
        }
        self.feed(state);
        rejected
    }

    fn enter(&self, state: &mut State, mut copy: RawRequest) -> Result<(), Rejected> {
        if state.driver.all_lost() {
            return Err(Rejected { copy, why: Refusal::Gone });
        }
        if state.driver.backlog_len() >= self.options.backlog_max {
            return Err(Rejected { copy, why: Refusal::Full });
        }
        state.driver.enqueue(copy.take_task(), guidelines::thread_number(), copy);
        state.submissions_count += 1;
        Ok(())
    }

    /// The driver's time.
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn feed_driver(&self, state: &mut State) {
        state.driver.feed(|| self.now(), &self.counters);
    }

    /// Submits waiting items and wakes the completer.
    fn feed(&self, mut state: MutexGuard<'_, State>) {
        self.feed_driver(&mut state);
        let completer_sleeps = state.completer_sleeps;
        drop(state);
        if completer_sleeps {
            self.submitted.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for DsaEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DsaEngine").field("options", &self.options).finish_non_exhaustive()
    }
}

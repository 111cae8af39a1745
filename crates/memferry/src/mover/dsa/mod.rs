//! The DSA engine: copies with work queues of Data Streaming Accelerators.
//!
//! ```text
//!   submit ──▶ lock: Driver ── descriptor ──▶ portal ──▶ device
//!                 ▲      │ page faults, the CPU's share        │
//!                 │      ▼                                     ▼
//!               lock: completer, a thread ◀──────── completion record, polled
//! ```
//!
//! The rules are those of [`memferry_dsa::driver`]. Submitting takes one lock and offers the copy to each queue once; it
//! never waits. Everything that takes time is the business of one thread, the completer. Nothing falls back silently: each refusal, resumption and
//! piece that the CPU did is counted, and the [statistics](EngineStats) add up.
//!
//! A descriptor whose completion never comes is given up when the portal says that the device is gone, or after
//! [`DsaOptions::completion_timeout`]: some errors never reach the record. The device might still write then,
//! so both buffers of the copy are leaked, with the queue's records, and the queue gets no more work.
//!
//! A forked child has neither the parent's thread nor its portals. Its first submission makes slots, books and counters
//! of its own, and starts a completer; the portals open themselves again. What the parent has in flight stays the
//! parent's.
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

use memferry_dsa::driver::{Driver, DriverOptions, Queues};
use memferry_dsa::fork::{self, PerProcess};
use memferry_dsa::system::Version;
use memferry_dsa::{Opcode, OperationSet, Portal};

use super::guidelines;
use super::stats::Counters;
use super::{CopyReport, Engine, EngineKind, EngineStats, MoverError, RawRequest, Refusal, Rejected};
use crate::topology::NodeId;

/// How to build a [`DsaEngine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DsaOptions {
    /// What reports call the engine, and the start of its thread's name.
    pub name: String,
    /// Pieces that may wait for a free slot; with as many waiting, the engine is full.
    pub backlog_max: usize,
    /// Times in a row that all queues may refuse a piece, with a pause after each that doubles from 2 us to 1
    /// ms, before the CPU does it.
    pub retries_max: u32,
    /// Page faults that may cut one piece short before the CPU does the rest of it.
    pub faults_max: u32,
    /// Members that a batch may have; below [`BATCH_LEN_MIN`](memferry_dsa::driver::BATCH_LEN_MIN) there are no batches.
    pub batch_len_max: usize,
    /// Version of the devices, which decides about operations that are newer than 1.0.
    pub version: Version,
    /// A descriptor is lost when its queue has made no progress that it waits for in so long: no descriptor before it
    /// has completed. Others may have as many descriptors in the device as the queue has entries, for whose largest
    /// transfers there is more time, at 1 GB/s. Time during which this process was stopped does not count.
    /// Cost: below 100 ms it is no sharper than the pauses that the scheduler makes.
    pub completion_timeout: Duration,
}

impl Default for DsaOptions {
    /// Patient with devices: 64 waiting pieces, 10 retries (2 ms), 8 faults, batches of 8, version 1.0, 10 s, which is
    /// more than a device needs for the 2 GiB that its largest descriptor can ask for, by a factor of 100.
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

/// Copies with the devices behind some portals.
///
/// Dropping it finishes the copies that it accepted, then ends its thread.
pub struct DsaEngine {
    options: DsaOptions,
    portals: Box<[Arc<dyn Portal>]>,
    node: Option<NodeId>,
    /// Those that at least one queue has.
    operations: OperationSet,
    life: PerProcess<Life>,
}

/// The engine in one process.
struct Life {
    shared: Arc<Shared>,
    completer: Option<JoinHandle<()>>,
}

/// What the engine and its completer share.
struct Shared {
    options: DsaOptions,
    queues: Arc<Queues>,
    /// The driver's time counts from here.
    start: Instant,
    state: Mutex<State>,
    /// Signalled after a submission if `state.completer_sleeps`.
    submitted: Condvar,
    counters: Counters,
}

/// What the lock protects.
struct State {
    driver: Driver<RawRequest>,
    /// The completer sleeps on the condition and wants to be woken by a submission.
    completer_sleeps: bool,
    /// Raised with each submission, so that the completer knows when to be attentive again.
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

    /// What this process has of the engine.
    fn life(&self) -> &Life {
        self.life.get_or_init(|| {
            // A child that gets no thread has no queue either, and refuses everything.
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

    /// Its queues: they may be those of several devices.
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

    /// Takes the lock once, so that what is small finds its fellows for a batch.
    fn submit_all(&self, copies: Vec<RawRequest>) -> Vec<Rejected> {
        self.life().shared.submit_all(copies)
    }

    fn stats(&self) -> EngineStats {
        let unborn = Counters::default();
        let counters = self.life.get().map_or(&unborn, |life| &life.shared.counters);
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
        // The last owner of an engine may be the `done` of a copy, which runs on the completer: that one ends
        // by itself.
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
                // A device would call that a bad size.
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
        let is_nothing = |copy: &RawRequest| copy.size_bytes() == 0 && !copy.is_operation();
        let (nothing, copies): (Vec<_>, Vec<_>) = copies.into_iter().partition(is_nothing);
        let mut rejected: Vec<_> = nothing.into_iter().filter_map(|copy| self.submit(copy).err()).collect();
        let mut state = self.lock();
        for copy in copies {
            // Of a full backlog some goes to the device.
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

    /// Submits what can be, and wakes the completer.
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

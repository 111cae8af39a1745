//! The CPU engine: a few pinned worker threads of one node, with a bounded queue.
//!
//! A submission takes one lock, once. A copy that is so small that a hand-over would take longer is done on the
//! submitting thread, even if the queue is full.
//!
//! A forked child does not inherit threads: its first submission starts workers with a new queue and new counters.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use memferry_dsa::Opcode;
use memferry_dsa::internals::affinity::confine_thread;
use memferry_dsa::internals::fork::{self, PerProcess};

use super::halt_poll::HaltPoll;
use super::queue::{Queue, TAKEN_MAX};
use super::{Engine, Rejected};
use crate::copy_method::CopyMethods;
use crate::moment::Moment;
use crate::mover::error::MoverError;
use crate::mover::request::RawRequest;
use crate::mover::stats::{Counters, EngineStats, Tally};
use crate::route::EngineKind;
use crate::topology::{Machine, NodeId};

/// Options of a [`CpuEngine`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// The node whose CPUs are used; for a node without CPUs, those of its CPU node. `None` leaves the threads unpinned.
    pub node: Option<NodeId>,
    /// Number of worker threads.
    pub workers_count: usize,
    /// Limit of queued copies.
    pub queue_copies_max: usize,
    /// Largest copy that the submitting thread does; 0: none.
    pub inline_bytes_max: usize,
    /// The copy methods.
    pub methods: CopyMethods,
}

impl Default for CpuOptions {
    /// One unpinned worker. 128 queued copies, as many as all queues of a DSA device hold. Copies of up to a page inline:
    /// they take 0.05 us in the caches and 0.4 us from memory, where waking a worker takes microseconds.
    fn default() -> CpuOptions {
        CpuOptions {
            node: None,
            workers_count: 1,
            queue_copies_max: 128,
            inline_bytes_max: 4096,
            methods: CopyMethods::default(),
        }
    }
}

/// An engine that copies with CPU cores.
///
/// Dropping it finishes the accepted copies, then ends its threads.
#[derive(Debug)]
pub struct CpuEngine {
    name: String,
    node: Option<NodeId>,
    /// The CPUs of the workers; empty if they are unpinned.
    cpus: Box<[u32]>,
    workers_count: usize,
    queue_copies_max: usize,
    inline_bytes_max: usize,
    methods: CopyMethods,
    instance: PerProcess<Instance>,
}

/// A worker takes several copies of up to this size from the queue at once. Each takes 0.4 us at most.
const SMALL_BYTES: usize = 4096;

thread_local! {
    /// Set in the callback of a copy that this thread does inline. Copies that the callback submits go to the workers:
    /// chains of small copies would otherwise nest until the stack overflows.
    static IS_INLINE: Cell<bool> = const { Cell::new(false) };

    /// The engine instance and worker index of this thread, set while it calls back and has no further copy.
    ///
    /// A copy that the callback submits runs next on the same worker, if the queue is empty: chains of copies stay in
    /// the caches, without a lock or a wake-up for each link.
    ///
    /// Source: the LIFO slot of Tokio's scheduler, tokio/src/runtime/scheduler/multi_thread/worker.rs.
    static SERVES: Cell<Option<(*const Shared, usize)>> = const { Cell::new(None) };

    /// The next copy of this worker, submitted by the callback.
    static NEXT: Cell<Option<RawRequest>> = const { Cell::new(None) };
}

/// The threads and the state of the engine in one process.
#[derive(Debug, Default)]
struct Instance {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    pinned_workers_count: usize,
}

/// Shared by submitting threads and workers. `queue` has its own lock.
#[derive(Debug, Default)]
struct Shared {
    queue: Queue<RawRequest>,
    /// Written by submitting threads, and by workers for errors.
    counters: Counters,
    /// One for each worker, which alone writes it.
    tallies: Box<[Tally]>,
}

impl CpuEngine {
    /// Starts the workers. On this machine they are pinned to the node's CPUs; for a machine from a profile they are not.
    ///
    /// # Errors
    /// [`MoverError::NoWorkers`], [`NoQueue`](MoverError::NoQueue), [`Thread`](MoverError::Thread), and
    /// [`Topology`](MoverError::Topology) for a node that the machine does not have.
    pub fn new(machine: &Machine, options: CpuOptions) -> Result<CpuEngine, MoverError> {
        if options.workers_count == 0 {
            return Err(MoverError::NoWorkers);
        }
        if options.queue_copies_max == 0 {
            return Err(MoverError::NoQueue);
        }
        let home = options.node.map(|node| machine.node(node)).transpose()?.map(|node| node.cpu_node);
        let cpus = match home {
            Some(home) if machine.is_this_machine() => &machine.node(home)?.cpus[..],
            _ => &[],
        };
        fork::watch().map_err(MoverError::Forks)?;
        // Calibrates the clock, so that the first copy need not.
        Moment::now();
        let engine = CpuEngine {
            name: home.map_or("cpu".to_owned(), |home| format!("cpu{}", home.0)),
            node: home,
            cpus: cpus.into(),
            workers_count: options.workers_count,
            queue_copies_max: options.queue_copies_max,
            inline_bytes_max: options.inline_bytes_max,
            methods: options.methods,
            instance: PerProcess::new(),
        };
        engine
            .instance
            .get_or_try_init(|| engine.start())
            .map_err(|source| MoverError::Thread { engine: engine.name.clone(), source })?;
        Ok(engine)
    }

    /// The instance of this process; the first call in a forked child starts it.
    fn instance(&self) -> &Instance {
        self.instance.get_or_init(|| {
            self.start().unwrap_or_else(|_| {
                // Without threads it refuses everything.
                let instance = Instance::default();
                instance.shared.queue.close();
                instance
            })
        })
    }

    fn start(&self) -> io::Result<Instance> {
        let tallies = (0..self.workers_count).map(|_| Tally::default()).collect();
        let shared = Arc::new(Shared { tallies, ..Shared::default() });
        // If a thread cannot be started, dropping this ends the others.
        let mut instance = Instance { shared, workers: Vec::new(), pinned_workers_count: 0 };
        for index in 0..self.workers_count {
            let (shared, methods) = (instance.shared.clone(), self.methods);
            let worker = thread::Builder::new()
                .name(format!("memferry-{}.{index}", self.name))
                .spawn(move || shared.work(index, &methods))?;
            instance.pinned_workers_count += usize::from(confine_thread(&worker, &self.cpus).is_ok());
            instance.workers.push(worker);
        }
        Ok(instance)
    }

    /// The number of workers that the kernel pinned: none for a profile, and none in a container that forbids it.
    pub fn pinned_workers_count(&self) -> usize {
        self.instance().pinned_workers_count
    }

    /// Accepts a copy beyond the limit of the queue.
    pub(in crate::mover) fn submit_beyond_limit(&self, copy: RawRequest) -> Result<(), Rejected> {
        self.push(copy, usize::MAX)
    }

    /// Copies on the calling thread.
    fn copy_inline(&self, copy: RawRequest) {
        let counters = &self.instance().shared.counters;
        counters.accepted.add(1);
        IS_INLINE.set(true);
        let result = copy.copy_on_this_cpu(&self.methods);
        counters.bytes.add(result.map_or(0, |report| report.cpu_bytes));
        counters.end(copy.made(), result);
        copy.finish(result);
        IS_INLINE.set(false);
    }

    fn push(&self, copy: RawRequest, len_max: usize) -> Result<(), Rejected> {
        let shared = &*self.instance().shared;
        let Shared { queue, counters, .. } = shared;
        let Err(copy) = shared.keep(copy) else { return Ok(()) };
        counters.submission(|| queue.push(copy, len_max).map_err(|(copy, why)| Rejected { copy, why }))
    }
}

impl Engine for CpuEngine {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> EngineKind {
        EngineKind::Cpu
    }

    fn node(&self) -> Option<NodeId> {
        self.node
    }

    fn width(&self) -> usize {
        self.workers_count
    }

    fn supports(&self, _: Opcode) -> bool {
        true
    }

    fn load(&self) -> usize {
        self.instance.get().map_or(0, |instance| instance.shared.load())
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        if copy.size_bytes() <= self.inline_bytes_max && !IS_INLINE.get() {
            self.copy_inline(copy);
            return Ok(());
        }
        self.push(copy, self.queue_copies_max)
    }

    /// Hands the batch over under one lock. That pays for small copies too, unless the whole batch is small.
    fn submit_all(&self, copies: Vec<RawRequest>) -> Vec<Rejected> {
        let size_bytes: usize = copies.iter().map(RawRequest::size_bytes).sum();
        if size_bytes <= self.inline_bytes_max {
            return copies.into_iter().filter_map(|copy| self.submit(copy).err()).collect();
        }
        let Shared { queue, counters, .. } = &*self.instance().shared;
        // Counted before the push: see `Counters::submission`.
        counters.accepted.add(copies.len() as u64);
        let (refused, why) = queue.push_all(copies, self.queue_copies_max);
        counters.accepted.sub(refused.len() as u64);
        counters.rejected.add(refused.len() as u64);
        refused.into_iter().map(|copy| Rejected { copy, why }).collect()
    }

    fn stats(&self) -> EngineStats {
        let none = Shared::default();
        let Shared { counters, tallies, .. } = self.instance.get().map_or(&none, |instance| &instance.shared);
        let mut stats = counters.read(self.name(), self.kind(), self.node());
        tallies.iter().for_each(|tally| tally.add_to(&mut stats));
        stats
    }
}

impl Shared {
    /// Copies that are accepted and not complete.
    fn load(&self) -> usize {
        self.counters.load(&self.tallies)
    }

    fn work(&self, index: usize, methods: &CopyMethods) {
        let tally = &self.tallies[index];
        let (mut poll, mut taken) = (HaltPoll::new(), VecDeque::with_capacity(TAKEN_MAX));
        loop {
            self.queue.pop(&mut taken, &mut poll, |copy| copy.size_bytes() <= SMALL_BYTES);
            if taken.is_empty() {
                return;
            }
            while let Some(copy) = NEXT.take().or_else(|| taken.pop_front()) {
                let result = copy.copy_on_this_cpu(methods);
                match result {
                    Ok(report) => tally.end(copy.made(), report.cpu_bytes),
                    Err(_) => self.counters.end(copy.made(), result),
                }
                SERVES.set(taken.is_empty().then_some((ptr::from_ref(self), index)));
                copy.finish(result);
                SERVES.set(None);
            }
        }
    }

    /// Keeps the copy for this thread if it is an idle worker of this engine, or hands it back.
    fn keep(&self, copy: RawRequest) -> Result<(), RawRequest> {
        let Some((_, index)) = SERVES.get().filter(|&(serves, _)| ptr::eq(serves, self)) else {
            return Err(copy);
        };
        if !self.queue.seems_empty() {
            return Err(copy);
        }
        // The worker has a next copy now.
        SERVES.set(None);
        self.tallies[index].accept();
        NEXT.set(Some(copy));
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.shared.queue.close();
        for worker in self.workers.drain(..) {
            // The last owner of an engine may be the callback of a copy, which runs on a worker: that worker ends by
            // itself.
            if worker.thread().id() != thread::current().id() {
                let _ = worker.join();
            }
        }
    }
}

#[cfg(all(test, not(memferry_loom)))]
#[allow(unsafe_code)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use memferry_dsa::Request;
    use memferry_dsa::internals::request::Task;

    use super::*;
    use crate::mover::error::CopyError;

    /// Copies queued behind a panic must still be done.
    #[test]
    fn a_worker_survives_a_panic() {
        let machine = Machine::two_tiers().expect("built in");
        let engine = CpuEngine::new(&machine, CpuOptions::default()).expect("a thread");
        let (sender, results) = channel();
        // By a worker, by the submitting thread, and by the worker again.
        for (is_poisoned, is_inline) in [(true, false), (true, true), (false, false)] {
            let sender = sender.clone();
            // SAFETY: a no-op has no memory.
            let task = unsafe { Task::new(&Request::noop()) }.expect("valid");
            let operation = RawRequest::of_task(task, move |result| {
                sender.send(result.map(|_| ())).expect("the test listens");
            });
            if is_poisoned {
                operation.poison();
            }
            let submit = if is_inline { CpuEngine::submit } else { CpuEngine::submit_beyond_limit };
            submit(&engine, operation).expect("there is room");
            let result = results.recv_timeout(Duration::from_secs(60)).expect("a completion");
            assert_eq!(result, if is_poisoned { Err(CopyError::Abandoned) } else { Ok(()) });
        }
        let stats = engine.stats();
        assert_eq!((stats.accepted, stats.operations, stats.errors, stats.latencies.count()), (3, 1, 2, 3));
    }
}

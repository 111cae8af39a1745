//! The CPU engine: a few pinned threads of one node that copy, one copy after another, and sleep when there is
//! none.
//!
//! A submission takes one lock, once. The queue in front of the workers is bounded; when it is full the engine
//! says so. What is so small that handing it over would take longer is copied by the submitting thread, queue or not.
//!
//! A forked child has none of the parent's threads: its first submission starts workers of its own, with a queue and
//! counters of their own.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use memferry_dsa::Opcode;
use memferry_dsa::affinity::confine_thread;
use memferry_dsa::fork::{self, PerProcess};

use super::linger::Linger;
use super::moment::Moment;
use super::queue::{Queue, TAKEN_MAX};
use super::stats::{Counters, Tally};
use super::{CopyMethods, Engine, EngineKind, EngineStats, MoverError, RawRequest, Rejected};
use crate::topology::{Machine, NodeId};

/// How to build a [`CpuEngine`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Whose CPUs to use: this node's, or those of the CPU node it belongs to. `None` leaves the threads unpinned.
    pub node: Option<NodeId>,
    /// Threads that copy.
    pub workers_count: usize,
    /// Copies that may wait for them.
    pub queue_copies_max: usize,
    /// Copies of up to so many bytes are done by the thread that submits them; 0: none.
    pub inline_bytes_max: usize,
    /// How to copy.
    pub methods: CopyMethods,
}

impl Default for CpuOptions {
    /// One worker, anywhere; 128 waiting copies, as many as all queues of a DSA device hold; a page inline, which takes
    /// 0.05 us in the caches and 0.4 us from memory, where waking a worker takes microseconds.
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

/// Copies with CPU cores.
///
/// Dropping it finishes the copies that it accepted, then ends its threads.
#[derive(Debug)]
pub struct CpuEngine {
    name: String,
    node: Option<NodeId>,
    /// Where the workers are pinned, if there are any.
    cpus: Box<[u32]>,
    workers_count: usize,
    queue_copies_max: usize,
    inline_bytes_max: usize,
    methods: CopyMethods,
    life: PerProcess<Life>,
}

/// A worker takes several copies of up to this size at once. Each takes it 0.4 us at most.
const SMALL_BYTES: usize = 4096;

thread_local! {
    /// Inside the `done` of a copy that this thread does inline. What that submits goes to the workers: chains of small
    /// copies would otherwise nest until the stack ends.
    static IS_INLINE: Cell<bool> = const { Cell::new(false) };

    /// Of which engine, in which process, this thread is which worker, while it ends a copy and has nothing to do after
    /// that.
    ///
    /// What the `done` of that copy submits is done next by the same worker, as long as nothing else waits: chains of
    /// copies keep their caches, and need no lock and nobody woken for each link.
    ///
    /// Source: the LIFO slot of Tokio's scheduler, tokio/src/runtime/scheduler/multi_thread/worker.rs.
    static SERVES: Cell<Option<(*const Shared, usize)>> = const { Cell::new(None) };

    /// What the worker does next.
    static NEXT: Cell<Option<RawRequest>> = const { Cell::new(None) };
}

/// The engine in one process.
#[derive(Debug, Default)]
struct Life {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    pinned_workers_count: usize,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Queue<RawRequest>,
    /// What submitters count.
    counters: Counters,
    /// What each worker counts.
    tallies: Box<[Tally]>,
}

impl CpuEngine {
    /// Starts the workers. On a machine that was discovered, not read from a profile, they are pinned to the
    /// node's CPUs.
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
        // The first copy need not find out how the CPU's clock ticks.
        Moment::now();
        let engine = CpuEngine {
            name: home.map_or("cpu".to_owned(), |home| format!("cpu{}", home.0)),
            node: home,
            cpus: cpus.into(),
            workers_count: options.workers_count,
            queue_copies_max: options.queue_copies_max,
            inline_bytes_max: options.inline_bytes_max,
            methods: options.methods,
            life: PerProcess::new(),
        };
        engine
            .life
            .get_or_try_init(|| engine.start())
            .map_err(|source| MoverError::Thread { engine: engine.name.clone(), source })?;
        Ok(engine)
    }

    /// What this process has of the engine.
    fn life(&self) -> &Life {
        self.life.get_or_init(|| {
            self.start().unwrap_or_else(|_| {
                // A child that gets no threads refuses everything.
                let life = Life::default();
                life.shared.queue.close();
                life
            })
        })
    }

    fn start(&self) -> io::Result<Life> {
        // From here on `life` ends the threads it has if one cannot be started.
        let tallies = (0..self.workers_count).map(|_| Tally::default()).collect();
        let shared = Arc::new(Shared { tallies, ..Shared::default() });
        let mut life = Life { shared, workers: Vec::new(), pinned_workers_count: 0 };
        for index in 0..self.workers_count {
            let (shared, methods) = (life.shared.clone(), self.methods);
            let worker = thread::Builder::new()
                .name(format!("memferry-{}.{index}", self.name))
                .spawn(move || shared.work(index, &methods))?;
            life.pinned_workers_count += usize::from(confine_thread(&worker, &self.cpus).is_ok());
            life.workers.push(worker);
        }
        Ok(life)
    }

    /// How many workers the kernel agreed to pin: none on a profile, and none where a container forbids it.
    pub fn pinned_workers_count(&self) -> usize {
        self.life().pinned_workers_count
    }

    /// Takes a copy however many wait already. For the mover, which says when.
    pub(super) fn submit_beyond_limit(&self, copy: RawRequest) -> Result<(), Rejected> {
        self.push(copy, usize::MAX)
    }

    /// Copies here and now.
    fn copy_inline(&self, copy: RawRequest) {
        let counters = &self.life().shared.counters;
        counters.accepted.add(1);
        IS_INLINE.set(true);
        let result = copy.copy_on_this_cpu(&self.methods);
        counters.bytes.add(result.map_or(0, |report| report.cpu_bytes));
        counters.end(copy.made(), result);
        copy.finish(result);
        IS_INLINE.set(false);
    }

    fn push(&self, copy: RawRequest, len_max: usize) -> Result<(), Rejected> {
        let shared = &*self.life().shared;
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
        self.life.get().map_or(0, |life| life.shared.load())
    }

    fn submit(&self, copy: RawRequest) -> Result<(), Rejected> {
        if copy.size_bytes() <= self.inline_bytes_max && !IS_INLINE.get() {
            self.copy_inline(copy);
            return Ok(());
        }
        self.push(copy, self.queue_copies_max)
    }

    /// A batch is handed over under one lock, so that also small copies are better off with a worker; unless all of it is
    /// small.
    fn submit_all(&self, copies: Vec<RawRequest>) -> Vec<Rejected> {
        let size_bytes: usize = copies.iter().map(RawRequest::size_bytes).sum();
        if size_bytes <= self.inline_bytes_max {
            return copies.into_iter().filter_map(|copy| self.submit(copy).err()).collect();
        }
        let Shared { queue, counters, .. } = &*self.life().shared;
        // Before they are there: see `Counters::submission`.
        counters.accepted.add(copies.len() as u64);
        let (refused, why) = queue.push_all(copies, self.queue_copies_max);
        counters.accepted.sub(refused.len() as u64);
        counters.rejected.add(refused.len() as u64);
        refused.into_iter().map(|copy| Rejected { copy, why }).collect()
    }

    fn stats(&self) -> EngineStats {
        let unborn = Shared::default();
        let Shared { counters, tallies, .. } = self.life.get().map_or(&unborn, |life| &life.shared);
        let mut stats = counters.read(self.name(), self.kind(), self.node());
        tallies.iter().for_each(|tally| tally.add_to(&mut stats));
        stats
    }
}

impl Shared {
    /// Copies that were accepted and have not ended.
    fn load(&self) -> usize {
        self.counters.load(&self.tallies)
    }

    fn work(&self, index: usize, methods: &CopyMethods) {
        let tally = &self.tallies[index];
        let (mut linger, mut taken) = (Linger::new(), VecDeque::with_capacity(TAKEN_MAX));
        loop {
            self.queue.pop(&mut taken, &mut linger, |copy| copy.size_bytes() <= SMALL_BYTES);
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

    /// Leaves the copy to this thread, if it is a worker that does it next, or hands it back.
    fn keep(&self, copy: RawRequest) -> Result<(), RawRequest> {
        let Some((_, index)) = SERVES.get().filter(|&(serves, _)| ptr::eq(serves, self)) else {
            return Err(copy);
        };
        if !self.queue.seems_empty() {
            return Err(copy);
        }
        // It has something to do now.
        SERVES.set(None);
        self.tallies[index].accept();
        NEXT.set(Some(copy));
        Ok(())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.shared.queue.close();
        for worker in self.workers.drain(..) {
            // The last owner of an engine may be the `done` of a copy, which runs on a worker: that one ends by
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

    use memferry_dsa::request::{Request, Task};

    use super::super::CopyError;
    use super::*;

    /// Otherwise what waits for the only worker would wait for ever.
    #[test]
    fn a_worker_survives_a_panic() {
        let machine = Machine::two_tiers().expect("built in");
        let engine = CpuEngine::new(&machine, CpuOptions::default()).expect("a thread");
        let (ended, ends) = channel();
        // By a worker, by the submitting thread, and by the worker again.
        for (is_poisoned, is_inline) in [(true, false), (true, true), (false, false)] {
            let ended = ended.clone();
            // SAFETY: a no-op has no memory.
            let task = unsafe { Task::new(&Request::noop()) }.expect("valid");
            let operation = RawRequest::of_task(task, move |end| {
                ended.send(end.map(|_| ())).expect("the test listens");
            });
            if is_poisoned {
                operation.poison();
            }
            let submit = if is_inline { CpuEngine::submit } else { CpuEngine::submit_beyond_limit };
            submit(&engine, operation).expect("there is room");
            let end = ends.recv_timeout(Duration::from_secs(60)).expect("an end");
            assert_eq!(end, if is_poisoned { Err(CopyError::Abandoned) } else { Ok(()) });
        }
        let stats = engine.stats();
        assert_eq!((stats.accepted, stats.operations, stats.errors, stats.latencies.count()), (3, 1, 2, 3));
    }
}

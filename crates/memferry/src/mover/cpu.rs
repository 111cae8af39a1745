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
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use memferry_dsa::Opcode;
use memferry_dsa::fork::{self, PerProcess};

use super::linger::Linger;
use super::queue::{Queue, TAKEN_MAX};
use super::stats::Counters;
use super::{CopyMethods, Engine, EngineKind, EngineStats, MoverError, RawCopy, Rejected};
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
    queue: Queue<RawCopy>,
    counters: Counters,
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
        let mut life = Life::default();
        for index in 0..self.workers_count {
            let (shared, methods) = (life.shared.clone(), self.methods);
            let worker = thread::Builder::new()
                .name(format!("memferry-{}.{index}", self.name))
                .spawn(move || shared.work(&methods))?;
            life.pinned_workers_count += usize::from(pin(&worker, &self.cpus));
            life.workers.push(worker);
        }
        Ok(life)
    }

    /// How many workers the kernel agreed to pin: none on a profile, and none where a container forbids it.
    pub fn pinned_workers_count(&self) -> usize {
        self.life().pinned_workers_count
    }

    /// Takes a copy however many wait already. For the mover, which says when.
    pub(super) fn submit_beyond_limit(&self, copy: RawCopy) -> Result<(), Rejected> {
        self.push(copy, usize::MAX)
    }

    /// Copies here and now.
    fn copy_inline(&self, copy: RawCopy) {
        let counters = &self.life().shared.counters;
        counters.accepted.add(1);
        IS_INLINE.set(true);
        counters.copy(copy, &self.methods);
        IS_INLINE.set(false);
    }

    fn push(&self, copy: RawCopy, len_max: usize) -> Result<(), Rejected> {
        let Shared { queue, counters } = &*self.life().shared;
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
        self.life.get().map_or(0, |life| life.shared.counters.load())
    }

    fn submit(&self, copy: RawCopy) -> Result<(), Rejected> {
        if copy.size_bytes() <= self.inline_bytes_max && !IS_INLINE.get() {
            self.copy_inline(copy);
            return Ok(());
        }
        self.push(copy, self.queue_copies_max)
    }

    /// A batch is handed over under one lock, so that also small copies are better off with a worker; unless all of it is
    /// small.
    fn submit_all(&self, copies: Vec<RawCopy>) -> Vec<Rejected> {
        let size_bytes: usize = copies.iter().map(RawCopy::size_bytes).sum();
        if size_bytes <= self.inline_bytes_max {
            return copies.into_iter().filter_map(|copy| self.submit(copy).err()).collect();
        }
        let Shared { queue, counters } = &*self.life().shared;
        // Before they are there: see `Counters::submission`.
        counters.accepted.add(copies.len() as u64);
        let (refused, why) = queue.push_all(copies, self.queue_copies_max);
        counters.accepted.sub(refused.len() as u64);
        counters.rejected.add(refused.len() as u64);
        refused.into_iter().map(|copy| Rejected { copy, why }).collect()
    }

    fn stats(&self) -> EngineStats {
        let unborn = Counters::default();
        let counters = self.life.get().map_or(&unborn, |life| &life.shared.counters);
        counters.read(self.name(), self.kind(), self.node())
    }
}

impl Shared {
    fn work(&self, methods: &CopyMethods) {
        let (mut linger, mut taken) = (Linger::new(), VecDeque::with_capacity(TAKEN_MAX));
        loop {
            self.queue.pop(&mut taken, &mut linger, |copy| copy.size_bytes() <= SMALL_BYTES);
            if taken.is_empty() {
                return;
            }
            for copy in taken.drain(..) {
                self.counters.copy(copy, methods);
            }
        }
    }
}

impl Counters {
    /// Copies on this thread, and counts that.
    fn copy(&self, copy: RawCopy, methods: &CopyMethods) {
        let report = copy.copy_on_this_cpu(methods);
        self.bytes.add(report.cpu_bytes);
        self.end(copy.made(), Ok(report));
        copy.finish(Ok(report));
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

/// Confines a thread to `cpus`. False if there are none, or the kernel refuses.
fn pin(worker: &JoinHandle<()>, cpus: &[u32]) -> bool {
    if cpus.is_empty() {
        return false;
    }
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus.iter().filter(|&&cpu| cpu < libc::CPU_SETSIZE as u32) {
        // SAFETY: `cpu` is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    }
    // SAFETY: the handle has not been joined, so its pthread_t is valid; the set has the size that is said.
    unsafe { libc::pthread_setaffinity_np(worker.as_pthread_t(), size_of_val(&set), &set) == 0 }
}

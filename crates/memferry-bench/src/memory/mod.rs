//! Latency and bandwidth of this machine's memories, by domain of CPUs and by node, idle and under load: `memferry bench
//! memory`, the job of Intel's Memory Latency Checker.
//!
//! ```text
//! kernels, chain      the loops: read, write, modify; follow pointers      shared with `calibrate`
//! arena, threads      their memory, which no cache holds; their threads    shared with `calibrate`
//! peers               the same loops in C, compiled at run time
//!
//! MemoryBench: for each memory, for each kind of pages
//!   ├─ compared       our loops beside those in C, once
//!   ├─ cell           for each domain: idle latency, bandwidth of each traffic
//!   └─ curves         from the nearest domain: latency while other threads load the memory
//!        └─▶ MemoryRow
//! ```
//!
//! Bandwidths count the bytes that the program reads plus those that it writes, as STREAM does.

pub(crate) mod arena;
#[allow(unsafe_code)]
pub(crate) mod chain;
mod error;
#[allow(unsafe_code)]
pub(crate) mod kernels;
mod loaded;
mod measure;
mod pages;
#[allow(unsafe_code)]
mod peers;
mod row;
pub(crate) mod threads;

use memferry::internals::{CopyMethod, Domain};
use memferry::topology::{Machine, NodeId};

pub use error::MemoryBenchError;
pub use peers::{NoPeers, Peers};
pub use row::{Figure, MemoryRow, Pages, Place, Traffic};

use self::arena::{Arena, chain_bytes, exceeding_caches_bytes, fitting_bytes};
use self::chain::Chain;
use self::measure::{COMPARED_COUNT, Field, Site};
use crate::harness::Effort;

/// What to measure.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Nodes whose CPUs and memories are measured; `None`: all.
    pub nodes: Option<Vec<NodeId>>,
    /// Threads of a domain, each on its CPU; `None`: one on each. A smaller domain has one on each.
    pub threads: Option<usize>,
    /// Bytes of each region of a thread, and of the chain, rounded up to [`REGION_BYTES_MIN`]; `None`: several times the
    /// largest cache.
    pub size_bytes: Option<usize>,
    /// Kinds of pages, at least one.
    pub pages: Vec<Pages>,
    /// The length of the benchmark.
    pub effort: Effort,
    /// Decides the order of the chain, and the confidence intervals.
    pub seed: u64,
}

/// The unit of regions: a huge page.
pub const REGION_BYTES_MIN: usize = 2 << 20;
/// The largest region: the lines of a chain of this size have numbers of 32 bits.
pub const REGION_BYTES_MAX: usize = 128 << 30;

/// Numbers of rounds. Those of latencies are many and short, a fraction of a millisecond: other programs, if there are any,
/// then disturb few of them, and not the median.
#[derive(Clone, Copy, Debug)]
struct Rounds {
    /// Of a bandwidth beside a loop in C, ours and the peer's each.
    compared: usize,
    /// Of the latency beside a loop in C.
    compared_latency: usize,
    /// Of a bandwidth in a cell.
    cell: usize,
    /// Of a latency in a cell, and in a point of a curve.
    latency: usize,
    /// Steps of the chain in a round.
    steps: usize,
}

/// Cells that have all rounds. A machine with more nodes gets fewer, so that a record takes minutes.
const CELLS_FULL: usize = 4;

impl Rounds {
    fn of(effort: Effort, cells_count: usize) -> Rounds {
        const CELL: usize = 21;
        let cell = (CELL * CELLS_FULL / cells_count.max(1)).clamp(3, CELL);
        Rounds {
            compared: effort.of(101, 3),
            compared_latency: effort.of(1001, 3),
            cell: effort.of(cell, 2),
            latency: effort.of(20 * cell, 2),
            steps: effort.of(2000, 500),
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct MeasuredMemory {
    /// The rows beside loops in C first, then those of each memory.
    pub rows: Vec<MemoryRow>,
    /// What was left out, and why.
    pub notes: Vec<String>,
    /// The fastest method of copies, which all of them use.
    pub copy_method: CopyMethod,
    /// Bits of the vectors that read fastest beside the loops in C; `None`: those of the compiler's choice.
    pub vector_bits: Option<usize>,
    /// Bytes of the smallest region of a thread.
    pub region_bytes: usize,
    /// Bytes of the smallest chain.
    pub chain_bytes: usize,
}

/// The benchmark on this machine.
#[derive(Debug)]
pub struct MemoryBench<'a> {
    machine: &'a Machine,
    options: MemoryOptions,
    domains: Vec<Domain>,
    /// That of `home` first.
    memories: Vec<NodeId>,
    /// The first domain with memory of its own, whose rows are beside the loops in C.
    home: Domain,
}

impl<'a> MemoryBench<'a> {
    /// The benchmark of `machine`, which is this one.
    ///
    /// # Errors
    /// [`MemoryBenchError`] for nodes and threads that are not there, and for too large regions.
    pub fn new(machine: &'a Machine, options: MemoryOptions) -> Result<MemoryBench<'a>, MemoryBenchError> {
        if let Some(size_bytes) = options.size_bytes.filter(|&size_bytes| size_bytes > REGION_BYTES_MAX) {
            return Err(MemoryBenchError::TooLarge { size_bytes });
        }
        let is_wanted = |node: NodeId| options.nodes.as_ref().is_none_or(|nodes| nodes.contains(&node));
        let domains: Vec<Domain> = (machine.domains().into_iter())
            .filter(|domain| is_wanted(domain.cpu_node) && !domain.cpus.is_empty())
            .collect();
        let memories = machine.nodes().iter().filter(|node| node.has_memory() && node.is_allowed);
        let mut memories: Vec<NodeId> =
            memories.map(|node| node.id).filter(|&node| is_wanted(node)).collect();
        for &node in options.nodes.iter().flatten() {
            machine.node(node)?;
            if !memories.contains(&node) && domains.iter().all(|domain| domain.cpu_node != node) {
                return Err(MemoryBenchError::NotUsable { node });
            }
        }
        let &nearest = memories.first().ok_or(MemoryBenchError::NoMemory)?;
        let own = domains.iter().find(|domain| memories.contains(&domain.cpu_node));
        let home = own.or(domains.first()).ok_or(MemoryBenchError::NoCpus)?.clone();
        let cpus = domains.iter().map(|domain| domain.cpus.len()).max().unwrap_or(0);
        if let Some(threads) = options.threads.filter(|&threads| threads > cpus) {
            return Err(MemoryBenchError::TooManyThreads { threads, cpus });
        }
        let first = if memories.contains(&home.cpu_node) { home.cpu_node } else { nearest };
        memories.sort_by_key(|&node| (node != first, node));
        Ok(MemoryBench { machine, options, domains, memories, home })
    }

    /// Number of calls of `progress` in a run.
    pub fn steps_count(&self) -> usize {
        COMPARED_COUNT + self.memories.len() * self.options.pages.len() * self.steps_of_memory()
    }

    /// Steps of a memory with one kind of pages.
    fn steps_of_memory(&self) -> usize {
        self.domains.len() + loaded::TRAFFICS.len()
    }

    /// Measures everything once. `progress` is called after each of [`steps_count`](Self::steps_count) steps.
    ///
    /// # Errors
    /// [`MemoryBenchError`]: memory that cannot be allocated, threads that cannot be pinned.
    pub fn run(
        &self,
        peers: Result<&Peers, &NoPeers>,
        progress: &mut dyn FnMut(),
    ) -> Result<MeasuredMemory, MemoryBenchError> {
        let cells_count = self.domains.len() * self.memories.len() * self.options.pages.len();
        let rounds = Rounds::of(self.options.effort, cells_count);
        let mut measured = MeasuredMemory {
            rows: Vec::new(),
            notes: peers.err().map(|why| format!("without loops in C: {why}")).into_iter().collect(),
            copy_method: CopyMethod::Memcpy,
            vector_bits: None,
            region_bytes: usize::MAX,
            chain_bytes: usize::MAX,
        };
        for &memory in &self.memories {
            for &pages in &self.options.pages {
                self.measure(memory, pages, peers, rounds, &mut measured, progress)?;
            }
        }
        if measured.rows.is_empty() {
            return Err(MemoryBenchError::NoPages(measured.notes.pop().unwrap_or_default()));
        }
        Ok(measured)
    }

    /// Measures a memory with one kind of pages.
    fn measure(
        &self,
        memory: NodeId,
        pages: Pages,
        peers: Result<&Peers, &NoPeers>,
        rounds: Rounds,
        measured: &mut MeasuredMemory,
        progress: &mut dyn FnMut(),
    ) -> Result<(), MemoryBenchError> {
        let (region_bytes, chain_bytes) = self.sizes(memory)?;
        let threads_max = self.domains.iter().map(|domain| self.cpus(domain).len()).max().unwrap_or(1);
        let chain = Chain::new(self.machine, memory, chain_bytes, pages.advice(), self.options.seed)?;
        let mut arenas = Arena::several(self.machine, memory, threads_max, region_bytes, pages.advice())?;
        if pages == Pages::Huge
            && let Some(why) = no_huge_pages(memory, &chain, &mut arenas)
        {
            measured.notes.push(why);
            (0..self.steps_of_memory()).for_each(|_| progress());
            return Ok(());
        }
        measured.region_bytes = measured.region_bytes.min(region_bytes);
        measured.chain_bytes = measured.chain_bytes.min(chain_bytes);
        let is_first = measured.rows.is_empty();
        if is_first {
            let home = self.cpus(&self.home);
            measured.copy_method = measure::fastest_copy(home, &mut arenas, rounds.cell)?;
            measured.vector_bits = arenas.first().and_then(|arena| arena.loops().vector_bits());
        }
        let copy_method = measured.copy_method;
        let mut field = Field { arenas: &mut arenas, chain: &chain, line: 0, copy_method };
        let place = |domain: &Domain| Place { cpus: domain.cpu_node, memory, pages };
        if is_first {
            let site = Site { place: place(&self.home), cpus: self.cpus(&self.home) };
            let seed = self.options.seed;
            measured.rows = measure::compared(site, &mut field, peers, (rounds, seed), progress)?;
        }
        for domain in &self.domains {
            let site = Site { place: place(domain), cpus: self.cpus(domain) };
            measured.rows.extend(measure::cell(site, &mut field, rounds)?);
            progress();
        }
        let nearest = self.nearest(memory)?;
        let site = Site { place: place(nearest), cpus: self.cpus(nearest) };
        if site.cpus.len() > 1 {
            measured.rows.extend(measure::curves(site, &mut field, rounds, progress)?);
        } else {
            measured.notes.push(format!(
                "no latency under load of node {memory}, {pages} pages: it needs two threads, and node {} has {}",
                nearest.cpu_node,
                site.cpus.len()
            ));
            loaded::TRAFFICS.iter().for_each(|_| progress());
        }
        Ok(())
    }

    /// The CPUs of a domain's threads.
    fn cpus<'d>(&self, domain: &'d Domain) -> &'d [u32] {
        let threads = self.options.threads.unwrap_or(usize::MAX).min(domain.cpus.len());
        &domain.cpus[..threads]
    }

    /// The domain that measures latency under load of a memory.
    fn nearest(&self, memory: NodeId) -> Result<&Domain, MemoryBenchError> {
        let cpu_node = self.machine.node(memory)?.cpu_node;
        Ok(self.domains.iter().find(|domain| domain.cpu_node == cpu_node).unwrap_or(&self.home))
    }

    /// Bytes of a region and of the chain in a memory.
    fn sizes(&self, memory: NodeId) -> Result<(usize, usize), MemoryBenchError> {
        if let Some(size_bytes) = self.options.size_bytes {
            let size_bytes = size_bytes.next_multiple_of(REGION_BYTES_MIN);
            return Ok((size_bytes, size_bytes));
        }
        let free_bytes = self.machine.node(memory)?.free_bytes;
        let most = |bytes: &dyn Fn(&[u32]) -> usize| {
            self.domains.iter().map(|domain| bytes(self.cpus(domain))).max().unwrap_or(0)
        };
        let threads_max = most(&<[u32]>::len);
        let (regions, chain) = self.options.effort.of(
            (most(&|cpus| exceeding_caches_bytes(cpus, cpus.len())), most(&chain_bytes)),
            (REGION_BYTES_MIN, REGION_BYTES_MIN),
        );
        let fitting = |wanted: usize, count| {
            let bytes = fitting_bytes(wanted, free_bytes, count, REGION_BYTES_MIN);
            bytes.next_multiple_of(REGION_BYTES_MIN)
        };
        // At most half of the free bytes for all regions, and an eighth for the chain.
        Ok((fitting(regions, 2 * threads_max), fitting(chain, 4)))
    }
}

/// The reason if the system gave small pages instead of huge ones. A tenth may be small: what is fragmented.
fn no_huge_pages(memory: NodeId, chain: &Chain, arenas: &mut [Arena]) -> Option<String> {
    const SHARE_MIN: f64 = 0.9;
    let mut least = pages::huge_share(chain.bytes());
    for arena in arenas {
        let (source, target) = arena.all();
        for share in [source, target].map(pages::huge_share) {
            least = least.zip(share).map(|(one, other)| one.min(other));
        }
    }
    match least {
        Some(share) if share >= SHARE_MIN => None,
        Some(share) => Some(format!(
            "no rows with huge pages in node {memory}: {:.0} % of the memory has them; set \
             /sys/kernel/mm/transparent_hugepage/enabled to madvise, or free memory",
            100.0 * share
        )),
        None => Some(format!(
            "no rows with huge pages in node {memory}: the kernel does not tell which pages are huge \
             (/proc/self/smaps)"
        )),
    }
}

#[cfg(test)]
mod tests;

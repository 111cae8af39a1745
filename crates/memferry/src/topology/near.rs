//! Comparison of memories for the CPUs of a node.
//!
//! Firmware and papers give few figures: bandwidth from the CPUs next to a memory, if at all, the kernel's tiers, and
//! distances, which say nothing about bandwidth. So there are two queries. Whether a memory is *faster* than another has a
//! conservative answer, for copies that must pay. The order in which memories should be *tried* is always complete, for
//! allocations.

use std::collections::BTreeSet;

use super::{Machine, Node, NodeId, Tier};

/// Ratio of bandwidths from which a memory is "faster". A smaller gain does not pay for a copy; equal memories differ by up
/// to 0.3 % between the sub-domains of a socket (Greinsmark 2020, table 8).
const FASTER_RATIO: f64 = 1.1;

impl Machine {
    /// Memories that are faster than `home` for the CPUs next to `home`, nearest first.
    ///
    /// The first criterion that is known of both decides: read bandwidth to those CPUs (by a margin of 10 %), the kernel's
    /// memory tier, the kind of memory. The last two do not cover the link between sockets, so without bandwidth a memory
    /// on another socket is never faster. Only memory that this process may use. Empty for an unknown node.
    pub fn faster_than(&self, home: NodeId) -> Vec<&Node> {
        let Ok(home) = self.node(home) else { return Vec::new() };
        let cpus = home.cpu_node;
        let mut faster: Vec<_> = (self.nodes.iter())
            .filter(|node| node.id != home.id && node.is_allowed && self.is_faster(node, home, cpus))
            .collect();
        faster.sort_by_key(|node| {
            let distance = self.link(cpus, node.id).distance.unwrap_or(u32::MAX);
            (node.cpu_node != cpus, distance, node.id)
        });
        faster
    }

    /// The best of [`faster_than`](Machine::faster_than).
    pub fn nearest_faster(&self, home: NodeId) -> Option<&Node> {
        self.faster_than(home).into_iter().next()
    }

    /// The bandwidth of the memory of a node for many streams together: that of its kind by calibration or publication
    /// (`dram_mb_per_s`, `hbm_mb_per_s`), or else the best that any CPUs read. `None` if it is unknown.
    pub fn memory_bytes_per_s(&self, node: NodeId) -> Option<u64> {
        let node = self.node(node).ok()?;
        let of_tier = match node.tier {
            Tier::Dram => self.parameter("dram_mb_per_s"),
            Tier::Hbm => self.parameter("hbm_mb_per_s"),
            _ => None,
        };
        let of_links = || {
            let read = |cpus: &Node| self.link(cpus.id, node.id).read_bytes_per_s;
            self.nodes.iter().filter_map(read).max()
        };
        of_tier.map(|mb_per_s| (mb_per_s * 1e6).round() as u64).or_else(of_links)
    }

    /// All memories that this process may use, in the order that the CPUs of `cpus` should prefer, fastest first. For a
    /// memory-only node these are the CPUs that it belongs to. Empty for an unknown node.
    ///
    /// A memory comes after all faster ones (see [`faster_than`](Machine::faster_than)), with one exception: without
    /// bandwidths, the memory of another domain does not precede the CPUs' own node because of its kind or tier. The other
    /// domain uses it, and the link may cost the gain of its kind.
    ///
    /// Otherwise the first difference decides:
    ///
    /// 1. memory that is not slower than the CPUs' own and than DRAM, by the kernel's tier if those of both
    ///    are known and differ, else by kind, before CXL and persistent memory;
    /// 2. the domain of these CPUs before others;
    /// 3. a smaller distance before a larger one, an unknown one last;
    /// 4. the socket of these CPUs before others;
    /// 5. a smaller number.
    ///
    /// Figures can form a cycle: by bandwidth A is faster than B, by tier B than C, and by kind C than A. In a cycle the
    /// list alone chooses the next.
    pub fn memories_near(&self, cpus: NodeId) -> Vec<&Node> {
        self.memories_near_if(cpus, |node| node.is_allowed)
    }

    /// [`memories_near`](Machine::memories_near) with another rule for allowed memories.
    pub(crate) fn memories_near_if(&self, cpus: NodeId, is_usable: impl Fn(&Node) -> bool) -> Vec<&Node> {
        let Ok(own) = self.node(cpus).and_then(|node| self.node(node.cpu_node)) else { return Vec::new() };
        let memories: Vec<&Node> =
            self.nodes.iter().filter(|node| is_usable(node) && node.has_memory()).collect();
        // Number of memories not yet placed that must precede each of these.
        let mut waits_for: Vec<usize> = (memories.iter())
            .map(|behind| memories.iter().filter(|ahead| self.comes_before(ahead, behind, own)).count())
            .collect();
        let mut todo: BTreeSet<usize> = (0..memories.len()).collect();
        let mut order = Vec::with_capacity(memories.len());
        while let Some(next) =
            todo.iter().copied().min_by_key(|&i| (waits_for[i] > 0, self.nearness(memories[i], own)))
        {
            todo.remove(&next);
            order.push(memories[next]);
            for &behind in &todo {
                waits_for[behind] -= usize::from(self.comes_before(memories[next], memories[behind], own));
            }
        }
        order
    }

    /// Whether the CPUs of node `cpus` read faster from `candidate` than from `home`.
    pub(super) fn is_faster(&self, candidate: &Node, home: &Node, cpus: NodeId) -> bool {
        candidate.has_memory()
            && self
                .is_faster_by_bandwidth(candidate, home, cpus)
                .unwrap_or_else(|| is_faster_by_kind(candidate, home))
    }

    fn is_faster_by_bandwidth(&self, candidate: &Node, home: &Node, cpus: NodeId) -> Option<bool> {
        let read = |node: &Node| self.link(cpus, node.id).read_bytes_per_s;
        Some(read(candidate)? as f64 > read(home)? as f64 * FASTER_RATIO)
    }

    /// Whether the CPUs of `own` should prefer one memory to another because it is faster.
    fn comes_before(&self, ahead: &Node, behind: &Node, own: &Node) -> bool {
        self.is_faster_by_bandwidth(ahead, behind, own.id).unwrap_or_else(|| {
            let passes_own = behind.id == own.id && ahead.cpu_node != own.id;
            !passes_own && is_faster_by_kind(ahead, behind)
        })
    }

    /// The list of [`memories_near`](Machine::memories_near): smaller is better.
    fn nearness(&self, memory: &Node, own: &Node) -> impl Ord + use<> {
        let distance = self.link(own.id, memory.id).distance.unwrap_or(u32::MAX);
        (
            is_of_slower_kind(memory, own),
            memory.cpu_node != own.id,
            distance,
            memory.socket != own.socket,
            memory.id,
        )
    }
}

/// Compares two memories by the kernel's tier or by kind, without the link between sockets.
fn is_faster_by_kind(candidate: &Node, home: &Node) -> bool {
    if candidate.socket != home.socket {
        return false;
    }
    if let (Some(candidate), Some(home)) = (candidate.kernel_tier, home.kernel_tier)
        && candidate != home
    {
        return candidate < home;
    }
    // Older kernels (6.1) put all memory into one tier, so equal tiers do not decide.
    matches!((rank(candidate.tier), rank(home.tier)), (Some(candidate), Some(home)) if candidate < home)
}

/// Whether its kind is slower than DRAM and than the CPUs' own memory, on any node.
fn is_of_slower_kind(memory: &Node, own: &Node) -> bool {
    match (memory.kernel_tier, own.kernel_tier) {
        (Some(tier), Some(own)) if tier != own => tier > own,
        _ => rank(memory.tier) > rank(Tier::Dram).max(rank(own.tier)),
    }
}

/// Rank of a kind, fastest first; `None` if the kind is unknown.
fn rank(tier: Tier) -> Option<usize> {
    [Tier::Hbm, Tier::Dram, Tier::Cxl, Tier::Pmem].iter().position(|&known| known == tier)
}

//! Which memory is better for some CPUs, as far as one can know.
//!
//! Firmware and papers tell little: bandwidth from the CPUs next to a memory and often not even that, the
//! kernel's tiers, distances that say nothing about bandwidth. So there are two questions here. Whether one
//! memory is *faster* than another has a careful answer, for whoever wants to copy something only if it pays.
//! In which order memory should be *tried* always has one, for whoever must place something somewhere.

use std::collections::BTreeSet;

use super::{Machine, Node, NodeId, Tier};

/// How much more bandwidth makes a memory "faster". Less is not worth a copy, and within what equal memories
/// differ in measurements: up to 0.3 % between the sub-domains of a socket (Greinsmark 2020, table 8).
const FASTER_RATIO: f64 = 1.1;

impl Machine {
    /// Memories that feed the CPUs next to `home` better than `home` itself does, nearest first.
    ///
    /// The judge is the first of these that is known of both: read bandwidth to those CPUs (by a margin of 10
    /// %), the kernel's memory tier, the kind of memory. The last two say nothing about the way between
    /// sockets, so without bandwidth a memory on another socket is never called faster. Memory that this
    /// process may not use is left out. Empty for an unknown node.
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

    /// All memories that this process may use, in the order in which the CPUs of `cpus` should prefer them,
    /// fastest first. For a memory-only node these are the CPUs that it belongs to. Nodes without memory are
    /// left out. Empty for an unknown node.
    ///
    /// A memory comes after all that are faster, as [`faster_than`](Machine::faster_than) judges, with one
    /// exception: without bandwidths, the memory of another domain does not come before the CPUs' own node
    /// for its kind or tier alone. It is another domain's to use, and the way there may cost what its kind
    /// gains.
    ///
    /// What this leaves open, the first difference decides:
    ///
    /// 1. memory that is not slower than the CPUs' own and than DRAM, by the kernel's tier if those of both
    ///    are known and differ, else by kind, before CXL and persistent memory;
    /// 2. the domain of these CPUs before others;
    /// 3. a smaller distance before a larger one, an unknown one last;
    /// 4. the socket of these CPUs before others;
    /// 5. a smaller number.
    ///
    /// Figures can contradict each other in a circle: bandwidth says that A is faster than B, the tiers B
    /// than C, and the kinds C than A. Where nothing is without a faster one, the list alone chooses the
    /// next.
    pub fn memories_near(&self, cpus: NodeId) -> Vec<&Node> {
        self.memories_near_if(cpus, |node| node.is_allowed)
    }

    /// The same, with another say in which memories may be used.
    pub(crate) fn memories_near_if(&self, cpus: NodeId, is_usable: impl Fn(&Node) -> bool) -> Vec<&Node> {
        let Ok(own) = self.node(cpus).and_then(|node| self.node(node.cpu_node)) else { return Vec::new() };
        let memories: Vec<&Node> =
            self.nodes.iter().filter(|node| is_usable(node) && node.has_memory()).collect();
        // How many memories that are not yet placed must come before each of these.
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

    /// The first of [`memories_near`](Machine::memories_near) on which `size_bytes` fit, as far as is known
    /// when the machine was looked at ([`Node::has_room`]). By the time memory is asked for it may be full.
    pub fn fastest_near(&self, cpus: NodeId, size_bytes: u64) -> Option<&Node> {
        self.memories_near(cpus).into_iter().find(|node| node.has_room(size_bytes))
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

/// What the kernel's tiers and the kinds of two memories say. Nothing about the way between sockets.
fn is_faster_by_kind(candidate: &Node, home: &Node) -> bool {
    if candidate.socket != home.socket {
        return false;
    }
    if let (Some(candidate), Some(home)) = (candidate.kernel_tier, home.kernel_tier)
        && candidate != home
    {
        return candidate < home;
    }
    // Older kernels (6.1) put all memory into one tier, so equal tiers say nothing.
    matches!((rank(candidate.tier), rank(home.tier)), (Some(candidate), Some(home)) if candidate < home)
}

/// Whether it is of a kind that is slower than DRAM and than the CPUs' own, wherever it is.
fn is_of_slower_kind(memory: &Node, own: &Node) -> bool {
    match (memory.kernel_tier, own.kernel_tier) {
        (Some(tier), Some(own)) if tier != own => tier > own,
        _ => rank(memory.tier) > rank(Tier::Dram).max(rank(own.tier)),
    }
}

/// Fastest first; nothing for what the kernel does not tell.
fn rank(tier: Tier) -> Option<usize> {
    [Tier::Hbm, Tier::Dram, Tier::Cxl, Tier::Pmem].iter().position(|&known| known == tier)
}

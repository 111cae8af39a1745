//! Near memory for tables: a machine, a mover, a cache, the home node of tables and the nodes of copies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry::cache::{BuildError, Cache};
use memferry::mover::{Engine, EngineKind, Mover, MoverError};
use memferry::topology::{Machine, NodeId, TopologyError};
use thiserror::Error;

use crate::files::StoredFiles;

/// Share of the near budget that unfiltered output of scans may pin, in percent.
///
/// A consumer may hold such slices indefinitely (a sort, the build side of a join). The cache cannot evict them meanwhile.
/// Beyond the share, scans put out slices of home memory.
pub const PIN_SHARE_PERCENT: u64 = 25;

/// Near memory for the tables of a session.
#[derive(Debug)]
pub struct Tiers {
    machine: Arc<Machine>,
    mover: Mover,
    cache: Cache,
    home: NodeId,
    /// That of the CPUs beside the home node.
    near: NearMemory,
    near_is_faster: bool,
    /// That of each domain, by the node of its CPUs; empty if all read the same.
    near_of_domains: BTreeMap<NodeId, NearMemory>,
    budget_was_given: bool,
    /// The machine with the devices that copy here, for the cost model.
    planned: Machine,
    files: StoredFiles,
}

/// Near memory for the CPUs of a node.
#[derive(Clone, Debug)]
pub(crate) struct NearMemory {
    pub(crate) node: NodeId,
    pub(crate) budget_bytes: u64,
    /// Shared by domains with the same near node.
    pub(crate) pins: Arc<Pins>,
}

impl Tiers {
    /// Starts with defaults: home is the first node with CPUs, near the nearest faster node if there is one.
    pub fn builder(machine: Arc<Machine>) -> TiersBuilder {
        TiersBuilder {
            machine,
            home: None,
            near: None,
            budget_bytes: None,
            is_near_of_domains: false,
            cpu_workers: 1,
            engines: Vec::new(),
        }
    }

    /// The machine whose nodes these are.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// The mover of the copies.
    pub fn mover(&self) -> &Mover {
        &self.mover
    }

    /// The cache of the copies.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The node of the tables.
    pub fn home(&self) -> NodeId {
        self.home
    }

    /// The node of the copies: the home node itself on a machine with one tier. If each domain has one, that of the domain
    /// beside the home node.
    pub fn near(&self) -> NodeId {
        self.near.node
    }

    /// The node of the copies for the CPUs of node `cpus`, when they run a query on their domain.
    pub fn near_of(&self, cpus: NodeId) -> NodeId {
        self.near_memory(cpus).node
    }

    pub(crate) fn near_memory(&self, cpus: NodeId) -> &NearMemory {
        self.near_of_domains.get(&cpus).unwrap_or(&self.near)
    }

    /// That of queries that are not on domains.
    pub(crate) fn default_near(&self) -> &NearMemory {
        &self.near
    }

    /// Whether each domain has near memory of its own.
    pub(crate) fn is_near_of_domains(&self) -> bool {
        !self.near_of_domains.is_empty()
    }

    /// Whether the near node is faster than the home node, according to the machine's description.
    pub fn near_is_faster(&self) -> bool {
        self.near_is_faster
    }

    /// Budget of each near node.
    pub fn budget_bytes(&self) -> u64 {
        self.near.budget_bytes
    }

    /// Whether the caller chose the budget. If it is too small, that is an error.
    pub(crate) fn budget_was_given(&self) -> bool {
        self.budget_was_given
    }

    /// The machine with the devices that copy in place of its own.
    pub(crate) fn planned(&self) -> &Machine {
        &self.planned
    }

    /// Files of this machine whose ranges have near copies.
    pub(crate) fn files(&self) -> &StoredFiles {
        &self.files
    }
}

/// Settings of [`Tiers`].
#[derive(Debug)]
pub struct TiersBuilder {
    machine: Arc<Machine>,
    home: Option<NodeId>,
    near: Option<NodeId>,
    budget_bytes: Option<u64>,
    is_near_of_domains: bool,
    cpu_workers: usize,
    engines: Vec<Arc<dyn Engine>>,
}

/// The default budget: this share of the near node, in percent ...
const BUDGET_SHARE_PERCENT: u64 = 50;
/// ... and at most this many bytes.
const BUDGET_BYTES_MAX: u64 = 4 << 30;

impl TiersBuilder {
    /// The node of the tables.
    pub fn home(mut self, node: NodeId) -> Self {
        self.home = Some(node);
        self
    }

    /// Node to which columns are copied; `None` chooses the nearest faster one, or the home node.
    pub fn near(mut self, node: Option<NodeId>) -> Self {
        self.near = node;
        self
    }

    /// Gives each domain near memory of its own: the nearest memory that is faster than that of its node, or else the memory
    /// of its node. A query on domains then copies row groups to the near node of the domain that reads them. Each near node
    /// has an equal share of the budget.
    pub fn near_of_domains(mut self, is_near_of_domains: bool) -> Self {
        self.is_near_of_domains = is_near_of_domains;
        self
    }

    /// Bytes that near copies may take on all near nodes; `None`: half of the free memory of each, together at most 4 GiB.
    pub fn budget_bytes(mut self, bytes: Option<u64>) -> Self {
        self.budget_bytes = bytes;
        self
    }

    /// Threads of each node's CPU engine, at least 1.
    pub fn cpu_workers(mut self, workers: usize) -> Self {
        self.cpu_workers = workers;
        self
    }

    /// Adds an engine that copies. The CPU engine copies where it cannot.
    pub fn engine(mut self, engine: Arc<dyn Engine>) -> Self {
        self.engines.push(engine);
        self
    }

    /// The node on which tables will lie.
    ///
    /// # Errors
    /// [`TiersError::Topology`] for a node that the machine does not have, [`TiersError::NoCpuNode`].
    pub fn home_node(&self) -> Result<NodeId, TiersError> {
        if let Some(node) = self.home {
            return Ok(self.machine.node(node)?.id);
        }
        let with_cpus = self.machine.nodes().iter().find(|node| !node.cpus.is_empty());
        Ok(with_cpus.ok_or(TiersError::NoCpuNode)?.id)
    }

    /// Starts the mover and the cache.
    ///
    /// # Errors
    /// A node that the machine does not have, or a mover or cache that could not be started.
    pub fn build(self) -> Result<Arc<Tiers>, TiersError> {
        let home = self.home_node()?;
        let faster: Vec<NodeId> = self.machine.faster_than(home).iter().map(|node| node.id).collect();
        let near = match self.near {
            Some(node) => self.machine.node(node)?.id,
            None => faster.first().copied().unwrap_or(home),
        };
        let by_cpus = match self.is_near_of_domains {
            true => self.near_by_cpus(home, near)?,
            false => BTreeMap::new(),
        };
        let nodes: BTreeSet<NodeId> = by_cpus.values().copied().chain([near]).collect();
        let mut memories = BTreeMap::new();
        for &node in &nodes {
            let description = self.machine.node(node)?;
            let available = description.free_bytes.or(description.memory_bytes).unwrap_or(BUDGET_BYTES_MAX);
            let share_max = BUDGET_BYTES_MAX / nodes.len() as u64;
            let budget_bytes = match self.budget_bytes {
                Some(budget_bytes) => budget_bytes / nodes.len() as u64,
                None => (available * BUDGET_SHARE_PERCENT / 100).min(share_max),
            };
            let pins = Arc::new(Pins::new(budget_bytes * PIN_SHARE_PERCENT / 100));
            memories.insert(node, NearMemory { node, budget_bytes, pins });
        }

        let mut mover = Mover::builder(Arc::clone(&self.machine)).cpu_workers(self.cpu_workers);
        let of_dsa = self.engines.iter().filter(|engine| engine.kind() == EngineKind::Dsa);
        let nodes: Vec<Option<NodeId>> = of_dsa.map(|engine| engine.node()).collect();
        let planned = Machine::clone(&self.machine).with_devices_on(&nodes);
        for engine in self.engines {
            mover = mover.engine(engine);
        }
        let mover = mover.build()?;
        let mut cache = Cache::builder(mover.clone()).placement(move |_, _| Some(near));
        for memory in memories.values() {
            cache = cache.budget(memory.node, usize::try_from(memory.budget_bytes).unwrap_or(usize::MAX));
        }
        let cache = cache.build()?;
        let near_is_faster = faster.contains(&near);
        let near = memories[&near].clone();
        let files = StoredFiles::new(cache.clone(), near.node, near.budget_bytes, self.machine.storage());
        Ok(Arc::new(Tiers {
            machine: self.machine,
            mover,
            cache,
            home,
            near,
            near_is_faster,
            near_of_domains: by_cpus
                .into_iter()
                .map(|(cpus, node)| (cpus, memories[&node].clone()))
                .collect(),
            budget_was_given: self.budget_bytes.is_some(),
            planned,
            files,
        }))
    }

    /// The near node of each domain by the node of its CPUs; that beside `home` has `near`.
    fn near_by_cpus(&self, home: NodeId, near: NodeId) -> Result<BTreeMap<NodeId, NodeId>, TiersError> {
        let home_cpus = self.machine.node(home)?.cpu_node;
        let near_of = |cpus: NodeId| -> Result<NodeId, TiersError> {
            let own = self.machine.node(cpus)?;
            Ok(match self.machine.nearest_faster(cpus) {
                _ if cpus == home_cpus => near,
                Some(faster) => faster.id,
                None if own.has_memory() && own.is_allowed => cpus,
                // CPUs without memory of their own.
                None => near,
            })
        };
        self.machine.domains().iter().map(|domain| Ok((domain.cpu_node, near_of(domain.cpu_node)?))).collect()
    }
}

/// Near memory that cannot be set up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TiersError {
    /// A node that does not exist.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The machine's description has no node with CPUs.
    #[error("the machine has no node with CPUs; name the tables' node with --home")]
    NoCpuNode,
    /// An engine could not be started.
    #[error(transparent)]
    Mover(#[from] MoverError),
    /// The cache could not be made.
    #[error(transparent)]
    Cache(#[from] BuildError),
}

/// Near bytes that consumers hold without a copy of their own. Every scan adds to `bytes`; a dropped [`Pin`] subtracts.
#[derive(Debug)]
pub(crate) struct Pins {
    bytes_max: u64,
    bytes: AtomicU64,
}

impl Pins {
    fn new(bytes_max: u64) -> Self {
        Self { bytes_max, bytes: AtomicU64::new(0) }
    }

    /// Pins `bytes` more until the result is dropped; `None` beyond the share.
    pub(crate) fn try_pin(self: &Arc<Self>, bytes: u64) -> Option<Pin> {
        // ORDERING: Relaxed throughout: the counter guards no other memory.
        self.bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
                held.checked_add(bytes).filter(|&sum| sum <= self.bytes_max)
            })
            .ok()
            .map(|_| Pin { pins: Arc::clone(self), bytes })
    }
}

/// Pinned bytes, released when dropped.
#[derive(Debug)]
pub(crate) struct Pin {
    pins: Arc<Pins>,
    bytes: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pins.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_domain_has_near_memory_and_a_share_of_the_budget() {
        let machine = Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap());
        let builder = || Tiers::builder(Arc::clone(&machine)).budget_bytes(Some(8 << 20));
        let tiers = builder().near_of_domains(true).build().unwrap();
        let near = |tiers: &Tiers| (0..8).map(|cpus| tiers.near_of(NodeId(cpus)).0).collect::<Vec<_>>();
        assert_eq!(near(&tiers), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!((tiers.near(), tiers.budget_bytes()), (NodeId(8), 1 << 20));
        let tiers = builder().near_of_domains(true).home(NodeId(3)).near(Some(NodeId(9))).build().unwrap();
        assert_eq!(near(&tiers), [8, 9, 10, 9, 12, 13, 14, 15]);
        assert_eq!(tiers.budget_bytes(), (8 << 20) / 7);
        let tiers = builder().build().unwrap();
        assert_eq!((near(&tiers), tiers.budget_bytes()), (vec![8; 8], 8 << 20));
        // Without a faster memory it is that of the domain; CPUs without memory have that of the home node.
        let odd = Arc::new(Machine::from_profile("made-up-odd-nodes").unwrap());
        let tiers = Tiers::builder(odd).near_of_domains(true).build().unwrap();
        assert_eq!([0, 1].map(|cpus| tiers.near_of(NodeId(cpus))), [NodeId(0), NodeId(0)]);
    }

    #[test]
    fn pins_stop_at_the_share_and_come_back() {
        let pins = Arc::new(Pins::new(100));
        let held = pins.try_pin(60).unwrap();
        assert!(pins.try_pin(41).is_none());
        let rest = pins.try_pin(40).unwrap();
        drop(held);
        assert!(pins.try_pin(61).is_none());
        drop(pins.try_pin(60).unwrap());
        drop(rest);
        assert_eq!(pins.bytes.load(Ordering::Relaxed), 0);
    }
}

//! What brings columns near: a machine, a mover, a cache, and the nodes that a table lives on and is copied to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memferry::cache::{BuildError, Cache, FixedNode};
use memferry::mover::{DsaEngine, DsaOptions, Engine, EngineKind, Mover, MoverError};
use memferry::topology::{Machine, NodeId, TopologyError};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, StartError};
use thiserror::Error;

/// The DSA that copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dsa {
    /// None: the CPU engine copies.
    #[default]
    None,
    /// An emulated device in this process: exact, not fast. With a seed it is nasty: late, out of order, full, faulting.
    Emulated {
        /// Seed of its nastiness; `None` is a well-behaved device.
        seed: Option<u64>,
    },
    /// The devices of this machine, by all work queues that this process can use.
    System,
}

/// Share of the near budget that rows which leave a scan unfiltered may pin, in percent.
///
/// A consumer may hold such slices for as long as it likes (a sort, the build side of a join), and what it holds cannot
/// leave the cache. Beyond the share, rows leave as slices of home memory.
pub const PIN_SHARE_PERCENT: u64 = 25;

/// Near memory for the tables of a session.
#[derive(Debug)]
pub struct Tiers {
    machine: Arc<Machine>,
    mover: Mover,
    cache: Cache,
    home: NodeId,
    near: NodeId,
    near_is_faster: bool,
    budget_bytes: u64,
    budget_was_given: bool,
    dsa: Dsa,
    /// The machine with the devices that copy here: what the model is asked about.
    planned: Machine,
    pins: Arc<Pins>,
}

impl Tiers {
    /// Starts with defaults: home is the first node with CPUs, near the nearest faster node if there is one.
    pub fn builder(machine: Arc<Machine>) -> TiersBuilder {
        TiersBuilder {
            machine,
            home: None,
            near: None,
            budget_bytes: None,
            cpu_workers: 1,
            dsa: Dsa::None,
            engines: Vec::new(),
        }
    }

    /// The machine whose nodes these are.
    pub fn machine(&self) -> &Arc<Machine> {
        &self.machine
    }

    /// What copies.
    pub fn mover(&self) -> &Mover {
        &self.mover
    }

    /// What remembers the copies.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Where tables lie.
    pub fn home(&self) -> NodeId {
        self.home
    }

    /// Where columns are copied to. The home node itself on a machine with one tier.
    pub fn near(&self) -> NodeId {
        self.near
    }

    /// Whether the near node is faster memory than the home node, as far as the machine's description tells.
    pub fn near_is_faster(&self) -> bool {
        self.near_is_faster
    }

    /// Bytes that near copies may take.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Whether somebody chose the budget, who is told when it is of no use.
    pub(crate) fn budget_was_given(&self) -> bool {
        self.budget_was_given
    }

    /// The DSA that copies.
    pub fn dsa(&self) -> Dsa {
        self.dsa
    }

    /// The machine, with the devices that copy in place of those that it has.
    pub(crate) fn planned(&self) -> &Machine {
        &self.planned
    }

    pub(crate) fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }
}

/// Settings of [`Tiers`].
#[derive(Debug)]
pub struct TiersBuilder {
    machine: Arc<Machine>,
    home: Option<NodeId>,
    near: Option<NodeId>,
    budget_bytes: Option<u64>,
    cpu_workers: usize,
    dsa: Dsa,
    engines: Vec<Arc<dyn Engine>>,
}

/// Budget of near memory unless one is given: this share of the near node, in percent ...
const BUDGET_SHARE_PERCENT: u64 = 50;
/// ... and not more than this, in bytes.
const BUDGET_BYTES_MAX: u64 = 4 << 30;

impl TiersBuilder {
    /// Node on which tables lie.
    pub fn home(mut self, node: NodeId) -> Self {
        self.home = Some(node);
        self
    }

    /// Node to which columns are copied; `None` chooses the nearest faster one, or the home node.
    pub fn near(mut self, node: Option<NodeId>) -> Self {
        self.near = node;
        self
    }

    /// Bytes that near copies may take; `None`: half of the near node's free memory, at most 4 GiB.
    pub fn budget_bytes(mut self, bytes: Option<u64>) -> Self {
        self.budget_bytes = bytes;
        self
    }

    /// Threads of each node's CPU engine, at least 1.
    pub fn cpu_workers(mut self, workers: usize) -> Self {
        self.cpu_workers = workers;
        self
    }

    /// The DSA that copies, if any; the CPU engine then stands in where the device cannot.
    pub fn dsa(mut self, dsa: Dsa) -> Self {
        self.dsa = dsa;
        self
    }

    /// Adds an engine that copies, beside the DSA.
    pub fn engine(mut self, engine: Arc<dyn Engine>) -> Self {
        self.engines.push(engine);
        self
    }

    /// Starts the engines and the cache.
    ///
    /// # Errors
    /// A node that the machine does not have, or a mover or cache that could not be started.
    pub fn build(self) -> Result<Arc<Tiers>, TiersError> {
        let home = match self.home {
            Some(node) => self.machine.node(node)?.id,
            None => {
                let with_cpus = self.machine.nodes().iter().find(|node| !node.cpus.is_empty());
                with_cpus.ok_or(TiersError::NoCpuNode)?.id
            }
        };
        let faster: Vec<NodeId> = self.machine.faster_than(home).iter().map(|node| node.id).collect();
        let near = match self.near {
            Some(node) => self.machine.node(node)?.id,
            None => faster.first().copied().unwrap_or(home),
        };
        let near_node = self.machine.node(near)?;
        let available = near_node.free_bytes.or(near_node.memory_bytes).unwrap_or(BUDGET_BYTES_MAX);
        let budget_bytes =
            self.budget_bytes.unwrap_or((available * BUDGET_SHARE_PERCENT / 100).min(BUDGET_BYTES_MAX));

        let mut mover = Mover::builder(Arc::clone(&self.machine)).cpu_workers(self.cpu_workers);
        let options = DsaOptions::default();
        let devices = match self.dsa {
            Dsa::None => Vec::new(),
            Dsa::Emulated { seed } => {
                let nasty = seed.map_or_else(FaultPlan::none, FaultPlan::from_seed);
                // On the tables' node, as a route would choose it: the CPU engine then only stands in.
                let emulator = Emulator::start(&DeviceConfig::one_shared_queue().on_node(home.0), nasty)?;
                vec![DsaEngine::new(vec![emulator.portal(0)], options)?]
            }
            Dsa::System => DsaEngine::discover(&options)?,
        };
        let devices = devices.into_iter().map(|device| -> Arc<dyn Engine> { Arc::new(device) });
        let engines: Vec<Arc<dyn Engine>> = self.engines.into_iter().chain(devices).collect();
        let of_dsa = engines.iter().filter(|engine| engine.kind() == EngineKind::Dsa);
        let nodes: Vec<Option<NodeId>> = of_dsa.map(|engine| engine.node()).collect();
        let planned = Machine::clone(&self.machine).with_devices_on(&nodes);
        for engine in engines {
            mover = mover.engine(engine);
        }
        let mover = mover.build()?;
        let cache = Cache::builder(mover.clone())
            .budget(near, usize::try_from(budget_bytes).unwrap_or(usize::MAX))
            .placement(FixedNode(near))
            .build()?;
        let near_is_faster = faster.contains(&near);
        let pins = Arc::new(Pins::new(budget_bytes * PIN_SHARE_PERCENT / 100));
        Ok(Arc::new(Tiers {
            machine: self.machine,
            mover,
            cache,
            home,
            near,
            near_is_faster,
            budget_bytes,
            budget_was_given: self.budget_bytes.is_some(),
            dsa: self.dsa,
            planned,
            pins,
        }))
    }
}

/// Why near memory could not be set up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TiersError {
    /// A node that does not exist.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The machine's description has no node with CPUs.
    #[error("the machine has no node with CPUs; name the tables' node with --home")]
    NoCpuNode,
    /// The emulated device could not be started.
    #[error(transparent)]
    Emulator(#[from] StartError),
    /// An engine could not be started.
    #[error(transparent)]
    Mover(#[from] MoverError),
    /// The cache could not be made.
    #[error(transparent)]
    Cache(#[from] BuildError),
}

/// Near bytes that consumers hold without having copied them.
#[derive(Debug)]
pub(crate) struct Pins {
    bytes_max: u64,
    bytes: AtomicU64,
}

impl Pins {
    fn new(bytes_max: u64) -> Self {
        Self { bytes_max, bytes: AtomicU64::new(0) }
    }

    /// Room for `bytes` more, held until the answer is dropped; `None` beyond the share.
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

/// A share of the pins, given back when dropped.
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

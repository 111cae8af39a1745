//! Tiers with an emulated device.

use std::sync::Arc;

use memferry::mover::{DsaEngine, DsaOptions};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use memferry_query::TiersBuilder;

/// The DSA that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dsa {
    /// None: the CPU engine copies.
    None,
    /// An emulated device, with the faults of a seed.
    Emulated {
        /// `None` is a well-behaved device.
        seed: Option<u64>,
    },
}

/// Adds an emulated device on the home node.
pub(crate) fn with_dsa(tiers: TiersBuilder, dsa: Dsa) -> TiersBuilder {
    let Dsa::Emulated { seed } = dsa else { return tiers };
    let faults = seed.map_or_else(FaultPlan::none, FaultPlan::from_seed);
    let config = DeviceConfig::one_shared_queue().on_node(tiers.home_node().unwrap().0);
    let emulator = Emulator::start(&config, faults).unwrap();
    let engine = DsaEngine::new(vec![emulator.portal(0)], DsaOptions::default()).unwrap();
    tiers.engine(Arc::new(engine))
}

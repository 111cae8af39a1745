//! The DSA that copies for a query.

use std::ops::Deref;
use std::sync::Arc;

use memferry::mover::{DsaEngine, DsaOptions};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use memferry_query::{Tiers, TiersBuilder};

use crate::QueryError;
use memferry_bench::dsa::device_provenance;
use memferry_bench::harness::Provenance;

/// The DSA that copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dsa {
    /// None: the CPU engine copies.
    #[default]
    None,
    /// An emulated device in this process: exact, not fast.
    Emulated {
        /// Seed of its faults: late, out of order, full, faulting. `None` is a well-behaved device.
        seed: Option<u64>,
    },
    /// The devices of this machine, through all work queues that this process can use.
    System,
}

impl Dsa {
    /// Provenance of its copies.
    pub fn provenance(self) -> Provenance {
        match self {
            Dsa::System => device_provenance(),
            Dsa::None | Dsa::Emulated { .. } => Provenance::Emulated,
        }
    }
}

/// Near memory for tables, and the DSA that copies into it.
#[derive(Clone, Debug)]
pub struct QueryTiers {
    /// The near memory.
    pub tiers: Arc<Tiers>,
    /// The DSA among its engines.
    pub dsa: Dsa,
}

impl QueryTiers {
    /// Adds the engines of `dsa` to near memory and starts it.
    ///
    /// # Errors
    /// [`QueryError::Tiers`], [`QueryError::Dsa`], [`QueryError::Emulator`].
    pub fn build(mut builder: TiersBuilder, dsa: Dsa) -> Result<QueryTiers, QueryError> {
        let options = DsaOptions::default();
        let engines = match dsa {
            Dsa::None => Vec::new(),
            Dsa::Emulated { seed } => {
                let faults = seed.map_or_else(FaultPlan::none, FaultPlan::from_seed);
                // On the tables' node, where a route expects a device: the CPU engine then copies only if it cannot.
                let config = DeviceConfig::one_shared_queue().on_node(builder.home_node()?.0);
                vec![DsaEngine::new(vec![Emulator::start(&config, faults)?.portal(0)], options)?]
            }
            Dsa::System => DsaEngine::discover(&options)?,
        };
        for engine in engines {
            builder = builder.engine(Arc::new(engine));
        }
        Ok(QueryTiers { tiers: builder.build()?, dsa })
    }
}

impl Deref for QueryTiers {
    type Target = Tiers;

    fn deref(&self) -> &Tiers {
        &self.tiers
    }
}

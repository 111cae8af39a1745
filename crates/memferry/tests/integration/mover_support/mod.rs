//! What tests of movers share: a mover on an emulated device, the sums that counters of engines must have, and buffers
//! that tell of their end.
#![allow(dead_code, reason = "each test program uses a part")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memferry::mover::{DsaEngine, DsaOptions, EngineStats, Guidelines, Mover};
use memferry::topology::Machine;
use memferry_dsa::Portal;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

pub(crate) fn machine() -> Arc<Machine> {
    Arc::new(Machine::two_tiers().expect("built in"))
}

/// A mover whose first engine drives all queues of an emulated device.
pub(crate) fn mover_of(
    config: &DeviceConfig,
    fault_plan: FaultPlan,
    options: DsaOptions,
    guidelines: Guidelines,
) -> (Mover, Arc<DsaEngine>, Arc<Emulator>) {
    let device = Emulator::start(config, fault_plan).expect("a valid configuration");
    let portals = (0..device.queue_count()).map(|queue| device.portal(queue) as Arc<dyn Portal>).collect();
    let dsa = Arc::new(DsaEngine::new(portals, options).expect("a thread"));
    let builder = Mover::builder(machine()).guidelines(guidelines).engine(dsa.clone());
    (builder.build().expect("threads"), dsa, device)
}

/// Each descriptor of an engine at rest has ended in one way.
pub(crate) fn check_descriptors(stats: &EngineStats, told: &str) {
    let ended = stats.descriptors_done
        + stats.faults_resumed
        + stats.descriptors_failed
        + stats.descriptors_skipped
        + stats.descriptors_lost;
    assert_eq!(stats.descriptors, ended, "{told}: {stats:?}");
}

/// A buffer that counts its drops, and is overwritten when it is dropped.
#[derive(Debug)]
pub(crate) struct Witness {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
}

impl Witness {
    pub(crate) fn new(byte: u8, drops: &Arc<AtomicUsize>) -> Witness {
        Witness { bytes: vec![byte; 10_000], drops: drops.clone() }
    }
}

impl AsRef<[u8]> for Witness {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Witness {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.bytes.fill(0xdd);
        self.drops.fetch_add(1, Ordering::SeqCst);
    }
}

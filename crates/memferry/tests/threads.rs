//! Nothing that the library starts outlives what it was started for. In a process of its own: it counts threads.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use memferry::cache::{Access, Cache, Location};
use memferry::mover::{CpuEngine, CpuOptions, DsaEngine, DsaOptions, Mover};
use memferry::topology::{Machine, NodeId};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

/// Names of this process' threads. One that has just begun still has that of its parent.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // A thread may end between the two reads.
    tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

#[test]
fn all_threads_end() {
    let before = threads().len();
    let machine = Arc::new(Machine::two_tiers().unwrap());
    let bytes: Vec<u8> = (0..1 << 20).map(|index| (index % 251) as u8).collect();
    for seed in 0..40 {
        let fault_plan = if seed == 0 { FaultPlan::none() } else { FaultPlan::from_seed(seed) };
        let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), fault_plan).unwrap();
        let dsa = DsaEngine::new(vec![emulator.portal(0)], DsaOptions::default()).unwrap();
        let cpu = CpuOptions { node: Some(NodeId(0)), workers_count: 2, ..CpuOptions::default() };
        let cpu = CpuEngine::new(&machine, cpu).unwrap();
        let mover =
            Mover::builder(machine.clone()).engine(Arc::new(dsa)).engine(Arc::new(cpu)).build().unwrap();
        let cache = Cache::builder(mover).budget(NodeId(1), 4 << 20).build().unwrap();
        let region = cache.register(bytes.clone());
        for start in (0..1 << 20).step_by(64 << 10) {
            let entry = cache.access(&region, start..start + (64 << 10), Access::default()).unwrap();
            // Half of the copies are still under way when all handles go.
            if seed % 2 == 0 {
                assert_eq!(entry.wait(), Location::Near(NodeId(1)));
            }
        }
        assert!(threads().len() >= before + 4, "two workers, a completer, a device: {:?}", threads());
    }
    for _ in 0..5000 {
        if threads().len() == before {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("still there after 5 s: {:?}", threads());
}

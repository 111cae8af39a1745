//! Idle devices sleep. A program of its own, because it measures all device threads of the process.

use std::sync::Arc;
use std::time::Duration;

use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

#[test]
fn eight_idle_devices_use_no_processor_time() {
    let devices: Vec<Arc<Emulator>> = (0..8)
        .map(|_| Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    let (threads_count, before) = device_ticks();
    assert_eq!(threads_count, devices.len(), "the device threads go by another name");
    std::thread::sleep(Duration::from_millis(500));
    let spent = device_ticks().1 - before;
    drop(devices);
    assert!(spent <= 5, "8 idle devices spent {spent} ticks of a hundredth second in half a second");
}

/// The number of device threads of this process, and their CPU time in clock ticks.
fn device_ticks() -> (usize, u64) {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux");
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let ticks: Vec<u64> = stats
        .filter(|stat| stat.contains("(memferry-dsa)"))
        .map(|stat| {
            let fields: Vec<_> = stat[stat.rfind(')').expect("a name") + 2..].split(' ').collect();
            fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
        })
        .collect();
    (ticks.len(), ticks.iter().sum())
}

//! Idle devices sleep. A program of its own, because it measures all device threads of the process.

use std::sync::Arc;
use std::time::Duration;

use memferry_dsa::emulator::{DeviceConfig, Emulator, Nasty};

#[test]
fn eight_idle_devices_use_no_processor_time() {
    let devices: Vec<Arc<Emulator>> =
        (0..8).map(|_| Emulator::start(&DeviceConfig::one_shared_queue(), Nasty::none()).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(20));
    let before = device_ticks();
    std::thread::sleep(Duration::from_millis(500));
    let spent = device_ticks() - before;
    drop(devices);
    assert!(spent <= 5, "8 idle devices spent {spent} ticks of a hundredth second in half a second");
}

/// Processor time that this process' device threads have used, in clock ticks.
fn device_ticks() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("Linux");
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("stat")).ok());
    let ticks = stats.filter(|stat| stat.contains("(memferry-dsa)")).map(|stat| {
        let fields: Vec<_> = stat[stat.rfind(')').expect("a name") + 2..].split(' ').collect();
        fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
    });
    ticks.sum()
}

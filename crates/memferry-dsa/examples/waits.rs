//! What each way to wait costs while one long transfer runs: the time of a core that the waiter takes, and the
//! process' completer.
//!
//! `cargo run --release -p memferry-dsa --example waits [MiB]`, on the emulated device: its own thread is not counted.

use std::time::{Duration, Instant};

use memferry_dsa::emulator::{DeviceConfig, Emulator, GroupConfig, Nasty, shared_queue};
use memferry_dsa::portal::{Backoff, submit_patiently};
use memferry_dsa::wait::{Completer, thread_cpu_time};
use memferry_dsa::{CompletionRecord, Descriptor, Status, Wait, WorkQueueInfo};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let size_mib: u32 = std::env::args().nth(1).map_or(Ok(256), |text| text.parse())?;
    let size_bytes = size_mib.checked_mul(1 << 20).filter(|size| *size > 0).ok_or("from 1 to 4095 MiB")?;
    let queue = WorkQueueInfo { transfer_bytes_max: 1 << 31, ..shared_queue("wq0.0", 8) };
    if size_bytes > queue.transfer_bytes_max {
        return Err("the largest descriptor copies 2048 MiB".into());
    }
    let config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]);
    let portal = Emulator::start(&config, Nasty::none())?.portal(0);
    let (source, mut target) = (vec![1u8; size_bytes as usize], vec![2u8; size_bytes as usize]);
    let completer = Completer::global()?;
    println!("{size_mib} MiB by the emulated device, in one descriptor");
    println!(
        "{:<16} {:<12} {:>12} {:>14} {:>14} {:>7}",
        "wait", "which is", "wall", "waiter's CPU", "completer's", "share"
    );
    for wait in Wait::ALL {
        let record = CompletionRecord::new();
        let copy =
            Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), size_bytes).with_completion(&record);
        let busy = || Some((thread_cpu_time()?, completer.stats().cpu_time?));
        let (start, before) = (Instant::now(), busy().ok_or("this system does not tell CPU times")?);
        // SAFETY: source, target and record outlive the wait, and nobody else uses the target. After a time-out the
        // process ends without freeing them.
        unsafe { submit_patiently(&*portal, &copy, Backoff::default()) }?;
        let Ok(completion) = wait.wait(&record, Duration::from_secs(60)) else { std::process::exit(1) };
        let (wall, after) = (start.elapsed(), busy().ok_or("this system does not tell CPU times")?);
        assert_eq!(completion.status, Status::Success);
        let (waiter, completer) = (after.0 - before.0, after.1 - before.1);
        let share = 100.0 * (waiter + completer).as_secs_f64() / wall.as_secs_f64();
        let (name, effective) = (format!("{wait:?}"), format!("{:?}", wait.effective()));
        println!("{name:<16} {effective:<12} {wall:>12.1?} {waiter:>14.1?} {completer:>14.1?} {share:>6.1}%");
    }
    Ok(())
}

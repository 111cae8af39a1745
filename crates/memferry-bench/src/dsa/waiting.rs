//! What each way to wait costs while a long transfer runs, and how much later than by spinning it ends.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_dsa::portal::{Backoff, Portal, Unsubmitted, submit_patiently};
use memferry_dsa::wait::{Completer, Wait, thread_cpu_time};
use memferry_dsa::{CompletionRecord, Descriptor, Status};
use memferry_dsa_emulator::{
    DeviceConfig, Emulator, FaultPlan, GroupConfig, StartError, Timing, shared_queue,
};

use crate::harness::Effort;

/// The costs of one way to wait.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The way.
    pub wait: Wait,
    /// Bytes of a transfer.
    pub size_bytes: u32,
    /// For each transfer the share of a core that waiter and completer took together.
    pub core_shares: Vec<f64>,
    /// From the submission to the waiter's going on.
    pub durations: Vec<Duration>,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The emulated device did not start.
    #[error(transparent)]
    Device(#[from] StartError),
    /// The completer did not start.
    #[error("the thread that watches completion records cannot be started")]
    Completer(#[from] io::Error),
    /// The device takes no descriptors.
    #[error(transparent)]
    Unsubmitted(#[from] Unsubmitted),
    /// The operating system does not say.
    #[error("this system does not tell how much CPU time threads take")]
    NoCpuTimes,
}

/// An emulated device that takes as long as silicon would, with a queue for transfers of any size.
///
/// # Errors
/// Its thread could not be started.
pub fn timed_device() -> Result<Arc<Emulator>, StartError> {
    let mut queue = shared_queue("wq0.0", 8);
    queue.transfer_bytes_max = 1 << 31;
    let mut config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]);
    config.timing = Some(Timing::sapphire_rapids());
    Emulator::start(&config, FaultPlan::none())
}

/// Waits in these ways, in turn, for `count` transfers each of `size_bytes`.
///
/// The device's own thread is not counted: silicon has none.
///
/// # Errors
/// [`Failed`].
pub fn costs(portal: &dyn Portal, ways: &[Wait], size_bytes: u32, count: usize) -> Result<Vec<Cost>, Failed> {
    let completer = Completer::global()?;
    let cpu_time = || Some(thread_cpu_time()? + completer.stats().cpu_time?);
    let (source, mut target) = (vec![1u8; size_bytes as usize], vec![2u8; size_bytes as usize]);
    let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), size_bytes);
    let cost = |wait: &Wait| Cost { wait: *wait, size_bytes, core_shares: Vec::new(), durations: Vec::new() };
    let mut costs: Vec<Cost> = ways.iter().map(cost).collect();
    let record = CompletionRecord::new();
    let transfer = |wait: Wait| {
        record.reset();
        let start = Instant::now();
        // SAFETY: source, target and record outlive the wait, and nobody else uses the target. After a time-out the
        // process ends without freeing them.
        unsafe { submit_patiently(portal, &copy.with_completion(&record), Backoff::default()) }?;
        let Ok(completion) = wait.wait(&record, Duration::from_secs(60)) else {
            eprintln!("the emulated device is dead; please report this");
            std::process::abort();
        };
        assert_eq!(completion.status, Status::Success);
        Ok::<_, Failed>(start.elapsed())
    };
    for _ in 0..count {
        for cost in &mut costs {
            // All begin with a device and a waiter that have just been at work.
            transfer(Wait::Spin)?;
            let before = cpu_time().ok_or(Failed::NoCpuTimes)?;
            let duration = transfer(cost.wait)?;
            let busy = cpu_time().ok_or(Failed::NoCpuTimes)?.saturating_sub(before);
            cost.core_shares.push(busy.as_secs_f64() / duration.as_secs_f64());
            cost.durations.push(duration);
        }
    }
    Ok(costs)
}

/// What [`costs`] is measured with for the record: bytes of a long and of a short transfer, and how many.
pub fn sizes(effort: Effort) -> [(u32, usize); 2] {
    effort.of([(256 << 20, 11), (1 << 20, 501)], [(1 << 20, 1), (64 << 10, 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_are_measured() {
        let device = timed_device().unwrap();
        for (size_bytes, count) in sizes(Effort::Quick) {
            let costs = costs(&*device.portal(0), &Wait::ALL, size_bytes, count).unwrap();
            assert_eq!(costs.len(), Wait::ALL.len());
            for cost in costs {
                assert_eq!((cost.core_shares.len(), cost.durations.len()), (count, count));
                let modelled = Timing::sapphire_rapids().transfer_ns(size_bytes.into());
                assert!(cost.durations[0] >= Duration::from_nanos(modelled), "{cost:?}");
            }
        }
    }
}

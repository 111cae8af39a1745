//! The cost of each way to wait during a long copy, and its delay behind spinning.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_dsa::internals::wait::thread_cpu_time;
use memferry_dsa::{
    Backoff, BackoffError, CompletionRecord, Descriptor, Portal, Status, Wait, submit_with_backoff,
};
use memferry_dsa_emulator::{
    DeviceConfig, DeviceCosts, Emulator, FaultPlan, GroupConfig, StartError, shared_queue,
};

use crate::harness::Effort;

/// The costs of one way to wait.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The way to wait.
    pub wait: Wait,
    /// Bytes of a copy.
    pub size_bytes: u32,
    /// For each submission, the share of a core that the waiter used.
    pub core_shares: Vec<f64>,
    /// For each submission, the share of the time in the wait: all but submitting.
    pub wait_shares: Vec<f64>,
    /// Times from the submission until the waiter continues.
    pub durations: Vec<Duration>,
}

/// Ways to wait that cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum WaitingError {
    /// The emulated device did not start.
    #[error(transparent)]
    Device(#[from] StartError),
    /// The device does not accept descriptors.
    #[error(transparent)]
    BackoffError(#[from] BackoffError),
    /// The operating system does not report CPU times of threads.
    #[error("this system does not report the CPU time of threads")]
    NoCpuTimes,
}

/// An emulated device with the timing of silicon, and a queue for copies of any size.
///
/// # Errors
/// Its thread cannot be started.
pub fn timed_device() -> Result<Arc<Emulator>, StartError> {
    let mut queue = shared_queue("wq0.0", 8);
    (queue.transfer_bytes_max, queue.batch_max) = (1 << 31, 1024);
    let mut config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]);
    config.timing = Some(DeviceCosts::sapphire_rapids());
    Emulator::start(&config, FaultPlan::none())
}

/// Costs of these ways, which wait in turn for `count` submissions each: a copy of `size_bytes`, or a batch of `batch` such
/// copies.
///
/// The CPU time of the emulated device is not counted: silicon has none.
///
/// # Errors
/// [`WaitingError`].
pub fn costs(
    portal: &dyn Portal,
    ways: &[Wait],
    size_bytes: u32,
    batch: u32,
    count: usize,
) -> Result<Vec<Cost>, WaitingError> {
    let bytes = size_bytes as usize * batch as usize;
    let (source, mut target) = (vec![1u8; bytes], vec![2u8; bytes]);
    let copies = source.chunks(size_bytes as usize).zip(target.chunks_mut(size_bytes as usize));
    let copies: Vec<Descriptor> = copies
        .map(|(source, target)| Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), size_bytes))
        .collect();
    let work = if batch > 1 { Descriptor::batch(copies.as_ptr(), batch) } else { copies[0] };
    let cost = |wait: &Wait| Cost {
        wait: *wait,
        size_bytes,
        core_shares: Vec::new(),
        wait_shares: Vec::new(),
        durations: Vec::new(),
    };
    let mut costs: Vec<Cost> = ways.iter().map(cost).collect();
    let record = CompletionRecord::new();
    let transfer = |wait: Wait| {
        record.reset();
        let start = Instant::now();
        // SAFETY: source, target, list and record outlive the wait, and no other code uses the target. After a time-out
        // the process aborts without freeing them.
        unsafe { submit_with_backoff(portal, &work.with_completion(&record), Backoff::default()) }?;
        let submitted = start.elapsed();
        let Ok(completion) = wait.wait(&record, Duration::from_secs(60)) else {
            eprintln!("the emulated device completed nothing for a minute; please report this");
            std::process::abort();
        };
        assert_eq!(completion.status, Status::Success);
        Ok::<_, WaitingError>((submitted, start.elapsed()))
    };
    for _ in 0..count {
        for cost in &mut costs {
            // Every way starts with a device and a waiter that are warm.
            transfer(Wait::Spin)?;
            let before = thread_cpu_time().ok_or(WaitingError::NoCpuTimes)?;
            let (submitted, duration) = transfer(cost.wait)?;
            let busy = thread_cpu_time().ok_or(WaitingError::NoCpuTimes)?.saturating_sub(before);
            cost.core_shares.push(busy.as_secs_f64() / duration.as_secs_f64());
            cost.wait_shares.push(1.0 - submitted.as_secs_f64() / duration.as_secs_f64());
            cost.durations.push(duration);
        }
    }
    Ok(costs)
}

/// Size and number of the long and of the short copies that [`costs`] waits for.
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
            let costs = costs(&*device.portal(0), &Wait::ALL, size_bytes, 1, count).unwrap();
            assert_eq!(costs.len(), Wait::ALL.len());
            for cost in costs {
                assert_eq!((cost.core_shares.len(), cost.durations.len()), (count, count));
                let modelled = DeviceCosts::sapphire_rapids().transfer_ns(size_bytes.into());
                assert!(cost.durations[0] >= Duration::from_nanos(modelled), "{cost:?}");
                assert!(cost.wait_shares.iter().all(|share| (0.0..1.0).contains(share)), "{cost:?}");
            }
        }
        let batches = costs(&*device.portal(0), &[Wait::Spin], 64 << 10, 8, 1).unwrap();
        let modelled = DeviceCosts::sapphire_rapids().transfer_ns(8 * (64 << 10));
        assert!(batches[0].durations[0] >= Duration::from_nanos(modelled), "{batches:?}");
    }
}

//! How fast a device is, seen from one submitting thread through a portal: an emulated one, or one of this machine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_dsa::portal::{Backoff, BackoffError, submit_with_backoff};
use memferry_dsa::wait::TimedOut;
use memferry_dsa::{CompletionRecord, Descriptor, Portal, Status, Wait};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, StartError, shared_queue};

/// A record on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Slot(CompletionRecord);

/// Nothing here takes a thousandth of it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Looks at a record before the clock is asked.
const LOOKS: u32 = 1 << 16;

/// Why a device could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// It takes no descriptors.
    #[error(transparent)]
    BackoffError(#[from] BackoffError),
    /// It answers none.
    #[error("the device wrote no completion record in {TIMEOUT:?}")]
    Silent,
    /// It answers with an error.
    #[error("a descriptor that is correct ended with {0}")]
    Status(Status),
}

/// One engine, one shared queue with room for everything, no bad habits.
///
/// # Errors
/// Its thread could not be started.
pub fn emulated() -> Result<Arc<Emulator>, StartError> {
    let mut queue = shared_queue("wq0.0", 128);
    queue.batch_max = 1024;
    Emulator::start(
        &DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]),
        FaultPlan::none(),
    )
}

fn submit(portal: &dyn Portal, descriptor: &Descriptor) -> Result<(), Failed> {
    // Patience for a queue that others fill too; an idle queue takes it at once.
    let patience = Backoff::new(1 << 20);
    // SAFETY: no-ops and lists of no-ops name no memory but their records and lists. Those outlive the waits below, or
    // are leaked when a wait gives up.
    unsafe { submit_with_backoff(portal, descriptor, patience) }?;
    Ok(())
}

fn wait(portal: &dyn Portal, record: &CompletionRecord) -> Result<(), Failed> {
    // A clock is looked at only after some time: it costs a good part of a round trip.
    for _ in 0..LOOKS {
        if let Some(completion) = record.poll() {
            portal.completed(1);
            return match completion.status {
                Status::Success => Ok(()),
                status => Err(Failed::Status(status)),
            };
        }
        std::hint::spin_loop();
    }
    match Wait::Pause.wait(record, TIMEOUT) {
        Ok(_) => wait(portal, record),
        Err(TimedOut { .. }) => Err(Failed::Silent),
    }
}

/// Leaks what a device may still write to if `work` failed.
fn guarded<M, T>(memory: M, work: impl FnOnce(&M) -> Result<T, Failed>) -> Result<T, Failed> {
    let result = work(&memory);
    if result.is_err() {
        std::mem::forget(memory);
    }
    result
}

/// No-ops with a record each, `in_flight` at a time: operations per second.
///
/// # Errors
/// [`Failed`].
pub fn singles(portal: &dyn Portal, in_flight: usize, count: usize) -> Result<f64, Failed> {
    let slots: Vec<Slot> = (0..in_flight).map(|_| Slot::default()).collect();
    guarded(slots, |slots| {
        let start = Instant::now();
        for number in 0..count {
            let Slot(record) = &slots[number % in_flight];
            if number >= in_flight {
                wait(portal, record)?;
            }
            record.reset();
            submit(portal, &Descriptor::noop().with_completion(record))?;
        }
        slots[..in_flight.min(count)].iter().try_for_each(|Slot(record)| wait(portal, record))?;
        Ok(count as f64 / start.elapsed().as_secs_f64())
    })
}

/// Batches of `members` no-ops, with a record for each member or for the batch only, two at a time: members per second.
///
/// # Errors
/// [`Failed`].
pub fn batches(portal: &dyn Portal, members: usize, with_records: bool, count: usize) -> Result<f64, Failed> {
    struct Lane {
        batch: Slot,
        _records: Vec<Slot>,
        list: Vec<Descriptor>,
    }
    let lane = || {
        let records: Vec<Slot> = (0..members).map(|_| Slot::default()).collect();
        let member = |Slot(record): &Slot| match with_records {
            true => Descriptor::noop().with_completion(record),
            false => Descriptor::noop(),
        };
        Lane { batch: Slot::default(), list: records.iter().map(member).collect(), _records: records }
    };
    guarded([lane(), lane()], |lanes| {
        let start = Instant::now();
        for number in 0..count {
            let Lane { batch: Slot(record), list, .. } = &lanes[number % 2];
            if number >= 2 {
                wait(portal, record)?;
            }
            record.reset();
            submit(portal, &Descriptor::batch(list.as_ptr(), members as u32).with_completion(record))?;
        }
        lanes[..2.min(count)].iter().try_for_each(|lane| wait(portal, &lane.batch.0))?;
        Ok((count * members) as f64 / start.elapsed().as_secs_f64())
    })
}

/// One no-op at a time, waiting by spinning: the median round trip.
///
/// # Errors
/// [`Failed`].
pub fn round_trip(portal: &dyn Portal, count: usize) -> Result<Duration, Failed> {
    guarded(Slot::default(), |Slot(record)| {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            record.reset();
            let start = Instant::now();
            submit(portal, &Descriptor::noop().with_completion(record))?;
            wait(portal, record)?;
            times.push(start.elapsed());
        }
        times.sort();
        Ok(times[times.len() / 2])
    })
}

/// Copies of `size_bytes`, one at a time: bytes per second.
///
/// # Errors
/// [`Failed`].
pub fn copies(portal: &dyn Portal, size_bytes: u32, count: usize) -> Result<f64, Failed> {
    // Written, and not zeros that the allocator has: a device that does not block on faults stops at pages that nobody
    // has touched.
    let (source, mut target) = (vec![7u8; size_bytes as usize], vec![1u8; size_bytes as usize]);
    let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), size_bytes);
    guarded((source, target, Slot::default()), |(source, target, Slot(record))| {
        let start = Instant::now();
        for _ in 0..count {
            record.reset();
            submit(portal, &copy.with_completion(record))?;
            wait(portal, record)?;
        }
        let rate = count as f64 * f64::from(size_bytes) / start.elapsed().as_secs_f64();
        assert!(target == source, "a copy that succeeded is none");
        Ok(rate)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So that the benchmark does not rot: every function runs, and does as much as it says.
    #[test]
    fn all_of_it_runs() {
        let emulator = emulated().unwrap();
        let portal = &*emulator.portal(0);
        assert!(singles(portal, 4, 10).unwrap() > 0.0);
        assert!(batches(portal, 8, true, 3).unwrap() > 0.0);
        assert!(batches(portal, 8, false, 3).unwrap() > 0.0);
        assert!(!round_trip(portal, 3).unwrap().is_zero());
        assert!(copies(portal, 5000, 2).unwrap() > 0.0);
        assert_eq!(emulator.counters().completed_count(), 10 + 2 * 3 * 9 + 3 + 2);
    }

    #[test]
    fn a_device_that_is_gone_is_an_error() {
        let emulator = emulated().unwrap();
        let portal = emulator.portal(0);
        emulator.abort();
        assert!(matches!(round_trip(&*portal, 1), Err(Failed::BackoffError(_))));
    }
}

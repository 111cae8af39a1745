//! The speed of a device, emulated or real, as seen by one thread that submits through a portal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_dsa::{Backoff, Descriptor, Portal, submit_with_backoff};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, GroupConfig, StartError, shared_queue};

use super::load::LoadError;
use super::load::queue::{Slot, wait};

/// An emulated device without faults: one engine, one shared queue with room for everything.
///
/// # Errors
/// Its thread cannot be started.
pub fn emulated() -> Result<Arc<Emulator>, StartError> {
    let mut queue = shared_queue("wq0.0", 128);
    queue.batch_max = 1024;
    Emulator::start(
        &DeviceConfig::new(vec![GroupConfig { engines: 1, queues: vec![queue] }]),
        FaultPlan::none(),
    )
}

fn submit(portal: &dyn Portal, descriptor: &Descriptor) -> Result<(), LoadError> {
    // Patience for a queue that other clients fill too; an idle queue accepts it at once.
    let patience = Backoff::new(1 << 20);
    // SAFETY: no-ops and lists of no-ops name no memory but their records and lists. Those outlive the waits below, or
    // are leaked when a wait gives up.
    unsafe { submit_with_backoff(portal, descriptor, patience) }?;
    Ok(())
}

/// Runs `work` on memory that a device writes to; leaks the memory on failure, since the device may still write.
fn guarded<M, T>(memory: M, work: impl FnOnce(&M) -> Result<T, LoadError>) -> Result<T, LoadError> {
    let result = work(&memory);
    if result.is_err() {
        std::mem::forget(memory);
    }
    result
}

/// Operations per second of no-ops with a record each, `in_flight` at a time.
///
/// # Errors
/// [`LoadError`].
pub fn singles(portal: &dyn Portal, in_flight: usize, count: usize) -> Result<f64, LoadError> {
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

/// Members per second of batches of `members` no-ops, two in flight, with a record per member or per batch only.
///
/// # Errors
/// [`LoadError`].
pub fn batches(
    portal: &dyn Portal,
    members: usize,
    with_records: bool,
    count: usize,
) -> Result<f64, LoadError> {
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

/// The median round trip of one no-op at a time, with a spinning waiter.
///
/// # Errors
/// [`LoadError`].
pub fn round_trip(portal: &dyn Portal, count: usize) -> Result<Duration, LoadError> {
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

/// Bytes per second of copies of `size_bytes`, one at a time.
///
/// # Errors
/// [`LoadError`].
pub fn copies(portal: &dyn Portal, size_bytes: u32, count: usize) -> Result<f64, LoadError> {
    // Written, not zeroed by the allocator: a device that does not block on faults stops at untouched pages.
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
        assert!(target == source, "a copy succeeded without copying");
        Ok(rate)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The benchmark must not rot: every function runs as many descriptors as it says.
    #[test]
    fn every_function_runs() {
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
        assert!(matches!(round_trip(&*portal, 1), Err(LoadError::BackoffError(_))));
    }
}

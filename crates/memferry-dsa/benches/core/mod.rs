//! How fast the emulated device is, seen from one submitting thread. Run tiny by the tests, so that it does not rot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_dsa::emulator::{DeviceConfig, Emulator, GroupConfig, Nasty, shared_queue};
use memferry_dsa::{CompletionRecord, Descriptor, Portal, Status, Submission};

/// A record on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Slot(CompletionRecord);

/// One engine, one shared queue with room for everything, no bad habits.
pub(crate) fn device() -> Arc<Emulator> {
    let queues = vec![shared_queue("wq0.0", 128)];
    let mut config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues }]);
    config.groups[0].queues[0].batch_max = 1024;
    Emulator::start(&config, Nasty::none()).expect("a thread")
}

fn submit(portal: &dyn Portal, descriptor: &Descriptor) {
    // SAFETY: no-ops and lists of no-ops name no memory but their records and lists, which outlive the waits below.
    while unsafe { portal.submit(descriptor) } == Ok(Submission::Retry) {
        std::hint::spin_loop();
    }
}

fn wait(record: &CompletionRecord) {
    loop {
        match record.poll() {
            Some(completion) => return assert_eq!(completion.status, Status::Success),
            None => std::hint::spin_loop(),
        }
    }
}

/// No-ops with a record each, `in_flight` at a time: operations per second.
pub(crate) fn singles(portal: &dyn Portal, in_flight: usize, count: usize) -> f64 {
    let slots: Vec<Slot> = (0..in_flight).map(|_| Slot::default()).collect();
    let start = Instant::now();
    for number in 0..count {
        let Slot(record) = &slots[number % in_flight];
        if number >= in_flight {
            wait(record);
        }
        record.reset();
        submit(portal, &Descriptor::noop().with_completion(record));
    }
    slots[..in_flight.min(count)].iter().for_each(|Slot(record)| wait(record));
    count as f64 / start.elapsed().as_secs_f64()
}

/// Batches of `members` no-ops, with a record for each member or for the batch only, two at a time: members per second.
pub(crate) fn batches(portal: &dyn Portal, members: usize, with_records: bool, count: usize) -> f64 {
    let lanes: Vec<(Vec<Slot>, Slot)> =
        (0..2).map(|_| ((0..members).map(|_| Slot::default()).collect(), Slot::default())).collect();
    let lists: Vec<Vec<Descriptor>> = lanes
        .iter()
        .map(|(records, _)| {
            let member = |Slot(record): &Slot| match with_records {
                true => Descriptor::noop().with_completion(record),
                false => Descriptor::noop(),
            };
            records.iter().map(member).collect()
        })
        .collect();
    let start = Instant::now();
    for number in 0..count {
        let lane = number % 2;
        let (_, Slot(record)) = &lanes[lane];
        if number >= 2 {
            wait(record);
        }
        record.reset();
        submit(portal, &Descriptor::batch(lists[lane].as_ptr(), members as u32).with_completion(record));
    }
    lanes[..2.min(count)].iter().for_each(|(_, Slot(record))| wait(record));
    (count * members) as f64 / start.elapsed().as_secs_f64()
}

/// One no-op at a time, waiting by spinning: the median round trip.
pub(crate) fn round_trip(portal: &dyn Portal, count: usize) -> Duration {
    let slot = Slot::default();
    let mut times: Vec<Duration> = (0..count)
        .map(|_| {
            slot.0.reset();
            let start = Instant::now();
            submit(portal, &Descriptor::noop().with_completion(&slot.0));
            wait(&slot.0);
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// Transfers of `size` bytes, one at a time: bytes per second.
pub(crate) fn transfers(portal: &dyn Portal, transfer: Transfer, size: usize, count: usize) -> f64 {
    let (source, mut target) = (vec![7u8; size], vec![7u8; size]);
    let slot = Slot::default();
    let (from, to, bytes) = (source.as_ptr(), target.as_mut_ptr(), size as u32);
    let descriptor = match transfer {
        Transfer::Copy => Descriptor::memmove(from, to, bytes),
        Transfer::Fill => Descriptor::fill(0x0707_0707_0707_0707, to, bytes),
        Transfer::Compare => Descriptor::compare(from, to, bytes),
        Transfer::Crc => Descriptor::crc(0, from, bytes),
    };
    let start = Instant::now();
    for _ in 0..count {
        slot.0.reset();
        submit(portal, &descriptor.with_completion(&slot.0));
        wait(&slot.0);
    }
    let rate = (count * size) as f64 / start.elapsed().as_secs_f64();
    assert!(target.iter().all(|byte| *byte == 7));
    rate
}

/// Operations on data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transfer {
    Copy,
    Fill,
    Compare,
    Crc,
}

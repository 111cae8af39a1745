//! Bodies of fuzz targets: arbitrary descriptors over arbitrary memory, and arbitrary words in shared memory.
//!
//! [`descriptors`] is the body of the fuzz target `descriptor`, [`order::order`] that of `order`. The tests call them with
//! random bytes and with the seeds.

mod input;
pub(crate) mod order;
pub(crate) mod watched;

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Descriptor, Opcode, Submission};
use memferry_dsa_emulator::{
    Deterministic, DeviceConfig, DeviceCosts, DeviceCounters, FakeMemory, FaultPlan, GroupConfig, Stepped,
    dedicated_queue, shared_queue,
};

use self::input::Bytes;
use self::watched::Watched;

/// The start of the data pages, which the page of lists follows. No other page is mapped.
const ARENA: Address = Address(0x10_0000);
const DATA_PAGES: u64 = 8;
/// The page of lists. It is read-only, so that most batches have the members from the fuzzer's bytes.
const LIST: Address = Address(ARENA.0 + DATA_PAGES * PAGE_BYTES);
const ARENA_BYTES: u64 = (DATA_PAGES + 1) * PAGE_BYTES;
/// Maximum number of members in the page of lists.
const MEMBERS_MAX: u64 = PAGE_BYTES / 64;
/// Maximum number of descriptors in one run.
const SUBMISSIONS_MAX: u64 = 32;
/// Smallest `piece_bytes_max`. With smaller pieces, 32 batches of 32 copies of all memory take longer than a fuzzer
/// waits.
const PIECE_BYTES_MIN: u32 = 256;
/// Steps without progress after which the device counts as hung; no delay is longer than 20 steps.
const IDLE_STEPS_MAX: u64 = 4096;
/// Steps after which a run counts as endless: three times the steps of those 32 batches, each piece delayed by 20.
const STEPS_MAX: u64 = 20_000_000;

/// Runs the device on descriptors from the bytes, and panics if it breaks a rule; returns its counters.
///
/// ```text
/// seed 8, lost records 1, hardware errors 1, configuration 1
/// state of the pages 8, number of members 1, members, contents of the pages 8 x 8
/// until the end: queue and pause 1, submitter 1, descriptor
/// ```
///
/// A descriptor is a byte that bends it towards a valid one, its 64 bytes, and, if it was bent, two bytes for an error.
/// Any bytes are valid; missing bytes are zero.
///
/// # Panics
/// If the device panics, accesses memory that no submitted descriptor names, accesses data for a refused descriptor,
/// does not account for a descriptor, or does not become idle.
pub(crate) fn descriptors(data: &[u8]) -> DeviceCounters {
    let mut data = Bytes(data);
    let seed = data.word();
    let habits = if seed == 0 { FaultPlan::none() } else { FaultPlan::from_seed(seed) };
    let fault_plan = FaultPlan {
        lost_records_per_mille: data.byte().into(),
        hardware_errors_per_mille: data.byte().into(),
        piece_bytes_max: habits.piece_bytes_max.max(PIECE_BYTES_MIN),
        ..habits
    };
    let choice = data.byte();
    let memory = Watched::new(memory(&mut data));
    let device = Deterministic::new(&config(choice), fault_plan, memory).expect("a valid configuration");
    let mut run = Run { device, steps: 0, one_by_one: choice >> 7 == 1, answered: [0; 2] };
    for _ in 0..SUBMISSIONS_MAX {
        if data.is_empty() {
            break;
        }
        run.submit(data.byte(), data.byte(), data.descriptor());
    }
    run.finish();
    run.check()
}

/// A run of a device.
struct Run {
    device: Deterministic<Watched>,
    steps: u64,
    /// Each descriptor completes before the next is submitted, so that every access belongs to it.
    one_by_one: bool,
    /// Descriptors that queues accepted or dropped, and those that they answered with Retry.
    answered: [u64; 2],
}

impl Run {
    fn submit(&mut self, queue_and_pause: u8, submitter: u8, descriptor: Descriptor) {
        let Deterministic { device, memory } = &self.device;
        let queues = device.config().queues().count();
        let before = device.counters();
        let answer = device
            .submit(usize::from(queue_and_pause & 15) % queues, &descriptor, u32::from(submitter & 1))
            .expect("the device is enabled");
        self.answered[usize::from(answer == Submission::Retry)] += 1;
        if device.counters().accepted == before.accepted {
            return; // refused or dropped
        }
        memory.allow(descriptor);
        if self.one_by_one {
            self.finish();
            let ended = self.device.device.counters().completed;
            let was_refused = ended.iter().any(|(status, count)| {
                // The device detects these before it accesses data; 0x1a and 0x1f come later.
                matches!(status.code(), 0x10..=0x19 | 0x1b..=0x1e)
                    && *count > before.completed.get(status).copied().unwrap_or(0)
            });
            let memory = &self.device.memory;
            assert!(
                !was_refused || descriptor.opcode() == Ok(Opcode::Batch) || !memory.has_touched_data(),
                "{}: refused, and touched data all the same: {descriptor:?}",
                self.told()
            );
            memory.allow_nothing();
        } else {
            (0..=queue_and_pause >> 4).for_each(|_| _ = self.device.step());
        }
    }

    /// Steps until the device is idle.
    fn finish(&mut self) {
        let mut before = None;
        while self.device.step() == Stepped::Busy {
            self.steps += 1;
            if self.steps.is_multiple_of(IDLE_STEPS_MAX) {
                let now = Some((self.device.device.counters(), self.device.device.now_ns()));
                assert!(now != before, "{}: hangs: {now:?}", self.told());
                before = now;
            }
            assert!(self.steps < STEPS_MAX, "{}: does not end: {:?}", self.told(), before);
        }
    }

    /// Checks the counters at the end.
    fn check(&self) -> DeviceCounters {
        let (device, told) = (&self.device.device, self.told());
        let counters = device.counters();
        assert_eq!(self.answered, [counters.accepted + counters.dropped, counters.retried], "{told}");
        assert_eq!(counters.in_flight(), 0, "{told}: {counters:?}");
        assert_eq!(counters.accepted + counters.members, counters.completed_count(), "{told}: {counters:?}");
        assert_eq!(counters.dispatched, counters.accepted, "{told}");
        let is_reported = counters.records_lost == 0 || device.take_error().is_some();
        assert!(is_reported, "{told}: a loss without a report");
        counters
    }

    fn told(&self) -> String {
        self.device.device.fault_plan().to_string()
    }
}

fn config(choice: u8) -> DeviceConfig {
    let mut queues = vec![shared_queue("wq0.0", 16), dedicated_queue("wq0.1", 4)];
    queues[0].block_on_fault = choice & 1 == 1;
    queues[1].priority = 1 + (choice >> 1 & 7);
    let other = GroupConfig { engines: 1, queues: vec![shared_queue("wq0.2", 8)] };
    let config =
        DeviceConfig::new(vec![GroupConfig { engines: 1 + u32::from(choice >> 4 & 1) * 2, queues }, other]);
    let config = if choice >> 5 & 1 == 1 { config.as_production() } else { config };
    match choice >> 6 & 1 {
        1 => config.with_timing(DeviceCosts::sapphire_rapids()),
        _ => config,
    }
}

/// Pages that are present, absent or read-only, and the page of lists.
fn memory(data: &mut Bytes) -> FakeMemory {
    let memory = FakeMemory::new();
    memory.map(ARENA, ARENA_BYTES as usize);
    let pages = data.word();
    let members = u64::from(data.byte()) % (MEMBERS_MAX + 1);
    for index in 0..members {
        memory.store(LIST.offset(index * 64), &data.descriptor().to_bytes());
    }
    memory.write_protect(LIST);
    for page in 0..DATA_PAGES {
        let page_address = ARENA.offset(page * PAGE_BYTES);
        memory.store(page_address, &data.word().to_le_bytes());
        match pages >> (4 * page) & 15 {
            1 => memory.page_out(page_address),
            2 => memory.write_protect(page_address),
            _ => {}
        }
    }
    memory
}

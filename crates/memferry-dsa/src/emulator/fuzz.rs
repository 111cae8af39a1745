//! What a fuzzer does with the device: any descriptors over any memory.
//!
//! [`descriptors`] is the body of a fuzz target, and is called by the property tests with random bytes as well:
//!
//! ```ignore
//! libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_dsa::emulator::fuzz::descriptors(data));
//! ```

use super::{
    Access, Deterministic, DeviceConfig, DeviceCounters, FakeMemory, GroupConfig, Nasty, Stepped, Visit,
};
use super::{dedicated_queue, shared_queue};
use crate::address::{Address, PAGE_BYTES};
use crate::completion::CompletionRecord;
use crate::descriptor::Descriptor;
use crate::dif::DIF_BYTES;
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::portal::Submission;

/// Where the data lies, with lists of batches behind it. Nothing else is mapped.
const ARENA: Address = Address(0x10_0000);
const DATA_PAGES: u64 = 8;
/// The page of lists is read-only, so that what the members are does not change while they run.
const LIST: Address = Address(ARENA.0 + DATA_PAGES * PAGE_BYTES);
const ARENA_BYTES: u64 = (DATA_PAGES + 1) * PAGE_BYTES;
const MEMBERS: u64 = PAGE_BYTES / 64;
/// Bytes of a completion record.
const RECORD_BYTES: u64 = size_of::<CompletionRecord>() as u64;
/// Most descriptors of one run.
const SUBMISSIONS_MAX: usize = 32;
/// More steps than any run takes that goes on: some hundred descriptors of mostly some KiB, delayed by 20 steps a
/// piece.
const STEPS_MAX: u64 = 20_000_000;

/// Runs the device on what the bytes say, and panics if it does what it must not.
///
/// The bytes are a seed, a configuration, the state of each page, members of batches, and then descriptors, of which
/// some are taken as they are and others bent so that they name existing memory. Any bytes will do; missing ones are
/// zero.
///
/// # Panics
/// If the device panics, touches memory that no descriptor names, does not account for a descriptor, or does not end.
pub fn descriptors(data: &[u8]) {
    play(data);
}

/// Runs the device, and says what it has counted.
fn play(data: &[u8]) -> DeviceCounters {
    let mut data = Bytes(data);
    let seed = data.word();
    let nasty = Nasty {
        lost_records_per_mille: u16::from(data.byte()),
        hardware_errors_per_mille: u16::from(data.byte()),
        ..if seed == 0 { Nasty::none() } else { Nasty::from_seed(seed) }
    };
    let told = nasty.to_string();
    let config = config(data.byte());
    let queues = config.queues().count();
    let memory = FakeMemory::new();
    memory.map(ARENA, ARENA_BYTES as usize);
    let pages = data.word();
    let members: Vec<_> = (0..MEMBERS).map(|_| data.descriptor()).collect();
    for (index, member) in members.iter().enumerate() {
        memory.store(LIST.offset(index as u64 * 64), &member.to_bytes());
    }
    memory.write_protect(LIST);
    for page in 0..DATA_PAGES {
        let page_address = ARENA.offset(page * PAGE_BYTES);
        memory.store(page_address, &data.word().to_le_bytes());
        match pages >> (4 * page) & 15 {
            0 => memory.page_out(page_address),
            1 => memory.write_protect(page_address),
            _ => {}
        }
    }

    let mut run = Deterministic::new(&config, nasty, memory).expect("a valid configuration");
    let mut submitted = Vec::new();
    let mut answered = [0; 2];
    while !data.0.is_empty() && submitted.len() < SUBMISSIONS_MAX {
        let (queue, pasid) = (usize::from(data.byte()) % queues, u32::from(data.byte() % 2));
        let descriptor = data.descriptor();
        let answer = run.device.submit(queue, &descriptor, pasid).expect("the device is enabled");
        answered[usize::from(answer == Submission::Retry)] += 1;
        submitted.push(descriptor);
        run.step();
    }
    let mut steps = 0;
    while run.step() == Stepped::Busy {
        steps += 1;
        assert!(steps < STEPS_MAX, "{told}: does not end");
    }

    let named_by = |visit: &Visit| submitted.iter().chain(&members).any(|named| names(named, visit));
    for visit in run.memory.visits() {
        assert!(named_by(&visit), "{told}: no descriptor names {visit:?}");
    }
    let counters = run.device.counters();
    assert_eq!(answered, [counters.accepted + counters.dropped, counters.retried], "{told}");
    assert_eq!(counters.in_flight(), 0, "{told}: {counters:?}");
    assert_eq!(counters.accepted + counters.members, counters.ended_count(), "{told}: {counters:?}");
    assert_eq!(counters.dispatched, counters.accepted, "{told}");
    assert!(
        counters.records_lost == 0 || run.device.take_error().is_some(),
        "{told}: a loss without a report"
    );
    counters
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
        1 => config.with_timing(super::Timing::sapphire_rapids()),
        _ => config,
    }
}

/// Whether the descriptor gives the device leave for this access.
pub fn names(descriptor: &Descriptor, visit: &Visit) -> bool {
    let within = |start: Address, size: u64| {
        visit.address >= start && visit.address.0 - start.0 + visit.size_bytes as u64 <= size
    };
    let (first, second) = (descriptor.address_1(), descriptor.address_2());
    let size = u64::from(descriptor.size());
    let flags = descriptor.flags();
    let delta = |address| within(address, descriptor.delta_bytes().into());
    let seed = || flags.contains(Flags::CRC_SEED_IN_MEMORY) && within(descriptor.crc_seed_address(), 4);
    let has_record = flags.contains(Flags::COMPLETION_ADDRESS_VALID);
    if visit.access == Access::Write && has_record && within(descriptor.completion_address(), RECORD_BYTES) {
        return true;
    }
    let Ok(opcode) = descriptor.opcode() else { return false };
    match visit.access {
        Access::Read => match opcode {
            Opcode::Noop | Opcode::Fill => false,
            Opcode::Batch => within(first, size * 64),
            Opcode::Drain => {
                flags.contains(Flags::DRAIN_READBACK_1) && within(first, 1)
                    || flags.contains(Flags::DRAIN_READBACK_2) && within(second, 1)
            }
            Opcode::Compare | Opcode::CreateDelta => within(first, size) || within(second, size),
            Opcode::ApplyDelta => delta(first),
            Opcode::CrcGeneration | Opcode::CopyCrc => within(first, size) || seed(),
            Opcode::CacheFlush => within(second, size),
            _ => within(first, size),
        },
        Access::Write => match opcode {
            Opcode::Memmove
            | Opcode::Fill
            | Opcode::ApplyDelta
            | Opcode::CopyCrc
            | Opcode::DifStrip
            | Opcode::DifUpdate => within(second, size),
            Opcode::CreateDelta => delta(descriptor.delta_address()),
            Opcode::Dualcast => within(second, size) || within(descriptor.target_2(), size),
            Opcode::DifInsert => {
                let blocks = size / u64::from(descriptor.dif_format().block.bytes());
                within(second, size + blocks * u64::from(DIF_BYTES))
            }
            _ => false,
        },
    }
}

/// Bytes of a fuzzer, with zeros behind them.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A descriptor: as it is, or bent by a byte of its own towards one that is executed.
    fn descriptor(&mut self) -> Descriptor {
        let bend = self.byte();
        let mut words = std::array::from_fn(|_| self.word());
        if bend == 0 {
            return Descriptor::from_words(words);
        }
        let in_arena = |word: u64| ARENA.0 + word % ARENA_BYTES;
        let opcode = Opcode::ALL[usize::from(bend) % Opcode::ALL.len()];
        // Some flags survive of those that mean something, and a record is mostly asked for.
        let meaningful = 0x2
            | match opcode {
                Opcode::Noop | Opcode::Batch => 0,
                Opcode::Drain => 0x3_0000,
                Opcode::Compare | Opcode::ComparePattern | Opcode::CreateDelta => 0x80,
                Opcode::CrcGeneration | Opcode::CopyCrc => 0x7_0000,
                _ => 0x2000,
            };
        let flags =
            (words[0] >> 32) as u32 & if bend & 0x80 != 0 { meaningful } else { 0x1_0080 & meaningful };
        let record = if bend & 0x60 == 0 { 0 } else { 0xc };
        words[0] = u64::from((flags & !0xc) | record | u32::from(opcode as u8) << 24) << 32;
        words[1] = if record != 0 { in_arena(words[1]) & !31 } else { 0 };
        for address in [2, 3] {
            let is_pattern = matches!((opcode, address), (Opcode::Fill, 2) | (Opcode::ComparePattern, 3));
            words[address] = match (opcode, address) {
                _ if is_pattern => words[address],
                (Opcode::Noop, _) => 0,
                (Opcode::Drain, _) if flags >> (14 + address) & 1 == 0 => 0,
                (Opcode::CacheFlush, 2) => 0,
                (Opcode::Batch | Opcode::CrcGeneration | Opcode::DifCheck, 3) => 0,
                (Opcode::Batch, _) => LIST.0 + words[address] % MEMBERS * 64,
                _ => in_arena(words[address]) & if bend & 0x20 != 0 { !7 } else { !0 },
            };
        }
        let own: [u64; 3] = match opcode {
            Opcode::Compare | Opcode::ComparePattern => [words[5] & 1, 0, 0],
            Opcode::CreateDelta => [in_arena(words[5]), words[6] % 2000, words[7] & 0xff],
            Opcode::ApplyDelta => [words[5] % 20 * 10 + 10, 0, 0],
            Opcode::Dualcast => [in_arena(words[5]) & !0xfff | words[3] & 0xfff, 0, 0],
            Opcode::CrcGeneration | Opcode::CopyCrc if flags & 1 << 16 != 0 => {
                [0, in_arena(words[6]) & !3, 0]
            }
            Opcode::CrcGeneration | Opcode::CopyCrc => [words[5] & 0xffff_ffff, 0, 0],
            Opcode::DifCheck | Opcode::DifStrip => [words[5] & 0xf_00ff, words[6], 0],
            Opcode::DifInsert => [words[5] & 0xf_9000, 0, words[7]],
            Opcode::DifUpdate => [words[5] & 0xf_f8ff, words[6], words[7]],
            _ => [0; 3],
        };
        words[5..].copy_from_slice(&own);
        let block = u64::from(Descriptor::from_words(words).dif_format().block.bytes());
        words[4] = match opcode {
            Opcode::Noop | Opcode::Drain => 0,
            Opcode::Batch => words[4] % (MEMBERS / 2),
            Opcode::DifInsert => words[4] % 9 * block,
            Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate => words[4] % 9 * (block + 8),
            Opcode::CreateDelta | Opcode::ApplyDelta => words[4] % 1200 * 8,
            _ => words[4] % 12_000,
        };
        // One in eight has a bit wrong.
        let wrong = u16::from_le_bytes([self.byte(), self.byte()]);
        if wrong >> 13 == 1 {
            words[usize::from(wrong) % 8] ^= 1 << (wrong >> 3 & 63);
        }
        Descriptor::from_words(words)
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::completion::Status;
    use crate::emulator::nasty::Random;

    /// Random bytes get through the checks to every end that a descriptor can have: otherwise fuzzing shows little.
    #[test]
    fn every_end_is_reached() {
        let mut random = Random::new(1);
        let mut ends: BTreeMap<Status, u64> = BTreeMap::new();
        for _ in 0..2000 {
            let mut data: Vec<u8> = (0..800).flat_map(|_| random.next().to_le_bytes()).collect();
            data[8] = 0; // no lost records
            data[9] = if random.chance(900) { 0 } else { 20 };
            for (status, count) in play(&data).ended {
                *ends.entry(status).or_default() += count;
            }
        }
        for status in [
            Status::Success,
            Status::PredicateFalse,
            Status::PageFault,
            Status::PageFaultRefused,
            Status::BatchFailed,
            Status::BatchListFault,
            Status::DeltaOrder,
            Status::DeltaOffset,
            Status::DifMismatch,
            Status::BadOpcode,
            Status::InvalidFlags,
            Status::ReservedNotZero,
            Status::BadSize,
            Status::BadCount,
            Status::BadDeltaSize,
            Status::Overlap,
            Status::CompletionAlignment,
            Status::Alignment,
            Status::ReadbackFault,
            Status::HardwareRead,
            Status::HardwareWrite,
            Status::Translation,
        ] {
            assert!(ends.get(&status) > Some(&20), "{status}: {ends:?}");
        }
    }
}

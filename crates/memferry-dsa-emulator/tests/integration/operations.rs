//! Each operation against a naive oracle: with all alignments, absent pages, and faulty
//! devices.
//!
//! The software that resumes after page faults is a second implementation of the specification's table.

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{
    Address, Completion, DIF_BYTES, DeltaResult, Descriptor, DifBlock, DifFormat, DifSource, DifSourceFlags,
    DifTags, DifTarget, DifTargetFlags, Flags, Opcode, Status,
};
use memferry_dsa_emulator::{DeviceConfig, FaultPlan};

use crate::common::{Run, complete, generous, pattern, plain, run};
#[allow(dead_code)] // each test program uses a part
use crate::oracle;

const BASE: Address = Address(0x10_0000);
const PAGE: usize = PAGE_BYTES as usize;
/// Pages of the operations' memory: four for each of three regions.
const PAGES: u64 = 12;

/// The starts of an operation's regions, relative to [`BASE`].
#[derive(Clone, Copy, Debug)]
struct Places {
    first: usize,
    second: usize,
    third: usize,
}

const PLACES: [Places; 3] = [
    Places { first: 0, second: 4 * PAGE, third: 8 * PAGE },
    Places { first: 4000, second: 4 * PAGE + 8, third: 8 * PAGE + 4088 },
    Places { first: 777, second: 4 * PAGE + 4095, third: 8 * PAGE + 2001 },
];

/// An operation on memory, and its expected result.
struct Case {
    name: String,
    memory: Vec<u8>,
    descriptor: Descriptor,
    /// The expected content of the whole memory.
    after: Vec<u8>,
    expected: Expected,
    /// The regions that it accesses without faults, relative to [`BASE`].
    visited: Vec<(usize, usize)>,
}

/// The parts of the completion that count for an operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Expected {
    status: u8,
    result: u8,
    bytes_completed: u32,
    operation: [u64; 2],
}

fn success() -> Expected {
    Expected { status: Status::Success.code(), ..Expected::default() }
}

fn at(offset: usize) -> Address {
    BASE.offset(offset as u64)
}

/// All operations on data at these places.
fn cases(places: Places, salt: u64) -> Vec<Case> {
    let memory = pattern(PAGES as usize * PAGE, salt);
    let Places { first, second, third } = places;
    let size = 2 * PAGE + 100;
    let aligned = |offset: usize| offset & !7;
    let mut all = Vec::new();
    let mut add =
        |name: &str, memory: &Vec<u8>, descriptor, after: Vec<u8>, expected, visited: &[(usize, usize)]| {
            let (memory, name) = (memory.clone(), format!("{name} at {places:?}"));
            all.push(Case { name, memory, descriptor, after, expected, visited: visited.to_vec() });
        };
    let written = |memory: &Vec<u8>, offset: usize, bytes: &[u8]| {
        let mut after = memory.clone();
        after[offset..offset + bytes.len()].copy_from_slice(bytes);
        after
    };

    let copy = Descriptor::memmove(at(first), at(second), size as u32);
    let bytes = memory[first..first + size].to_vec();
    add("copy", &memory, copy, written(&memory, second, &bytes), success(), &[(first, size), (second, size)]);

    let value = 0x1122_3344_5566_7788u64;
    let filled: Vec<u8> = (0..size).map(|index| value.to_le_bytes()[index % 8]).collect();
    let fill = Descriptor::fill(value, at(second), size as u32);
    add("fill", &memory, fill, written(&memory, second, &filled), success(), &[(second, size)]);

    // Equal, and different in each of some places.
    let equal = written(&memory, second, &bytes);
    let compare = Descriptor::compare(at(first), at(second), size as u32);
    add("compare equal", &equal, compare, equal.clone(), success(), &[(first, size), (second, size)]);
    let compare_pattern = Descriptor::compare_pattern(value, at(second), size as u32);
    let uniform = written(&memory, second, &filled);
    add("pattern equal", &uniform, compare_pattern, uniform.clone(), success(), &[(second, size)]);
    for place in [0, 1, 95, 96, 97, 4095, 4096, 5000, size - 1] {
        let differs = |bytes_completed| Expected { result: 1, bytes_completed, ..success() };
        let mut different = equal.clone();
        different[second + place] ^= 0x10;
        let name = format!("compare different at {place}");
        add(&name, &different, compare, different.clone(), differs(place as u32), &[]);
        let mut different = uniform.clone();
        different[second + place] ^= 0x10;
        let name = format!("pattern different at {place}");
        add(&name, &different, compare_pattern, different.clone(), differs(place as u32), &[]);
        for (expected, status) in [(0, Status::PredicateFalse), (1, Status::Success)] {
            let checked = compare.with_expected_result(expected);
            let expected = Expected { status: status.code(), ..differs(place as u32) };
            let mut different = equal.clone();
            different[second + place] ^= 0x80;
            add("compare expecting", &different, checked, different.clone(), expected, &[]);
        }
    }

    // A delta record of some differences, created and applied.
    let (old, new, record) = (aligned(first), aligned(second), third);
    let delta_size = 2 * PAGE + 104;
    let mut differing = written(&memory, new, &memory[old..old + delta_size]);
    for index in (0..delta_size).step_by(24).filter(|index| index % 5 != 3) {
        differing[new + index] ^= 1;
    }
    let entries = oracle::delta(&differing[old..old + delta_size], &differing[new..new + delta_size]);
    let create = Descriptor::create_delta(at(old), at(new), delta_size as u32, at(record), 6000);
    let context = |result, size: usize, bytes_completed| Expected {
        result,
        bytes_completed,
        operation: [size as u64, 0],
        ..success()
    };
    let after = written(&differing, record, &entries);
    let visited = [(old, delta_size), (new, delta_size), (record, entries.len())];
    add("create delta", &differing, create, after.clone(), context(1, entries.len(), 0), &visited);
    let full = Descriptor::create_delta(at(old), at(new), delta_size as u32, at(record), 1009);
    let word = u16::from_le_bytes([entries[1000], entries[1001]]);
    let overflow = context(2, 1000, u32::from(word) * 8);
    add("full delta", &differing, full, written(&differing, record, &entries[..1000]), overflow, &[]);
    let same = written(&memory, new, &memory[old..old + delta_size]);
    add("empty delta", &same, create, same.clone(), context(0, 0, 0), &visited[..2]);
    let apply = Descriptor::apply_delta(at(record), entries.len() as u32, at(old), delta_size as u32);
    let applied = written(&after, old, &differing[new..new + delta_size]);
    let words = entries.chunks(10).map(|entry| usize::from(u16::from_le_bytes([entry[0], entry[1]])));
    let visited: Vec<_> =
        [(record, entries.len())].into_iter().chain(words.map(|word| (old + word * 8, 8))).collect();
    add("apply delta", &after, apply, applied, success(), &visited);

    let twin = third & !0xfff | second & 0xfff;
    let dualcast = Descriptor::dualcast(at(first), at(second), at(twin), size as u32);
    let after = written(&written(&memory, second, &bytes), twin, &bytes);
    let visited = [(first, size), (second, size), (twin, size)];
    add("dualcast", &memory, dualcast, after, success(), &visited);

    for (number, flags) in [
        (0, Flags::NONE),
        (1, Flags::CRC_BYPASS_INVERSION),
        (2, Flags::CRC_BYPASS_DATA_REFLECTION),
        (3, Flags::CRC_BYPASS_INVERSION | Flags::CRC_BYPASS_DATA_REFLECTION),
    ] {
        let seed = 0xdead_beef_u32.wrapping_mul(number);
        let has = |flag| flags.contains(flag);
        let crc = |seed| {
            let (inversion, reflection) =
                (has(Flags::CRC_BYPASS_INVERSION), has(Flags::CRC_BYPASS_DATA_REFLECTION));
            let crc = oracle::crc32c(seed, &bytes, inversion, reflection);
            Expected { operation: [crc.into(), 0], ..success() }
        };
        let generate = Descriptor::crc(seed, at(first), size as u32).with_flags(flags);
        add("crc", &memory, generate, memory.clone(), crc(seed), &[(first, size)]);
        let copy = Descriptor::copy_crc(seed, at(first), at(second), size as u32).with_flags(flags);
        let after = written(&memory, second, &bytes);
        add("copy with crc", &memory, copy, after, crc(seed), &[(first, size), (second, size)]);
        let place = aligned(third);
        let seeded = written(&memory, place, &seed.to_le_bytes());
        let generate =
            Descriptor::crc(0, at(first), size as u32).with_flags(flags).with_crc_seed_at(at(place));
        add(
            "crc, seed in memory",
            &seeded,
            generate,
            seeded.clone(),
            crc(seed),
            &[(place, 4), (first, size)],
        );
    }

    for (number, block) in DifBlock::ALL.into_iter().enumerate() {
        let format = DifFormat { block, guard_seed_ones: number % 2 == 1, guard_inverted: number / 2 == 1 };
        let block = block.bytes() as usize;
        let blocks = 2 * PAGE / block;
        let tags = |salt: u32| DifTags {
            reference: u32::MAX - salt,
            application_mask: 0x00f0,
            application: 0xfffe - salt as u16,
        };
        let source_flags = [DifSourceFlags::NONE, DifSourceFlags::APPLICATION_COUNTS][number % 2];
        let source = DifSource { flags: source_flags, tags: DifTags { application_mask: 0, ..tags(5) } };
        let target_flags = [DifTargetFlags::NONE, DifTargetFlags::APPLICATION_COUNTS][1 - number % 2];
        let target = DifTarget { flags: target_flags, tags: tags(9) };
        let like_source =
            DifTarget { flags: DifTargetFlags::from_bits(source_flags.bits() & 0x90), tags: source.tags };
        let plain_size = block * blocks;
        let with_fields = plain_size + 8 * blocks;
        let plain = memory[first..first + plain_size].to_vec();
        let protected = oracle::dif_insert(format, like_source, &plain);
        let source_told = oracle::source_tags(source, blocks).to_word();
        let target_told = oracle::target_tags(target, blocks).to_word();
        let context = |operation| Expected { operation, ..success() };

        let insert = Descriptor::dif_insert(at(first), at(second), plain_size as u32, format, target);
        let after = written(&memory, second, &oracle::dif_insert(format, target, &plain));
        let visited = [(first, plain_size), (second, with_fields)];
        add("dif insert", &memory, insert, after, context([0, target_told]), &visited);

        let given = written(&memory, first, &protected);
        let check = Descriptor::dif_check(at(first), with_fields as u32, format, source);
        add("dif check", &given, check, given.clone(), context([source_told, 0]), &[(first, with_fields)]);

        let strip = Descriptor::dif_strip(at(first), at(second), with_fields as u32, format, source);
        let after = written(&given, second, &plain);
        let visited = [(first, with_fields), (second, plain_size)];
        add("dif strip", &given, strip, after, context([source_told, 0]), &visited);

        for pass in [
            DifTargetFlags::NONE,
            DifTargetFlags::PASS_GUARD,
            DifTargetFlags::PASS_APPLICATION,
            DifTargetFlags::PASS_REFERENCE,
        ] {
            let target = DifTarget { flags: target.flags | pass, ..target };
            let update =
                Descriptor::dif_update(at(first), at(second), with_fields as u32, format, source, target);
            let after = written(&given, second, &oracle::dif_update(format, target, &protected));
            let visited = [(first, with_fields), (second, with_fields)];
            add("dif update", &given, update, after, context([source_told, target_told]), &visited);
        }

        // An error in the last block but one.
        for byte in [0, block - 1, block, block + 2, block + 7] {
            let bad = blocks.saturating_sub(2);
            let mut broken = given.clone();
            broken[first + bad * (block + 8) + byte] ^= 0x40;
            let (good, errors) = oracle::dif_check(format, source, &broken[first..first + with_fields]);
            assert!(good == bad && errors != 0, "the test breaks nothing");
            let mismatch = |target_tags| Expected {
                status: Status::DifMismatch.code(),
                result: errors,
                bytes_completed: (good * (block + 8)) as u32,
                operation: [oracle::source_tags(source, good).to_word(), target_tags],
            };
            add("dif check, broken", &broken, check, broken.clone(), mismatch(0), &[]);
            let done = &broken[first..first + good * (block + 8)];
            let after = written(&broken, second, &oracle::dif_strip(format, done));
            add("dif strip, broken", &broken, strip, after, mismatch(0), &[]);
            let update =
                Descriptor::dif_update(at(first), at(second), with_fields as u32, format, source, target);
            let after = written(&broken, second, &oracle::dif_update(format, target, done));
            let target_tags = oracle::target_tags(target, good).to_word();
            add("dif update, broken", &broken, update, after, mismatch(target_tags), &[]);
        }
    }

    let flush = Descriptor::cache_flush(at(second), size as u32);
    add("cache flush", &memory, flush, memory.clone(), success(), &[(second, size)]);
    all
}

/// Sets words of a descriptor.
fn with_words(descriptor: Descriptor, change: impl FnOnce(&mut [u64; 8])) -> Descriptor {
    let mut words = descriptor.to_words();
    change(&mut words);
    Descriptor::from_words(words)
}

/// The state of software between the parts of an operation that faults.
struct Resumed {
    descriptor: Descriptor,
    /// Executed bytes of the source, or of Apply Delta's record.
    done: u32,
    /// Parts of a delta record: the start of the sources, and its place.
    delta: Vec<(u32, Address, u32)>,
}

impl Resumed {
    /// Changes the descriptor to the rest of the operation, by the table of the specification.
    fn resume(&mut self, completion: &Completion) {
        let done = completion.bytes_completed;
        let descriptor = self.descriptor;
        let opcode = descriptor.opcode().unwrap();
        if opcode == Opcode::CreateDelta {
            self.delta.push((self.done, descriptor.delta_address(), completion.delta_bytes()));
        }
        let bytes = u64::from(done);
        let turned = |pattern: u64| pattern.rotate_right(8 * (done % 8));
        let block = u64::from(descriptor.dif_format().block.bytes());
        let fields = |blocks: u64| blocks * u64::from(DIF_BYTES);
        self.descriptor = with_words(descriptor, |words| {
            let mut shrink = true;
            match opcode {
                Opcode::Memmove if completion.is_backwards() => {}
                Opcode::Memmove | Opcode::Compare => {
                    (words[2], words[3]) = (words[2] + bytes, words[3] + bytes)
                }
                Opcode::Fill => (words[2], words[3]) = (turned(words[2]), words[3] + bytes),
                Opcode::ComparePattern => (words[2], words[3]) = (words[2] + bytes, turned(words[3])),
                Opcode::CreateDelta => {
                    let delta = u64::from(completion.delta_bytes());
                    (words[2], words[3]) = (words[2] + bytes, words[3] + bytes);
                    (words[5], words[6]) = (words[5] + delta, words[6] - delta);
                }
                Opcode::ApplyDelta => {
                    (words[2], words[5]) = (words[2] + bytes, words[5] - bytes);
                    shrink = false;
                }
                Opcode::Dualcast => {
                    (words[2], words[3], words[5]) = (words[2] + bytes, words[3] + bytes, words[5] + bytes);
                }
                Opcode::CrcGeneration | Opcode::CopyCrc => {
                    words[2] += bytes;
                    if opcode == Opcode::CopyCrc {
                        words[3] += bytes;
                    }
                    if done > 0 {
                        words[0] &= !(u64::from(Flags::CRC_SEED_IN_MEMORY.bits()) << 32);
                        (words[5], words[6]) = (completion.crc().into(), 0);
                    }
                }
                Opcode::DifCheck => (words[2], words[6]) = (words[2] + bytes, completion.operation[0]),
                Opcode::DifInsert => {
                    (words[2], words[3]) = (words[2] + bytes, words[3] + bytes + fields(bytes / block));
                    words[7] = completion.operation[1];
                }
                Opcode::DifStrip => {
                    let blocks = bytes / (block + 8);
                    (words[2], words[3]) = (words[2] + bytes, words[3] + bytes - fields(blocks));
                    words[6] = completion.operation[0];
                }
                Opcode::DifUpdate => {
                    (words[2], words[3]) = (words[2] + bytes, words[3] + bytes);
                    (words[6], words[7]) = (completion.operation[0], completion.operation[1]);
                }
                Opcode::CacheFlush => words[3] += bytes,
                other => panic!("{other:?} does not fault"),
            }
            if shrink {
                assert!(words[4] as u32 > done, "{descriptor:?}: {completion:?} leaves nothing");
                words[4] -= bytes;
            }
        });
        self.done += done;
    }

    /// The combined result of all parts, after the last one.
    fn context(&self, run: &Run, completion: &Completion) -> Expected {
        let opcode = self.descriptor.opcode().unwrap();
        let mut context = Expected {
            status: completion.status_byte(),
            result: completion.result,
            bytes_completed: completion.bytes_completed,
            operation: completion.operation,
        };
        let differs = matches!(opcode, Opcode::Compare | Opcode::ComparePattern) && completion.differs();
        let is_full = opcode == Opcode::CreateDelta && completion.delta_result() == DeltaResult::Overflow;
        if differs || is_full || completion.status == Status::DifMismatch {
            context.bytes_completed += self.done;
        }
        if opcode == Opcode::CreateDelta {
            // The parts are adjacent; the offsets of later parts start at 0 again.
            let last = (self.done, self.descriptor.delta_address(), completion.delta_bytes());
            let mut all = 0;
            for (base, address, bytes) in self.delta.iter().chain([&last]) {
                for entry in (0..*bytes).step_by(10) {
                    let address = address.offset(u64::from(entry));
                    let stored = run.memory.load(address, 2);
                    let offset = u16::from_le_bytes([stored[0], stored[1]]) + (base / 8) as u16;
                    run.memory.store(address, &offset.to_le_bytes());
                }
                all += bytes;
            }
            context.operation[0] = all.into();
            if all > 0 && context.result == 0 {
                context.result = 1;
            }
        }
        context
    }
}

/// Runs a case like software that expects page faults; returns the number of faults.
fn check(run: &mut Run, case: &Case, context: &str) -> usize {
    let mut resumed = Resumed { descriptor: case.descriptor, done: 0, delta: Vec::new() };
    for faults in 0..1000 {
        let completion = complete(run, resumed.descriptor)
            .unwrap_or_else(|| panic!("{}, {context}: no completion", case.name));
        if completion.status != Status::PageFault {
            let mut is = resumed.context(run, &completion);
            // The place of a difference from a pattern may be rounded down.
            if case.descriptor.opcode() == Ok(Opcode::ComparePattern) && completion.differs() {
                let wanted = case.expected.bytes_completed;
                assert!(
                    is.bytes_completed <= wanted && wanted - is.bytes_completed < 8,
                    "{}: {is:?}",
                    case.name
                );
                is.bytes_completed = wanted;
            }
            let is_different = case.expected != is;
            assert!(!is_different, "{}, {context}: {is:?} instead of {:?}", case.name, case.expected);
            let after = run.memory.load(BASE, case.after.len());
            if let Some(at) = (0..after.len()).find(|at| after[*at] != case.after[*at]) {
                panic!("{}, {context}: byte {at:#x} differs", case.name);
            }
            return faults;
        }
        assert_ne!(completion.fault_address, Address(0));
        run.memory.touch(completion.fault_address);
        resumed.resume(&completion);
        let rest = resumed.descriptor;
        if rest.opcode() == Ok(Opcode::CreateDelta) && rest.delta_bytes() < 80 {
            return faults; // no device goes on with so little room; for software the record is full
        }
    }
    panic!("{}, {context}: does not end", case.name)
}

fn load(run: &Run, case: &Case) {
    run.memory.map(BASE, case.memory.len());
    run.memory.store(BASE, &case.memory);
}

#[test]
fn results_without_faults() {
    for (salt, places) in PLACES.into_iter().enumerate() {
        for case in cases(places, salt as u64) {
            let mut run = plain();
            load(&run, &case);
            assert_eq!(check(&mut run, &case, "plain"), 0);
            let counters = run.device.counters();
            assert_eq!((counters.in_flight(), counters.records_written, counters.page_faults), (0, 1, 0));
        }
    }
}

/// Every single page absent, and every pair: each accessed page faults once, and the result is the same.
#[test]
fn every_page_absent() {
    for (salt, places) in PLACES.into_iter().enumerate() {
        for case in cases(places, salt as u64) {
            for absent in (0..PAGES).flat_map(|one| (one..PAGES).map(move |other| [one, other])) {
                let context = format!("absent pages {absent:?}");
                let mut run = plain();
                load(&run, &case);
                absent.iter().for_each(|page| run.memory.page_out(BASE.offset(page * PAGE_BYTES)));
                let faults = check(&mut run, &case, &context);
                let is_visited = |page: u64| {
                    let page = page as usize * PAGE..(page as usize + 1) * PAGE;
                    case.visited.iter().any(|(start, size)| *start < page.end && page.start < start + size)
                };
                let mut expected = absent.to_vec();
                expected.dedup();
                expected.retain(|page| is_visited(*page));
                if !case.visited.is_empty() {
                    assert_eq!(faults, expected.len(), "{}, {context}", case.name);
                }
            }
        }
    }
}

/// With block on fault the device requests the same pages, and software sees no fault.
#[test]
fn every_page_is_requested() {
    for case in cases(PLACES[1], 3) {
        let mut run = run(&generous(DeviceConfig::one_shared_queue()), FaultPlan::none());
        load(&run, &case);
        (0..PAGES).for_each(|page| run.memory.page_out(BASE.offset(page * PAGE_BYTES)));
        let blocking = Case { descriptor: case.descriptor.with_flags(Flags::BLOCK_ON_FAULT), ..case };
        assert_eq!(check(&mut run, &blocking, "all pages absent"), 0);
        let counters = run.device.counters();
        assert!(counters.page_requests > 0 && counters.page_faults == 0, "{}: {counters:?}", blocking.name);
    }
}

/// An unmapped page stops each operation with 0x03, and with 0x04 if the device requested it.
#[test]
fn unmapped_pages() {
    for case in cases(PLACES[0], 4) {
        for flags in [Flags::NONE, Flags::BLOCK_ON_FAULT] {
            let mut run = run(&generous(DeviceConfig::one_shared_queue()), FaultPlan::none());
            let completion = complete(&mut run, case.descriptor.with_flags(flags)).unwrap();
            let expected = if flags.is_empty() { Status::PageFault } else { Status::PageFaultRefused };
            assert_eq!((completion.status, completion.bytes_completed), (expected, 0), "{}", case.name);
            let writes_only = case.descriptor.opcode() == Ok(Opcode::Fill);
            assert_eq!(completion.write_fault, writes_only, "{}", case.name);
        }
    }
}

#[test]
fn faulty_devices() {
    let mut faults = 0;
    for seed in 0..60 {
        let fault_plan = FaultPlan::from_seed(seed);
        for case in cases(PLACES[seed as usize % 3], seed) {
            let mut run = run(&DeviceConfig::four_engines(), fault_plan.clone());
            load(&run, &case);
            faults += check(&mut run, &case, &fault_plan.to_string());
        }
    }
    assert!(faults > 5000, "only {faults} page faults in all runs: the test does not test resuming");
}

/// Published test vectors.
#[test]
fn known_check_values() {
    let both = Flags::CRC_BYPASS_INVERSION | Flags::CRC_BYPASS_DATA_REFLECTION;
    let ascending: Vec<u8> = (0..32).collect();
    let nine = b"123456789".as_slice();
    let cases: [(&[u8], Flags, u32, u32); 11] = [
        (nine, Flags::NONE, 0, 0xe306_9283),
        (nine, Flags::NONE, 0xdead_beef, 0xdd05_f9cd),
        (nine, Flags::CRC_BYPASS_DATA_REFLECTION, 0, 0xa8f0_22a0),
        (nine, Flags::CRC_BYPASS_INVERSION, 0, 0x045f_c71a),
        (nine, both, 0, 0xc052_a8c8),
        (&[0; 32], Flags::NONE, 0, 0x8a91_36aa),
        (&[0xff; 32], Flags::NONE, 0, 0x62a8_ab43),
        (&ascending, Flags::NONE, 0, 0x46dd_794e),
        (&[0; 4096], Flags::NONE, 0, 0x98f9_4189),
        (&[0xff; 4096], Flags::NONE, 0, 0x25c1_fe13),
        (&nine[4..], Flags::NONE, oracle::crc32c(0, &nine[..4], false, false), 0xe306_9283),
    ];
    let mut run = plain();
    run.memory.map(BASE, 2 * PAGE);
    for (bytes, flags, seed, expected) in cases {
        run.memory.store(BASE, bytes);
        let crc = Descriptor::crc(seed, BASE, bytes.len() as u32).with_flags(flags);
        assert_eq!(complete(&mut run, crc).unwrap().crc(), expected, "{flags:?} of {bytes:x?}");
    }

    let ramp: Vec<u8> = (0..4096).map(|index| index as u8).collect();
    let seeded = DifFormat { guard_seed_ones: true, ..DifFormat::default() };
    let large = DifFormat::new(DifBlock::Bytes4096);
    let guards: [(&[u8], DifFormat, u16); 6] = [
        (&[0; 512], DifFormat::default(), 0x0000),
        (&[0xff; 512], DifFormat::default(), 0xe6a1),
        (&ramp[..512], DifFormat::default(), 0x4f10),
        (&[0; 512], seeded, 0x72bb),
        (&ramp[..512], seeded, 0x3dab),
        (&ramp, large, 0x8f6d),
    ];
    for (block, format, expected) in guards {
        run.memory.store(BASE, block);
        let target = BASE.offset(PAGE_BYTES);
        run.memory.map(target, 2 * PAGE);
        let tags = DifTags { reference: 0x10, application_mask: 0, application: 0x1234 };
        let made = DifTarget { tags, ..DifTarget::default() };
        let insert = Descriptor::dif_insert(BASE, target, block.len() as u32, format, made);
        let completion = complete(&mut run, insert).unwrap();
        let field = run.memory.load(target.offset(block.len() as u64), 8);
        assert_eq!(field, oracle::field(expected, 0x1234, 0x10), "{format:?}");
        let context = completion.dif_target_tags();
        assert_eq!((context.reference, context.application), (0x11, 0x1234));
    }
}

/// The example of a delta record, byte by byte.
#[test]
fn a_delta_record_byte_by_byte() {
    let (mut run, new, record) = (plain(), BASE.offset(64), BASE.offset(256));
    run.memory.map(BASE, PAGE);
    run.memory.store(new.offset(8), &[1]);
    run.memory.store(new.offset(63), &[0xff]);
    let completion = complete(&mut run, Descriptor::create_delta(BASE, new, 64, record, 80)).unwrap();
    assert_eq!((completion.delta_result(), completion.delta_bytes()), (DeltaResult::Complete, 20));
    let expected = [1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0xff];
    assert_eq!(run.memory.load(record, 20), expected);
    // The expected results are a mask: bit n for result n.
    for (mask, status) in [(2, Status::Success), (1, Status::PredicateFalse), (4, Status::PredicateFalse)] {
        let create = Descriptor::create_delta(BASE, new, 64, record, 80).with_expected_result(mask);
        assert_eq!(complete(&mut run, create).unwrap().status, status);
    }
    let equal = Descriptor::create_delta(BASE, BASE, 64, record, 80).with_expected_result(1);
    assert_eq!(complete(&mut run, equal).unwrap().status, Status::Success);
}

/// Records with equal offsets are valid, and the last entry counts. Of invalid records the entries before the bad one are
/// applied.
#[test]
fn odd_delta_records() {
    let entry = |(number, offset): (usize, &u16)| {
        let mut entry = offset.to_le_bytes().to_vec();
        entry.extend([number as u8 + 1; 8]);
        entry
    };
    let record = BASE.offset(PAGE_BYTES);
    for (offsets, status, good) in [
        (vec![0, 1, 5], Status::Success, 3),
        (vec![0, 0], Status::Success, 2),
        (vec![2, 5, 5, 5, 6], Status::Success, 5),
        (vec![2, 5, 5, 4], Status::DeltaOrder, 3),
        (vec![3, 2], Status::DeltaOrder, 1),
        (vec![1, 7, 8], Status::DeltaOffset, 2),
        (vec![0xffff], Status::DeltaOffset, 0),
    ] {
        let mut run = plain();
        run.memory.map(BASE, 2 * PAGE);
        let bytes: Vec<u8> = offsets.iter().enumerate().flat_map(entry).collect();
        run.memory.store(record, &bytes);
        let completion =
            complete(&mut run, Descriptor::apply_delta(record, bytes.len() as u32, BASE, 64)).unwrap();
        let done = if status == Status::Success { 0 } else { good as u32 * 10 };
        assert_eq!((completion.status, completion.bytes_completed), (status, done), "{offsets:?}");
        let mut expected = [0; 64];
        for (number, offset) in offsets[..good].iter().enumerate() {
            expected[usize::from(*offset) * 8..][..8].fill(number as u8 + 1);
        }
        assert_eq!(run.memory.load(BASE, 64), expected, "{offsets:?}");
    }
}

/// Flags that exempt fields of ones from the checks.
#[test]
fn dif_fields_of_ones() {
    let format = DifFormat::default();
    let fields = [[0xff; 8], oracle::field(0, 0xffff, u32::MAX), oracle::field(0, 0xffff, 7), [0; 8]];
    for bits in 0..=255u8 {
        for field in fields {
            let source = DifSource { flags: DifSourceFlags::from_bits(bits), tags: DifTags::default() };
            let mut run = plain();
            run.memory.map(BASE, PAGE);
            let mut block = pattern(512, 1);
            block.extend(field);
            run.memory.store(BASE, &block);
            let (good, errors) = oracle::dif_check(format, source, &block);
            let completion = complete(&mut run, Descriptor::dif_check(BASE, 520, format, source)).unwrap();
            let status = if good == 1 { Status::Success } else { Status::DifMismatch };
            assert_eq!(
                (completion.status, completion.dif_errors().bits()),
                (status, errors),
                "{bits:#x} {field:x?}"
            );
        }
    }
}

/// The flag for 16-byte patterns belongs to later devices.
#[test]
fn long_patterns_are_refused() {
    let mut run = plain();
    run.memory.map(BASE, PAGE);
    let fill = Descriptor::fill(1, BASE, 64).with_flags(Flags::from_bits(1 << 18));
    let completion = complete(&mut run, fill).unwrap();
    assert_eq!((completion.status, completion.invalid_flags().bits()), (Status::InvalidFlags, 1 << 18));
}

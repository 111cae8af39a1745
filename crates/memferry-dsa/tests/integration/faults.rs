//! Page faults wherever they can be: the outcome, and every byte, is that of the same request without them.
//!
//! The device runs while its descriptor is submitted, over memory that is absent page by page as a case says, until it
//! has been asked for: exactly one fault for each page and kind of access.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use memferry_dsa::software::CrcMode;
use memferry_dsa::{
    Address, Batch, Client, ClientOptions, Completion, Descriptor, DifBlock, DifFormat, DifSource, DifTags,
    DifTarget, OnCpu, Portal, PortalCounters, PortalKind, Request, Submission, SubmitError, WorkQueueInfo,
};
use memferry_dsa_emulator::{
    Access, Deterministic, DeviceConfig, DirectMemory, FaultPlan, Memory, Vanished, shared_queue,
};
use proptest::prelude::*;

/// Memory that is absent where a number says, at the first visit.
struct Holes {
    memory: DirectMemory,
    numbers: Numbers,
    visited: RefCell<HashSet<(u64, bool)>>,
}

/// Which visits fault: those whose place in the order of first visits has its bit set; visits beyond 64 by `per_mille`.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    first: u64,
    per_mille: u64,
}

impl Memory for Holes {
    fn is_present(&self, page: Address, access: Access) -> bool {
        let mut visited = self.visited.borrow_mut();
        let number = visited.len() as u64;
        if !visited.insert((page.0, access == Access::Write)) {
            return true;
        }
        let is_absent = match number {
            0..64 => self.numbers.first >> number & 1 == 1,
            _ => (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % 1000 < self.numbers.per_mille,
        };
        !is_absent
    }
    fn request_page(&self, _: Address, _: Access) -> bool {
        true
    }
    fn read(&self, address: Address, bytes: &mut [u8]) -> Result<(), Vanished> {
        self.memory.read(address, bytes)
    }
    fn write(&self, address: Address, bytes: &[u8]) -> Result<(), Vanished> {
        self.memory.write(address, bytes)
    }
    fn copy(&self, source: Address, target: Address, size_bytes: usize) -> Result<(), Vanished> {
        self.memory.copy(source, target, size_bytes)
    }
    fn publish(&self, record: Address, completion: &Completion) -> Result<(), Vanished> {
        self.memory.publish(record, completion)
    }
}

/// A device that is done when it has accepted.
struct AtOnce {
    run: Mutex<Deterministic<Holes>>,
    info: WorkQueueInfo,
}

// SAFETY: the device has done everything when `submit` returns.
unsafe impl Portal for AtOnce {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.info
    }
    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let mut run = self.run.lock().unwrap();
        let answer = run.device.submit(0, descriptor, 1);
        run.run_until_idle();
        answer
    }
    fn completed(&self, _: u32) {}
    fn is_gone(&self) -> bool {
        false
    }
    fn counters(&self) -> PortalCounters {
        PortalCounters::default()
    }
}

fn client(numbers: Numbers, faults_max: u32, fault_plan: FaultPlan) -> Client {
    let mut config = DeviceConfig::one_shared_queue();
    config.groups[0].queues = vec![WorkQueueInfo { transfer_bytes_max: 1 << 20, ..shared_queue("wq0.0", 8) }];
    // SAFETY: descriptors come from requests, which keep the contract of `Portal::submit`.
    let memory = unsafe { DirectMemory::new() };
    let memory = Holes { memory, numbers, visited: RefCell::default() };
    let info = config.groups[0].queues[0].clone();
    let run = Deterministic::new(&config, fault_plan, memory).expect("a valid configuration");
    let portal: Arc<dyn Portal> = Arc::new(AtOnce { run: Mutex::new(run), info });
    Client::new(vec![portal], ClientOptions { faults_max, ..ClientOptions::default() })
}

fn cpu() -> Client {
    Client::new(Vec::new(), ClientOptions::default())
}

/// A request: the operation, its size in units of its own, where its regions begin, and its data.
#[derive(Clone, Copy, Debug)]
struct Case {
    operation: usize,
    size: usize,
    offsets: [usize; 3],
    salt: u64,
}

const OPERATIONS: usize = 13;

/// Three regions of pages, with data from the salt.
struct Regions {
    bytes: [Vec<u8>; 3],
    starts: [usize; 3],
}

impl Regions {
    fn new(case: &Case, room: usize) -> Regions {
        let mut salt = case.salt;
        let mut bytes: [Vec<u8>; 3] = std::array::from_fn(|_| vec![0; room + 3 * 4096]);
        let starts = std::array::from_fn(|index| {
            salt = salt.wrapping_add(0x1234_5678_9abc_def1);
            let start = bytes[index].as_ptr().align_offset(4096) + case.offsets[index];
            for (at, byte) in bytes[index][start..].iter_mut().enumerate() {
                *byte = ((at as u64 / 5).wrapping_mul(salt | 1) >> 17) as u8;
            }
            start
        });
        Regions { bytes, starts }
    }

    /// From the starts on, so that the regions of two runs can be compared.
    fn contents(&self) -> Vec<Vec<u8>> {
        let from =
            |(bytes, start): (&Vec<u8>, &usize)| bytes[*start..*start + bytes.len() - 3 * 4096].to_vec();
        self.bytes.iter().zip(&self.starts).map(from).collect()
    }
}

fn run(client: &Client, case: Case) -> (String, Vec<Vec<u8>>) {
    let Case { operation, size, salt, mut offsets } = case;
    if operation == 4 {
        offsets[2] = offsets[1]; // the targets of a dualcast
    }
    if operation == 7 || operation == 8 {
        offsets = offsets.map(|offset| offset & !7);
    }
    let format = DifFormat::new(DifBlock::ALL[salt as usize % 4]);
    let block = format.block.bytes() as usize;
    let blocks = size / block + 1;
    let words = (size.next_multiple_of(8)).min(512 << 10);
    let mut regions =
        Regions::new(&Case { offsets, ..case }, size.max((block + 8) * blocks).max(words * 10 / 8 + 80));
    let [a, b, c] = &mut regions.bytes;
    let [a, b, c] = [&mut a[regions.starts[0]..], &mut b[regions.starts[1]..], &mut c[regions.starts[2]..]];
    let tags = DifTags { reference: salt as u32, application_mask: 0, application: (salt >> 32) as u16 };
    let (checked, made) =
        (DifSource { tags, ..Default::default() }, DifTarget { tags, ..Default::default() });
    let at = salt as usize % size;
    let told = match operation {
        0 => format!("{:?}", client.run(Request::copy(&a[..size], &mut b[..size]))),
        1 => {
            let shift = 1 + salt as usize % size.min(5000);
            let cells = Cell::from_mut(&mut a[..size + shift]).as_slice_of_cells();
            let (low, high) = (&cells[..size], &cells[shift..]);
            let (from, to) = if salt & 64 == 0 { (low, high) } else { (high, low) };
            format!("{:?}", client.run(Request::copy(from, to)))
        }
        2 => format!("{:?}", client.run(Request::fill(salt, &mut a[..size]))),
        3 => {
            b[..size].copy_from_slice(&a[..size]);
            b[at] ^= (salt & 1) as u8;
            format!("{:?}", client.run(Request::compare(&a[..size], &b[..size])))
        }
        4 => format!("{:?}", client.run(Request::dualcast(&a[..size], &mut b[..size], &mut c[..size]))),
        5 => {
            a[..size]
                .iter_mut()
                .zip(salt.to_le_bytes().iter().cycle())
                .for_each(|(byte, with)| *byte = *with);
            a[at] ^= (salt & 1) as u8;
            format!("{:?}", client.run(Request::compare_pattern(salt, &a[..size])))
        }
        6 => {
            let mode = CrcMode { bypass_inversion: salt & 1 == 1, bypass_data_reflection: salt & 2 == 2 };
            let copied =
                client.run(Request::copy_crc(salt as u32, &a[..size], &mut b[..size]).with_mode(mode));
            format!("{copied:?} {:?}", client.run(Request::crc(3, &a[..size])))
        }
        7 | 8 => {
            b[..words].copy_from_slice(&a[..words]);
            // Every, every second, ... word differs.
            b[..words].chunks_mut(8 * (1 + salt as usize % 9)).for_each(|chunk| chunk[0] ^= 1);
            let room = if operation == 7 { words * 10 / 8 + 80 } else { 80 + at };
            let created = client.run(Request::create_delta(&a[..words], &b[..words], &mut c[..room]));
            let written = match created {
                Ok(memferry_dsa::software::Delta::Complete { size_bytes }) => size_bytes,
                Ok(memferry_dsa::software::Delta::Overflow { size_bytes, .. }) => size_bytes,
                _ => 0,
            };
            // What is behind the record is unspecified.
            c[written..].fill(0);
            if salt & 4 == 4 && written > 20 {
                c.copy_within(written - 10..written - 8, 0); // the first offset is the last one: descending
            }
            let applied = client.run(Request::apply_delta(&c[..written.max(10)], &mut a[..words]));
            format!("{created:?} {applied:?}")
        }
        9 => {
            let inserted = client.run(Request::dif_insert(
                &a[..block * blocks],
                &mut b[..(block + 8) * blocks],
                format,
                made,
            ));
            b[..(block + 8) * blocks][at % ((block + 8) * blocks)] ^= (salt & 1) as u8;
            format!(
                "{inserted:?} {:?}",
                client.run(Request::dif_check(&b[..(block + 8) * blocks], format, checked))
            )
        }
        10 | 11 => {
            let protected = (block + 8) * blocks;
            let inserted =
                cpu().run(Request::dif_insert(&a[..block * blocks], &mut b[..protected], format, made));
            b[at % protected] ^= (salt & 1) as u8;
            if operation == 10 {
                let stripped = Request::dif_strip(&b[..protected], &mut c[..block * blocks], format, checked);
                format!("{inserted:?} {:?}", client.run(stripped))
            } else {
                let updated =
                    Request::dif_update(&b[..protected], &mut c[..protected], format, checked, made);
                format!("{inserted:?} {:?}", client.run(updated))
            }
        }
        _ => format!("{:?}", client.run(Request::cache_flush(&a[..size]))),
    };
    (told, regions.contents())
}

fn same_as_the_cpu(case: Case, numbers: Numbers, faults_max: u32, fault_plan: FaultPlan) -> u64 {
    let faulty = client(numbers, faults_max, fault_plan);
    let found = run(&faulty, case);
    let expected = run(&cpu(), case);
    assert_eq!(found.0, expected.0, "{case:?}, {numbers:?}");
    assert!(found.1 == expected.1, "bytes differ: {case:?}, {numbers:?}");
    let stats = faulty.stats();
    assert!(stats.adds_up(), "{stats:?}");
    assert_eq!(stats.strange_faults, 0, "{stats:?}");
    assert!(faults_max < 1000 || stats.on_cpu_total() == stats.on_cpu(OnCpu::DeltaRoom), "{stats:?}");
    stats.partial
}

/// Every page of every region, one at a time, then all: small transfers over up to three pages each.
#[test]
fn a_fault_at_every_page() {
    for operation in 0..OPERATIONS {
        let mut partial = 0;
        for (size, offsets) in
            [(1, [0; 3]), (4096, [4090, 4091, 4092]), (9000, [5, 0, 4093]), (8192, [0, 0, 8])]
        {
            let all = [u64::MAX, 0x5555_5555_5555_5555];
            for first in (0..16).map(|page| 1 << page).chain(all) {
                for salt in [0x0123_4567_89ab_cdef, 0xfeed_beef_dead_c0de, 6] {
                    let case = Case { operation, size, offsets, salt };
                    let numbers = Numbers { first, per_mille: 0 };
                    partial += same_as_the_cpu(case, numbers, 1000, FaultPlan::none());
                }
            }
        }
        assert!(partial > 50, "operation {operation} met only {partial} faults");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random faults in larger transfers, pieces that run backwards, and the CPU after some of the faults.
    #[test]
    fn faults_at_random(
        operation in 0..OPERATIONS,
        size in prop_oneof![1usize..20_000, 1usize..200_000],
        offsets in prop::array::uniform3(0usize..4096),
        salt: u64,
        first: u64,
        per_mille in 0u64..600,
        faults_max in prop_oneof![Just(1000u32), 0u32..6],
    ) {
        let fault_plan = FaultPlan {
            page_faults_per_mille: 0,
            retries_per_mille: 0,
            work_ahead_per_mille: 0,
            ..FaultPlan::from_seed(salt)
        };
        let case = Case { operation, size, offsets, salt };
        same_as_the_cpu(case, Numbers { first, per_mille }, faults_max, fault_plan);
    }

    /// Chains of dependent members: each copies what the one before wrote, behind a fence, or by itself.
    #[test]
    fn faults_in_batches(
        sizes in prop::collection::vec(1usize..9000, 2..20),
        fences: u32,
        salt: u64,
        first: u64,
        faults_max in prop_oneof![Just(1000u32), 0u32..6],
    ) {
        let fault_plan = FaultPlan { page_faults_per_mille: 0, retries_per_mille: 0, ..FaultPlan::from_seed(salt) };
        let (faulty, cpu) = (client(Numbers { first, per_mille: 300 }, faults_max, fault_plan), cpu());
        let run = |client: &Client| {
            let mut memory = vec![salt as u8; 9000 * (sizes.len() + 1)];
            memory[..9000].iter_mut().enumerate().for_each(|(at, byte)| *byte ^= (at * at) as u8);
            let cells = Cell::from_mut(&mut memory[..]).as_slice_of_cells();
            let mut batch = Batch::new();
            let mut tickets = Vec::new();
            for (index, size) in sizes.iter().enumerate() {
                // With a fence from the member before, otherwise from the start, which nobody writes.
                let has_fence = fences >> (index % 32) & 1 == 1;
                if has_fence {
                    batch.fence();
                }
                let from = if has_fence { 9000 * index } else { 0 };
                let to = 9000 * (index + 1);
                tickets.push(batch.add(Request::copy_crc(0, &cells[from..from + size], &cells[to..to + size])));
            }
            let outcomes = client.run_batch(batch).expect("nothing fails");
            let crcs: Vec<_> = tickets.iter().map(|ticket| outcomes.get(ticket)).collect();
            (crcs, memory)
        };
        let (found, expected) = (run(&faulty), run(&cpu));
        prop_assert_eq!(found.0, expected.0);
        prop_assert!(found.1 == expected.1, "bytes differ");
        let stats = faulty.stats();
        prop_assert!(stats.adds_up(), "{:?}", stats);
    }
}

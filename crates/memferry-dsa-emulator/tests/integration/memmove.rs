//! Memory Move equals a plain copy, for all sizes, overlaps and page faults.

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Descriptor, Flags, Status};
use memferry_dsa_emulator::{DeviceConfig, FaultPlan};

use crate::common;
use crate::common::{complete, copy_with_resume, generous, pattern, plain, run, status};

const BASE: Address = Address(0x10_0000);
/// Sizes around the borders of lines, pages and pieces.
const SIZES: [usize; 13] = [1, 2, 63, 64, 65, 4095, 4096, 4097, 8191, 12_345, 65_535, 65_537, 200_000];

/// Copies inside one region and compares all of it with `copy_within`.
fn copy_inside(run: &mut common::Run, source: usize, target: usize, size: usize, context: &str) -> u32 {
    let all = source.max(target) + size + 4096;
    run.memory.map(BASE, all);
    let mut expected = pattern(all, 1);
    run.memory.store(BASE, &expected);
    expected.copy_within(source..source + size, target);
    let copy = Descriptor::memmove(BASE.offset(source as u64), BASE.offset(target as u64), size as u32);
    let faults = copy_with_resume(run, copy, context);
    assert!(run.memory.load(BASE, all) == expected, "{context}: bytes differ");
    faults
}

#[test]
fn sizes_and_overlaps() {
    let config = DeviceConfig::one_shared_queue();
    for size in SIZES {
        for (source, target) in
            [(0, size + 7), (size + 7, 0), (5, 6), (6, 5), (9, 9), (0, size / 2), (size / 2, 0)]
        {
            let context = format!("{size} bytes from {source} to {target}");
            assert_eq!(copy_inside(&mut run(&config, FaultPlan::none()), source, target, size, &context), 0);
        }
    }
}

#[test]
fn sizes_and_overlaps_on_faulty_devices() {
    let mut faults = 0;
    for seed in 0..300 {
        let size = SIZES[seed as usize % SIZES.len()];
        let shift = [1, 64, 4096, 5000, size + 1][seed as usize % 5];
        let (source, target) = if seed % 2 == 0 { (0, shift) } else { (shift, 0) };
        let fault_plan = FaultPlan::from_seed(seed);
        let context = format!("{fault_plan}: {size} bytes from {source} to {target}");
        faults +=
            copy_inside(&mut run(&DeviceConfig::four_engines(), fault_plan), source, target, size, &context);
    }
    assert!(faults > 300, "only {faults} page faults in all runs: the test does not test resuming");
}

/// With a fault at every page that did not fault the last time, a resume still makes progress: for each pair of pages
/// the source faults, then the target, then the source again, and then both are present.
#[test]
fn a_page_does_not_fault_twice_in_a_row() {
    let fault_plan = FaultPlan { page_faults_per_mille: 1000, ..FaultPlan::none() };
    let mut run = run(&DeviceConfig::one_shared_queue(), fault_plan);
    assert_eq!(copy_inside(&mut run, 0, 0x8000, 0x4000, "aligned"), 4 * 3);
}

/// All subsets of absent pages of a copy over three pages, forwards and backwards, aligned and not.
#[test]
fn every_pattern_of_absent_pages() {
    let size = 2 * PAGE_BYTES as usize + 100;
    let far = 5 * PAGE_BYTES as usize;
    for (source, target) in
        [(0, far), (300, far + 300), (4000, far + 77), (100, 5000), (5000, 100), (0, 4096)]
    {
        for absent in 0..1u32 << 8 {
            let context = format!("from {source} to {target}, absent pages {absent:#b}");
            let mut run = plain();
            let all = far + size + 400;
            run.memory.map(BASE, all);
            let mut expected = pattern(all, 2);
            run.memory.store(BASE, &expected);
            expected.copy_within(source..source + size, target);
            for page in (0..8).filter(|page| absent >> page & 1 == 1) {
                run.memory.page_out(BASE.offset(page * PAGE_BYTES));
            }
            let copy =
                Descriptor::memmove(BASE.offset(source as u64), BASE.offset(target as u64), size as u32);
            let visited = |page: u64| {
                let page = (page * PAGE_BYTES) as usize..((page + 1) * PAGE_BYTES) as usize;
                [source, target].iter().any(|start| *start < page.end && page.start < start + size)
            };
            let expected_faults = (0..8).filter(|page| absent >> page & 1 == 1 && visited(*page)).count();
            assert_eq!(copy_with_resume(&mut run, copy, &context) as usize, expected_faults, "{context}");
            assert!(run.memory.load(BASE, all) == expected, "{context}: bytes differ");
        }
    }
}

/// The progress of a copy that a fault stops equals the record.
#[test]
fn a_partial_copy_reports_its_progress() {
    let (source, target) = (BASE, BASE.offset(0x8000));
    let mut run = plain();
    run.memory.map(BASE, 0x1_0000);
    run.memory.store(source, &pattern(0x3000, 3));
    run.memory.page_out(target.offset(0x1000));
    let completion = complete(&mut run, Descriptor::memmove(source, target, 0x3000)).unwrap();
    assert_eq!(completion.status_byte(), 0x83);
    assert_eq!((completion.bytes_completed, completion.result), (0x1000, 0));
    assert_eq!(completion.fault_address, target.offset(0x1000));
    assert_eq!(run.memory.load(target, 0x1000), pattern(0x3000, 3)[..0x1000]);
    assert_eq!(run.memory.load(target.offset(0x1000), 0x2000), [0; 0x2000]);
}

/// A copy to an overlapping higher address runs from the end: result 1, and the copied bytes are the last ones.
#[test]
fn a_partial_backwards_copy_reports_its_direction() {
    let (source, target) = (BASE, BASE.offset(0x1000));
    let mut run = plain();
    run.memory.map(BASE, 0x1_0000);
    let bytes = pattern(0x3000, 4);
    run.memory.store(source, &bytes);
    run.memory.page_out(source);
    let completion = complete(&mut run, Descriptor::memmove(source, target, 0x3000)).unwrap();
    assert_eq!(completion.status_byte(), 0x03);
    assert_eq!((completion.bytes_completed, completion.result), (0x2000, 1));
    assert_eq!(completion.fault_address, source);
    assert_eq!(run.memory.load(target.offset(0x1000), 0x2000), bytes[0x1000..]);
    assert_eq!(run.memory.load(source, 0x2000), bytes[..0x2000]);
}

#[test]
fn block_on_fault_brings_pages_in() {
    let mut run = run(&generous(DeviceConfig::one_shared_queue()), FaultPlan::none());
    run.memory.map(BASE, 0x4000);
    run.memory.store(BASE, &pattern(0x2000, 5));
    for page in 0..4 {
        run.memory.page_out(BASE.offset(page * PAGE_BYTES));
    }
    let copy = Descriptor::memmove(BASE, BASE.offset(0x2000), 0x2000).with_flags(Flags::BLOCK_ON_FAULT);
    assert_eq!(status(&mut run, copy), Some(Status::Success));
    assert_eq!(run.memory.load(BASE.offset(0x2000), 0x2000), pattern(0x2000, 5));
    assert_eq!(run.device.counters().page_requests, 4);
    assert_eq!(run.device.counters().page_faults, 0);
}

#[test]
fn bad_addresses() {
    let mut run = run(&generous(DeviceConfig::one_shared_queue()), FaultPlan::none());
    run.memory.map(BASE, 0x2000);
    run.memory.write_protect(BASE.offset(0x1000));
    let unmapped = Address(0x5000_0000);
    let cases = [
        (Descriptor::memmove(unmapped, BASE, 10), Flags::NONE, 0x03),
        (Descriptor::memmove(BASE, unmapped, 10), Flags::NONE, 0x83),
        (Descriptor::memmove(BASE, BASE.offset(0x1000), 10), Flags::NONE, 0x83),
        (Descriptor::memmove(unmapped, BASE, 10), Flags::BLOCK_ON_FAULT, 0x04),
        (Descriptor::memmove(BASE, BASE.offset(0x1000), 10), Flags::BLOCK_ON_FAULT, 0x84),
        (Descriptor::memmove(0, BASE, 10), Flags::NONE, 0x03),
        (Descriptor::memmove(u64::MAX - 4, BASE, 10), Flags::NONE, 0x03),
        (Descriptor::memmove(BASE, u64::MAX - 4, 10), Flags::NONE, 0x83),
    ];
    for (copy, flags, expected) in cases {
        let completion = complete(&mut run, copy.with_flags(flags)).unwrap();
        assert_eq!(completion.status_byte(), expected, "{copy:?}");
        assert_eq!(completion.bytes_completed, 0, "{copy:?}");
    }
    assert_eq!(run.memory.load(BASE, 0x2000), [0; 0x2000]);
}

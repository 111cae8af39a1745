//! What completions mean for a request, one by one: also those that no device of ours gives.

#![allow(unsafe_code)]

use super::resume::rest;
use super::work::{Step, Work};
use super::*;
use crate::address::Address;
use crate::completion::{Completion, Status};
use crate::operation::Opcode;
use crate::portal::{QueueMode, WorkQueueInfo};
use crate::system::Version;

fn fits<O>(request: &Request<'_, O>, queue: &WorkQueueInfo, version: Version) -> Result<(), OnCpu> {
    check::fits(&request.descriptor, queue, version, true)
}

fn partial(bytes_completed: u32) -> Completion {
    Completion { bytes_completed, ..Completion::new(Status::PageFault) }
}

fn queue(transfer_bytes_max: u32) -> WorkQueueInfo {
    WorkQueueInfo {
        name: "wq0.0".to_owned(),
        mode: QueueMode::Shared,
        size: 8,
        threshold: 8,
        priority: 10,
        block_on_fault: false,
        transfer_bytes_max,
        batch_max: 32,
        operations: crate::operation::OperationSet::of(&Opcode::ALL),
        node: None,
    }
}

/// A device that has done nothing need not say anything about the CRC.
#[test]
fn a_crc_without_progress_keeps_its_seed() {
    let crc = Descriptor::crc(0x1234, Address(0x1000), 100);
    let told = Completion { operation: [0xdead, 0], ..partial(0) };
    assert_eq!(rest(&crc, 0, &told).crc_seed(), 0x1234);
    let told = Completion { operation: [0xdead, 0], ..partial(60) };
    let left = rest(&crc, 60, &told);
    assert_eq!((left.crc_seed(), left.address_1(), left.size()), (0xdead, Address(0x1000 + 60), 40));
}

/// If entries were written before the fault, a rest without differences makes a record all the same.
#[test]
fn what_is_expected_of_a_delta_is_expected_of_the_whole() {
    let create = Descriptor::create_delta(Address(0), Address(0x1000), 64, Address(0x2000), 200);
    let fault = |written: u64| Completion { operation: [written, 0], ..partial(32) };
    for (expected, of_the_rest) in [(0b001, 0b000), (0b010, 0b011), (0b110, 0b111), (0b101, 0b100)] {
        let create = create.with_expected_result(expected);
        assert_eq!(rest(&create, 32, &fault(10)).expected_result(), of_the_rest, "{expected:#b}");
        assert_eq!(rest(&create, 32, &fault(0)).expected_result(), expected);
    }
}

/// The device takes Strip's target to be as long as the source, and wants a byte more between them.
#[test]
fn strip_wants_the_target_further_away() {
    let (format, expected) = (crate::dif::DifFormat::default(), crate::dif::DifSource::default());
    let bytes = 2 * (format.block.bytes() + crate::dif::DIF_BYTES);
    let target = Address(0x10_0000);
    let overlap = Err(Invalid::Overlap(Opcode::DifStrip));
    for (apart, answer) in [(bytes - 1, overlap), (bytes, overlap), (bytes + 1, Ok(()))] {
        let behind = target.offset(apart.into());
        assert_eq!(
            check::check(&Descriptor::dif_strip(behind, target, bytes, format, expected)),
            answer,
            "{apart}"
        );
    }
    let source = target;
    for (apart, answer) in [(bytes - 1, overlap), (bytes, Ok(()))] {
        let behind = source.offset(apart.into());
        assert_eq!(
            check::check(&Descriptor::dif_strip(source, behind, bytes, format, expected)),
            answer,
            "{apart}"
        );
    }
}

/// Regression: with its fields, a source of almost 4 GiB makes a target of more bytes than 32 bits can say, and its size
/// overflowed.
#[test]
fn fields_may_make_a_target_longer_than_a_descriptor_says() {
    use crate::dif::{DIF_BYTES, DifBlock, DifFormat, DifSource, DifTarget};

    for block in DifBlock::ALL {
        let (format, bytes) = (DifFormat::new(block), block.bytes());
        let blocks = u32::MAX / bytes;
        let (source, target) = (Address(0), Address(1 << 40));
        let insert = Descriptor::dif_insert(source, target, blocks * bytes, format, DifTarget::default());
        assert_eq!(check::check(&insert), Ok(()));
        let with_fields = |blocks: u32| u64::from(blocks) * u64::from(bytes + DIF_BYTES);
        assert_eq!(execute::bytes_of(&insert), u64::from(insert.size()) + with_fields(blocks), "{block:?}");
        // After a page fault in the last block.
        let left = rest(&insert, (blocks - 1) * bytes, &partial(0));
        assert_eq!((left.address_2(), left.size()), (target.offset(with_fields(blocks - 1)), bytes));

        let blocks = u32::MAX / (bytes + DIF_BYTES);
        let size = blocks * (bytes + DIF_BYTES);
        let strip = Descriptor::dif_strip(source, target, size, format, DifSource::default());
        assert_eq!(execute::bytes_of(&strip), u64::from(size) + u64::from(blocks * bytes), "{block:?}");
    }
}

/// Nothing that a completion says makes a request access memory that is not its own.
#[test]
fn nonsense_is_a_failure() {
    let (old, new) = ([0u64; 8], [1u64; 8]);
    let (old, new) = (bytes(&old), bytes(&new));
    let mut delta = [0u8; 80];
    let create = Request::create_delta(&old[..], &new[..], &mut delta);
    let told =
        |bytes_completed, written: u64| Completion { operation: [written, 0], ..partial(bytes_completed) };
    let succeeded = |written: u64| Completion { operation: [written, 0], ..Completion::new(Status::Success) };
    for completion in [
        told(64, 0),
        told(65, 0),
        told(7, 0),
        told(8, 81),
        told(8, 90),
        told(8, u64::MAX),
        told(8, 11),
        succeeded(90),
        succeeded(15),
        Completion::new(Status::PageFaultRefused).with_bytes(1 << 31),
        Completion::new(Status::DifMismatch),
        Completion::new(Status::HardwareRead),
        Completion::new(Status::Unknown(0x3f)),
    ] {
        let mut work = Work::new(&create);
        work.next(u32::MAX);
        // SAFETY: no device has it.
        assert_eq!(unsafe { work.absorb(&completion) }, Step::Failed, "{completion:?}");
    }
    let differs = Completion { result: 1, ..Completion::new(Status::Success) };
    let mut work = Work::new(&Request::compare_pattern(0, old));
    work.next(u32::MAX);
    // SAFETY: no device has it.
    assert_eq!(unsafe { work.absorb(&differs.with_bytes(64)) }, Step::Failed);
}

impl Completion {
    fn with_bytes(self, bytes_completed: u32) -> Completion {
        Completion { bytes_completed, ..self }
    }
}

fn bytes(words: &[u64; 8]) -> &[u8; 64] {
    // SAFETY: words are bytes, and these are 64.
    unsafe { &*words.as_ptr().cast() }
}

/// A page may be shared with others: only what the request borrows is touched, and only what it writes is written.
#[test]
fn a_touch_stays_inside_the_request() {
    let mut target = [7u8; 100];
    let page = Address::from(target.as_mut_ptr()).page();
    let fill = Request::fill(1, &mut target);
    let work = Work::new(&fill);
    let fault = |page, write_fault| Completion { fault_address: page, write_fault, ..partial(0) };
    // SAFETY: no device has it.
    let touch = |completion| unsafe { work.touch(&completion) };
    assert!(touch(fault(page, true)) && touch(fault(page, false)));
    assert!(!touch(fault(Address(page.0 - 4096), true)));
    assert!(!touch(fault(Address(u64::MAX), true)) && !touch(fault(Address(0), true)));
    let crc = Request::crc(0, &[1, 2, 3]);
    let page = crc.descriptor.address_1().page();
    // SAFETY: no device has it.
    assert!(!unsafe { Work::new(&crc).touch(&fault(page, true)) }, "a source was written");
}

#[test]
fn a_queue_that_does_not_fit() {
    let mut target = vec![0u8; 4096];
    let fits_in = |request: &Request<'_, ()>, bytes_max| fits(request, &queue(bytes_max), Version::V1_0);
    assert_eq!(fits_in(&Request::fill(0, &mut target), 64), Ok(()), "in pieces");
    let wide = Request::fill_16(0, &mut target);
    assert_eq!(fits_in(&wide, 4096), Err(OnCpu::Version));
    assert_eq!(fits(&wide, &queue(4096), Version::V2_0), Ok(()));
    let source = vec![0u8; 520];
    let check = Request::dif_check(&source, Default::default(), Default::default());
    assert_eq!(fits(&check, &queue(512), Version::V1_0), Err(OnCpu::Size));
    let without = WorkQueueInfo { operations: Default::default(), ..queue(4096) };
    assert_eq!(fits(&check, &without, Version::V1_0), Err(OnCpu::Operation));
}

/// Pieces of a copy onto its own upper part come from the end, so that none overwrites what another reads.
#[test]
fn pieces_of_an_overlapping_copy() {
    let mut bytes = [0u8; 100];
    let cells = Cell::from_mut(&mut bytes[..]).as_slice_of_cells();
    let start = Address::from(cells.as_ptr()).0;
    let request = Request::copy(&cells[..90], &cells[10..]);
    let mut work = Work::new(&request);
    let mut pieces = Vec::new();
    loop {
        let piece = work.next(32);
        pieces.push((piece.address_1().0 - start, piece.size()));
        // SAFETY: no device has it.
        match unsafe { work.absorb(&Completion::new(Status::Success)) } {
            Step::Next => {}
            step => break assert_eq!(step, Step::Ended(Ended::Done)),
        }
    }
    // What is left in the end does not overlap any more, and may begin anywhere.
    assert_eq!(pieces, [(58, 32), (26, 32), (0, 26)]);
}

/// A task for a copy, and the bytes that are left of it and behind it.
fn copy_of(bytes: usize) -> (Work<'static>, u64) {
    // SAFETY: nothing is executed.
    unsafe {
        Task::copy(std::ptr::without_provenance(1 << 12), std::ptr::without_provenance_mut(1 << 50), bytes)
    }
    .into_work()
}

/// The parts of a copy of any size cover it once, in order.
#[test]
fn parts_of_a_copy_cover_it_once() {
    const NAMED: usize = u32::MAX as usize;
    for bytes in [1, 9, 10, 11, 4097, NAMED, NAMED + 1, 3 * NAMED + 5] {
        let part_bytes = if bytes < 5000 { 10 } else { 1 << 30 };
        let (mut left, mut next) = (Some(copy_of(bytes)), 0);
        while let Some((mut work, beyond_bytes)) = left.take() {
            left = work.split_copy(beyond_bytes, part_bytes);
            let part = work.next(part_bytes);
            assert_eq!(part.address_1().0 - (1 << 12), next, "{bytes}");
            assert_eq!(part.address_2().0 - (1 << 50), next, "{bytes}");
            assert!((1..=part_bytes).contains(&part.size()) && work.left_bytes() == part.size(), "{bytes}");
            next += u64::from(part.size());
        }
        assert_eq!(next, bytes as u64);
    }
}

fn fault(write_fault: bool, fault_address: u64) -> Completion {
    Completion { write_fault, fault_address: Address(fault_address), ..partial(0) }
}

#[test]
fn touching_makes_the_missing_page_present() {
    const PAGES: usize = 4;
    let size_bytes = PAGES * crate::address::PAGE_BYTES as usize;
    // SAFETY: a new anonymous mapping that nobody else uses, and that stays for ever.
    let target = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let address = libc::mmap(std::ptr::null_mut(), size_bytes, protection, flags, -1, 0);
        assert_ne!(address, libc::MAP_FAILED);
        std::slice::from_raw_parts_mut(address.cast::<u8>(), size_bytes)
    };
    let address = target.as_mut_ptr();
    let source = vec![0; size_bytes];
    let work = Work::new(&Request::copy(&source, target));
    let missed = address.addr() as u64 + 2 * crate::address::PAGE_BYTES;
    // SAFETY: no device has the request.
    assert!(unsafe { work.touch(&fault(true, missed)) });
    let mut present = [0; PAGES];
    // SAFETY: the mapping has PAGES pages, and `present` a byte for each.
    assert_eq!(unsafe { libc::mincore(address.cast(), size_bytes, present.as_mut_ptr()) }, 0);
    assert_eq!(present.map(|byte| byte & 1), [0, 0, 1, 0]);
}

#[test]
fn touching_changes_nothing_and_stays_inside() {
    let source = vec![1; 3 * crate::address::PAGE_BYTES as usize];
    let mut target: Vec<u8> = (0..source.len()).map(|index| index as u8).collect();
    let before = target.clone();
    let (from, to) = (source.as_ptr().addr() as u64, target.as_ptr().addr() as u64);
    let work = Work::new(&Request::copy(&source, &mut target));
    for write_fault in [false, true] {
        let start = if write_fault { to } else { from };
        // Addresses before, in and behind the request; those outside would crash.
        for address in [0, start, start + 5000, start + 5 * crate::address::PAGE_BYTES, u64::MAX] {
            // SAFETY: no device has the request.
            unsafe { work.touch(&fault(write_fault, address)) };
        }
    }
    assert_eq!(target, before);
}

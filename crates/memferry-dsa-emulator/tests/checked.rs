//! The memory of this process behind system calls: bad addresses are page faults, and nothing crashes.

use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::{Address, Completion, CompletionRecord, Descriptor, Flags, Status, Submission};
use memferry_dsa_emulator::{
    Access, AddressSpace, CheckedMemory, Deterministic, DeviceConfig, FaultPlan, Memory,
};
use memferry_testing::{Needs, skip};

const PAGE: usize = PAGE_BYTES as usize;

/// One test at a time: while the child of a fork lives, a write would copy any page of the process first, so all are
/// absent for writing.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// New pages, which are unmapped when this is dropped.
struct Pages {
    start: *mut u8,
    count: usize,
}

impl Pages {
    fn map(count: usize, protection: i32) -> Pages {
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let start = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(ptr::null_mut(), count * PAGE, protection, flags, -1, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        Pages { start: start.cast(), count }
    }

    fn writable(count: usize) -> Pages {
        Pages::map(count, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn at(&self, offset: usize) -> Address {
        assert!(offset < self.count * PAGE);
        Address::from(self.start).offset(offset as u64)
    }

    /// Writes to pages, so that they are present and exclusive.
    fn fill(&self, bytes: std::ops::Range<usize>, value: u8) {
        assert!(bytes.end <= self.count * PAGE);
        // SAFETY: the range lies in the mapping, which is writable where the tests call this.
        unsafe { ptr::write_bytes(self.start.add(bytes.start), value, bytes.len()) }
    }

    /// Reads bytes, which brings in their pages for reading.
    fn bytes(&self, bytes: std::ops::Range<usize>) -> Vec<u8> {
        assert!(bytes.end <= self.count * PAGE);
        // SAFETY: the range lies in the mapping, which is readable where the tests call this.
        bytes.map(|at| unsafe { self.start.add(at).read_volatile() }).collect()
    }

    fn protect(&self, page: usize, protection: i32) {
        // SAFETY: a page of this mapping, which only this test uses.
        let result = unsafe { libc::mprotect(self.start.add(page * PAGE).cast(), PAGE, protection) };
        assert_eq!(result, 0);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, to which no reference is left.
        unsafe { libc::munmap(self.start.cast(), self.count * PAGE) };
    }
}

/// A device over this process' memory, or `None` where the system forbids it.
fn device() -> Option<Deterministic<CheckedMemory>> {
    // SAFETY: the tests' descriptors name mappings and records of their own, or unmapped memory.
    match unsafe { CheckedMemory::open() } {
        Ok(memory) => {
            let mut config = DeviceConfig::one_shared_queue();
            config.groups[0].queues[0].block_on_fault = true;
            Some(Deterministic::new(&config, FaultPlan::none(), memory).unwrap())
        }
        Err(error) => {
            skip(Needs::Kernel("process_vm_readv"), format!("no checked memory here: {error}"));
            None
        }
    }
}

fn run(device: &mut Deterministic<CheckedMemory>, descriptor: Descriptor) -> Completion {
    let record = CompletionRecord::new();
    let descriptor = descriptor.with_completion(&record);
    let _ = device.device.submit(0, &descriptor, 1).unwrap();
    device.run_until_idle();
    record.poll().unwrap_or_else(|| panic!("no completion: {:?}", device.device.take_error()))
}

#[test]
fn operations_on_present_pages() {
    let _alone = alone();
    let Some(mut device) = device() else { return };
    let pages = Pages::writable(8);
    pages.fill(0..8 * PAGE, 0);
    pages.fill(100..10_000, 7);
    let (source, target) = (pages.at(100), pages.at(4 * PAGE + 50));
    assert_eq!(run(&mut device, Descriptor::memmove(source, target, 9900)).status, Status::Success);
    assert!(pages.bytes(4 * PAGE + 50..4 * PAGE + 9950).iter().all(|byte| *byte == 7));
    let compared = run(&mut device, Descriptor::compare(source, target, 9901));
    assert_eq!((compared.differs(), compared.bytes_completed), (false, 0), "a zero on both sides");
    assert_eq!(run(&mut device, Descriptor::fill(0x0101_0101_0101_0101, target, 10)).status, Status::Success);
    let compared = run(&mut device, Descriptor::compare(source, target, 9900));
    assert_eq!((compared.differs(), compared.bytes_completed), (true, 0));
    assert_eq!(run(&mut device, Descriptor::cache_flush(target, 9900)).status, Status::Success);
    // Overlapping, in both directions.
    for (from, to) in [(0, 1000), (1000, 0), (0, 5000), (5000, 0)] {
        let bytes: Vec<u8> = (0..8 * PAGE).map(|index| ((index * 31) >> 3) as u8).collect();
        bytes.iter().enumerate().for_each(|(at, byte)| pages.fill(at..at + 1, *byte));
        let mut expected = bytes.clone();
        expected.copy_within(from..from + 12_000, to);
        let copy = Descriptor::memmove(pages.at(from), pages.at(to), 12_000);
        assert_eq!(run(&mut device, copy).status, Status::Success);
        assert!(pages.bytes(0..8 * PAGE) == expected, "from {from} to {to}");
    }
}

/// Pages that were never touched are absent for reading; those that were only read are absent for writing.
#[test]
fn untouched_pages_are_faults() {
    let _alone = alone();
    let Some(mut device) = device() else { return };
    let pages = Pages::writable(6);
    pages.fill(0..3 * PAGE, 7);
    let copy = Descriptor::memmove(pages.at(0), pages.at(3 * PAGE), 3 * PAGE as u32);
    let completion = run(&mut device, copy);
    assert_eq!((completion.status_byte(), completion.bytes_completed), (0x83, 0));
    assert_eq!(completion.fault_address, pages.at(3 * PAGE));
    // A read maps the shared page of zeros, which the device cannot write to.
    assert_eq!(pages.bytes(3 * PAGE..3 * PAGE + 1), [0]);
    let completion = run(&mut device, copy);
    assert_eq!((completion.status_byte(), completion.bytes_completed), (0x83, 0));
    pages.fill(3 * PAGE..3 * PAGE + 1, 1);
    pages.fill(4 * PAGE..4 * PAGE + 1, 1);
    let completion = run(&mut device, copy);
    assert_eq!((completion.status_byte(), completion.bytes_completed), (0x83, 2 * PAGE as u32));
    let reading = run(&mut device, Descriptor::compare(pages.at(0), pages.at(5 * PAGE), 10));
    assert_eq!((reading.status_byte(), reading.fault_address), (0x03, pages.at(5 * PAGE)));
    // The system brings in the pages that the device requests.
    assert_eq!(run(&mut device, copy.with_flags(Flags::BLOCK_ON_FAULT)).status, Status::Success);
    assert!(pages.bytes(3 * PAGE..6 * PAGE).iter().all(|byte| *byte == 7));
}

/// Protected and unmapped memory: page faults, refused ones if the device requested the page.
#[test]
fn bad_addresses_are_faults() {
    let _alone = alone();
    let Some(mut device) = device() else { return };
    let pages = Pages::writable(4);
    pages.fill(0..4 * PAGE, 7);
    pages.protect(2, libc::PROT_NONE);
    pages.protect(3, libc::PROT_READ);
    let good = pages.at(0);
    // Far from where Linux puts programs and mappings, so that no other test maps it meanwhile.
    let unmapped = Address(0x10_0000_0000);
    let cases = [
        (Descriptor::memmove(unmapped, good, 8), 0x03),
        (Descriptor::memmove(good, unmapped, 8), 0x83),
        (Descriptor::memmove(pages.at(2 * PAGE), good, 8), 0x03),
        (Descriptor::memmove(good, pages.at(2 * PAGE), 8), 0x83),
        (Descriptor::memmove(good, pages.at(3 * PAGE), 8), 0x83),
        (Descriptor::memmove(0u64, good, 8), 0x03),
        (Descriptor::memmove(8u64, good, 8), 0x03),
        (Descriptor::memmove(1u64 << 47, good, 8), 0x03),
        (Descriptor::memmove(0xffff_8000_0000_0000u64, good, 8), 0x03),
        (Descriptor::fill(0, u64::MAX - 7, 8), 0x83),
        (Descriptor::crc(0, pages.at(2 * PAGE), 8), 0x03),
        (Descriptor::dualcast(good, pages.at(PAGE), pages.at(3 * PAGE), 8), 0x83),
    ];
    for (descriptor, expected) in cases {
        assert_eq!(run(&mut device, descriptor).status_byte(), expected, "{descriptor:?}");
        let completion = run(&mut device, descriptor.with_flags(Flags::BLOCK_ON_FAULT));
        assert_eq!(completion.status_byte(), expected + 1, "{descriptor:?}");
    }
    // With a page request, as the system may be migrating the page at this moment.
    let readable = Descriptor::memmove(pages.at(3 * PAGE), good, 8).with_flags(Flags::BLOCK_ON_FAULT);
    assert_eq!(run(&mut device, readable).status, Status::Success);
    // A copy over several pages stops at the first protected page, with the progress so far.
    pages.protect(2, libc::PROT_READ);
    let sources = Pages::writable(4);
    sources.fill(0..4 * PAGE, 9);
    let completion = run(&mut device, Descriptor::memmove(sources.at(10), pages.at(10), 3 * PAGE as u32));
    assert_eq!(completion.status_byte(), 0x83);
    assert_eq!(
        (completion.bytes_completed, completion.fault_address),
        (2 * PAGE as u32 - 10, pages.at(2 * PAGE))
    );
    assert!(pages.bytes(10..2 * PAGE).iter().all(|byte| *byte == 9));
    assert!(pages.bytes(2 * PAGE..2 * PAGE + 10).iter().all(|byte| *byte == 7));
}

/// The caller's stores write a record; where they cannot, system calls do.
#[test]
fn a_record_is_written_by_the_callers_stores_or_by_system_calls() {
    /// Stores nothing but a mark, or nothing at all at a second record.
    unsafe fn store(record: Address, bytes: &[u8; 32]) -> bool {
        let is_first = record.0.is_multiple_of(PAGE as u64);
        if is_first {
            // SAFETY: the test names a mapped page.
            unsafe { (record.0 as *mut u8).write(bytes[0] | 0x80) };
        }
        is_first
    }
    let _alone = alone();
    let pages = Pages::writable(1);
    // SAFETY: the records below are in the page, which this test alone uses.
    let Ok(memory) = (unsafe { CheckedMemory::open() }) else {
        return skip(Needs::Kernel("process_vm_readv"), "no checked memory here");
    };
    let memory = memory.with_record_store(store);
    let completion = Completion::new(Status::Success);
    memory.publish(pages.at(0), &completion).unwrap();
    memory.publish(pages.at(32), &completion).unwrap();
    assert_eq!(pages.bytes(0..1), [completion.to_bytes()[0] | 0x80], "nothing else writes it");
    assert_eq!(pages.bytes(32..64), completion.to_bytes());
}

/// The page of the last record needs no look at the page map, until a store to it fails. Data is translated each time.
#[test]
fn the_page_of_the_last_record_is_known() {
    /// Fails at the second record of a page.
    unsafe fn store(record: Address, _: &[u8; 32]) -> bool {
        record.0.is_multiple_of(PAGE as u64)
    }
    let _alone = alone();
    let pages = Pages::writable(2);
    // SAFETY: the records below are in the pages, which this test alone uses.
    let Ok(memory) = (unsafe { CheckedMemory::open() }) else {
        return skip(Needs::Kernel("process_vm_readv"), "no checked memory here");
    };
    let memory = memory.with_record_store(store);
    let known = || [0, PAGE].map(|page| memory.is_record_page_present(pages.at(page)));
    // The stores touch nothing, so that no page is ever present by itself.
    for (record, expected) in [(0, [true, false]), (PAGE, [false, true]), (0, [true, false])] {
        memory.publish(pages.at(record), &Completion::new(Status::Success)).unwrap();
        assert_eq!(known(), expected, "after a record at {record}");
    }
    assert!(!memory.is_present(pages.at(0), Access::Write), "data is translated");
    pages.protect(0, libc::PROT_READ);
    memory.publish(pages.at(32), &Completion::new(Status::Success)).unwrap_err();
    assert_eq!(known(), [false, false], "after a failed store");
}

/// A record that cannot be written is lost, and the error register reports it.
#[test]
fn a_record_that_cannot_be_written() {
    let _alone = alone();
    let Some(mut device) = device() else { return };
    let pages = Pages::writable(2);
    pages.fill(0..2 * PAGE, 0);
    pages.protect(1, libc::PROT_READ);
    for (address, is_lost) in [(pages.at(0), false), (pages.at(PAGE), true), (Address(64), true)] {
        let _ = device.device.submit(0, &Descriptor::noop().with_completion_at(address), 1).unwrap();
        device.run_until_idle();
        let status = device.device.take_error().map(|error| error.status);
        assert_eq!(status, is_lost.then_some(Status::CompletionFault), "{address:?}");
    }
    assert_eq!(device.device.counters().page_faults, 2, "the protected page and the unmapped one");
    assert_eq!(pages.bytes(0..1), [1]);
}

/// A child process that only sleeps.
struct Sleeper(libc::pid_t);

impl Sleeper {
    fn fork() -> Sleeper {
        // SAFETY: the child only calls `pause`, which is allowed after a fork in a process with threads.
        match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: pause only waits.
                unsafe { libc::pause() };
            },
            child => {
                assert!(child > 0);
                Sleeper(child)
            }
        }
    }
}

impl Sleeper {
    /// A child with a given free process id; `None` if that is not permitted.
    fn with_number(number: i32) -> Option<Sleeper> {
        // struct clone_args of clone(2): exit_signal is the fifth word, set_tid and its length the ninth and tenth.
        let mut arguments = [0u64; 11];
        (arguments[4], arguments[8], arguments[9]) = (libc::SIGCHLD as u64, (&raw const number) as u64, 1);
        // SAFETY: the structure that the call reads, with a list of one number; a copy of the process, which only
        // sleeps.
        match unsafe { libc::syscall(libc::SYS_clone3, &arguments, size_of_val(&arguments)) } {
            0 => loop {
                // SAFETY: it has no preconditions.
                unsafe { libc::pause() };
            },
            child if child > 0 => Some(Sleeper(child as i32)),
            _ => None,
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // SAFETY: the child of `fork`, for which no other code has waited.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, ptr::null_mut(), 0);
        }
    }
}

/// Descriptors of another process: its memory is read and written, not that at the same addresses here, with the page
/// faults that it would have.
#[test]
fn memory_of_another_process() {
    let _alone = alone();
    let pages = Pages::writable(6);
    pages.fill(0..PAGE, 7);
    pages.fill(PAGE..2 * PAGE, 8);
    pages.protect(3, libc::PROT_READ);
    let sleeper = Sleeper::fork();
    pages.fill(0..PAGE, 1);
    let mut config = DeviceConfig::one_shared_queue();
    config.groups[0].queues[0].block_on_fault = true;
    let space = AddressSpace::of_thread(sleeper.0 as u32).unwrap();
    // SAFETY: the descriptors below name pages of the sleeper, which uses none of them.
    let memory = unsafe { space.memory() };
    let mut run = Deterministic::new(&config, FaultPlan::none(), memory).unwrap();
    let mut complete = |descriptor: Descriptor| {
        let record = pages.at(5 * PAGE);
        // SAFETY: as above.
        let memory = unsafe { space.memory() };
        let _ = memory.write(record, &[0; 32]);
        let descriptor = descriptor.with_flags(Flags::BLOCK_ON_FAULT).with_completion_at(record);
        assert_eq!(run.device.submit(0, &descriptor, 1).unwrap(), Submission::Accepted);
        run.run_until_idle();
        let mut bytes = [0; 32];
        memory.read(record, &mut bytes).unwrap();
        Completion::from_bytes(&bytes).unwrap()
    };
    let size = PAGE as u32;
    // To a page that is shared copy-on-write with this process, and to one that neither has touched.
    for target in [PAGE, 2 * PAGE] {
        let completion = complete(Descriptor::memmove(pages.at(0), pages.at(target), size));
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        let compared = complete(Descriptor::compare_pattern(0x0707_0707_0707_0707, pages.at(target), size));
        assert_eq!((compared.status, compared.result), (Status::Success, 0));
    }
    assert_eq!(
        (pages.bytes(0..1), pages.bytes(PAGE..PAGE + 1)),
        (vec![1], vec![8]),
        "this process' are others"
    );
    let refused = complete(Descriptor::memmove(pages.at(0), pages.at(3 * PAGE), size));
    assert_eq!((refused.status, refused.write_fault), (Status::PageFaultRefused, true));
    let nowhere = complete(Descriptor::memmove(Address(0x1000), pages.at(4 * PAGE), 8));
    assert_eq!(nowhere.status, Status::PageFaultRefused);
}

/// The id of a process that has ended is reused: its remaining descriptors would access the memory of the new process.
#[test]
fn a_process_with_a_reused_process_id() {
    let _alone = alone();
    let pages = Pages::writable(1);
    pages.fill(0..PAGE, 7);
    let first = Sleeper::fork();
    let number = first.0;
    let space = AddressSpace::of_thread(number as u32).unwrap();
    // SAFETY: only the page is named, which both sleepers have and do not use.
    let memory = unsafe { space.memory() };
    assert!(space.is_alive() && memory.is_present(pages.at(0), Access::Read));
    memory.write(pages.at(0), &[8]).unwrap();
    drop(first);
    assert!(!space.is_alive());
    let Some(second) = Sleeper::with_number(number) else {
        return println!(
            "skipped: process numbers cannot be chosen here: {}",
            std::io::Error::last_os_error()
        );
    };
    assert_eq!(second.0, number);
    assert!(!space.is_alive() && !memory.is_present(pages.at(0), Access::Read));
    let refused = memory.write(pages.at(0), &[9]).unwrap_err();
    assert_eq!((refused.page, refused.bytes_done), (pages.at(0), 0));
    assert!(memory.read(pages.at(0), &mut [0]).is_err() && !memory.request_page(pages.at(0), Access::Write));
    let mut found = [0];
    // SAFETY: as above.
    unsafe { AddressSpace::of_thread(number as u32).unwrap().memory() }
        .read(pages.at(0), &mut found)
        .unwrap();
    assert_eq!(found, [7], "the second one's page, which it has from this process");
}

//! Real forks, each in a process of its own with a single thread: this program, run again without libtest's threads, since
//! a child of a threaded process may do almost nothing.
//!
//! The queue is a file of one page, whose mapping children do not inherit (as with VM_DONTCOPY), and the instructions are
//! plain copies. A child that writes through its parent's mapping dies, and the submitted bytes are in the file.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memferry_dsa::internals::fork::{self, PerProcess};
use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::internals::portal::{Linux, Platform};
use memferry_dsa::{
    CompletionRecord, Descriptor, DevicePortal, OpenOptions, Portal, Slots, Submission, SubmitError,
    SubmitMethod, Wait,
};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, dedicated_queue, shared_queue};

use crate::fork_support::{alone, in_child, map_without_children};

/// Linux, with a file in the place of the device.
struct FileDevice;

// SAFETY: `map` returns a mapped page; the file does not process descriptors.
unsafe impl Platform for FileDevice {
    fn features(&self) -> CpuFeatures {
        CpuFeatures::ALL
    }
    fn watch_forks(&self) -> io::Result<()> {
        Linux.watch_forks()
    }
    fn generation(&self) -> u32 {
        Linux.generation()
    }
    fn open(&self, path: &Path) -> io::Result<File> {
        Linux.open(path)
    }
    fn map(&self, file: &File) -> io::Result<NonNull<u8>> {
        map_without_children(file)
    }
    unsafe fn unmap(&self, page: NonNull<u8>) {
        // SAFETY: passed on.
        unsafe { Linux.unmap(page) }
    }
    unsafe fn enqcmd(&self, slot: NonNull<u8>, descriptor: &Descriptor) -> bool {
        // SAFETY: the slot is 64 bytes of a page that is mapped for writing.
        unsafe { slot.cast::<[u8; 64]>().write_volatile(descriptor.to_bytes()) };
        true
    }
    unsafe fn movdir64b(&self, slot: NonNull<u8>, descriptor: &Descriptor) {
        // SAFETY: as above.
        unsafe { self.enqcmd(slot, descriptor) };
    }
    unsafe fn write(&self, file: BorrowedFd<'_>, descriptors: &[Descriptor]) -> io::Result<usize> {
        // SAFETY: passed on.
        unsafe { Linux.write(file, descriptors) }
    }
}

fn new_queue(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("memferry-{name}-{}", std::process::id()));
    std::fs::write(&path, [0; 4096]).expect("a file for the queue");
    path
}

fn marked(mark: u64) -> Descriptor {
    Descriptor::memmove(mark, mark, 1)
}

fn offer(portal: &dyn Portal, mark: u64) -> Submission {
    // SAFETY: no device reads the file.
    unsafe { portal.submit(&marked(mark)) }.expect("the queue can be opened")
}

fn portals() {
    for (name, info) in [("shared", shared_queue("wq0.0", 2)), ("dedicated", dedicated_queue("wq0.0", 2))] {
        let path = new_queue(name);
        let options =
            OpenOptions { method: SubmitMethod::Mapped, slots: Slots::One, batch_probe_timeout: None };
        let is_dedicated = name == "dedicated";
        let portal = DevicePortal::open_on(FileDevice, &path, info, options).expect("a file can be mapped");
        let arrived = |mark| {
            let page = std::fs::read(&path).expect("the queue's file");
            assert_eq!(page[..64], marked(mark).to_bytes(), "{name}");
        };
        assert_eq!(offer(&*portal, 1), Submission::Accepted);
        arrived(1);
        in_child(|| {
            assert_eq!(portal.counters().in_flight, 0, "{name}: the parent's are not the child's");
            assert_eq!(offer(&*portal, 2), Submission::Accepted);
            assert_eq!(offer(&*portal, 3), Submission::Accepted);
            arrived(3);
            assert_eq!(
                offer(&*portal, 4) == Submission::Retry,
                is_dedicated,
                "{name}: two entries, both taken"
            );
            assert_eq!(portal.counters().reopened, 1, "{name}");
            in_child(|| {
                assert_eq!(offer(&*portal, 6), Submission::Accepted);
                arrived(6);
                assert_eq!(portal.counters().reopened, 2, "{name}");
                drop(portal);
            });
        });
        std::fs::remove_file(path).expect("the queue's file");
    }
}

/// Parent and child continue side by side: the child's opening does not change the parent's mapping.
fn parent_goes_on() {
    let path = new_queue("parent");
    let options = OpenOptions { slots: Slots::One, ..OpenOptions::default() };
    let portal = DevicePortal::open_on(FileDevice, &path, shared_queue("wq0.0", 2), options)
        .expect("a file can be mapped");
    in_child(|| {
        assert_eq!(offer(&*portal, 7), Submission::Accepted);
    });
    assert_eq!(offer(&*portal, 8), Submission::Accepted);
    assert_eq!(std::fs::read(&path).expect("the queue's file")[..64], marked(8).to_bytes());
    assert_eq!((portal.counters().reopened, portal.counters().accepted), (0, 1));
    std::fs::remove_file(path).expect("the queue's file");
}

/// `write(2)` passes the descriptor byte by byte.
fn written() {
    let path = new_queue("write");
    let options = OpenOptions { method: SubmitMethod::Write, slots: Slots::One, batch_probe_timeout: None };
    let portal = DevicePortal::open_on(FileDevice, &path, shared_queue("wq0.0", 2), options)
        .expect("a file can be written");
    assert_eq!(offer(&*portal, 1), Submission::Accepted);
    in_child(|| {
        // Its own file, whose offset starts at 0.
        assert_eq!(offer(&*portal, 2), Submission::Accepted);
        assert_eq!(portal.counters().reopened, 1);
    });
    assert_eq!(offer(&*portal, 3), Submission::Accepted);
    let bytes = std::fs::read(&path).expect("the queue's file");
    assert_eq!(bytes[..128], [marked(2).to_bytes(), marked(3).to_bytes()].concat());
    std::fs::remove_file(path).expect("the queue's file");
}

/// An emulated device is gone for a child. Dropping it does not wait for a thread that does not exist, and after enabling
/// it works again.
fn emulators() {
    for config in [DeviceConfig::one_shared_queue(), DeviceConfig::one_dedicated_queue()] {
        let emulator = Emulator::start(&config, FaultPlan::none()).expect("a thread");
        let portal = emulator.portal(0);
        let record = CompletionRecord::new();
        let copy = |portal: &dyn Portal| {
            record.reset();
            // SAFETY: the record outlives the wait.
            let answer = unsafe { portal.submit(&Descriptor::noop().with_completion(&record)) };
            assert_eq!(answer, Ok(Submission::Accepted));
            Wait::Pause.wait(&record, Duration::from_secs(60)).expect("the device lives");
            portal.completed(1);
        };
        copy(&*portal);
        let mut all = Some((portal, emulator));
        in_child(|| {
            let (portal, emulator) = all.as_ref().expect("the child's copies");
            assert!(portal.is_gone());
            // SAFETY: it is refused.
            assert_eq!(unsafe { portal.submit(&Descriptor::noop()) }, Err(SubmitError::Gone));
            emulator.enable().expect("a thread of its own");
            assert!(portal.is_gone(), "a portal to the parent's device");
            copy(&*emulator.portal(0));
            in_child(|| drop(all.take()));
        });
        in_child(|| {
            drop(all.take());
            // The drop does not join the parent's thread by an id that is now this one's.
            std::thread::spawn(|| {}).join().expect("no panic");
        });
    }
}

/// A process keeps its value when watching for forks begins later, and the child does not get it.
fn own_values() {
    let cell = PerProcess::new();
    assert_eq!(cell.get_or_init(|| 1), &1);
    fork::watch().expect("this kernel notices forks");
    assert_eq!(cell.get_or_init(|| 2), &1);
    in_child(|| assert_eq!((cell.get(), cell.get_or_init(|| 3)), (None, &3)));
    assert_eq!(cell.get(), Some(&1));
}

/// A child finds zeros. The parent keeps its values when the child writes.
#[test]
fn a_child_finds_wiped_memory() {
    alone("fork::a_child_finds_wiped_memory", || {
        // SAFETY: atomics.
        let values = unsafe { fork::leak_fork_local(|| AtomicU64::new(7)) };
        let values = values.expect("Linux 4.14 has MADV_WIPEONFORK");
        let all = |expected| values.iter().all(|value| value.load(Ordering::Relaxed) == expected);
        assert!(values.len() == 512 && all(7));
        in_child(|| {
            assert!(all(0));
            values[0].store(1, Ordering::Relaxed);
        });
        assert!(all(7));
    });
}

#[test]
fn children_open_their_own_portals() {
    alone("fork::children_open_their_own_portals", portals);
}

#[test]
fn parents_keep_theirs() {
    alone("fork::parents_keep_theirs", parent_goes_on);
}

#[test]
fn files_are_written() {
    alone("fork::files_are_written", written);
}

#[test]
fn children_have_no_emulated_devices() {
    alone("fork::children_have_no_emulated_devices", emulators);
}

#[test]
fn children_make_their_own_values() {
    alone("fork::children_make_their_own_values", own_values);
}

//! A mover in forked children: real forks of a process that has engines with threads, queues mapped or open, and copies
//! in flight.
//!
//! A child starts threads of its own, which is more than POSIX allows; glibc's allocator is ready for it, and it is what
//! programs do that fork their workers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use memferry::internals::{Faults, Faulty};
use memferry::mover::{
    CopyError, CopyOptions, CopyReport, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Engine, EngineKind,
    EngineStats, Mover,
};
use memferry::topology::Machine;
use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::internals::portal::{Linux, Platform};
use memferry_dsa::{
    Descriptor, DevicePortal, OpenOptions, Portal, QueueMode, Submission, SubmitError, SubmitMethod,
    WorkQueueInfo,
};
use memferry_dsa_emulator::{
    Deterministic, DeviceConfig, DirectMemory, Emulator, FaultPlan, dedicated_queue, shared_queue,
};

use crate::fork_support::{alone, in_child, map_without_children};

/// Linux over a file, but for the device, which works in the thread that submits: so there is one in a child, too.
#[derive(Clone)]
struct Inline(Arc<Inner>);

struct Inner {
    config: DeviceConfig,
    /// Each process that opens the queue has its own memory, and so its own view of the device.
    devices: Mutex<HashMap<u32, Deterministic<DirectMemory>>>,
    /// What is submitted stays in the queue.
    holds: AtomicBool,
}

impl Inline {
    fn new(mode: QueueMode) -> Inline {
        let config = match mode {
            QueueMode::Shared => DeviceConfig::one_shared_queue(),
            QueueMode::Dedicated => DeviceConfig::one_dedicated_queue(),
        };
        Inline(Arc::new(Inner { config, devices: Mutex::default(), holds: false.into() }))
    }

    fn hold(&self) {
        self.0.holds.store(true, Ordering::SeqCst);
    }

    fn release(&self) {
        self.0.holds.store(false, Ordering::SeqCst);
        self.with_device(|device| _ = device.run_until_idle());
    }

    fn with_device<R>(&self, with: impl FnOnce(&mut Deterministic<DirectMemory>) -> R) -> R {
        let mut devices = self.0.devices.lock().expect("no panic");
        with(devices.get_mut(&self.generation()).expect("this process has opened the queue"))
    }

    fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        self.with_device(|device| {
            let answer = device.device.submit(0, descriptor, 1);
            if !self.0.holds.load(Ordering::SeqCst) {
                device.run_until_idle();
            }
            answer
        })
    }
}

// SAFETY: the page is one, and the device that is driven here has done everything when it is idle.
unsafe impl Platform for Inline {
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
        // SAFETY: descriptors come from `Portal::submit`, whose contract its callers keep.
        let memory = unsafe { DirectMemory::new() };
        let device =
            Deterministic::new(&self.0.config, FaultPlan::none(), memory).expect("a valid configuration");
        self.0.devices.lock().expect("no panic").insert(self.generation(), device);
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
        // A child that wrote through its parent's mapping would end here.
        // SAFETY: the slot is 64 bytes of a page that is mapped for writing.
        unsafe { slot.cast::<[u8; 64]>().write_volatile(descriptor.to_bytes()) };
        self.submit(descriptor) == Ok(Submission::Accepted)
    }
    unsafe fn movdir64b(&self, slot: NonNull<u8>, descriptor: &Descriptor) {
        // SAFETY: as above.
        unsafe { self.enqcmd(slot, descriptor) };
    }
    unsafe fn write(&self, _: BorrowedFd<'_>, descriptors: &[Descriptor]) -> io::Result<usize> {
        for descriptor in descriptors {
            let errno = match self.submit(descriptor) {
                Ok(Submission::Accepted) => continue,
                Ok(Submission::Retry) => libc::EAGAIN,
                Err(_) => libc::ENXIO,
            };
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(size_of_val(descriptors))
    }
}

fn machine() -> Arc<Machine> {
    Arc::new(Machine::two_tiers().expect("built in"))
}

fn mover(portal: Arc<dyn Portal>) -> Mover {
    let engine = DsaEngine::new(vec![portal], DsaOptions::default()).expect("a thread");
    Mover::builder(machine()).engine(Arc::new(engine)).build().expect("threads")
}

fn copy(mover: &Mover, size_bytes: usize) -> CopyReport {
    let source: Vec<u8> = (0..size_bytes).map(|index| (index / 7) as u8).collect();
    let transfer = mover.copy(source, vec![0; size_bytes], CopyOptions::default());
    let (source, target, report) = transfer.wait().expect("copied");
    assert!(source == target);
    report
}

fn stats(mover: &Mover, kind: EngineKind) -> EngineStats {
    mover.stats().engines.into_iter().find(|engine| engine.kind == kind).expect("there is one")
}

fn by_dsa(bytes: u64) -> CopyReport {
    CopyReport { cpu_bytes: 0, dsa_bytes: bytes, file_bytes: 0 }
}

fn by_cpu(bytes: u64) -> CopyReport {
    CopyReport { cpu_bytes: bytes, dsa_bytes: 0, file_bytes: 0 }
}

/// By each way of Linux: the child's queue is opened again, its engine has slots and a completer of its own, and what
/// the parent has in flight is the parent's.
fn queues() {
    let path = std::env::temp_dir().join(format!("memferry-mover-fork-{}", std::process::id()));
    std::fs::write(&path, [0; 4096]).expect("a file for the queue");
    for (mode, way) in [
        (QueueMode::Shared, SubmitMethod::Mapped),
        (QueueMode::Dedicated, SubmitMethod::Mapped),
        (QueueMode::Shared, SubmitMethod::Write),
        (QueueMode::Dedicated, SubmitMethod::Write),
    ] {
        let told = format!("{mode:?}, {way:?}");
        let platform = Inline::new(mode);
        let info: WorkQueueInfo = match mode {
            QueueMode::Shared => shared_queue("wq0.0", 4),
            QueueMode::Dedicated => dedicated_queue("wq0.0", 4),
        };
        let options = OpenOptions { method: way, ..OpenOptions::default() };
        let portal = DevicePortal::open_on(platform.clone(), &path, info, options).expect("a queue");
        let mut owner = Some(mover(portal));
        let mover = owner.clone().expect("just made");
        assert_eq!(copy(&mover, 5000), by_dsa(5000), "{told}");
        // All entries of the parent are in use.
        platform.hold();
        let mut flying: Vec<_> = (0..4_u8)
            .map(|byte| mover.copy(vec![byte; 3000], vec![9; 3000], CopyOptions::default()))
            .collect();
        in_child(|| {
            for transfer in flying.drain(..) {
                assert!(transfer.is_done(), "{told}: nothing will be heard of it");
                let error = transfer.wait().expect_err("it is the parent's");
                assert_eq!((error.error, error.buffers.is_none()), (CopyError::Forked, true), "{told}");
            }
            platform.0.holds.store(false, Ordering::SeqCst);
            let unborn = stats(&mover, EngineKind::Dsa);
            assert_eq!((unborn.accepted, unborn.reopened), (0, 0), "{told}: {unborn:?}");
            (0..10).for_each(|_| assert_eq!(copy(&mover, 7000), by_dsa(7000), "{told}"));
            let counted = stats(&mover, EngineKind::Dsa);
            assert_eq!((counted.operations, counted.reopened), (10, 1), "{told}: {counted:?}");
            assert_eq!((counted.descriptors_done, counted.fallbacks), (10, 0), "{told}: {counted:?}");
            in_child(|| {
                assert_eq!(copy(&mover, 1000), by_dsa(1000), "{told}");
                assert_eq!(stats(&mover, EngineKind::Dsa).reopened, 2, "{told}");
            });
        });
        drop(mover);
        in_child(|| drop(owner.take()));
        platform.release();
        for (byte, transfer) in flying.into_iter().enumerate() {
            let (_, target, report) = transfer.wait().expect("the parent goes on");
            assert_eq!((report, &target[..]), (by_dsa(3000), &[byte as u8; 3000][..]), "{told}");
        }
        assert_eq!(stats(&owner.expect("the parent's"), EngineKind::Dsa).reopened, 0, "{told}");
    }
    std::fs::remove_file(path).expect("the queue's file");
}

/// Without its device, a child has its CPUs; large copies go to workers of its own.
fn workers() {
    let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).expect("a thread");
    let mover = mover(emulator.portal(0));
    assert_eq!(copy(&mover, 5000), by_dsa(5000));
    let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
    let held = Arc::new(Faulty::new(Arc::new(cpu), Faults::default(), 0).expect("a thread"));
    let slow = Mover::builder(machine()).engine(held.clone()).build().expect("threads");
    held.hold();
    let waiting = slow.copy(vec![1; 5000], vec![0; 5000], CopyOptions::default());
    let mut waiting = Some(waiting);
    in_child(|| {
        assert_eq!(copy(&mover, 1 << 20), by_cpu(1 << 20));
        // The engine finds out when it feeds the queue, with the copy in its hands; or its new thread does, before.
        let first = stats(&mover, EngineKind::Dsa);
        assert_eq!((first.accepted + first.rejected, first.queues_gone), (1, 1), "{first:?}");
        assert_eq!(first.fallbacks, first.accepted, "{first:?}");
        assert_eq!(copy(&mover, 1 << 20), by_cpu(1 << 20));
        let rejected = stats(&mover, EngineKind::Dsa).rejected;
        assert_eq!(rejected, first.rejected + 1);
        assert_eq!(stats(&mover, EngineKind::Cpu).operations, rejected);
        let error = futures::executor::block_on(waiting.take().expect("the child's copy"));
        assert_eq!(error.expect_err("it is the parent's").error, CopyError::Forked);
        assert!(slow.drain().is_done(), "what the parent has under way is not the child's to wait for");
        drop((mover, emulator));
    });
    held.release();
    assert!(waiting.take().expect("the parent's").wait().is_ok());
    assert_eq!(held.stats().operations, 1);
}

#[test]
fn children_copy_through_queues_of_their_own() {
    alone("mover_fork::children_copy_through_queues_of_their_own", queues);
}

#[test]
fn children_copy_with_workers_of_their_own() {
    alone("mover_fork::children_copy_with_workers_of_their_own", workers);
}

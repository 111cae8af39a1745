//! A platform without device: any other portal, usually of an emulated device, takes what is submitted.
//!
//! It is stricter than Linux and the CPU. What would end a process, or write to somebody else's memory, is counted
//! in [`violations`](FakePlatform::violations): ENQCMD of a descriptor that names its submitter, a place that is not
//! in a page of this process, unmapping a parent's page.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry_dsa::instructions::CpuFeatures;
use memferry_dsa::portal::{Platform, Portal, QueueMode, StateFiles, Submission};
use memferry_dsa::{Descriptor, Flags, Opcode, PAGE_BYTES};

/// Linux and a CPU, as far as portals see them, in front of another portal.
#[derive(Clone)]
pub struct FakePlatform(Arc<Inner>);

struct Inner {
    device: Arc<dyn Portal>,
    features: CpuFeatures,
    generation: AtomicU32,
    open_error: AtomicI32,
    map_error: AtomicI32,
    write_error: AtomicI32,
    knows_write: bool,
    takes_batches: bool,
    state: Mutex<State>,
    slots_used: AtomicU64,
    lost: AtomicU64,
    violations: AtomicU64,
}

#[derive(Default)]
struct State {
    pages: Vec<Page>,
    files: HashMap<RawFd, u32>, // the generation that opened it
    states: StateFiles,
}

struct Page {
    bytes: Box<PageBytes>,
    generation: u32,
    is_mapped: bool,
}

#[repr(C, align(4096))]
struct PageBytes([u8; PAGE_BYTES as usize]);

impl FakePlatform {
    /// Everything is there and allowed. `device` plays the device's part; if its queue is dedicated, it should lose
    /// what is too much, as devices do
    /// ([`Emulator::uncounted_portal`](crate::Emulator::uncounted_portal)).
    pub fn new(device: Arc<dyn Portal>) -> FakePlatform {
        FakePlatform::with(device, CpuFeatures::ALL, true, true)
    }

    /// With these instructions; without `write(2)` if not `knows_write`; whose `write(2)` refuses batches if not
    /// `takes_batches`, as for devices of version 1.0.
    pub fn with(
        device: Arc<dyn Portal>,
        features: CpuFeatures,
        knows_write: bool,
        takes_batches: bool,
    ) -> FakePlatform {
        FakePlatform(Arc::new(Inner {
            device,
            features,
            generation: AtomicU32::new(1),
            open_error: AtomicI32::new(0),
            map_error: AtomicI32::new(0),
            write_error: AtomicI32::new(0),
            knows_write,
            takes_batches,
            state: Mutex::default(),
            slots_used: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            violations: AtomicU64::new(0),
        }))
    }

    /// Lets `open(2)` fail with this error from now on; 0 lets it work.
    pub fn fail_open(&self, errno: i32) {
        self.0.open_error.store(errno, Ordering::SeqCst);
    }

    /// Lets `mmap(2)` fail with this error from now on; 0 lets it work.
    pub fn fail_map(&self, errno: i32) {
        self.0.map_error.store(errno, Ordering::SeqCst);
    }

    /// Lets `write(2)` of descriptors fail with this error from now on; 0 lets it work.
    pub fn fail_write(&self, errno: i32) {
        self.0.write_error.store(errno, Ordering::SeqCst);
    }

    /// Sets the attributes of queues that are opened from now on.
    ///
    /// # Safety
    /// What the files say is true of the device: see [`StateFiles`].
    pub unsafe fn set_states(&self, states: StateFiles) {
        self.state().states = states;
    }

    /// Makes this process its own child: what was opened before is the parent's.
    pub fn fork(&self) {
        self.0.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Places of the page that descriptors were written to: bit `n` for byte `64 n`.
    pub fn slots_used(&self) -> u64 {
        self.0.slots_used.load(Ordering::SeqCst)
    }

    /// Descriptors that the device did not take and nobody was told of.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::SeqCst)
    }

    /// What a real process would have died of, or corrupted memory with.
    pub fn violations(&self) -> u64 {
        self.0.violations.load(Ordering::SeqCst)
    }

    /// Pages that are mapped, by this process and those that it was forked from.
    pub fn pages_mapped(&self) -> usize {
        self.state().pages.iter().filter(|page| page.is_mapped).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn violate(&self) {
        self.0.violations.fetch_add(1, Ordering::SeqCst);
    }

    /// Writes to a place of a page, if it is one.
    fn store(&self, slot: NonNull<u8>, descriptor: &Descriptor) -> bool {
        let generation = self.generation();
        let mut state = self.state();
        let page = state.pages.iter_mut().find_map(|page| {
            let offset = slot.addr().get().wrapping_sub(page.bytes.0.as_ptr().addr());
            (offset < PAGE_BYTES as usize).then_some((page, offset))
        });
        match page {
            Some((page, offset))
                if page.is_mapped && page.generation == generation && offset.is_multiple_of(64) =>
            {
                page.bytes.0[offset..offset + 64].copy_from_slice(&descriptor.to_bytes());
                self.0.slots_used.fetch_or(1 << (offset / 64), Ordering::SeqCst);
                true
            }
            _ => {
                self.violate();
                false
            }
        }
    }
}

fn check(error: &AtomicI32) -> io::Result<()> {
    match error.load(Ordering::SeqCst) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

// SAFETY: pages are boxes of that size, which are kept; the instructions are played, and what they submit is passed on to
// a portal that keeps its promises.
unsafe impl Platform for FakePlatform {
    fn features(&self) -> CpuFeatures {
        self.0.features
    }

    fn watch_forks(&self) -> io::Result<()> {
        Ok(())
    }

    fn generation(&self) -> u32 {
        self.0.generation.load(Ordering::SeqCst)
    }

    fn open(&self, _: &Path) -> io::Result<File> {
        check(&self.0.open_error)?;
        let file = File::options().read(true).write(true).open("/dev/null")?;
        self.state().files.insert(file.as_raw_fd(), self.generation());
        Ok(file)
    }

    fn states(&self, _: &File) -> StateFiles {
        let state = self.state();
        let copy = |file: &Option<File>| file.as_ref().and_then(|file| file.try_clone().ok());
        StateFiles { queue: copy(&state.states.queue), device: copy(&state.states.device) }
    }

    fn map(&self, _: &File) -> io::Result<NonNull<u8>> {
        check(&self.0.map_error)?;
        let mut bytes = Box::new(PageBytes([0; PAGE_BYTES as usize]));
        let page = NonNull::from(&mut bytes.0).cast();
        self.state().pages.push(Page { bytes, generation: self.generation(), is_mapped: true });
        Ok(page)
    }

    unsafe fn unmap(&self, page: NonNull<u8>) {
        let generation = self.generation();
        let mut state = self.state();
        let found = state.pages.iter_mut().find(|known| known.bytes.0.as_ptr() == page.as_ptr());
        match found {
            Some(known) if known.is_mapped && known.generation == generation => known.is_mapped = false,
            _ => self.violate(),
        }
    }

    unsafe fn enqcmd(&self, slot: NonNull<u8>, descriptor: &Descriptor) -> bool {
        let has_submitter = descriptor.to_words()[0] as u32 != 0;
        if has_submitter || !self.0.features.enqcmd {
            self.violate();
            return false;
        }
        if !self.store(slot, descriptor) || self.0.device.work_queue().mode == QueueMode::Dedicated {
            return false;
        }
        // SAFETY: passed on to the caller.
        unsafe { self.0.device.submit(descriptor) == Ok(Submission::Accepted) }
    }

    unsafe fn movdir64b(&self, slot: NonNull<u8>, descriptor: &Descriptor) {
        if !self.0.features.movdir64b {
            self.violate();
            return;
        }
        let is_taken = self.store(slot, descriptor)
            && self.0.device.work_queue().mode == QueueMode::Dedicated
            // SAFETY: passed on to the caller.
            && unsafe { self.0.device.submit(descriptor) == Ok(Submission::Accepted) };
        if !is_taken {
            self.0.lost.fetch_add(1, Ordering::SeqCst);
        }
    }

    unsafe fn write(&self, file: BorrowedFd<'_>, descriptors: &[Descriptor]) -> io::Result<usize> {
        if !self.0.knows_write {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if self.state().files.get(&file.as_raw_fd()) != Some(&self.generation()) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let mut written = 0;
        for descriptor in descriptors {
            // SAFETY: passed on to the caller.
            match unsafe { self.write_one(descriptor) } {
                Ok(()) => written += size_of::<Descriptor>(),
                Err(errno) if written == 0 => return Err(io::Error::from_raw_os_error(errno)),
                Err(_) => break,
            }
        }
        Ok(written)
    }
}

impl FakePlatform {
    /// # Safety
    /// As [`Portal::submit`].
    unsafe fn write_one(&self, descriptor: &Descriptor) -> Result<(), i32> {
        match self.0.write_error.load(Ordering::SeqCst) {
            0 => {}
            errno => return Err(errno),
        }
        let is_batch = descriptor.operation_code() == Opcode::Batch as u8;
        let is_misaligned = descriptor.flags().contains(Flags::COMPLETION_ADDRESS_VALID)
            && !descriptor.completion_address().is_aligned_to(32);
        if is_misaligned || is_batch && !self.0.takes_batches {
            return Err(libc::EINVAL);
        }
        // SAFETY: passed on to the caller.
        match unsafe { self.0.device.submit(descriptor) } {
            Ok(Submission::Accepted) => Ok(()),
            _ if self.0.device.work_queue().mode == QueueMode::Dedicated => {
                self.0.lost.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
            _ => Err(libc::EAGAIN),
        }
    }
}

//! A fake of Linux and the CPU for portals: another portal, usually of an emulated device, gets all submissions.
//!
//! It is stricter than Linux and the CPU. An action that would end a process, or write to another process' memory, is
//! counted in [`violations`](FakePlatform::violations): ENQCMD of a descriptor that names its submitter, a store
//! outside the mapped pages of this process, unmapping a page of the parent.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::internals::instructions::CpuFeatures;
use memferry_dsa::internals::portal::{Platform, StateFiles};
use memferry_dsa::{Descriptor, Flags, Opcode, Portal, QueueMode, Submission};

/// Linux and a CPU, as portals see them, in front of another portal.
///
/// ```
/// use std::path::Path;
///
/// use memferry_dsa::{DevicePortal, OpenOptions};
/// use memferry_dsa_emulator::{DeviceConfig, Emulator, FakePlatform, FaultPlan};
///
/// let config = DeviceConfig::one_shared_queue();
/// let emulator = Emulator::start(&config, FaultPlan::none())?;
/// let platform = FakePlatform::new(emulator.uncounted_portal(0));
/// let queue = config.queues().next().unwrap().clone();
/// let open = || DevicePortal::open_on(platform.clone(), Path::new("/dev/dsa/wq0.0"), queue.clone(), OpenOptions::default());
/// assert!(open().is_ok());
///
/// platform.fail_open(libc::ENXIO);
/// assert!(open().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct FakePlatform(Arc<Inner>);

struct Inner {
    device: Arc<dyn Portal>,
    features: CpuFeatures,
    knows_write: bool,
    takes_batches: bool,
    state: Mutex<PlatformState>,
}

#[derive(Default)]
struct PlatformState {
    generation: u32,
    pages: Vec<Page>,
    files: HashMap<RawFd, u32>, // the generation that opened it
    states: StateFiles,
    open_error: i32, // 0: none
    map_error: i32,
    write_error: i32,
    slots_used: u64,
    lost: u64,
    violations: u64,
}

struct Page {
    bytes: Box<PageBytes>,
    generation: u32,
    is_mapped: bool,
}

#[repr(C, align(4096))]
struct PageBytes([u8; PAGE_BYTES as usize]);

impl FakePlatform {
    /// A platform with all instructions and system calls. `device` executes the descriptors; if its queue is dedicated,
    /// it should drop descriptors that it has no room for, as devices do
    /// ([`Emulator::uncounted_portal`](crate::Emulator::uncounted_portal)).
    pub fn new(device: Arc<dyn Portal>) -> FakePlatform {
        FakePlatform::with(device, CpuFeatures::ALL, true, true)
    }

    /// A platform with these instructions. Without `knows_write` it has no `write(2)`; without `takes_batches` its
    /// `write(2)` refuses batches, as for devices of version 1.0.
    pub fn with(
        device: Arc<dyn Portal>,
        features: CpuFeatures,
        knows_write: bool,
        takes_batches: bool,
    ) -> FakePlatform {
        let state = PlatformState { generation: 1, ..PlatformState::default() };
        FakePlatform(Arc::new(Inner {
            device,
            features,
            knows_write,
            takes_batches,
            state: Mutex::new(state),
        }))
    }

    /// Lets `open(2)` fail with this error from now on; 0 lets it succeed.
    pub fn fail_open(&self, errno: i32) {
        self.state().open_error = errno;
    }

    /// Lets `mmap(2)` fail with this error from now on; 0 lets it succeed.
    pub fn fail_map(&self, errno: i32) {
        self.state().map_error = errno;
    }

    /// Lets `write(2)` of descriptors fail with this error from now on; 0 lets it succeed.
    pub fn fail_write(&self, errno: i32) {
        self.state().write_error = errno;
    }

    /// Sets the attributes of queues that are opened from now on.
    ///
    /// # Safety
    /// The content of the files is true of the device: see [`StateFiles`].
    pub unsafe fn set_states(&self, states: StateFiles) {
        self.state().states = states;
    }

    /// Makes this process its own child: everything opened before belongs to the parent.
    pub fn fork(&self) {
        self.state().generation += 1;
    }

    /// Slots of the page that descriptors were written to: bit `n` for byte `64 n`.
    pub fn slots_used(&self) -> u64 {
        self.state().slots_used
    }

    /// Descriptors that the device dropped without telling the submitter.
    pub fn lost(&self) -> u64 {
        self.state().lost
    }

    /// Actions that would have ended a real process, or corrupted memory.
    pub fn violations(&self) -> u64 {
        self.state().violations
    }

    /// Mapped pages, of this process and its ancestors.
    pub fn pages_mapped(&self) -> usize {
        self.state().pages.iter().filter(|page| page.is_mapped).count()
    }

    fn state(&self) -> MutexGuard<'_, PlatformState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a descriptor to a slot of a page; false if the slot is invalid.
    fn store(&self, slot: NonNull<u8>, descriptor: &Descriptor) -> bool {
        let mut state = self.state();
        let generation = state.generation;
        let page = state.pages.iter_mut().find_map(|page| {
            let offset = slot.addr().get().wrapping_sub(page.bytes.0.as_ptr().addr());
            (offset < PAGE_BYTES as usize).then_some((page, offset))
        });
        match page {
            Some((page, offset))
                if page.is_mapped && page.generation == generation && offset.is_multiple_of(64) =>
            {
                page.bytes.0[offset..offset + 64].copy_from_slice(&descriptor.to_bytes());
                state.slots_used |= 1 << (offset / 64);
                true
            }
            _ => {
                state.violations += 1;
                false
            }
        }
    }
}

fn check(errno: i32) -> io::Result<()> {
    match errno {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

// SAFETY: pages are boxes of that size, which are kept; the instructions are emulated, and submit to a portal that
// keeps its contract.
unsafe impl Platform for FakePlatform {
    fn features(&self) -> CpuFeatures {
        self.0.features
    }

    fn watch_forks(&self) -> io::Result<()> {
        Ok(())
    }

    fn generation(&self) -> u32 {
        self.state().generation
    }

    fn open(&self, _: &Path) -> io::Result<File> {
        let mut state = self.state();
        check(state.open_error)?;
        let file = File::options().read(true).write(true).open("/dev/null")?;
        let generation = state.generation;
        state.files.insert(file.as_raw_fd(), generation);
        Ok(file)
    }

    fn states(&self, _: &File) -> StateFiles {
        let state = self.state();
        let copy = |file: &Option<File>| file.as_ref().and_then(|file| file.try_clone().ok());
        StateFiles { queue: copy(&state.states.queue), device: copy(&state.states.device) }
    }

    fn map(&self, _: &File) -> io::Result<NonNull<u8>> {
        let mut state = self.state();
        check(state.map_error)?;
        let mut bytes = Box::new(PageBytes([0; PAGE_BYTES as usize]));
        let page = NonNull::from(&mut bytes.0).cast();
        let generation = state.generation;
        state.pages.push(Page { bytes, generation, is_mapped: true });
        Ok(page)
    }

    unsafe fn unmap(&self, page: NonNull<u8>) {
        let mut state = self.state();
        let generation = state.generation;
        let found = state.pages.iter_mut().find(|known| known.bytes.0.as_ptr() == page.as_ptr());
        match found {
            Some(known) if known.is_mapped && known.generation == generation => known.is_mapped = false,
            _ => state.violations += 1,
        }
    }

    unsafe fn enqcmd(&self, slot: NonNull<u8>, descriptor: &Descriptor) -> bool {
        let has_submitter = descriptor.to_words()[0] as u32 != 0;
        if has_submitter || !self.0.features.enqcmd {
            self.state().violations += 1;
            return false;
        }
        if !self.store(slot, descriptor) || self.0.device.work_queue().mode == QueueMode::Dedicated {
            return false;
        }
        // SAFETY: the caller keeps the contract of `Portal::submit`.
        unsafe { self.0.device.submit(descriptor) == Ok(Submission::Accepted) }
    }

    unsafe fn movdir64b(&self, slot: NonNull<u8>, descriptor: &Descriptor) {
        if !self.0.features.movdir64b {
            self.state().violations += 1;
            return;
        }
        let is_taken = self.store(slot, descriptor)
            && self.0.device.work_queue().mode == QueueMode::Dedicated
            // SAFETY: the caller keeps the contract of `Portal::submit`.
            && unsafe { self.0.device.submit(descriptor) == Ok(Submission::Accepted) };
        if !is_taken {
            self.state().lost += 1;
        }
    }

    unsafe fn write(&self, file: BorrowedFd<'_>, descriptors: &[Descriptor]) -> io::Result<usize> {
        if !self.0.knows_write {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let opener = self.state().files.get(&file.as_raw_fd()).copied();
        if opener != Some(self.generation()) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let mut written = 0;
        for descriptor in descriptors {
            // SAFETY: the caller keeps the contract of `Portal::submit`.
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
        match self.state().write_error {
            0 => {}
            errno => return Err(errno),
        }
        let is_batch = descriptor.operation_code() == Opcode::Batch as u8;
        let is_misaligned = descriptor.flags().contains(Flags::COMPLETION_ADDRESS_VALID)
            && !descriptor.completion_address().is_aligned_to(32);
        if is_misaligned || is_batch && !self.0.takes_batches {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller keeps the contract of `Portal::submit`.
        match unsafe { self.0.device.submit(descriptor) } {
            Ok(Submission::Accepted) => Ok(()),
            _ if self.0.device.work_queue().mode == QueueMode::Dedicated => {
                self.state().lost += 1;
                Ok(())
            }
            _ => Err(libc::EAGAIN),
        }
    }
}

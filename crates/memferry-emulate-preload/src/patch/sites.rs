//! The call sites that were found. They are added under the lock of who patches, read by all, and never removed.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::trap::call::Call;
use crate::trap::safe;

/// Sites of a process. Those that come later keep their trap.
const SITES_MAX: usize = 1024;

pub(super) static SITES: [Site; SITES_MAX] = [const { Site::new() }; SITES_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A call site.
pub(super) struct Site {
    address: AtomicU64,
    stage: AtomicU32,
    trampoline: AtomicU64, // 0: none yet
    call: UnsafeCell<Option<Call>>,
}

// SAFETY: `call` is written once, by who has the lock, before the site is published by `COUNT`; then it is only read.
unsafe impl Sync for Site {}

/// What is at a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Stage {
    /// The instruction.
    Trapping = 0,
    /// The instruction, a breakpoint, or the jump.
    Patching = 1,
    /// The jump; or whatever has been put there since.
    Patched = 2,
}

impl Stage {
    pub(crate) fn is_being_patched(self) -> bool {
        self == Stage::Patching
    }

    /// Whether the jump is there.
    pub(crate) fn is_patched(self, address: u64) -> bool {
        let mut byte = [0];
        self == Stage::Patched && safe::read(address, &mut byte).is_ok() && byte == [0xe9]
    }
}

impl Site {
    const fn new() -> Site {
        Site {
            address: AtomicU64::new(0),
            stage: AtomicU32::new(Stage::Trapping as u32),
            trampoline: AtomicU64::new(0),
            call: UnsafeCell::new(None),
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.address.load(Ordering::Relaxed)
    }

    /// The instruction that was there first.
    #[inline]
    pub(super) fn call(&self) -> Option<Call> {
        // SAFETY: see `Sync`: whoever knows of the site came by `COUNT`, or from a trampoline that was made later.
        unsafe { *self.call.get() }
    }

    pub(super) fn trampoline(&self) -> u64 {
        self.trampoline.load(Ordering::Relaxed)
    }

    pub(super) fn set_trampoline(&self, place: u64) {
        self.trampoline.store(place, Ordering::Relaxed);
    }

    /// A breakpoint is seen after the stage that says so: a membarrier is between them.
    pub(super) fn set_stage(&self, stage: Stage) {
        self.stage.store(stage as u32, Ordering::SeqCst);
    }

    fn stage(&self) -> Stage {
        match self.stage.load(Ordering::SeqCst) {
            1 => Stage::Patching,
            2 => Stage::Patched,
            _ => Stage::Trapping,
        }
    }
}

/// The site at an address, and what is there.
pub(crate) fn site_at(address: u64) -> Option<(Call, Stage)> {
    let site = &SITES[find(address)?];
    Some((site.call()?, site.stage()))
}

/// The number of the site at an address. A search of all: it happens in traps only.
pub(super) fn find(address: u64) -> Option<usize> {
    // ORDERING: Acquire pairs with the Release in `add`.
    let count = COUNT.load(Ordering::Acquire);
    SITES[..count].iter().position(|site| site.address() == address)
}

/// Adds a site; the caller has the lock. `None`: there are too many.
pub(super) fn add(address: u64, call: &Call) -> Option<usize> {
    let number = COUNT.load(Ordering::Relaxed);
    let site = SITES.get(number)?;
    // SAFETY: nobody reads a site before it is counted, and the caller is the only one who adds.
    unsafe { *site.call.get() = Some(*call) };
    site.address.store(address, Ordering::Relaxed);
    COUNT.store(number + 1, Ordering::Release);
    Some(number)
}

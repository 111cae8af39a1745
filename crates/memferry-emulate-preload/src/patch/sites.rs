//! The table of call sites. A thread adds sites under `is_patching`; all threads read them; none is removed.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::trap::guarded;
use crate::trap::instruction::Instruction;

/// Most sites of a process. Later ones keep their trap.
const SITES_MAX: usize = 1024;

pub(super) static SITES: [Site; SITES_MAX] = [const { Site::new() }; SITES_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A call site.
///
/// The thread that holds `is_patching` writes all fields. Handlers and trampolines of all threads read them.
pub(super) struct Site {
    address: AtomicU64,
    stage: AtomicU32,
    trampoline: AtomicU64, // 0: none yet
    instruction: UnsafeCell<Option<Instruction>>,
}

// SAFETY: `instruction` is written once, under `is_patching`, before `COUNT` publishes the site; then it is only read.
unsafe impl Sync for Site {}

/// The code at a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Stage {
    /// The instruction.
    Trapping = 0,
    /// The instruction, a breakpoint, or the jump.
    Patching = 1,
    /// The jump; or code that the program has written there since.
    Patched = 2,
}

impl Stage {
    pub(crate) fn is_being_patched(self) -> bool {
        self == Stage::Patching
    }

    /// Whether the jump is at `address`, the address of the site.
    pub(crate) fn is_patched(self, address: u64) -> bool {
        let mut byte = [0];
        self == Stage::Patched && guarded::read(address, &mut byte).is_ok() && byte == [0xe9]
    }
}

impl Site {
    const fn new() -> Site {
        Site {
            address: AtomicU64::new(0),
            stage: AtomicU32::new(Stage::Trapping as u32),
            trampoline: AtomicU64::new(0),
            instruction: UnsafeCell::new(None),
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.address.load(Ordering::Relaxed)
    }

    /// The instruction that was there before the patch.
    #[inline]
    pub(super) fn instruction(&self) -> Option<Instruction> {
        // SAFETY: see `Sync`: a caller found the site through `COUNT`, or comes from a trampoline that was made later.
        unsafe { *self.instruction.get() }
    }

    pub(super) fn trampoline(&self) -> u64 {
        self.trampoline.load(Ordering::Relaxed)
    }

    pub(super) fn set_trampoline(&self, place: u64) {
        self.trampoline.store(place, Ordering::Relaxed);
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        // ORDERING: SeqCst pairs with the load in `stage`. `patch` stores `Patching` before the system call that writes
        // the breakpoint, so a thread that executes the breakpoint sees this stage or a later one.
        self.stage.store(stage as u32, Ordering::SeqCst);
    }

    fn stage(&self) -> Stage {
        // ORDERING: SeqCst pairs with the store in `set_stage`; handlers load it after they read or executed the code.
        match self.stage.load(Ordering::SeqCst) {
            1 => Stage::Patching,
            2 => Stage::Patched,
            _ => Stage::Trapping,
        }
    }
}

/// Returns the instruction of the site at an address, and its stage.
pub(crate) fn site_at(address: u64) -> Option<(Instruction, Stage)> {
    let site = &SITES[find(address)?];
    Some((site.instruction()?, site.stage()))
}

/// Returns the number of the site at an address. The search is linear; only traps need it.
pub(super) fn find(address: u64) -> Option<usize> {
    // ORDERING: Acquire pairs with the Release in `add`: the sites below the count are complete.
    let count = COUNT.load(Ordering::Acquire);
    SITES[..count].iter().position(|site| site.address() == address)
}

/// Adds a site; the caller holds `is_patching`. `None`: the table is full.
pub(super) fn add(address: u64, instruction: &Instruction) -> Option<usize> {
    let number = COUNT.load(Ordering::Relaxed);
    let site = SITES.get(number)?;
    // SAFETY: no thread reads a site before `COUNT` includes it, and only the caller adds sites.
    unsafe { *site.instruction.get() = Some(*instruction) };
    site.address.store(address, Ordering::Relaxed);
    // ORDERING: Release pairs with the Acquire in `find`: the site is complete.
    COUNT.store(number + 1, Ordering::Release);
    Some(number)
}

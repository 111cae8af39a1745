//! Facts about a queue that its submitters share. A fact that is set stays set.

use crate::flags::Flags;
use crate::sync::{AtomicU64, Ordering};

/// The queue gets no more work.
const LOST: u64 = 1 << 32;
/// Its device is gone: it accesses no memory any more.
const GONE: u64 = 1 << 33;
/// It takes no batches.
const REFUSES_BATCHES: u64 = 1 << 34;

/// One word, so that a submission reads one.
///
/// | bits | set by | read by |
/// |---|---|---|
/// | 31:0 hints that the device refused | the completion of a descriptor | submissions |
/// | 32 lost | a failed submission, a loss, 33 | submissions |
/// | 33 gone | an answer of the portal | waits, before they look at their record |
/// | 34 refuses batches | a failed submission, the completion of a batch | submissions |
pub(crate) struct Facts(AtomicU64);

impl Facts {
    pub(super) fn new() -> Facts {
        Facts(AtomicU64::new(0))
    }

    /// The queue gets no more work.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.get() & LOST != 0
    }

    /// The device is gone. Records that are read after this have their last content.
    #[inline]
    pub(crate) fn is_gone(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `set`: records are read after the portal has reported that the
        // device is gone.
        self.0.load(Ordering::Acquire) & GONE != 0
    }

    #[inline]
    pub(super) fn refuses_batches(&self) -> bool {
        self.get() & REFUSES_BATCHES != 0
    }

    /// Hints that the device has refused.
    #[inline]
    pub(super) fn refused_hints(&self) -> Flags {
        Flags::from_bits(self.get() as u32)
    }

    /// Marks the queue as lost: it gets no more work. Returns true on the first call.
    pub(super) fn lose(&self) -> bool {
        self.set(LOST) & LOST == 0
    }

    /// Marks the device as gone and the queue as lost. Returns true if the queue was not lost before.
    pub(super) fn lose_gone(&self) -> bool {
        self.set(LOST | GONE) & LOST == 0
    }

    pub(super) fn refuse_batches(&self) {
        self.set(REFUSES_BATCHES);
    }

    pub(super) fn refuse_hints(&self, hints: Flags) {
        self.set(hints.bits().into());
    }

    #[inline]
    fn get(&self) -> u64 {
        // ORDERING: Relaxed: a submission that misses a new fact learns it from the queue.
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, bits: u64) -> u64 {
        // ORDERING: Release pairs with the Acquire in `is_gone`.
        self.0.fetch_or(bits, Ordering::Release)
    }
}

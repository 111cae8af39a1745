//! Who reads what without holding it: hazard pointers.
//!
//! A thread that reads a slot under a guard has the slot's address in one of its hazards. Whoever wants to end a slot
//! takes it out of where it can be found, runs the heavy half of the fence, and looks at all hazards: an address that
//! is in none of them can never be read under a guard again.
//!
//! ```text
//! reader                                   taker, under the index's lock
//!   p = cell                                 cell = null
//!   hazard = p                               heavy()
//!   light()                                  p in some hazard? spare it, or keep it until the reader is done
//!   cell still p? then p may be read
//!   ...
//!   hazard = null                            wanted = true
//!   light()                                  heavy()
//!   wanted? tell the taker                   p still in the hazard? then its reader will see `wanted`
//! ```
//!
//! # Why hazards
//! What waits to be freed counts against a budget here. With epochs (crossbeam-epoch) one reader that stays in its
//! guard, over a scan say, keeps *everything* that leaves meanwhile, on every node; then nothing can leave, and
//! pressure on one node is felt on all. A hazard keeps exactly the slot that is read, and the taker knows at once: an
//! eviction passes it over as it does a counted handle, and what it does take is free when it returns. Nothing is
//! ever retired but what `invalidate`, `clear` and the end of a region take from under a reader, and that ends with
//! the reader's guard.
//!
//! The known price of hazards, a full fence in each read, is on the taker here ([`barrier`](super::barrier)). A
//! sequence lock would let readers see bytes while they are overwritten, and they hold slices.
//!
//! Source: M. Michael, "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", IEEE TPDS 15(6), 2004.

use std::ptr;

use super::barrier;
use crate::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use crate::sync::{Mutex, lock};

/// Guards that a thread may have at once before it falls back on counted handles: with the rest of a [`Record`], what
/// fills its two lines.
const HAZARDS_COUNT: usize = if cfg!(memferry_loom) { 1 } else { 7 };

/// All records of a process. They are used again by other threads, and never freed.
pub(super) struct Readers {
    records: Mutex<Vec<&'static Record>>,
    /// As a system would that forbids the call. std's, not loom's: it is part of no protocol.
    #[cfg(test)]
    pub(super) fails_fences: std::sync::atomic::AtomicBool,
}

/// The hazards of one thread. Two lines, since CPUs fetch lines in pairs.
#[cfg_attr(not(memferry_loom), repr(align(128)))]
pub(super) struct Record {
    hazards: [Hazard; HAZARDS_COUNT],
    /// Counts records from 0.
    index: usize,
    /// Written under the lock of [`Readers::records`].
    is_taken: AtomicBool,
}

/// One address that may not be freed.
///
/// `address` is set by the thread of the record, and only while it is null; it is cleared by the guard that was made
/// with it. Takers read it. `wanted` is reset by the record's thread before it sets `address`, and set by takers.
pub(super) struct Hazard {
    address: AtomicPtr<()>,
    wanted: AtomicBool,
}

impl Readers {
    #[cfg(not(memferry_loom))]
    pub(super) const fn new() -> Readers {
        Readers {
            records: Mutex::new(Vec::new()),
            #[cfg(test)]
            fails_fences: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Those of one model.
    #[cfg(memferry_loom)]
    pub(super) fn new() -> &'static Readers {
        Box::leak(Box::new(Readers {
            records: Mutex::new(Vec::new()),
            #[cfg(test)]
            fails_fences: std::sync::atomic::AtomicBool::new(false),
        }))
    }

    /// A record that is no other thread's.
    pub(super) fn claim(&self) -> &'static Record {
        let mut records = lock(&self.records);
        // ORDERING: Relaxed: the lock orders it.
        let free = records.iter().find(|record| !record.is_taken.load(Ordering::Relaxed));
        let record = free.copied().unwrap_or_else(|| {
            let hazard = || Hazard { address: AtomicPtr::default(), wanted: AtomicBool::new(false) };
            let hazards = std::array::from_fn(|_| hazard());
            let record = Record { hazards, index: records.len(), is_taken: AtomicBool::new(false) };
            let record: &'static Record = Box::leak(Box::new(record));
            records.push(record);
            record
        });
        record.is_taken.store(true, Ordering::Relaxed);
        record
    }

    /// Gives a record back. Its hazards may still be set, by guards that were forgotten or outlive the thread's end.
    #[cfg(not(memferry_loom))]
    fn release(&self, record: &'static Record) {
        let _records = lock(&self.records);
        record.is_taken.store(false, Ordering::Relaxed);
    }

    /// What may be read under guards now, and for addresses that can be found nowhere any more: what may be ever, if a
    /// [`fence`](Readers::fence) has happened since they could be found.
    pub(super) fn look(&self) -> Look {
        let records = lock(&self.records);
        let hazards = records.iter().flat_map(|record| &record.hazards);
        let hazards =
            hazards.map(|hazard| (hazard.address(), hazard)).filter(|(address, _)| !address.is_null());
        Look { hazards: hazards.collect(), is_blind: false }
    }

    /// The heavy half of the fence; false if it did not happen.
    #[must_use]
    pub(super) fn fence(&self) -> bool {
        #[cfg(test)]
        if self.fails_fences.load(std::sync::atomic::Ordering::SeqCst) {
            return false;
        }
        barrier::heavy()
    }

    /// Clears the hazards that have this address. The caller knows that no guard lives that has it.
    pub(super) fn abandon(&self, address: *mut ()) {
        for hazard in lock(&self.records).iter().flat_map(|record| &record.hazards) {
            // ORDERING: Relaxed: nothing is read through it. Only if it still has the address: its thread may have set
            // another one since.
            let cleared = ptr::null_mut();
            let _ = hazard.address.compare_exchange(address, cleared, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// All hazards at one moment.
pub(super) struct Look {
    hazards: Vec<(*mut (), &'static Hazard)>,
    /// A fence failed: everything may be read.
    is_blind: bool,
}

impl Look {
    /// Nothing is known.
    pub(super) fn blind() -> Look {
        Look { hazards: Vec::new(), is_blind: true }
    }

    pub(super) fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// Whether a guard may have this address.
    pub(super) fn sees(&self, address: *mut ()) -> bool {
        self.is_blind || self.holders(address).next().is_some()
    }

    /// As [`sees`](Look::sees). After the next fence such a guard says that it was waited for, unless it has
    /// ended by then: then this is [no longer seen](Look::still_sees).
    pub(super) fn ask_for(&self, address: *mut ()) -> bool {
        for hazard in self.holders(address) {
            // ORDERING: Relaxed: the fences on both sides order it.
            hazard.wanted.store(true, Ordering::Relaxed);
        }
        self.sees(address)
    }

    /// Whether one of the guards that were seen to have this address has it now.
    pub(super) fn still_sees(&self, address: *mut ()) -> bool {
        self.holders(address).any(|hazard| hazard.address() == address)
    }

    fn holders(&self, address: *mut ()) -> impl Iterator<Item = &Hazard> {
        self.hazards.iter().filter(move |(held, _)| *held == address).map(|(_, hazard)| *hazard)
    }
}

impl Record {
    /// Counts records from 0; no two threads have the same at a time.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// A hazard that no guard has, for the thread of this record.
    #[inline]
    pub(super) fn free(&self) -> Option<&Hazard> {
        // ORDERING: Relaxed: only this thread sets it.
        self.hazards.iter().find(|hazard| hazard.address.load(Ordering::Relaxed).is_null())
    }
}

impl Hazard {
    /// Announces that `address` is going to be read. Whether it may be, the caller then looks up once more.
    #[inline]
    pub(super) fn set(&self, address: *mut ()) {
        // ORDERING: Relaxed: takers set it for an address that they have seen here.
        self.wanted.store(false, Ordering::Relaxed);
        // ORDERING: Release pairs with the Acquire of `address`: who finds this address here and no longer the one
        // before may free the one before, so all reads of that must be over.
        self.address.store(address, Ordering::Release);
        barrier::light();
    }

    /// The guard ends; whether somebody waits for that.
    #[inline]
    #[must_use]
    pub(super) fn clear(&self) -> bool {
        // ORDERING: Release pairs with the Acquire of `address`: all reads under the guard come before.
        self.address.store(ptr::null_mut(), Ordering::Release);
        barrier::light();
        // ORDERING: Relaxed: the fences on both sides order it.
        self.wanted.load(Ordering::Relaxed)
    }

    fn address(&self) -> *mut () {
        // ORDERING: Acquire pairs with the Releases of `set` and `clear`.
        self.address.load(Ordering::Acquire)
    }
}

#[cfg(not(memferry_loom))]
pub(super) use process::{current, readers};

/// What a process has one of, and a thread.
#[cfg(not(memferry_loom))]
mod process {
    use std::cell::Cell;

    use super::{Readers, Record, barrier};

    static READERS: Readers = Readers::new();

    /// Those of this process. In a forked child the hazards of threads that it does not have stay as they were: what
    /// those threads read at the fork cannot leave the child's cache.
    pub(in crate::cache) fn readers() -> &'static Readers {
        barrier::prepare();
        &READERS
    }

    thread_local! {
        /// Without a destructor, so that reading it is one instruction.
        static CURRENT: Cell<Option<&'static Record>> = const { Cell::new(None) };
        /// Gives the record back when the thread ends.
        static CLAIM: Claim = Claim(READERS.claim());
    }

    struct Claim(&'static Record);

    impl Drop for Claim {
        fn drop(&mut self) {
            CURRENT.set(None);
            READERS.release(self.0);
        }
    }

    /// This thread's record; `None` in the last moments of a thread.
    #[inline]
    pub(in crate::cache) fn current() -> Option<&'static Record> {
        CURRENT.get().or_else(claim)
    }

    #[cold]
    fn claim() -> Option<&'static Record> {
        let record = CLAIM.try_with(|claim| claim.0).ok()?;
        CURRENT.set(Some(record));
        Some(record)
    }
}

/// Models have readers and records of their own; a whole cache takes the way of a thread without a record.
#[cfg(memferry_loom)]
pub(super) fn readers() -> &'static Readers {
    Readers::new()
}

#[cfg(memferry_loom)]
pub(super) fn current() -> Option<&'static Record> {
    None
}

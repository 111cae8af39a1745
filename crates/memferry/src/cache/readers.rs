//! Hazard pointers: reads of slots without lock and reference count.
//!
//! A thread that reads a slot under a guard has the slot's address in one of its hazards. A remover hides the slot from
//! the directory, runs the heavy half of the fence, and checks all hazards: no guard can ever read an address that is in
//! none of them.
//!
//! ```text
//! reader                                   remover, under the index's lock
//!   p = cell                                 cell = null
//!   hazard = p                               heavy()
//!   light()                                  p in a hazard? spare it, or keep it until the reader is done
//!   cell still p? then p may be read
//!   ...
//!   hazard = null                            wanted = true
//!   light()                                  heavy()
//!   wanted? reclaim                          p still in the hazard? then its reader will see `wanted`
//! ```
//!
//! # Why hazards
//! Memory that waits for reclamation counts against a budget here. With epochs (crossbeam-epoch), one reader that stays in
//! its guard, for example over a scan, keeps *everything* that is removed interim, on every node. Then no eviction
//! frees memory, and pressure on one node affects all. A hazard keeps only the slot that is read, and the remover knows
//! it at once: an eviction skips the slot, like one with a counted handle, and an evicted slot is free on return. Slots
//! are retired only if `invalidate`, `clear` or the end of a region removes them during a read, and only until the end of
//! the reader's guard.
//!
//! The known price of hazards, a full fence per read, is on the remover here ([`barrier`](super::barrier)). A sequence
//! lock would let readers see bytes while they are overwritten, and readers hold slices.
//!
//! Source: M. Michael, "Hazard Pointers: Safe Memory Reclamation for Lock-Free Objects", IEEE TPDS 15(6), 2004.

use std::ptr;

use memferry_dsa::internals::fork::{self, PerProcess};

use super::barrier;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};

/// Guards per thread; a thread with more uses counted handles. With the rest of a [`Record`] they fill its two cache lines.
const HAZARDS_COUNT: usize = if cfg!(memferry_loom) { 1 } else { 7 };

/// The records of each process. A forked child starts with none: inherited ones belong to threads that it does not have,
/// and to slots that it never removes.
pub(super) struct Readers {
    records: PerProcess<Mutex<Records>>,
    /// Makes fences fail, like a system that forbids the call. An atomic of std, because it is outside the protocol.
    #[cfg(test)]
    pub(super) fails_fences: std::sync::atomic::AtomicBool,
}

/// The records of one process; never freed. There are none if the kernel does not wipe them on forks.
#[derive(Default)]
struct Records {
    /// Records of running threads, and records whose thread ended with guards: those that a remover checks.
    claimed: Vec<&'static Record>,
    /// Records for later threads. Their hazards are null.
    free: Vec<&'static Record>,
}

/// The hazards of one thread, in two cache lines, because CPUs fetch lines in pairs.
///
/// The kernel zeroes it in a forked child: there it belongs to no process, even if the child's only thread has it.
#[cfg_attr(not(memferry_loom), repr(align(128)))]
pub(super) struct Record {
    hazards: [Hazard; HAZARDS_COUNT],
    /// Number of the record, from 0. Written before a thread claims it.
    index: AtomicU32,
    /// The process that made it. Only a fork changes it.
    generation: AtomicU32,
    /// Place in [`Records::claimed`]. Read and written under the lock of [`Readers::records`].
    place: AtomicU32,
}

#[cfg(not(memferry_loom))]
const _: () = assert!(size_of::<Record>() == 128);

/// One address that must not be freed.
///
/// The thread of the record sets `address`, only while it is null; the guard that was made with it clears it. Removers
/// read it. Removers set `wanted`; the record's thread resets it when it has seen it, before it sets the next `address`.
/// A late remover sets it for a guard that has ended: then a later guard reclaims in vain.
pub(super) struct Hazard {
    address: AtomicPtr<()>,
    wanted: AtomicBool,
}

impl Readers {
    #[cfg(not(memferry_loom))]
    pub(super) const fn new() -> Readers {
        Readers {
            records: PerProcess::new(),
            #[cfg(test)]
            fails_fences: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// The readers of one model.
    #[cfg(memferry_loom)]
    pub(super) fn new() -> &'static Readers {
        Box::leak(Box::new(Readers {
            records: PerProcess::new(),
            #[cfg(test)]
            fails_fences: std::sync::atomic::AtomicBool::new(false),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        lock(self.records.get_or_init(Mutex::default))
    }

    /// Claims a record for the calling thread; `None` if there are none.
    pub(super) fn claim(&self) -> Option<&'static Record> {
        let mut records = self.lock();
        if records.free.is_empty() {
            let (made, count) = (Record::make(), records.claimed.len());
            for (record, index) in made.iter().zip(count..) {
                // ORDERING: Relaxed, here and below: the lock orders it. Linux has ids for 2^22 threads.
                record.index.store(index as u32, Ordering::Relaxed);
            }
            records.free.extend(made.iter().rev());
        }
        let record = records.free.pop()?;
        record.place.store(records.claimed.len() as u32, Ordering::Relaxed);
        records.claimed.push(record);
        Some(record)
    }

    /// Gives back the record of a thread that ends.
    ///
    /// Returns false while the thread has guards, which may outlive its other state. Then the end of each guard returns
    /// that it is wanted; call this again at those ends. Only the thread of the record calls it, and sets no hazard of the
    /// record afterwards.
    pub(super) fn give_back(&self, record: &'static Record) -> bool {
        if record.generation() != fork::generation() {
            // It belongs to another process.
            return true;
        }
        // ORDERING: Relaxed, all of it: guards end on this thread.
        let mut set =
            record.hazards.iter().filter(|hazard| !hazard.address.load(Ordering::Relaxed).is_null());
        if set.by_ref().map(|hazard| hazard.wanted.store(true, Ordering::Relaxed)).count() > 0 {
            return false;
        }
        let mut records = self.lock();
        let place = record.place.load(Ordering::Relaxed);
        records.claimed.swap_remove(place as usize);
        if let Some(moved) = records.claimed.get(place as usize) {
            moved.place.store(place, Ordering::Relaxed);
        }
        records.free.push(record);
        true
    }

    /// Number of records that a remover checks.
    #[cfg(all(test, not(memferry_loom)))]
    fn taken_count(&self) -> usize {
        self.lock().claimed.len()
    }

    /// Whether a remover checks this record.
    #[cfg(all(test, not(memferry_loom)))]
    fn is_taken(&self, record: &Record) -> bool {
        self.lock().claimed.iter().any(|claimed| ptr::eq(*claimed, record))
    }

    /// A snapshot of all hazards: addresses that guards may read now.
    ///
    /// A hidden address that is not in the snapshot can never be read again, if a [`fence`](Readers::fence) has run since
    /// it was hidden.
    pub(super) fn snapshot(&self) -> HazardSnapshot {
        let records = self.lock();
        let hazards = records.claimed.iter().flat_map(|record| &record.hazards);
        let hazards =
            hazards.map(|hazard| (hazard.address(), hazard)).filter(|(address, _)| !address.is_null());
        HazardSnapshot { hazards: hazards.collect(), is_blind: false }
    }

    /// The heavy half of the fence; false if it failed.
    #[must_use]
    pub(super) fn fence(&self) -> bool {
        #[cfg(test)]
        if self.fails_fences.load(std::sync::atomic::Ordering::SeqCst) {
            return false;
        }
        barrier::heavy()
    }

    /// Clears the hazards that have this address. The caller ensures that no guard with it is in use.
    pub(super) fn abandon(&self, address: *mut ()) {
        for hazard in self.lock().claimed.iter().flat_map(|record| &record.hazards) {
            // ORDERING: Relaxed: nothing is read through it. Exchanged only if it still has the address: its thread may
            // have set another one since.
            let cleared = ptr::null_mut();
            let _ = hazard.address.compare_exchange(address, cleared, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// All hazards at one moment.
pub(super) struct HazardSnapshot {
    hazards: Vec<(*mut (), &'static Hazard)>,
    /// A fence failed: any address may be read.
    is_blind: bool,
}

impl HazardSnapshot {
    /// A snapshot that protects all addresses.
    pub(super) fn blind() -> HazardSnapshot {
        HazardSnapshot { hazards: Vec::new(), is_blind: true }
    }

    pub(super) fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// Whether a guard may have this address.
    pub(super) fn protects(&self, address: *mut ()) -> bool {
        self.is_blind || self.holders(address).next().is_some()
    }

    /// Marks the hazards with this address as wanted. Returns whether a guard may have it.
    ///
    /// After the next fence such a guard reclaims at its end, unless it has ended before: then the address is
    /// [no longer protected](HazardSnapshot::still_protects).
    pub(super) fn want(&self, address: *mut ()) -> bool {
        for hazard in self.holders(address) {
            // ORDERING: Relaxed: the fences on both sides order it before the load in `clear`.
            hazard.wanted.store(true, Ordering::Relaxed);
        }
        self.protects(address)
    }

    /// Whether one of the hazards that had this address has it now.
    pub(super) fn still_protects(&self, address: *mut ()) -> bool {
        self.holders(address).any(|hazard| hazard.address() == address)
    }

    fn holders(&self, address: *mut ()) -> impl Iterator<Item = &Hazard> {
        self.hazards.iter().filter(move |(held, _)| *held == address).map(|(_, hazard)| *hazard)
    }
}

impl Record {
    fn new() -> Record {
        let hazard = || Hazard { address: AtomicPtr::default(), wanted: AtomicBool::new(false) };
        Record {
            hazards: std::array::from_fn(|_| hazard()),
            index: AtomicU32::new(0),
            generation: AtomicU32::new(fork::generation()),
            place: AtomicU32::new(0),
        }
    }

    /// Makes unclaimed records.
    #[cfg(not(memferry_loom))]
    #[allow(unsafe_code)]
    fn make() -> &'static [Record] {
        // SAFETY: all of it is atomics, for which zeros are valid.
        unsafe { fork::leak_fork_local(Record::new) }.unwrap_or_default()
    }

    /// Makes a record of one model, in which nothing forks.
    #[cfg(memferry_loom)]
    fn make() -> &'static [Record] {
        Box::leak(Box::new([Record::new()]))
    }

    /// Number of the record, from 0; unique among the threads of a process at any time.
    #[inline]
    pub(super) fn index(&self) -> usize {
        // ORDERING: Relaxed: written under the lock before this thread claimed the record.
        self.index.load(Ordering::Relaxed) as usize
    }

    /// The [process](fork::generation) that made it; 0 in another process.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        // ORDERING: Relaxed: constant within a process.
        self.generation.load(Ordering::Relaxed)
    }

    /// A hazard without guard, for the thread of this record.
    #[inline]
    pub(super) fn free(&self) -> Option<&Hazard> {
        // ORDERING: Relaxed: only this thread sets it.
        self.hazards.iter().find(|hazard| hazard.address.load(Ordering::Relaxed).is_null())
    }
}

impl Hazard {
    /// Announces a read of `address`. The caller then checks again whether it may read.
    #[inline]
    pub(super) fn set(&self, address: *mut ()) {
        // ORDERING: Release pairs with the Acquire of `address`: a remover that finds this address in place of the former
        // one may free the former one, so all reads of that come before.
        self.address.store(address, Ordering::Release);
        barrier::light();
    }

    /// Ends the guard. Returns whether a remover wants the slot.
    #[inline]
    #[must_use]
    pub(super) fn clear(&self) -> bool {
        // ORDERING: Release pairs with the Acquire of `address`: all reads under the guard come before.
        self.address.store(ptr::null_mut(), Ordering::Release);
        barrier::light();
        // ORDERING: Relaxed: the fences on both sides order it. A remover sets it again for a later address, which is set
        // after the reset.
        let is_wanted = self.wanted.load(Ordering::Relaxed);
        if is_wanted {
            self.wanted.store(false, Ordering::Relaxed);
        }
        is_wanted
    }

    fn address(&self) -> *mut () {
        // ORDERING: Acquire pairs with the Releases of `set` and `clear`: reads under the former address are over.
        self.address.load(Ordering::Acquire)
    }
}

#[cfg(not(memferry_loom))]
pub(super) use process::{current, known, readers, wanted_guard_ended};

/// The readers of the process, and the record of the thread.
#[cfg(not(memferry_loom))]
mod process {
    use std::cell::Cell;

    use memferry_dsa::internals::fork;

    use super::{Readers, Record, barrier};

    static READERS: Readers = Readers::new();

    /// The readers of this process.
    pub(in crate::cache) fn readers() -> &'static Readers {
        barrier::prepare();
        &READERS
    }

    thread_local! {
        /// The record of the thread; without a destructor, so that reading it is one instruction.
        static CURRENT: Cell<Option<&'static Record>> = const { Cell::new(None) };
        /// Gives the record back at the end of the thread.
        static CLAIM: Claim = Claim(Cell::new(READERS.claim()));
        /// A record that could not be given back, because other thread-locals hold views.
        static LEFT: Cell<Option<&'static Record>> = const { Cell::new(None) };
    }

    struct Claim(Cell<Option<&'static Record>>);

    impl Drop for Claim {
        fn drop(&mut self) {
            CURRENT.set(None);
            if let Some(record) = self.0.get() {
                give_back(record);
            }
        }
    }

    fn give_back(record: &'static Record) {
        LEFT.set((!READERS.give_back(record)).then_some(record));
    }

    /// Called at the end of a guard that is wanted: retries to give the record back.
    pub(in crate::cache) fn wanted_guard_ended() {
        if let Some(record) = LEFT.take() {
            give_back(record);
        }
    }

    /// The record that this thread has claimed. In a forked child it may be inherited, and then belongs to no process.
    #[inline(always)]
    pub(in crate::cache) fn known() -> Option<&'static Record> {
        CURRENT.get()
    }

    /// The record of this thread, claimed on first use; `None` at the end of a thread, or if there are no records.
    #[inline]
    pub(in crate::cache) fn current() -> Option<&'static Record> {
        known().filter(|record| record.generation() == fork::generation()).or_else(claim)
    }

    #[cold]
    fn claim() -> Option<&'static Record> {
        let renewed = |claim: &Claim| {
            // A claim without record stays so: the system refused to make one.
            if claim.0.get().is_some_and(|record| record.generation() != fork::generation()) {
                claim.0.set(READERS.claim());
            }
            claim.0.get()
        };
        let record = CLAIM.try_with(renewed).ok()??;
        CURRENT.set(Some(record));
        Some(record)
    }
}

/// Models make their own readers and records; a whole cache runs as on threads without records.
#[cfg(memferry_loom)]
pub(super) fn readers() -> &'static Readers {
    Readers::new()
}

#[cfg(memferry_loom)]
pub(super) fn current() -> Option<&'static Record> {
    None
}

#[cfg(memferry_loom)]
pub(super) fn known() -> Option<&'static Record> {
    None
}

#[cfg(memferry_loom)]
pub(super) fn wanted_guard_ended() {}

#[cfg(all(test, not(memferry_loom)))]
mod tests;

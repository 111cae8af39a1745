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

use memferry_dsa::fork::{self, PerProcess};

use super::barrier;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};

/// Guards that a thread may have at once before it falls back on counted handles: with the rest of a [`Record`], what
/// fills its two lines.
const HAZARDS_COUNT: usize = if cfg!(memferry_loom) { 1 } else { 7 };

/// The records of each process. A forked child begins with none: those that it inherits are of threads that it does not
/// have, and of slots that nobody there takes.
pub(super) struct Readers {
    records: PerProcess<Mutex<Records>>,
    /// As a system would that forbids the call. std's, not loom's: it is part of no protocol.
    #[cfg(test)]
    pub(super) fails_fences: std::sync::atomic::AtomicBool,
}

/// The records of one process, which are never freed. There are none where the kernel does not wipe them on forks.
#[derive(Default)]
struct Records {
    /// Those of threads that run, and those with guards that their thread left behind: all that a taker looks at.
    taken: Vec<&'static Record>,
    /// For threads to come. Their hazards are null.
    free: Vec<&'static Record>,
}

/// The hazards of one thread. Two lines, since CPUs fetch lines in pairs. In a forked child, whose only thread may have it,
/// it is zero, as of no process.
#[cfg_attr(not(memferry_loom), repr(align(128)))]
pub(super) struct Record {
    hazards: [Hazard; HAZARDS_COUNT],
    /// Counts records from 0. Written before it is any thread's.
    index: AtomicU32,
    /// The process that made it. Not written again but by a fork.
    generation: AtomicU32,
    /// In [`Records::taken`]. Read and written under the lock of [`Readers::records`].
    place: AtomicU32,
}

#[cfg(not(memferry_loom))]
const _: () = assert!(size_of::<Record>() == 128);

/// One address that may not be freed.
///
/// `address` is set by the thread of the record, and only while it is null; it is cleared by the guard that was made
/// with it. Takers read it. `wanted` is set by takers, and reset by the record's thread when it has seen it, so before it sets
/// the next `address`. A taker that is late sets it for a guard that has ended: then a later one tells in vain.
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

    /// Those of one model.
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

    /// A record that is no other thread's; `None` where there are none.
    pub(super) fn claim(&self) -> Option<&'static Record> {
        let mut records = self.lock();
        if records.free.is_empty() {
            let (made, count) = (Record::make(), records.taken.len());
            for (record, index) in made.iter().zip(count..) {
                // ORDERING: Relaxed, here and below: the lock orders it. Linux has numbers for 2^22 threads.
                record.index.store(index as u32, Ordering::Relaxed);
            }
            records.free.extend(made.iter().rev());
        }
        let record = records.free.pop()?;
        record.place.store(records.taken.len() as u32, Ordering::Relaxed);
        records.taken.push(record);
        Some(record)
    }

    /// The thread of a record ends, and gives it back; but not as long as it has guards, which may outlive other state of
    /// the thread: then `false`, and the end of each guard says that it is waited for. Call it again at those ends.
    ///
    /// Only the thread of the record may call it. It sets no hazard of the record any more.
    pub(super) fn give_back(&self, record: &'static Record) -> bool {
        if record.generation() != fork::generation() {
            // It is nobody's in this process.
            return true;
        }
        // ORDERING: Relaxed, all of it: guards end on the thread that this is.
        let mut set =
            record.hazards.iter().filter(|hazard| !hazard.address.load(Ordering::Relaxed).is_null());
        if set.by_ref().map(|hazard| hazard.wanted.store(true, Ordering::Relaxed)).count() > 0 {
            return false;
        }
        let mut records = self.lock();
        let place = record.place.load(Ordering::Relaxed);
        records.taken.swap_remove(place as usize);
        if let Some(moved) = records.taken.get(place as usize) {
            moved.place.store(place, Ordering::Relaxed);
        }
        records.free.push(record);
        true
    }

    /// How many records a taker looks at.
    #[cfg(all(test, not(memferry_loom)))]
    fn taken_count(&self) -> usize {
        self.lock().taken.len()
    }

    /// Whether a taker looks at this one.
    #[cfg(all(test, not(memferry_loom)))]
    fn is_taken(&self, record: &Record) -> bool {
        self.lock().taken.iter().any(|taken| ptr::eq(*taken, record))
    }

    /// What may be read under guards now, and for addresses that can be found nowhere any more: what may be ever, if a
    /// [`fence`](Readers::fence) has happened since they could be found.
    pub(super) fn look(&self) -> Look {
        let records = self.lock();
        let hazards = records.taken.iter().flat_map(|record| &record.hazards);
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
        for hazard in self.lock().taken.iter().flat_map(|record| &record.hazards) {
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
    fn new() -> Record {
        let hazard = || Hazard { address: AtomicPtr::default(), wanted: AtomicBool::new(false) };
        Record {
            hazards: std::array::from_fn(|_| hazard()),
            index: AtomicU32::new(0),
            generation: AtomicU32::new(fork::generation()),
            place: AtomicU32::new(0),
        }
    }

    /// Some that nobody has.
    #[cfg(not(memferry_loom))]
    #[allow(unsafe_code)]
    fn make() -> &'static [Record] {
        // SAFETY: all of it is atomics, for which zeros are valid.
        unsafe { fork::leak_fork_local(Record::new) }.unwrap_or_default()
    }

    /// The same, of one model, in which nothing forks.
    #[cfg(memferry_loom)]
    fn make() -> &'static [Record] {
        Box::leak(Box::new([Record::new()]))
    }

    /// Counts records from 0; no two threads have the same at a time.
    pub(super) fn index(&self) -> usize {
        self.index.load(Ordering::Relaxed) as usize
    }

    /// The [process](fork::generation) that made it; 0 in others.
    #[inline]
    pub(super) fn generation(&self) -> u32 {
        // ORDERING: Relaxed: other processes write it, if anybody.
        self.generation.load(Ordering::Relaxed)
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
        // ORDERING: Relaxed: the fences on both sides order it. A taker sets it again for an address that it has seen
        // here, which is set after the reset.
        let is_wanted = self.wanted.load(Ordering::Relaxed);
        if is_wanted {
            self.wanted.store(false, Ordering::Relaxed);
        }
        is_wanted
    }

    fn address(&self) -> *mut () {
        // ORDERING: Acquire pairs with the Releases of `set` and `clear`.
        self.address.load(Ordering::Acquire)
    }
}

#[cfg(not(memferry_loom))]
pub(super) use process::{current, guard_was_awaited, known, readers};

/// What a process has one of, and a thread.
#[cfg(not(memferry_loom))]
mod process {
    use std::cell::Cell;

    use memferry_dsa::fork;

    use super::{Readers, Record, barrier};

    static READERS: Readers = Readers::new();

    /// Those of this process.
    pub(in crate::cache) fn readers() -> &'static Readers {
        barrier::prepare();
        &READERS
    }

    thread_local! {
        /// Without a destructor, so that reading it is one instruction.
        static CURRENT: Cell<Option<&'static Record>> = const { Cell::new(None) };
        /// Gives the record back when the thread ends.
        static CLAIM: Claim = Claim(Cell::new(READERS.claim()));
        /// What the thread could not give back, because guards were left: views in other thread-locals.
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

    /// A guard of this thread has ended, and somebody waited for that.
    pub(in crate::cache) fn guard_was_awaited() {
        if let Some(record) = LEFT.take() {
            give_back(record);
        }
    }

    /// The record that this thread has claimed. In a forked child it may be that of a thread of the parent, which is of no
    /// process there.
    #[inline(always)]
    pub(in crate::cache) fn known() -> Option<&'static Record> {
        CURRENT.get()
    }

    /// This thread's record; `None` in the last moments of a thread, and where there are none.
    #[inline]
    pub(in crate::cache) fn current() -> Option<&'static Record> {
        known().filter(|record| record.generation() == fork::generation()).or_else(claim)
    }

    #[cold]
    fn claim() -> Option<&'static Record> {
        let renewed = |claim: &Claim| {
            // Without a record it stays: the system has refused one.
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

/// Models have readers and records of their own; a whole cache takes the way of a thread without a record.
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
pub(super) fn guard_was_awaited() {}

#[cfg(all(test, not(memferry_loom)))]
mod tests;

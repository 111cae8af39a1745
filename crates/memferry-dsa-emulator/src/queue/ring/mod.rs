//! The order of one work queue: a bounded ring of many submitters, in one process or in several.
//!
//! ```text
//! push:  take the slot at tail (its mark names the client), tail += 1, put the words into the client's memory, mark ready
//!        a submitter that finds the slot at tail taken moves the tail for the other one
//!        (`head` is loaded only if its cached copy says that the ring is full: its cache line is the device's)
//! pop:   if the slot at head is ready and one's own: take the words from the client's memory, head += 1
//! skip:  if the slot at head belongs to a dead client, or has no entry: head += 1
//! close: set a bit of the tail and seal the slot there, so that no later push succeeds
//! ```
//!
//! The ring holds only the order; the words are in memory of their submitter ([`Entries`]). A hostile client can write
//! the ring, so no value in it is trusted: with any content, no function panics, loops forever, or returns a descriptor
//! that its client has not submitted. A ring with inconsistent content stands still until the server repairs it
//! ([`Ring::repair`]).
//!
//! An entry belongs to a client from the moment at which it takes part in the order. A client that dies anywhere in
//! `push` therefore leaves only entries that others can attribute and remove. Only the owner of the entry at the head
//! moves the head, so there is one consumer at any time. A process that uses a device alone is its only client.
//!
//! The words are atomics, so that this needs no `unsafe`; on x86 they cost what plain moves cost.
//!
//! Source: Dmitry Vyukov's bounded MPMC queue, with an exact limit because there is one consumer at a time. Helping a
//! submitter that is stuck is from Michael and Scott's queue (PODC 1996).

mod entries;
#[cfg(all(test, memferry_loom))]
mod loom_tests;
mod mark;
mod repair;
#[cfg(all(test, not(memferry_loom)))]
mod tests;

pub(crate) use entries::{Entries, PoppedEntry};
pub(crate) use repair::RingSnapshot;

use self::mark::{Mark, POSITION, Stage, distance, next};
use crate::sync::{AtomicU64, Ordering};

/// The bit of the tail that marks the ring as closed.
const CLOSED: u64 = 1 << 63;

/// Slots of a ring. There are more than the entries of a device, so that the slot at the tail is always free.
pub(crate) const SLOTS: usize = if cfg!(memferry_loom) { 2 } else { 256 };

/// The distance between the slots of adjacent positions, in slots: a page and a slot. The prefetcher of the device's
/// core would otherwise take the cache lines of the next slots from the submitter.
const STRIDE: usize = 33;

/// Attempts of a push or a close before it gives up. Each failed attempt is another submitter's success, unless a
/// hostile client has written the ring.
const TRIES_MAX: usize = if cfg!(memferry_loom) { 8 } else { 1 << 14 };

/// The number of a client, 12 bits.
pub(crate) type ClientId = u16;

/// The client of a device that one process uses alone.
pub(crate) const ONLY: ClientId = 1;

/// The reason why [`Ring::push`] refuses an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PushError {
    Full,
    Closed,
}

/// A ring, possibly in memory that several processes share. A zeroed ring is empty and open.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `tail` | submitters; the server: `close`, `open` | all |
/// | `head_seen` | submitters: a cached copy of `head` | submitters |
/// | `head` | the owner of the entry there; any client if the owner is dead; the server: `repair`, `discard` | all |
/// | `mark` of a slot | the submitter that takes it; the server: `close`, `open`, `repair` | all |
/// | `stamp` of a slot | the submitter that took it | devices, after the mark |
#[repr(C)]
pub(crate) struct Ring {
    submitters: CacheLine<Submitters>,
    head: CacheLine<AtomicU64>, // 49:0 positions popped or skipped since the start
    slots: [CacheLine<Slot>; SLOTS],
}

#[repr(C)]
struct Submitters {
    tail: AtomicU64, // 63 closed, 49:0 positions taken since the start
    head_seen: AtomicU64,
}

/// A value on cache lines of its own. 128: adjacent lines are prefetched in pairs.
#[derive(Default)]
#[repr(C, align(128))]
pub(crate) struct CacheLine<T>(pub(crate) T);

/// Mark and stamp of an entry. An idle device polls the mark and would take the cache line from the submitter at each
/// of its stores, so the words are elsewhere.
#[repr(C)]
struct Slot {
    mark: AtomicU64, // a Mark
    stamp: AtomicU64,
}

#[cfg(not(memferry_loom))]
const _: () = assert!((STRIDE - 1) * size_of::<CacheLine<Slot>>() == 4096);

/// The metadata of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    /// The time at which the entry is in the queue, on the device's clock.
    pub(crate) ns: u64,
    /// The encoded submitter, for the trace only.
    pub(crate) by: u64,
}

impl From<u64> for Stamp {
    fn from(ns: u64) -> Stamp {
        Stamp { ns, by: 0 }
    }
}

/// The oldest entry of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    pub(crate) client: ClientId,
    /// Whether its words are complete.
    pub(crate) is_ready: bool,
    /// The stamp's time, once it is ready.
    pub(crate) stamp: u64,
    position: u64,
}

/// The result of a push whose mark has changed: the server has revoked a slow push, or a hostile client has overwritten
/// the mark. If the seal is gone as well, a device has executed the entry.
#[cold]
fn revoked(own: &Entries, position: u64) -> Result<(), PushError> {
    if own.take(position).is_some() { Err(PushError::Full) } else { Ok(()) }
}

/// Entries between head and tail; 0 if the head is newer than the tail.
fn entries(head: u64, tail: u64) -> u64 {
    match distance(head, tail) {
        count if count <= POSITION / 2 => count,
        _ => 0,
    }
}

/// The number of a position's slot.
fn slot_of(position: u64) -> usize {
    position as usize * STRIDE % SLOTS
}

impl Head {
    /// Whether `client` can pop it.
    pub(crate) fn is_ready_for(&self, client: ClientId) -> bool {
        self.is_ready && self.client == client
    }
}

impl Ring {
    pub(crate) fn new() -> Ring {
        let slot = || Slot { mark: AtomicU64::new(0), stamp: AtomicU64::new(0) };
        Ring {
            submitters: CacheLine(Submitters { tail: AtomicU64::new(0), head_seen: AtomicU64::new(0) }),
            head: CacheLine(AtomicU64::new(0)),
            slots: std::array::from_fn(|_| CacheLine(slot())),
        }
    }

    /// Pushes an entry of 64 bytes and a stamp if fewer than `limit` entries are in the ring. The bytes go to `own`,
    /// the client's entries; `limit` is less than `SLOTS`.
    ///
    /// A SeqCst load after it sees a sleeping device, or the device, which checks the ring after a SeqCst fence, sees
    /// the entry.
    #[inline]
    pub(crate) fn push(
        &self,
        own: &Entries,
        client: ClientId,
        words: &[u64; 8],
        stamp: impl Into<Stamp>,
        limit: u32,
    ) -> Result<(), PushError> {
        let position = self.take_slot(client, limit)?;
        self.put(own, position, client, words, stamp.into())
    }

    /// The rest of a push: stores the entry for the slot that was taken.
    #[inline]
    fn put(
        &self,
        own: &Entries,
        position: u64,
        client: ClientId,
        words: &[u64; 8],
        stamp: Stamp,
    ) -> Result<(), PushError> {
        if !own.put(position, words, &stamp) {
            return self.abandon_slot(position, client);
        }
        self.publish(own, position, client, stamp.ns)
    }

    /// The last step of a push: the entry in `own` becomes ready.
    #[inline]
    fn publish(&self, own: &Entries, position: u64, client: ClientId, ns: u64) -> Result<(), PushError> {
        let slot = self.slot(position);
        slot.stamp.store(ns, Ordering::Relaxed);
        let [taken, ready] = [Stage::Taken, Stage::Ready].map(|stage| Mark::new(position, client, stage).0);
        // ORDERING: the Release half of SeqCst pairs with the Acquire of `mark` in `head`: a device that sees the mark
        // sees the words and all earlier writes of the submitter. SeqCst pairs with the fences before a device sleeps
        // (`announce` in shared/futex.rs, `sleep` in runner/threaded.rs): the submitter next loads whether it sleeps. A
        // store and a fence would cost several times as much as this read-modify-write.
        match slot.mark.compare_exchange(taken, ready, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => revoked(own, position),
        }
    }

    /// Gives the slot to client 0, whose entries everyone skips. The slot's former entry is still in `own`: its
    /// submitter was delayed in the middle of a push and does not know yet that the entry was revoked, or the head has
    /// passed it.
    #[cold]
    fn abandon_slot(&self, position: u64, client: ClientId) -> Result<(), PushError> {
        let [taken, abandoned] = [client, 0].map(|client| Mark::new(position, client, Stage::Taken).0);
        // Fails if this is the delayed submitter: the slot belongs to another one by now.
        let mark = &self.slot(position).mark;
        let _ = mark.compare_exchange(taken, abandoned, Ordering::Relaxed, Ordering::Relaxed);
        Err(PushError::Full)
    }

    /// Takes the slot at the tail and returns its position.
    #[inline]
    fn take_slot(&self, client: ClientId, limit: u32) -> Result<u64, PushError> {
        let Submitters { tail: shared_tail, head_seen } = &self.submitters.0;
        // ORDERING: Acquire pairs with the Release of `tail` in `open`: the slot there is not sealed any more.
        let mut tail = shared_tail.load(Ordering::Acquire);
        // ORDERING: Acquire pairs with the Release of `head_seen` below: the slot's former words have been read.
        let mut head = head_seen.load(Ordering::Acquire);
        for _ in 0..TRIES_MAX {
            if tail & CLOSED != 0 {
                return Err(PushError::Closed);
            }
            let position = tail & POSITION;
            // `head` may be ahead of a stale `tail`; then no slot is taken, because its mark is of a later position.
            if entries(head, position) >= u64::from(limit) {
                // ORDERING: Acquire pairs with the Release of `head` in `pop`, `skip`, `repair` and `discard`: the
                // words of the slots before it have been read. Release pairs with the Acquire of `head_seen` above and
                // passes that on. If an older value overwrites a newer one, a submitter loads `head` once more.
                head = self.head.0.load(Ordering::Acquire);
                head_seen.store(head, Ordering::Release);
                if entries(head, position) >= u64::from(limit) {
                    return Err(PushError::Full);
                }
            }
            let slot = self.slot(position);
            let mark = slot.mark.load(Ordering::Relaxed);
            let taken = Mark::new(position, client, Stage::Taken).0;
            // ORDERING: Relaxed, since taking a slot publishes nothing; `publish` does.
            let is_mine = Mark(mark).is_free_for(position)
                && slot.mark.compare_exchange(mark, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if is_mine || Mark(mark).holds(position) {
                // Fails if another submitter has moved the tail, or the ring was closed.
                let after = next(position);
                let _ = shared_tail.compare_exchange(tail, after, Ordering::Relaxed, Ordering::Relaxed);
            }
            if is_mine {
                return Ok(position);
            }
            // A read-modify-write sees the latest value: a load may return the tail from before `close` although the
            // slot is sealed already. ORDERING: Acquire pairs with the Release of `tail` in `open`, as above.
            tail = shared_tail.fetch_or(0, Ordering::Acquire);
        }
        Err(PushError::Full)
    }

    /// The oldest entry.
    #[inline]
    pub(crate) fn head(&self) -> Option<Head> {
        // ORDERING: Acquire pairs with the Release of `head` in `pop` and `skip`: all slots before it have been read,
        // so that a later move of the head from here passes that on.
        let position = self.head.0.load(Ordering::Acquire) & POSITION;
        let slot = self.slot(position);
        // ORDERING: Acquire pairs with the SeqCst of `mark` in `publish`: stamp, words and the submitter's earlier
        // writes are visible.
        let mark = Mark(slot.mark.load(Ordering::Acquire));
        mark.holds(position).then(|| Head {
            client: mark.client(),
            is_ready: mark.is(Stage::Ready),
            stamp: slot.stamp.load(Ordering::Relaxed),
            position,
        })
    }

    /// Pops the oldest entry, which [`head`](Self::head) reported as ready, from its client's `own` memory. Only its
    /// owner calls this, in one thread. `None`: the client has submitted no such entry, and the slot is skipped.
    #[inline]
    pub(crate) fn pop(&self, own: &Entries, head: Head) -> Option<PoppedEntry> {
        let taken = own.take(head.position);
        match taken {
            // ORDERING: Release pairs with the Acquire of `head` in `take_slot`: the words have been read.
            Some(_) => self.head.0.store(next(head.position), Ordering::Release),
            None => _ = self.skip(head),
        }
        taken
    }

    /// Removes the oldest entry, which no client will pop. False if another thread has removed it.
    pub(crate) fn skip(&self, head: Head) -> bool {
        let from = self.head.0.load(Ordering::Relaxed);
        // ORDERING: Acquire pairs with the Release of `head` in `pop`, and Release with the Acquire of `head` in
        // `take_slot`: it passes on that the slots before have been read. A dead client reads nothing any more.
        from & POSITION == head.position
            && self
                .head
                .0
                .compare_exchange(from, next(head.position), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Takes an entry of `own` that has no place in the ring any more.
    pub(crate) fn take_stranded(&self, own: &Entries) -> Option<PoppedEntry> {
        own.take_stranded(|| (self.popped(), self.pushed()))
    }

    /// Refuses every `push` from now on; entries in the ring stay.
    pub(crate) fn close(&self) {
        let shared_tail = &self.submitters.0.tail;
        for _ in 0..TRIES_MAX {
            let tail = shared_tail.fetch_or(CLOSED, Ordering::Relaxed) | CLOSED;
            let position = tail & POSITION;
            let slot = self.slot(position);
            let mark = slot.mark.load(Ordering::Relaxed);
            let sealed = Mark::new(position, 0, Stage::Sealed).0;
            if mark == sealed {
                return;
            }
            if Mark(mark).holds(position) {
                // A submitter was faster. Fails if another closer has moved the tail already.
                let after = next(position) | CLOSED;
                let _ = shared_tail.compare_exchange(tail, after, Ordering::Relaxed, Ordering::Relaxed);
            } else if slot.mark.compare_exchange(mark, sealed, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Accepts entries again after [`close`](Self::close). The caller excludes concurrent calls of `close`.
    pub(crate) fn open(&self) {
        let tail = self.submitters.0.tail.load(Ordering::Relaxed);
        if tail & CLOSED != 0 {
            // A new value, so that a submitter from before `close` does not mistake it for the mark of then.
            let position = tail & POSITION;
            let open = Mark::new(position, 0, Stage::Open).0;
            self.slot(position).mark.store(open, Ordering::Relaxed);
            // ORDERING: Release pairs with the Acquire of `tail` in `take_slot`: the slot is marked as open.
            self.submitters.0.tail.fetch_and(!CLOSED, Ordering::Release);
        }
    }

    /// Whether the ring is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.submitters.0.tail.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Removes all entries of a closed ring.
    pub(crate) fn discard(&self) {
        // ORDERING: Release pairs with the Acquire of `head` in `take_slot`, as in `pop`.
        self.head.0.store(self.pushed(), Ordering::Release);
    }

    /// Entries pushed since the start.
    pub(crate) fn pushed(&self) -> u64 {
        self.submitters.0.tail.load(Ordering::Relaxed) & POSITION
    }

    /// Entries popped or skipped since the start.
    pub(crate) fn popped(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `head` in `pop` and `skip`: a tail that is loaded next is not
        // older than this head, and the counts of an engine that has popped an entry are visible.
        self.head.0.load(Ordering::Acquire) & POSITION
    }

    /// Entries in the ring.
    pub(crate) fn occupancy(&self) -> u64 {
        entries(self.popped(), self.pushed())
    }

    /// Entries of `client`; exact if it neither pushes nor pops meanwhile.
    pub(crate) fn entries_of(&self, client: ClientId) -> usize {
        self.owners().filter(|owner| *owner == client).count()
    }

    /// Forges entries of other clients, as a hostile client can.
    #[cfg(test)]
    pub(crate) fn forge(&self, clients: impl Iterator<Item = ClientId>) {
        let mut tail = 0;
        for (position, client) in (0..).zip(clients) {
            self.slot(position).mark.store(Mark::new(position, client, Stage::Ready).0, Ordering::Relaxed);
            tail = position + 1;
        }
        self.submitters.0.tail.store(tail, Ordering::Relaxed);
    }

    /// The client of each entry, according to the marks.
    pub(crate) fn owners(&self) -> impl Iterator<Item = ClientId> {
        let head = self.popped();
        // One more: the slot at the tail may be taken, if a submitter died before it moved the tail.
        (0..=entries(head, self.pushed()).min(SLOTS as u64 - 1)).filter_map(move |step| {
            let position = (head + step) & POSITION;
            // ORDERING: Acquire pairs with the SeqCst of `mark` in `publish`. The mark alone is used here.
            let mark = Mark(self.slot(position).mark.load(Ordering::Acquire));
            mark.holds(position).then_some(mark.client())
        })
    }

    fn slot(&self, position: u64) -> &Slot {
        &self.slots[slot_of(position)].0
    }
}

#[cfg(test)]
fn pop(ring: &Ring, own: &Entries) -> Option<[u64; 8]> {
    let head = ring.head().filter(|head| head.is_ready)?;
    ring.pop(own, head).map(|taken| taken.words)
}

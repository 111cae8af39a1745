//! The order of one work queue: a bounded ring of many submitters, in one process or in several.
//!
//! ```text
//! push:  take the slot at tail (its mark says by whom), tail += 1, put the words into one's own memory, mark it as ready
//!        whoever finds the slot at tail taken moves the tail for the other
//!        (`head` is looked at only when the last look says that the ring is full: its line is the device's)
//! pop:   if the slot at head is ready and one's own: take the words from one's own memory, head += 1
//! skip:  if the slot at head belongs to nobody who lives, or has no entry: head += 1
//! close: set a bit of the tail and seal the slot there, so that no later push succeeds
//! ```
//!
//! The ring says only whose turn it is; the words are in memory of their submitter's own ([`Entries`]). All clients can
//! write the ring, also one that means harm, so nothing here is believed: whatever the words are, no function panics,
//! loops for ever, or names a descriptor that its client has not submitted. A ring that makes no sense stands still, and
//! the server makes sense of it again ([`Ring::repair`]).
//!
//! An entry belongs to a client from the moment at which it takes part in the order, so that one that dies anywhere in
//! `push` leaves nothing that others cannot attribute and remove. Only the owner of the entry at the head moves the
//! head: there is one consumer at any time. A process with a device of its own is its only client.
//!
//! The words are atomics, so that this needs no `unsafe`; on x86 they cost what plain moves cost.
//!
//! Source: after Dmitry Vyukov's bounded MPMC queue, with an exact limit because there is one consumer at a time; that
//! others finish what one has begun is from Michael and Scott's queue (PODC 1996).

mod entries;
#[cfg(all(test, memferry_loom))]
mod loom_tests;
mod repair;
#[cfg(all(test, not(memferry_loom)))]
mod tests;

pub(crate) use entries::{Entries, PoppedEntry};
pub(crate) use repair::RingSnapshot;

use crate::sync::{AtomicU64, Ordering};

/// The bit of the tail that says that the ring is closed.
const CLOSED: u64 = 1 << 63;

/// Positions are numbers of so many bits, and begin anew after the last: marks have no more.
const POSITION: u64 = (1 << 50) - 1;

/// Slots of a ring: more than the entries of a device, so that the slot at the tail is always free.
pub(crate) const SLOTS: usize = if cfg!(memferry_loom) { 2 } else { 256 };

/// Between the slots of one position and the next, in slots: a page and a slot. The device's core would fetch its
/// neighbours without being asked, and take them from the submitter.
const STRIDE: usize = 33;

/// Tries of a push or a close before it gives up. Each that fails is another submitter's success, unless somebody has
/// written nonsense into the ring.
const TRIES_MAX: usize = if cfg!(memferry_loom) { 8 } else { 1 << 14 };

/// Whose an entry is: 12 bits.
pub(crate) type ClientId = u16;

/// The client of a device that one process has for itself.
pub(crate) const ONLY: ClientId = 1;

/// Why [`Ring::push`] took nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PushError {
    Full,
    Closed,
}

/// A ring, which may lie in memory that several processes share. All zero it is empty and open.
///
/// | field | written by | read by |
/// |---|---|---|
/// | `tail` | submitters; the server: `close`, `open` | all |
/// | `head_seen` | submitters: a `head` that one of them has seen | submitters |
/// | `head` | the owner of the entry there; all, if the owner died; the server: `repair`, `discard` | all |
/// | `mark` of a slot | the submitter that takes it; the server: `close`, `open`, `repair` | all |
/// | `stamp` of a slot | the submitter that took it | devices, after the mark |
#[repr(C)]
pub(crate) struct Ring {
    submitters: Line<Submitters>,
    head: Line<AtomicU64>, // 49:0 positions popped or skipped since the start
    slots: [Line<Slot>; SLOTS],
}

#[repr(C)]
struct Submitters {
    tail: AtomicU64, // 63 closed, 49:0 positions taken since the start
    head_seen: AtomicU64,
}

/// A value on cache lines of its own. 128: adjacent lines are prefetched in pairs.
#[derive(Default)]
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub(crate) T);

/// A device that has nothing else to do looks at the mark all the time, and would take the line from the submitter at each
/// of its stores: the words are elsewhere.
#[repr(C)]
struct Slot {
    mark: AtomicU64, // a Mark
    stamp: AtomicU64,
}

#[cfg(not(memferry_loom))]
const _: () = assert!((STRIDE - 1) * size_of::<Line<Slot>>() == 4096);

/// What an entry carries besides its words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    /// When the entry is in the queue, on the device's clock.
    pub(crate) ns: u64,
    /// Who submitted it and how, for a trace: nobody else looks at it.
    pub(crate) by: u64,
}

impl From<u64> for Stamp {
    fn from(ns: u64) -> Stamp {
        Stamp { ns, by: 0 }
    }
}

/// What is in a slot. 0: nothing yet.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark(u64); // 63:14 position + 1, 13:2 client, 1:0 stage

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The client writes the words.
    Taken = 0,
    /// The words are complete.
    Ready = 1,
    /// The ring was closed here.
    Sealed = 2,
    /// The ring was opened again here.
    Open = 3,
}

impl Mark {
    fn new(position: u64, client: ClientId, stage: Stage) -> Mark {
        Mark(next(position) << 14 | u64::from(client) << 2 | stage as u64)
    }

    fn client(self) -> ClientId {
        (self.0 >> 2) as ClientId & 0xfff
    }

    /// Whether it is of this position, in whatever stage.
    fn is_of(self, position: u64) -> bool {
        self.0 >> 14 == next(position)
    }

    fn is(self, stage: Stage) -> bool {
        self.0 & 3 == stage as u64
    }

    /// Whether it holds the entry of this position.
    fn holds(self, position: u64) -> bool {
        self.is_of(position) && (self.is(Stage::Ready) || self.is(Stage::Taken))
    }

    /// Whether the slot can be taken for this position: what it held is of an earlier one.
    fn is_free_for(self, position: u64) -> bool {
        match distance(self.0 >> 14, next(position)) {
            0 => self.is(Stage::Open),
            later => later <= POSITION / 2,
        }
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

/// The answer of a push whose mark has changed: the push took too long, or somebody has tampered with the mark. Without the
/// seal, a device has executed the entry.
#[cold]
fn revoked(own: &Entries, position: u64) -> Result<(), PushError> {
    if own.take(position).is_some() { Err(PushError::Full) } else { Ok(()) }
}

/// The position after this one.
fn next(position: u64) -> u64 {
    (position + 1) & POSITION
}

/// Positions from one to another.
fn distance(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & POSITION
}

/// Entries between head and tail. A head that is behind the tail's is one that was seen later.
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
    /// Whether `client` can take it.
    pub(crate) fn is_ready_for(&self, client: ClientId) -> bool {
        self.is_ready && self.client == client
    }
}

impl Ring {
    pub(crate) fn new() -> Ring {
        let slot = || Slot { mark: AtomicU64::new(0), stamp: AtomicU64::new(0) };
        Ring {
            submitters: Line(Submitters { tail: AtomicU64::new(0), head_seen: AtomicU64::new(0) }),
            head: Line(AtomicU64::new(0)),
            slots: std::array::from_fn(|_| Line(slot())),
        }
    }

    /// Puts 64 bytes and a stamp into the ring, the bytes into `own`, which is the client's, if fewer than `limit` entries
    /// are taken; `limit` is less than `SLOTS`.
    ///
    /// A SeqCst load behind it sees the sleeper, or the sleeper, who looks into the ring behind a SeqCst fence, sees the
    /// entry.
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

    /// The rest of a push: the entry comes into the slot that was taken.
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
            return self.give_up(position, client);
        }
        self.put_in_order(own, position, client, stamp.ns)
    }

    /// The last step of a push: the entry in `own` becomes ready.
    #[inline]
    fn put_in_order(&self, own: &Entries, position: u64, client: ClientId, ns: u64) -> Result<(), PushError> {
        let slot = self.slot(position);
        slot.stamp.store(ns, Ordering::Relaxed);
        let [taken, ready] = [Stage::Taken, Stage::Ready].map(|stage| Mark::new(position, client, stage).0);
        // ORDERING: Release pairs with the Acquire of `mark` in `head`: whoever sees the mark sees the words, and
        // all memory that the submitter wrote before. SeqCst and a read-modify-write for those who look next whether
        // the device sleeps: a store and a fence would cost several times as much.
        match slot.mark.compare_exchange(taken, ready, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(_) => revoked(own, position),
        }
    }

    /// Leaves a slot to whoever removes the entries of nobody. Its former entry is still there: another submitter was held
    /// up in the middle of a push, and has not been told that its entry was revoked, or the head has passed an entry.
    #[cold]
    fn give_up(&self, position: u64, client: ClientId) -> Result<(), PushError> {
        let [taken, nobody_s] = [client, 0].map(|client| Mark::new(position, client, Stage::Taken).0);
        // Fails if this is the submitter that was held up: the slot is another one's by now.
        let mark = &self.slot(position).mark;
        let _ = mark.compare_exchange(taken, nobody_s, Ordering::Relaxed, Ordering::Relaxed);
        Err(PushError::Full)
    }

    /// Takes the slot at the tail; its position.
    #[inline]
    fn take_slot(&self, client: ClientId, limit: u32) -> Result<u64, PushError> {
        let Submitters { tail: shared_tail, head_seen } = &self.submitters.0;
        // ORDERING: Acquire pairs with the Release in `open`: the slot there is not sealed any more.
        let mut tail = shared_tail.load(Ordering::Acquire);
        // ORDERING: Acquire pairs with the Release of `head_seen` below: the slot's former words have been read.
        let mut head = head_seen.load(Ordering::Acquire);
        for _ in 0..TRIES_MAX {
            if tail & CLOSED != 0 {
                return Err(PushError::Closed);
            }
            let position = tail & POSITION;
            // `head` passes a stale `tail`; then nothing is taken, because the slot's mark is of a later position.
            if entries(head, position) >= u64::from(limit) {
                // ORDERING: Acquire pairs with the Release of `head` in `pop`, and Release hands that on to the
                // submitter who sees `head_seen`. One that is overtaken by an older value costs a look more.
                head = self.head.0.load(Ordering::Acquire);
                head_seen.store(head, Ordering::Release);
                if entries(head, position) >= u64::from(limit) {
                    return Err(PushError::Full);
                }
            }
            let slot = self.slot(position);
            let mark = slot.mark.load(Ordering::Relaxed);
            let taken = Mark::new(position, client, Stage::Taken).0;
            // ORDERING: Relaxed: to take a slot publishes nothing; that it is ready does.
            let is_mine = Mark(mark).is_free_for(position)
                && slot.mark.compare_exchange(mark, taken, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if is_mine || Mark(mark).holds(position) {
                // Fails if somebody else has done it, or has closed the ring.
                let after = next(position);
                let _ = shared_tail.compare_exchange(tail, after, Ordering::Relaxed, Ordering::Relaxed);
            }
            if is_mine {
                return Ok(position);
            }
            // As a read-modify-write, which sees the latest: the slot may be sealed already where a load still finds the
            // tail of before.
            tail = shared_tail.fetch_or(0, Ordering::Acquire);
        }
        Err(PushError::Full)
    }

    /// The oldest entry.
    #[inline]
    pub(crate) fn head(&self) -> Option<Head> {
        // ORDERING: Acquire pairs with the Release in `pop`: who moves the head on from here says that all slots
        // before it have been read, by whomever.
        let position = self.head.0.load(Ordering::Acquire) & POSITION;
        let slot = self.slot(position);
        // ORDERING: Acquire pairs with the Release of `mark` in `push`.
        let mark = Mark(slot.mark.load(Ordering::Acquire));
        mark.holds(position).then(|| Head {
            client: mark.client(),
            is_ready: mark.is(Stage::Ready),
            stamp: slot.stamp.load(Ordering::Relaxed),
            position,
        })
    }

    /// Takes the oldest entry, which [`head`](Self::head) said is ready, from its client's `own` memory. Only its owner
    /// calls this, in one thread. `None`: the client has submitted nothing at this place, and it is removed.
    #[inline]
    pub(crate) fn pop(&self, own: &Entries, head: Head) -> Option<PoppedEntry> {
        let taken = own.take(head.position);
        match taken {
            // ORDERING: Release pairs with the Acquire of `head` in `push`: the words have been read.
            Some(_) => self.head.0.store(next(head.position), Ordering::Release),
            None => _ = self.skip(head),
        }
        taken
    }

    /// Removes the oldest entry, which nobody is going to take. False if somebody else has.
    pub(crate) fn skip(&self, head: Head) -> bool {
        let from = self.head.0.load(Ordering::Relaxed);
        // ORDERING: AcqRel as the Acquire in `head` and the Release in `pop`; the dead read nothing any more.
        from & POSITION == head.position
            && self
                .head
                .0
                .compare_exchange(from, next(head.position), Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Takes an entry of `own` that the ring has lost.
    pub(crate) fn take_stranded(&self, own: &Entries) -> Option<PoppedEntry> {
        own.take_stranded(|| (self.popped(), self.pushed()))
    }

    /// Refuses every `push` from now on; what was taken stays.
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
                // Somebody was faster. Fails if another closer has seen that, too.
                let after = next(position) | CLOSED;
                let _ = shared_tail.compare_exchange(tail, after, Ordering::Relaxed, Ordering::Relaxed);
            } else if slot.mark.compare_exchange(mark, sealed, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Takes entries again after [`close`](Self::close). The caller sees to it that nobody closes meanwhile.
    pub(crate) fn open(&self) {
        let tail = self.submitters.0.tail.load(Ordering::Relaxed);
        if tail & CLOSED != 0 {
            // A mark that was never here, so that a submitter from before `close` does not mistake it for that one.
            let position = tail & POSITION;
            let open = Mark::new(position, 0, Stage::Open).0;
            self.slot(position).mark.store(open, Ordering::Relaxed);
            // ORDERING: Release pairs with the Acquire of `tail` in `push`.
            self.submitters.0.tail.fetch_and(!CLOSED, Ordering::Release);
        }
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.submitters.0.tail.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Removes all that a closed ring has.
    pub(crate) fn discard(&self) {
        // ORDERING: Release as in `pop`.
        self.head.0.store(self.pushed(), Ordering::Release);
    }

    /// Entries taken since the start.
    pub(crate) fn pushed(&self) -> u64 {
        self.submitters.0.tail.load(Ordering::Relaxed) & POSITION
    }

    /// Entries popped or skipped since the start.
    pub(crate) fn popped(&self) -> u64 {
        self.head.0.load(Ordering::Acquire) & POSITION
    }

    /// Entries that are there.
    pub(crate) fn occupancy(&self) -> u64 {
        entries(self.popped(), self.pushed())
    }

    /// Entries of `client`: exact if it neither submits nor takes any meanwhile.
    pub(crate) fn entries_of(&self, client: ClientId) -> usize {
        self.owners().filter(|owner| *owner == client).count()
    }

    /// Writes what a hostile client can: entries of other clients.
    #[cfg(test)]
    pub(crate) fn forge(&self, clients: impl Iterator<Item = ClientId>) {
        let mut tail = 0;
        for (position, client) in (0..).zip(clients) {
            self.slot(position).mark.store(Mark::new(position, client, Stage::Ready).0, Ordering::Relaxed);
            tail = position + 1;
        }
        self.submitters.0.tail.store(tail, Ordering::Relaxed);
    }

    /// The client of each entry, as the marks have it.
    pub(crate) fn owners(&self) -> impl Iterator<Item = ClientId> {
        let head = self.popped();
        // One more: the slot at the tail may be taken, if a submitter died before it moved the tail.
        (0..=entries(head, self.pushed()).min(SLOTS as u64 - 1)).filter_map(move |step| {
            let position = (head + step) & POSITION;
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

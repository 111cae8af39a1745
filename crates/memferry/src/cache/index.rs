//! Which slot holds which range, on one node; and which unused one leaves when room is needed.
//!
//! One mutex over an ordered map from (region, range) to slots, which lie in the order of eviction ([`Sieve`]). What is
//! ready and a whole chunk of its region is also published in the region's [`Directory`], where readers find it without
//! the lock; everything else is looked up here. No foreign code runs under the lock and no slot is dropped under it: what
//! is taken out is returned, and the caller lets it go.
//!
//! Eviction is SIEVE, because a hit sets a bit and moves nothing, which is what a directory without locks needs, and one
//! scan does not flush what is used repeatedly. What somebody holds or reads, and what is in flight, is in use.
//!
//! Who holds a slot is its reference count; who reads it under a guard is in the hazards of [`Readers`]. Under the
//! lock, with the slot hidden from the directory and the fence run, in no hazard and with a count of one, only the
//! index has it: new guards come from the directory, new counts from a lookup (which takes the lock), from a guard, or
//! from another holder. The hazards are looked at first: a guard becomes a count before it ends, so who misses it finds
//! the count.

use std::collections::BTreeMap;
use std::ops::Range;

use memferry_dsa::fork::PerProcess;

use super::directory::Guard;
use super::readers::{Look, Readers, Record};
use super::region::Source;
use super::sieve::{Sieve, Use};
use super::slot::Slot;
use crate::sync::{Arc, Mutex, MutexGuard, lock, try_lock};

/// How many slots are hidden for later evictions when one has to run the fence anyway. A hit on a hidden slot costs a
/// lock; the fence some 3 us.
const HIDDEN_AHEAD: usize = 15;

/// The slots of one node. Every slot in it is in flight or near.
///
/// A forked child begins without any: what the parent has listed is not taken out there, and so never freed, and nobody
/// waits for a thread of the parent that was at it.
pub(super) struct Index<B> {
    /// Of the node, among those of the cache.
    position: usize,
    readers: &'static Readers,
    inner: PerProcess<Mutex<Inner<B>>>,
}

/// What [`Index::find_or_insert`] did.
pub(super) enum Found<B> {
    /// It was there.
    Known(Arc<Slot<B>>),
    /// It is new, and in flight: the caller makes its [`Flight`](super::flight::Flight).
    New(Arc<Slot<B>>),
}

/// Region, start, end.
pub(super) type Key = (u64, usize, usize);

struct Inner<B> {
    /// Keys of `sieve`.
    by_key: BTreeMap<Key, usize>,
    sieve: Sieve<Arc<Slot<B>>>,
    /// Taken out, and perhaps read under guards. The last guard to end lets go of them, or [`catch_up`](Index::catch_up).
    retired: Vec<Arc<Slot<B>>>,
    /// Slots were hidden, and no fence has happened since: any of them may be read by somebody who is in no hazard yet.
    owes_fence: bool,
}

impl<B> Index<B> {
    /// For the cache's node at `position`.
    pub(super) fn new(position: usize, readers: &'static Readers) -> Index<B> {
        let index = Index { position, readers, inner: PerProcess::new() };
        // What is made later might be made twice, and once in vain.
        index.inner();
        index
    }

    /// This process'.
    fn inner(&self) -> &Mutex<Inner<B>> {
        self.inner.get_or_init(|| {
            let (by_key, sieve, retired) = (BTreeMap::new(), Sieve::new(), Vec::new());
            Mutex::new(Inner { by_key, sieve, retired, owes_fence: false })
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<B>> {
        lock(self.inner())
    }

    /// Keeps everybody else out.
    #[cfg(all(test, not(memferry_loom)))]
    pub(super) fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    /// How many slots there are.
    pub(super) fn len(&self) -> usize {
        self.lock().sieve.len()
    }

    /// The ready slot of the chunk around `range`, without a lock; counts as a hit. `None` says little: see
    /// [`Guard::new`].
    #[inline(always)]
    pub(super) fn guard<'a>(
        &'a self,
        source: &Source<B>,
        range: &Range<usize>,
        record: &'static Record,
    ) -> Option<Guard<'a, B>> {
        let guard = Guard::new(self, source.directory(self.position), range, record)?;
        guard.touch();
        Some(guard)
    }

    /// The slot of exactly this range, or of the chunk around it; counts as a hit.
    pub(super) fn find(&self, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        self.hit(&self.lock(), source, range)
    }

    /// As [`find`](Index::find), but only what is ready, and nobody is waited for: `None` also while another thread has
    /// the lock. For those who would rather read here than on the node they ask for, and can do without.
    pub(super) fn try_find_ready(&self, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        let inner = try_lock(self.inner())?;
        inner.find(source, range)?.near()?;
        self.hit(&inner, source, range)
    }

    /// Lets the copy of exactly this range that has arrived be found in the directory, if it is still listed.
    pub(super) fn publish(&self, key: &Key) {
        let inner = self.lock();
        if let Some(&place) = inner.by_key.get(key)
            && let slot = inner.sieve.get(place)
            && slot.near().is_some()
        {
            slot.source.directory(self.position).publish(slot);
        }
    }

    /// Bytes of `source` that are near or on their way. Counts as no hit.
    pub(super) fn listed_bytes(&self, source: &Source<B>) -> usize {
        let inner = self.lock();
        let keys = inner.by_key.range((source.id, 0, 0)..=(source.id, usize::MAX, usize::MAX));
        // In the order of their first bytes; ranges may overlap.
        let (mut listed, mut behind) = (0, 0);
        for (&(_, start, end), _) in keys {
            listed += end.max(behind) - start.max(behind);
            behind = behind.max(end);
        }
        listed
    }

    /// As [`find`](Index::find), or what `make` makes for exactly this range.
    pub(super) fn find_or_insert(
        &self,
        source: &Source<B>,
        range: &Range<usize>,
        make: impl FnOnce() -> Slot<B>,
    ) -> Found<B> {
        let mut inner = self.lock();
        if let Some(slot) = self.hit(&inner, source, range) {
            return Found::Known(slot);
        }
        let slot = Arc::new(make());
        let place = inner.sieve.insert(slot.clone());
        inner.by_key.insert(key(source, range), place);
        Found::New(slot)
    }

    /// Removes this slot, if it is still the one under its key. It is not near, and the caller holds it.
    pub(super) fn remove(&self, slot: &Arc<Slot<B>>) {
        let key = key(&slot.source, &slot.range);
        let mut inner = self.lock();
        if let Some(&place) = inner.by_key.get(&key)
            && Arc::ptr_eq(inner.sieve.get(place), slot)
        {
            inner.take(place);
        }
    }

    /// Takes out unused slots that together free `size_bytes`, or none if there are not so many.
    ///
    /// `freed_bytes` says what the end of a block frees. Cost: see [`Sieve`].
    pub(super) fn evict(&self, size_bytes: usize, freed_bytes: impl Fn(&B) -> usize) -> Vec<Arc<Slot<B>>> {
        let mut inner = self.lock();
        let bytes_of = |inner: &Inner<B>, place| inner.sieve.get(place).near().map_or(0, &freed_bytes);
        let mut search = inner.sieve.search();
        let (mut victims, mut found_bytes) = (Vec::new(), 0);
        while found_bytes < size_bytes.max(1) {
            let (mut candidates, mut hoped_bytes) = (Vec::new(), found_bytes);
            while hoped_bytes < size_bytes.max(1)
                && let Some(place) = inner.sieve.next_victim(&mut search, usage)
            {
                hoped_bytes += bytes_of(&inner, place);
                candidates.push(place);
            }
            if candidates.is_empty() {
                break;
            }
            for place in self.vacate(&mut inner, candidates, HIDDEN_AHEAD) {
                found_bytes += bytes_of(&inner, place);
                victims.push(place);
            }
        }
        if found_bytes < size_bytes {
            return Vec::new();
        }
        victims.into_iter().map(|place| inner.take(place)).collect()
    }

    /// Takes out every slot of `source` that shares a byte with `range`.
    ///
    /// Cost: a look at each slot of the region that begins before the end of `range`.
    pub(super) fn take_overlapping(&self, source: &Source<B>, range: &Range<usize>) -> Taken<B> {
        let mut inner = self.lock();
        let before_end = inner.by_key.range((source.id, 0, 0)..(source.id, range.end, 0));
        let overlapping = before_end.filter(|(key, _)| key.2 > range.start);
        let places: Vec<usize> = overlapping.map(|(_, &place)| place).collect();
        let slots = places.into_iter().map(|place| inner.take(place)).collect();
        self.retire(&mut inner, slots)
    }

    /// Takes out every slot that nobody holds or reads, and no copy fills.
    pub(super) fn take_unused(&self) -> Taken<B> {
        let mut inner = self.lock();
        let places = inner.by_key.values().copied();
        let unused = places.filter(|&place| is_unused(inner.sieve.get(place))).collect();
        let vacated = self.vacate(&mut inner, unused, 0);
        let slots: Vec<_> = vacated.into_iter().map(|place| inner.take(place)).collect();
        Taken { ranges: slots.iter().map(|slot| slot.range.clone()).collect(), slots }
    }

    /// Takes out every slot; as [`take_overlapping`](Index::take_overlapping).
    pub(super) fn take_everything(&self) -> Taken<B> {
        let mut inner = self.lock();
        inner.by_key.clear();
        let slots = inner.sieve.take_all().collect();
        self.retire(&mut inner, slots)
    }

    /// Lets go of what was taken out under guards that have ended.
    #[cold]
    pub(super) fn reclaim(&self) {
        let mut inner = self.lock();
        let free = self.split_retired(&mut inner);
        drop(inner);
        drop(free);
    }

    /// Lets go of retired slots that nobody reads, where no guard did: a fence had failed, or the guard looked at the index of
    /// another node. Returns whether anything left.
    pub(super) fn catch_up(&self) -> bool {
        let mut inner = self.lock();
        let free = self.split_retired(&mut inner);
        drop(inner);
        !free.is_empty()
    }

    /// The slot for `range`. What is found ready is published, so that the next one finds it in the directory.
    fn hit(&self, inner: &Inner<B>, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        let slot = inner.find(source, range)?;
        slot.touch();
        if slot.near().is_some() {
            source.directory(self.position).publish(slot);
        }
        Some(slot.clone())
    }

    /// Those of the slots at `places` that turn out to be unused once nobody new can find them. If that takes a fence, up
    /// to `ahead` more are hidden that the hand will come to.
    fn vacate(&self, inner: &mut Inner<B>, mut places: Vec<usize>, ahead: usize) -> Vec<usize> {
        for &place in &places {
            inner.owes_fence |= self.hide(inner.sieve.get(place));
        }
        if inner.owes_fence {
            let next = inner.sieve.ahead().take(ahead).filter(|slot| !slot.is_visited());
            next.for_each(|slot| {
                self.hide(slot);
            });
        }
        let look = self.look(inner);
        places.retain(|&place| {
            let slot = inner.sieve.get(place);
            !look.sees(address(slot)) && is_unused(slot)
        });
        places
    }

    /// `slots` are in no map any more: those that somebody reads stay here until nobody does, the others are returned.
    fn retire(&self, inner: &mut Inner<B>, slots: Vec<Arc<Slot<B>>>) -> Taken<B> {
        let ranges = slots.iter().map(|slot| slot.range.clone()).collect();
        for slot in &slots {
            inner.owes_fence |= self.hide(slot);
        }
        let look = self.look(inner);
        let (read, mut free): (Vec<_>, _) = slots.into_iter().partition(|slot| look.sees(address(slot)));
        inner.retired.extend(read);
        free.extend(self.split_retired(inner));
        Taken { ranges, slots: free }
    }

    /// Those of the retired that nobody reads any more. Who reads one of the others will say when it is over, unless a
    /// fence failed.
    fn split_retired(&self, inner: &mut Inner<B>) -> Vec<Arc<Slot<B>>> {
        if inner.retired.is_empty() {
            return Vec::new();
        }
        let look = self.look(inner);
        let retired = std::mem::take(&mut inner.retired);
        let (mut read, mut free): (Vec<_>, Vec<_>) =
            retired.into_iter().partition(|slot| look.ask_for(address(slot)));
        if !read.is_empty() && !look.is_blind() && self.readers.fence() {
            free.extend(read.extract_if(.., |slot| !look.still_sees(address(slot))));
        }
        inner.retired = read;
        free
    }

    /// All hazards; blind as long as no fence has happened since something was hidden, whoever hid it.
    fn look(&self, inner: &mut Inner<B>) -> Look {
        inner.owes_fence = inner.owes_fence && !self.readers.fence();
        if inner.owes_fence { Look::blind() } else { self.readers.look() }
    }

    fn hide(&self, slot: &Slot<B>) -> bool {
        slot.source.directory(self.position).hide(slot)
    }
}

/// What is still retired was read under guards that were forgotten. They borrowed the index, so nobody reads through
/// them any more; but their hazards would keep whatever comes to lie at the same address.
impl<B> Drop for Index<B> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.get() else { return };
        for slot in &lock(inner).retired {
            self.readers.abandon(address(slot));
        }
    }
}

/// What was taken out of an index.
pub(super) struct Taken<B> {
    /// Of the slots that can no longer be found.
    pub(super) ranges: Vec<Range<usize>>,
    /// To be dropped when the index is unlocked. What is missing here is read, and goes when its last reader does.
    pub(super) slots: Vec<Arc<Slot<B>>>,
}

/// What a range is listed under.
pub(super) fn key<B>(source: &Source<B>, range: &Range<usize>) -> Key {
    (source.id, range.start, range.end)
}

fn address<B>(slot: &Arc<Slot<B>>) -> *mut () {
    Arc::as_ptr(slot).cast_mut().cast()
}

/// What SIEVE asks of a slot.
fn usage<B>(slot: &Arc<Slot<B>>) -> Use {
    if !is_unused(slot) {
        Use::Held
    } else if slot.take_visited() {
        Use::Hit
    } else {
        Use::Idle
    }
}

/// Whether only the index has it, and it is not in flight.
fn is_unused<B>(slot: &Arc<Slot<B>>) -> bool {
    Arc::strong_count(slot) == 1 && slot.near().is_some()
}

impl<B> Inner<B> {
    /// What answers `range`: the slot of exactly it, or of the chunk around it.
    fn find(&self, source: &Source<B>, range: &Range<usize>) -> Option<&Arc<Slot<B>>> {
        let exact = self.by_key.get(&key(source, range));
        let place = exact.or_else(|| {
            let chunk = source.chunks.around(range).filter(|chunk| chunk != range)?;
            self.by_key.get(&key(source, &chunk))
        });
        place.map(|&place| self.sieve.get(place))
    }

    fn take(&mut self, place: usize) -> Arc<Slot<B>> {
        let slot = self.sieve.remove(place);
        self.by_key.remove(&key(&slot.source, &slot.range));
        slot
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests;

//! The index of one node: lookup of slots by range, and eviction.
//!
//! One mutex guards an ordered map from (region, range) to slots, which lie in the order of eviction ([`Sieve`]). A ready
//! slot of a whole chunk is also published in the region's [`Directory`], where readers find it without the lock. No
//! foreign code runs under the lock and no slot is dropped under it: removed slots are returned, and the caller drops
//! them.
//!
//! Eviction is SIEVE. A hit sets a bit and moves nothing, which suits a directory without locks, and one scan does not
//! evict entries in repeated use. A hit on bytes that the program made survives several rounds of the hand, as many as it
//! saves times more time per byte than a hit on a stored copy. Slots that are held, read or in flight are in use.
//!
//! Holders are in a slot's reference count, readers with a guard in the hazards of [`Readers`]. A slot belongs to the
//! index alone if, under the lock, it is hidden from the directory, the fence has run, no hazard has it, and its count is
//! one. New guards come from the directory; new counts come from a lookup (which takes the lock), from a guard, or from
//! another holder. The hazards are checked first: a guard becomes a count before it ends, so a thread that misses the
//! hazard sees the reference count.

use std::collections::BTreeMap;
use std::ops::{Range, RangeBounds, RangeInclusive};

use memferry_dsa::internals::fork::PerProcess;

use super::directory::Guard;
use super::readers::{HazardSnapshot, Readers, Record};
use super::region::Source;
use super::sieve::{Sieve, Usage};
use super::slot::Slot;
use crate::sync::{Arc, Mutex, MutexGuard, lock, try_lock};

/// Number of slots that an eviction hides ahead when it runs the fence anyway. A hit on a hidden slot costs a lock; a fence
/// costs some 3 us.
const HIDDEN_AHEAD: usize = 15;

/// Number of slots before a range that are looked at for one that has all of it. Readers ask for columns of row groups, which
/// a coalesced read ahead has; more than a few overlapping slots are rare. A miss only reads bytes again.
const EARLIER_MAX: usize = 8;

/// The slots of one node; each is in flight or near.
///
/// `inner` is the lock of everything else. A forked child starts with an empty index: it never frees the parent's slots,
/// and waits for no thread of the parent that held the lock.
pub(super) struct Index<B> {
    /// Position of the node among those of the cache.
    position: usize,
    readers: &'static Readers,
    inner: PerProcess<Mutex<Inner<B>>>,
}

/// The result of [`Index::find_or_insert`].
pub(super) enum Found<B> {
    /// A slot that was listed.
    Known(Arc<Slot<B>>),
    /// A new slot in flight: the caller makes its [`Flight`](super::flight::Flight).
    New(Arc<Slot<B>>),
}

/// Region, start, end.
pub(super) type Key = (u64, usize, usize);

struct Inner<B> {
    /// Keys of `sieve`.
    by_key: BTreeMap<Key, usize>,
    sieve: Sieve<Arc<Slot<B>>>,
    /// Removed slots that may be read under guards. The end of the last guard drops them, or [`catch_up`](Index::catch_up).
    retired: Vec<Arc<Slot<B>>>,
    /// Slots were hidden, and no fence has run since: a reader without visible hazard may have any of them.
    owes_fence: bool,
}

impl<B> Index<B> {
    /// The index of the cache's node at `position`.
    pub(super) fn new(position: usize, readers: &'static Readers) -> Index<B> {
        let index = Index { position, readers, inner: PerProcess::new() };
        // Made eagerly; a lazy creation could race with another thread and be discarded.
        index.inner();
        index
    }

    /// The state of this process.
    fn inner(&self) -> &Mutex<Inner<B>> {
        self.inner.get_or_init(|| {
            let (by_key, sieve, retired) = (BTreeMap::new(), Sieve::new(), Vec::new());
            Mutex::new(Inner { by_key, sieve, retired, owes_fence: false })
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<B>> {
        lock(self.inner())
    }

    /// Holds the lock.
    #[cfg(all(test, not(memferry_loom)))]
    pub(super) fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    /// Number of slots.
    pub(super) fn len(&self) -> usize {
        self.lock().sieve.len()
    }

    /// The ready slot of the chunk around `range`, without a lock; marks a hit. For `None` see [`Guard::new`].
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

    /// The slot of exactly this range, or of the chunk around it; marks a hit.
    pub(super) fn find(&self, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        self.hit(&self.lock(), source, range)
    }

    /// Like [`find`](Index::find), but only a ready slot, and without waiting: `None` also while another thread has the
    /// lock. For readers that request another node but prefer this one.
    pub(super) fn try_find_ready(&self, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        let inner = try_lock(self.inner())?;
        inner.find(source, range)?.near()?;
        self.hit(&inner, source, range)
    }

    /// Publishes the ready copy of exactly this range in the directory, if it is still listed.
    pub(super) fn publish(&self, key: &Key) {
        let inner = self.lock();
        if let Some(&place) = inner.by_key.get(key)
            && let slot = inner.sieve.get(place)
            && slot.near().is_some()
        {
            slot.source.directory(self.position).publish(slot);
        }
    }

    /// Number of bytes of `source` that are near or in flight. Marks no hit.
    pub(super) fn listed_bytes(&self, source: &Source<B>) -> usize {
        let inner = self.lock();
        let keys = inner.by_key.range(keys_of(source));
        // Ordered by start; ranges may overlap.
        let (mut listed, mut behind) = (0, 0);
        for (&(_, start, end), _) in keys {
            listed += end.max(behind) - start.max(behind);
            behind = behind.max(end);
        }
        listed
    }

    /// Like [`find`](Index::find); on a miss inserts the slot that `make` returns for exactly this range.
    pub(super) fn find_or_insert(
        &self,
        source: &Source<B>,
        range: &Range<usize>,
        make: impl FnOnce() -> Slot<B>,
    ) -> Found<B> {
        self.look_or_insert(source, range, |inner| self.hit(inner, source, range), make)
    }

    /// A slot of a file that has all of `range`, ready or in flight; marks a hit and joins its readers.
    pub(super) fn join(&self, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        self.lock().join(source, range)
    }

    /// Like [`join`](Index::join); on a miss inserts the slot that `make` returns for exactly this range.
    pub(super) fn join_or_insert(
        &self,
        source: &Source<B>,
        range: &Range<usize>,
        make: impl FnOnce() -> Slot<B>,
    ) -> Found<B> {
        self.look_or_insert(source, range, |inner| inner.join(source, range), make)
    }

    fn look_or_insert(
        &self,
        source: &Source<B>,
        range: &Range<usize>,
        look: impl FnOnce(&Inner<B>) -> Option<Arc<Slot<B>>>,
        make: impl FnOnce() -> Slot<B>,
    ) -> Found<B> {
        let mut inner = self.lock();
        if let Some(slot) = look(&inner) {
            return Found::Known(slot);
        }
        let slot = Arc::new(make());
        let place = inner.sieve.insert(slot.clone());
        // Only of a file: a slot of this range whose read was cancelled; its flight still holds it.
        let cancelled = inner.by_key.insert(key(source, range), place).map(|place| inner.sieve.remove(place));
        drop(inner);
        drop(cancelled);
        Found::New(slot)
    }

    /// Removes this slot if it is still listed. It is not near, and the caller holds it.
    pub(super) fn remove(&self, slot: &Arc<Slot<B>>) {
        let key = key(&slot.source, &slot.range);
        let mut inner = self.lock();
        if let Some(&place) = inner.by_key.get(&key)
            && Arc::ptr_eq(inner.sieve.get(place), slot)
        {
            inner.take(place);
        }
    }

    /// Removes unused slots that together free `size_bytes`, or none if they do not suffice.
    ///
    /// `freed_bytes` is the size that a dropped block frees. Cost: see [`Sieve`].
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

    /// Removes every slot of `source` that overlaps `range`.
    ///
    /// Cost: a visit of each slot of the region that starts before the end of `range`.
    pub(super) fn remove_overlapping(&self, source: &Source<B>, range: &Range<usize>) -> Removed<B> {
        let before_end = (source.id, 0, 0)..(source.id, range.end, 0);
        self.remove_keys(before_end, |key| key.2 > range.start)
    }

    /// Removes every slot of `source`, also those without bytes, which overlap no range.
    pub(super) fn remove_source(&self, source: &Source<B>) -> Removed<B> {
        self.remove_keys(keys_of(source), |_| true)
    }

    fn remove_keys(&self, keys: impl RangeBounds<Key>, is_removed: impl Fn(&Key) -> bool) -> Removed<B> {
        let mut inner = self.lock();
        let removed = inner.by_key.range(keys).filter(|(key, _)| is_removed(key));
        let places: Vec<usize> = removed.map(|(_, &place)| place).collect();
        let slots = places.into_iter().map(|place| inner.take(place)).collect();
        self.retire(&mut inner, slots)
    }

    /// Removes every slot that is neither held, read nor in flight.
    pub(super) fn remove_unused(&self) -> Removed<B> {
        let mut inner = self.lock();
        let places = inner.by_key.values().copied();
        let unused = places.filter(|&place| is_unused(inner.sieve.get(place))).collect();
        let vacated = self.vacate(&mut inner, unused, 0);
        let slots: Vec<_> = vacated.into_iter().map(|place| inner.take(place)).collect();
        Removed { ranges: slots.iter().map(|slot| slot.range.clone()).collect(), slots }
    }

    /// Removes every slot.
    pub(super) fn remove_all(&self) -> Removed<B> {
        let mut inner = self.lock();
        inner.by_key.clear();
        let slots = inner.sieve.take_all().collect();
        self.retire(&mut inner, slots)
    }

    /// Drops retired slots whose guards have ended.
    #[cold]
    pub(super) fn reclaim(&self) {
        let mut inner = self.lock();
        let free = self.split_retired(&mut inner);
        drop(inner);
        drop(free);
    }

    /// Drops retired slots that no guard dropped, because a fence failed or the guard reclaimed in the index of another
    /// node. Returns whether there were any.
    pub(super) fn catch_up(&self) -> bool {
        let mut inner = self.lock();
        let free = self.split_retired(&mut inner);
        drop(inner);
        !free.is_empty()
    }

    /// The slot for `range`. Publishes a ready one, so that the next reader finds it in the directory.
    fn hit(&self, inner: &Inner<B>, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        let slot = inner.find(source, range)?;
        slot.touch();
        if slot.near().is_some() {
            source.directory(self.position).publish(slot);
        }
        Some(slot.clone())
    }

    /// Hides the slots at `places` and returns the unused ones. If that needs a fence, also hides up to `ahead` slots that
    /// the hand visits next.
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
        let hazards = self.hazards(inner);
        places.retain(|&place| {
            let slot = inner.sieve.get(place);
            !hazards.protects(address(slot)) && is_unused(slot)
        });
        places
    }

    /// Retires slots that were removed from the maps. Keeps those that are read, and returns the others.
    fn retire(&self, inner: &mut Inner<B>, slots: Vec<Arc<Slot<B>>>) -> Removed<B> {
        let ranges = slots.iter().map(|slot| slot.range.clone()).collect();
        for slot in &slots {
            inner.owes_fence |= self.hide(slot);
        }
        let hazards = self.hazards(inner);
        let (read, mut free): (Vec<_>, _) =
            slots.into_iter().partition(|slot| hazards.protects(address(slot)));
        inner.retired.extend(read);
        free.extend(self.split_retired(inner));
        Removed { ranges, slots: free }
    }

    /// Splits off the retired slots that are no longer read. The guards of the others will reclaim them, unless a fence
    /// failed.
    fn split_retired(&self, inner: &mut Inner<B>) -> Vec<Arc<Slot<B>>> {
        if inner.retired.is_empty() {
            return Vec::new();
        }
        let hazards = self.hazards(inner);
        let retired = std::mem::take(&mut inner.retired);
        let (mut read, mut free): (Vec<_>, Vec<_>) =
            retired.into_iter().partition(|slot| hazards.want(address(slot)));
        if !read.is_empty() && !hazards.is_blind() && self.readers.fence() {
            free.extend(read.extract_if(.., |slot| !hazards.still_protects(address(slot))));
        }
        inner.retired = read;
        free
    }

    /// A snapshot of all hazards; blind if no fence has run since any thread hid a slot.
    fn hazards(&self, inner: &mut Inner<B>) -> HazardSnapshot {
        inner.owes_fence = inner.owes_fence && !self.readers.fence();
        if inner.owes_fence { HazardSnapshot::blind() } else { self.readers.snapshot() }
    }

    fn hide(&self, slot: &Slot<B>) -> bool {
        slot.source.directory(self.position).hide(slot)
    }
}

/// Slots that are still retired were read under forgotten guards. The guards borrowed the index, so they are no longer
/// in use; but their hazards would protect any later slot at the same address.
impl<B> Drop for Index<B> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.get() else { return };
        for slot in &lock(inner).retired {
            self.readers.abandon(address(slot));
        }
    }
}

/// Slots removed from an index.
pub(super) struct Removed<B> {
    /// The ranges of all removed slots.
    pub(super) ranges: Vec<Range<usize>>,
    /// The slots to be dropped after the index is unlocked. The missing ones are read; their last reader drops them.
    pub(super) slots: Vec<Arc<Slot<B>>>,
}

/// The key of a range.
pub(super) fn key<B>(source: &Source<B>, range: &Range<usize>) -> Key {
    (source.id, range.start, range.end)
}

/// All keys of a source.
fn keys_of<B>(source: &Source<B>) -> RangeInclusive<Key> {
    (source.id, 0, 0)..=(source.id, usize::MAX, usize::MAX)
}

fn address<B>(slot: &Arc<Slot<B>>) -> *mut () {
    Arc::as_ptr(slot).cast_mut().cast()
}

/// The usage of a slot, for SIEVE.
fn usage<B>(slot: &Arc<Slot<B>>) -> Usage {
    if !is_unused(slot) {
        Usage::Held
    } else if slot.take_spare() {
        Usage::Hit
    } else {
        Usage::Idle
    }
}

/// Whether only the index holds it, and it is not in flight.
fn is_unused<B>(slot: &Arc<Slot<B>>) -> bool {
    Arc::strong_count(slot) == 1 && slot.near().is_some()
}

impl<B> Inner<B> {
    /// The slot of exactly this range, or of the chunk around it.
    fn find(&self, source: &Source<B>, range: &Range<usize>) -> Option<&Arc<Slot<B>>> {
        let exact = self.by_key.get(&key(source, range));
        let place = exact.or_else(|| {
            let chunk = source.chunks.around(range).filter(|chunk| chunk != range)?;
            self.by_key.get(&key(source, &chunk))
        });
        place.map(|&place| self.sieve.get(place))
    }

    /// See [`Index::join`]. Looks at the slot of exactly this range, then at up to [`EARLIER_MAX`] slots that begin before.
    fn join(&self, source: &Source<B>, range: &Range<usize>) -> Option<Arc<Slot<B>>> {
        let exact = self.by_key.get_key_value(&key(source, range));
        let from_start = (source.id, 0, 0)..=(source.id, range.start, usize::MAX);
        let earlier =
            self.by_key.range(from_start).rev().take(EARLIER_MAX).filter(|(key, _)| key.2 >= range.end);
        exact.into_iter().chain(earlier).find_map(|(_, &place)| {
            let slot = self.sieve.get(place);
            slot.join().then(|| {
                slot.touch();
                slot.clone()
            })
        })
    }

    fn take(&mut self, place: usize) -> Arc<Slot<B>> {
        let slot = self.sieve.remove(place);
        self.by_key.remove(&key(&slot.source, &slot.range));
        slot
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests;

//! Cached data that changes.
//!
//! The bytes of a region never change while they may be read. So each version is a region of its own: a mutation changes
//! a copy, publishes it as the next version, and removes the old version's entries from the cache.
//!
//! ```text
//! mutate:  copy the value ─▶ change the copy ─▶ publish ─▶ wait for copies of the old one in flight ─▶ invalidate them
//! read:    a snapshot: value, its near copies, and the number of its version
//! draft:   a copy in near memory, changed there ─▶ write_back: copied to new memory at home ─▶ publish, as above
//! ```
//!
//! A held snapshot does not change when a new version is published. A result computed from it is up to date if its
//! version is still the current one.
//!
//! Source: `CacheMutWrapper`, which the thesis proposes in section 4.2 as future work.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use memferry_dsa::internals::fork::PerProcess;

use super::draft::{Draft, DraftError, NewOnNode};
use super::region::Drain;
use super::{Access, AccessError, Cache, Entry, Region, RegionOwner, View};
use crate::mover::CopyOptions;
use crate::sync::{Mutex, lock};
use crate::topology::NodeId;

/// A cached value that can change. Clones share it.
///
/// ```
/// # use std::sync::Arc;
/// use memferry::cache::{Access, Cache, CacheMut};
/// # use memferry::{Machine, Mover};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let machine = Arc::new(Machine::discover()?);
/// # let node = machine.nodes()[0].id;
/// let cache = Cache::builder(Mover::builder(machine).build()?).budget(node, 64 << 20).build()?;
/// let prices = CacheMut::new(&cache, vec![10_u8; 1 << 20], None, 64 << 10);
/// let morning = prices.read(); // a Snapshot
/// let (version, old_price) = prices.mutate(|bytes| std::mem::replace(&mut bytes[5], 12));
/// assert_eq!((version, old_price, morning[5], prices.read()[5]), (1, 10, 10, 12));
///
/// let mut draft = prices.draft(node)?; // a private near copy
/// draft[6] = 13;
/// assert_eq!(draft.write_back()?, 2); // fails if another version was published meanwhile
/// assert_eq!(prices.access(0..64, Access::default())?.as_slice()[6], 13);
/// # Ok(())
/// # }
/// ```
pub struct CacheMut<T> {
    pub(super) inner: Arc<Inner<T>>,
}

pub(super) struct Inner<T> {
    pub(super) cache: Cache,
    pub(super) home: Option<NodeId>,
    chunk_bytes: usize,
    current: Current<T>,
    /// Lock of the thread that makes the next version; per process, so that it is free in a forked child.
    writer: PerProcess<Mutex<()>>,
}

/// The current version. A forked child continues with that of its parent, at any point of the fork: the lock is the
/// child's own, and the version is one pointer, which is written atomically.
struct Current<T> {
    /// Lock of every read and write of `latest`.
    lock: PerProcess<Mutex<()>>,
    /// From `Box::into_raw`, and owned. Read and written under the lock.
    latest: AtomicPtr<Snapshot<T>>,
}

/// One version of a [`CacheMut`]'s value. Clones share it. Its entries leave the cache with the last clone, if not before.
pub struct Snapshot<T> {
    region: Region,
    value: Arc<T>,
    version: u64,
}

/// The value of a version as the owner of its region.
struct SharedValue<T>(Arc<T>);

// SAFETY: `T` promises bytes that stay where they are and do not change unless it is borrowed mutably, which is impossible
// while it is shared: no `&mut` to it is made once it is in the `Arc`.
unsafe impl<T: RegionOwner> RegionOwner for SharedValue<T> {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl<T: RegionOwner> CacheMut<T> {
    /// Creates version 0. `home` and `chunk_bytes` are those of [`Cache::register_chunked`], for this and all later
    /// versions.
    ///
    /// Nothing checks `home`. Drafts of a [`Mapping`](crate::memory::Mapping) are written back to it. The pages of a new
    /// version of a vector lie on the node of the thread that first writes them: pass `None` unless that is always the
    /// same node.
    pub fn new(cache: &Cache, value: T, home: Option<NodeId>, chunk_bytes: usize) -> CacheMut<T> {
        let value = Arc::new(value);
        let region = cache.register_chunked(SharedValue(value.clone()), home, chunk_bytes);
        let current = Current::new(Snapshot { region, value, version: 0 });
        let (cache, writer) = (cache.clone(), PerProcess::new());
        CacheMut { inner: Arc::new(Inner { cache, home, chunk_bytes, current, writer }) }
    }

    /// The current version. Cost: a lock, which mutations hold only briefly.
    pub fn read(&self) -> Snapshot<T> {
        self.inner.current.look(Snapshot::clone)
    }

    /// The number of the current version.
    pub fn version(&self) -> u64 {
        self.inner.current.look(Snapshot::version)
    }

    /// The bytes of `range` in the current version; see [`Snapshot::access`].
    ///
    /// # Errors
    /// Those of [`Cache::access`]; values of different versions may differ in length.
    pub fn access(&self, range: Range<usize>, access: Access) -> Result<Entry, AccessError> {
        self.read().access(&self.inner.cache, range, access)
    }

    /// The lock of the thread that makes the next version.
    pub(super) fn writer(&self) -> &Mutex<()> {
        self.inner.writer.get_or_init(Mutex::default)
    }

    /// Publishes the next version. Called under the writer's lock.
    pub(super) fn publish(&self, value: T) -> Published<T> {
        let value = Arc::new(value);
        let Inner { cache, home, chunk_bytes, current, .. } = &*self.inner;
        let region = cache.register_chunked(SharedValue(value.clone()), *home, *chunk_bytes);
        let version = self.version() + 1;
        // The drain starts before the new version is visible: holders of the old one may start copies of it for ever.
        let (old, copies) =
            current.replace(Snapshot { region, value, version }, |old| old.region.begin_drain());
        Published { version, old, copies }
    }

    /// Removes the entries of the old version. Called without the writer's lock.
    pub(super) fn retire(&self, Published { old, copies, .. }: Published<T>) {
        copies.wait();
        let everything = 0..old.region.len();
        let removed = self.inner.cache.invalidate(&old.region, everything);
        removed.expect("the region belongs to this cache, and the range is its own");
    }
}

impl<T> Current<T> {
    fn new(snapshot: Snapshot<T>) -> Current<T> {
        let latest = AtomicPtr::new(Box::into_raw(Box::new(snapshot)));
        Current { lock: PerProcess::new(), latest }
    }

    /// Passes the current version to `look`, which is short and calls no foreign code.
    fn look<R>(&self, look: impl FnOnce(&Snapshot<T>) -> R) -> R {
        let _current = lock(self.lock.get_or_init(Mutex::default));
        // ORDERING: Relaxed: the lock orders it; writes of the parent's threads are ordered by the fork.
        // SAFETY: from `into_raw`, and freed only after it was replaced, which takes the lock.
        look(unsafe { &*self.latest.load(Ordering::Relaxed) })
    }

    /// Makes `next` the current version. Returns the former one, and the result of `at_once`, which runs on it before
    /// `next` is visible.
    fn replace<R>(&self, next: Snapshot<T>, at_once: impl FnOnce(&Snapshot<T>) -> R) -> (Snapshot<T>, R) {
        let next = Box::into_raw(Box::new(next));
        let current = lock(self.lock.get_or_init(Mutex::default));
        // ORDERING: Relaxed, as above.
        let former = self.latest.swap(next, Ordering::Relaxed);
        // SAFETY: from `into_raw`; no other thread has it any more, because all access it under the lock.
        let former = unsafe { Box::from_raw(former) };
        let result = at_once(&former);
        drop(current);
        (*former, result)
    }
}

impl<T> Drop for Current<T> {
    fn drop(&mut self) {
        // SAFETY: from `into_raw`, and this has `&mut self`.
        drop(unsafe { Box::from_raw(*self.latest.get_mut()) });
    }
}

// The pointer owns a snapshot that threads share, and that another thread may drop.
// SAFETY: `&Current<T>` lends `&Snapshot<T>`, and takes and returns a `Snapshot<T>`.
unsafe impl<T: Send + Sync> Sync for Current<T> {}
// SAFETY: it owns a snapshot.
unsafe impl<T: Send + Sync> Send for Current<T> {}

/// A publication whose old version is to be retired.
pub(super) struct Published<T> {
    /// The number of the new version.
    pub(super) version: u64,
    old: Snapshot<T>,
    /// Drain of the old version's copies.
    copies: Drain,
}

impl<T: RegionOwner + Clone> CacheMut<T> {
    /// Changes a copy of the value and publishes it. Returns its version and the result of `change`.
    ///
    /// Readers keep the version they hold; later reads return the new one. Then this waits for copies of the old version
    /// that were started earlier, and removes its entries from the cache. Mutations wait for each other. If `change`
    /// panics, nothing is published.
    ///
    /// Do not call it from a waker or from `change`: it would wait for itself.
    /// Cost: a copy of the value.
    pub fn mutate<R>(&self, change: impl FnOnce(&mut T) -> R) -> (u64, R) {
        let writer = lock(self.writer());
        let mut value = T::clone(&self.read().value);
        let result = change(&mut value);
        let published = self.publish(value);
        drop(writer);
        let version = published.version;
        self.retire(published);
        (version, result)
    }
}

impl<T: NewOnNode> CacheMut<T> {
    /// Makes a private copy of the current version in near memory, to be changed there and written back.
    ///
    /// Waits for the copy. Cost: a block of near memory, perhaps with evictions.
    ///
    /// # Errors
    /// [`DraftError`]; nothing has changed.
    pub fn draft(&self, near: NodeId) -> Result<Draft<T>, DraftError> {
        let base = self.read();
        let shared = &self.inner.cache.shared;
        let node = &shared.nodes[shared.position(near)?];
        let size_bytes = base.region.len();
        let block = node.room_for(size_bytes, &shared.counters);
        let block = block.ok_or(DraftError::NoRoom { node: near, size_bytes })?;
        let version = base.version;
        let options =
            CopyOptions { source_node: self.inner.home, target_node: Some(near), ..CopyOptions::default() };
        match shared.mover.copy(base, block, options).wait() {
            Ok((_, block, _)) => Ok(Draft::new(self.clone(), block, version)),
            Err(error) => Err(DraftError::Copy(error.error)),
        }
    }
}

impl<T> Snapshot<T> {
    /// The number of the version; later versions have larger numbers.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Its region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The bytes of `range` in this version; `cache` is the one it belongs to. See [`Cache::access`].
    ///
    /// # Errors
    /// Those of [`Cache::access`].
    pub fn access(&self, cache: &Cache, range: Range<usize>, access: Access) -> Result<Entry, AccessError> {
        cache.access(&self.region, range, access)
    }

    /// The bytes of `range` in this version, borrowed; see [`Cache::view`].
    ///
    /// # Errors
    /// Those of [`Cache::access`].
    pub fn view<'a>(
        &self,
        cache: &'a Cache,
        range: Range<usize>,
        access: Access,
    ) -> Result<View<'a>, AccessError> {
        cache.view(&self.region, range, access)
    }
}

impl<T> Clone for CacheMut<T> {
    fn clone(&self) -> CacheMut<T> {
        CacheMut { inner: self.inner.clone() }
    }
}

impl<T> Clone for Snapshot<T> {
    fn clone(&self) -> Snapshot<T> {
        Snapshot { region: self.region.clone(), value: self.value.clone(), version: self.version }
    }
}

impl<T> Deref for Snapshot<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: RegionOwner> AsRef<[u8]> for Snapshot<T> {
    fn as_ref(&self) -> &[u8] {
        self.value.bytes()
    }
}

impl<T> fmt::Debug for CacheMut<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = self.inner.current.look(Snapshot::clone);
        f.debug_struct("CacheMut").field("current", &current).finish_non_exhaustive()
    }
}

/// Omits the bytes.
impl<T> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { region, version, value: _ } = self;
        f.debug_struct("Snapshot").field("version", version).field("region", region).finish()
    }
}

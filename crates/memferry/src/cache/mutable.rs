//! Data that changes, cached.
//!
//! The bytes of a region never change while somebody may read them. So a change makes a new region: a mutation works on
//! a copy, publishes it as the next version, and takes the copies of the old one out of the cache.
//!
//! ```text
//! mutate:  copy the value ─▶ change the copy ─▶ publish ─▶ wait for copies of the old one in flight ─▶ invalidate them
//! read:    a snapshot: value, its near copies, and the number of its version
//! draft:   a copy in near memory, changed there ─▶ write_back: new memory at home, filled from it ─▶ publish, as above
//! ```
//!
//! A snapshot stays what it is for as long as it is held, whatever is published meanwhile. What was computed from it
//! carries its number, and is up to date if that is still the current one.
//!
//! Source: `CacheMutWrapper`, which the thesis proposes in section 4.2 and leaves to others.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use memferry_dsa::fork::PerProcess;

use super::draft::{Draft, DraftError, NewOnNode};
use super::region::Drain;
use super::{Access, AccessError, Cache, Entry, Region, RegionOwner, View};
use crate::mover::CopyOptions;
use crate::sync::{Mutex, lock};
use crate::topology::NodeId;

/// A value whose bytes are cached, and that can be changed nevertheless. Clones share it.
pub struct CacheMut<T> {
    pub(super) inner: Arc<Inner<T>>,
}

pub(super) struct Inner<T> {
    pub(super) cache: Cache,
    pub(super) home: Option<NodeId>,
    chunk_bytes: usize,
    current: Current<T>,
    /// Held by whoever makes the next version; by nobody in a process that was forked meanwhile.
    writer: PerProcess<Mutex<()>>,
}

/// The current version. A forked child goes on with that of its parent, whatever a thread of the parent was doing here:
/// the lock is the child's own, and the version one pointer, which is never half written.
struct Current<T> {
    /// Held by whoever reads or writes `latest`.
    lock: PerProcess<Mutex<()>>,
    /// From `Box::into_raw`, and owned. Written under the lock.
    latest: AtomicPtr<Snapshot<T>>,
}

/// One version of a [`CacheMut`]'s value. Clones share it; near copies of it go when the last one does, if not before.
pub struct Snapshot<T> {
    region: Region,
    value: Arc<T>,
    version: u64,
}

/// The region's share of a version's value.
struct Shared<T>(Arc<T>);

// SAFETY: `T` promises bytes that stay where they are and do not change unless it is borrowed mutably, which nobody can
// do while it is shared: no `&mut` to it is made once it is in the `Arc`.
unsafe impl<T: RegionOwner> RegionOwner for Shared<T> {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl<T: RegionOwner> CacheMut<T> {
    /// The first version, number 0. `home` and `chunk_bytes` are those of [`Cache::register_chunked`], for this and all
    /// later versions.
    ///
    /// As there, nothing checks that they lie at `home`. Drafts of a [`Mapping`](crate::memory::Mapping) are written
    /// back to it. Of a vector, the pages of a new version come to lie on the node of the thread that first writes
    /// them: pass `None` unless that is always the same node.
    pub fn new(cache: &Cache, value: T, home: Option<NodeId>, chunk_bytes: usize) -> CacheMut<T> {
        let value = Arc::new(value);
        let region = cache.register_chunked(Shared(value.clone()), home, chunk_bytes);
        let current = Current::new(Snapshot { region, value, version: 0 });
        let (cache, writer) = (cache.clone(), PerProcess::new());
        CacheMut { inner: Arc::new(Inner { cache, home, chunk_bytes, current, writer }) }
    }

    /// The current version. Cost: a lock, which no mutation holds while it works.
    pub fn read(&self) -> Snapshot<T> {
        self.inner.current.look(Snapshot::clone)
    }

    /// The number of the current version. By the time it is looked at there may be another.
    pub fn version(&self) -> u64 {
        self.inner.current.look(Snapshot::version)
    }

    /// The bytes of `range` in the current version; see [`Snapshot::access`].
    ///
    /// # Errors
    /// As [`Cache::access`]; values of different versions may differ in length.
    pub fn access(&self, range: Range<usize>, access: Access) -> Result<Entry, AccessError> {
        self.read().access(&self.inner.cache, range, access)
    }

    /// Held while the next version is made.
    pub(super) fn writer(&self) -> &Mutex<()> {
        self.inner.writer.get_or_init(Mutex::default)
    }

    /// Under the writer's lock.
    pub(super) fn publish(&self, value: T) -> Published<T> {
        let value = Arc::new(value);
        let Inner { cache, home, chunk_bytes, current, .. } = &*self.inner;
        let region = cache.register_chunked(Shared(value.clone()), *home, *chunk_bytes);
        let version = self.version() + 1;
        // The drain begins before anybody knows of the new version: whoever holds the old one may go on making copies of
        // it for ever.
        let (old, copies) =
            current.replace(Snapshot { region, value, version }, |old| old.region.begin_drain());
        Published { version, old, copies }
    }

    /// Without the writer's lock.
    pub(super) fn retire(&self, Published { old, copies, .. }: Published<T>) {
        copies.wait();
        let everything = 0..old.region.len();
        let taken = self.inner.cache.invalidate(&old.region, everything);
        taken.expect("the region is this cache's, and the range its own");
    }
}

impl<T> Current<T> {
    fn new(snapshot: Snapshot<T>) -> Current<T> {
        let latest = AtomicPtr::new(Box::into_raw(Box::new(snapshot)));
        Current { lock: PerProcess::new(), latest }
    }

    /// Passes the current version to `look`, which is short and calls nothing of others.
    fn look<R>(&self, look: impl FnOnce(&Snapshot<T>) -> R) -> R {
        let _current = lock(self.lock.get_or_init(Mutex::default));
        // ORDERING: Relaxed: the lock orders it; what a thread of the parent wrote, the fork does.
        // SAFETY: from `into_raw`, and freed after it was replaced only, which takes the lock.
        look(unsafe { &*self.latest.load(Ordering::Relaxed) })
    }

    /// Makes `next` the current version; the former one, and what `at_once` says of it before anybody sees `next`.
    fn replace<R>(&self, next: Snapshot<T>, at_once: impl FnOnce(&Snapshot<T>) -> R) -> (Snapshot<T>, R) {
        let next = Box::into_raw(Box::new(next));
        let current = lock(self.lock.get_or_init(Mutex::default));
        // ORDERING: Relaxed, as above.
        let former = self.latest.swap(next, Ordering::Relaxed);
        // SAFETY: from `into_raw`; nobody else has it any more, since all look under the lock.
        let former = unsafe { Box::from_raw(former) };
        let said = at_once(&former);
        drop(current);
        (*former, said)
    }
}

impl<T> Drop for Current<T> {
    fn drop(&mut self) {
        // SAFETY: from `into_raw`, and this has `&mut self`.
        drop(unsafe { Box::from_raw(*self.latest.get_mut()) });
    }
}

// The pointer owns a snapshot that threads share, and that another one than its maker drops.
// SAFETY: `&Current<T>` passes out `&Snapshot<T>`, and takes in and gives out a `Snapshot<T>`.
unsafe impl<T: Send + Sync> Sync for Current<T> {}
// SAFETY: a snapshot goes along.
unsafe impl<T: Send + Sync> Send for Current<T> {}

/// What a publication leaves to be done.
pub(super) struct Published<T> {
    /// The new one.
    pub(super) version: u64,
    old: Snapshot<T>,
    /// Of the old one, begun before.
    copies: Drain,
}

impl<T: RegionOwner + Clone> CacheMut<T> {
    /// Changes a copy of the value and publishes it; returns its number and what `change` returned.
    ///
    /// Readers go on reading the version they hold; from the moment of publication, new ones get the new one. Then it
    /// waits for copies of the old version that were begun before, and takes all of them out of the cache. Mutations
    /// wait for each other. If `change` panics, nothing is published.
    ///
    /// Do not call it from a waker or a `change`: it would wait for itself.
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
    /// A private copy of the current version in near memory, to be changed there and written back.
    ///
    /// Waits for the copy. Cost: a block of near memory, for which unused entries leave if they must.
    ///
    /// # Errors
    /// [`DraftError`]. Nothing has happened.
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
    /// The number of the version; later ones have larger numbers.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Its region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The bytes of `range` in this version, through the cache that it belongs to; see [`Cache::access`].
    ///
    /// # Errors
    /// As [`Cache::access`].
    pub fn access(&self, cache: &Cache, range: Range<usize>, access: Access) -> Result<Entry, AccessError> {
        cache.access(&self.region, range, access)
    }

    /// The bytes of `range` in this version, borrowed; see [`Cache::view`].
    ///
    /// # Errors
    /// As [`Cache::access`].
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

/// Without the bytes, of which there may be many.
impl<T> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Snapshot { region, version, value: _ } = self;
        f.debug_struct("Snapshot").field("version", version).field("region", region).finish()
    }
}

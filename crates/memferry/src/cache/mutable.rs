//! Data that changes, cached.
//!
//! The bytes of a region never change while somebody may read them. So a change makes a new region: a mutation works on
//! a copy, publishes it as the next version, and takes the copies of the old one out of the cache.
//!
//! ```text
//! mutate:  copy the value ─▶ change the copy ─▶ publish ─▶ wait for copies of the old one in flight ─▶ invalidate them
//! read:    a snapshot: value, its near copies, and the number of its version
//! ```
//!
//! A snapshot stays what it is for as long as it is held, whatever is published meanwhile. What was computed from it
//! carries its number, and is up to date if that is still the current one.
//!
//! Source: `CacheMutWrapper`, which the thesis proposes in section 4.2 and leaves to others.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::{Access, AccessError, Cache, Entry, Region, RegionOwner, View};
use crate::memory::Block;
use crate::mover::{CopyError, CopyOptions};
use crate::sync::{Mutex, lock};
use crate::topology::NodeId;

/// A value whose bytes are cached, and that can be changed nevertheless. Clones share it.
#[derive(Debug)]
pub struct CacheMut<T> {
    inner: Arc<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    cache: Cache,
    home: Option<NodeId>,
    chunk_bytes: usize,
    current: Mutex<Snapshot<T>>,
    /// Held by whoever makes the next version.
    writer: Mutex<()>,
}

/// One version of a [`CacheMut`]'s value. Clones share it; near copies of it go when the last one does, if not before.
#[derive(Debug)]
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

impl<T: RegionOwner + Clone> CacheMut<T> {
    /// The first version, number 0. `home` and `chunk_bytes` are those of [`Cache::register_chunked`].
    pub fn new(cache: &Cache, value: T, home: Option<NodeId>, chunk_bytes: usize) -> CacheMut<T> {
        let value = Arc::new(value);
        let region = cache.register_chunked(Shared(value.clone()), home, chunk_bytes);
        let current = Mutex::new(Snapshot { region, value, version: 0 });
        let (cache, writer) = (cache.clone(), Mutex::new(()));
        CacheMut { inner: Arc::new(Inner { cache, home, chunk_bytes, current, writer }) }
    }

    /// The current version. Cost: a lock, which no mutation holds while it works.
    pub fn read(&self) -> Snapshot<T> {
        lock(&self.inner.current).clone()
    }

    /// The number of the current version. By the time it is looked at there may be another.
    pub fn version(&self) -> u64 {
        lock(&self.inner.current).version
    }

    /// The bytes of `range` in the current version; see [`Snapshot::access`].
    ///
    /// # Errors
    /// As [`Cache::access`]; values of different versions may differ in length.
    pub fn access(&self, range: Range<usize>, access: Access) -> Result<Entry, AccessError> {
        self.read().access(&self.inner.cache, range, access)
    }

    /// Changes a copy of the value and publishes it; returns its number and what `change` returned.
    ///
    /// Readers go on reading the version they hold; from the moment of publication, new ones get the new one. Then it
    /// waits for copies of the old version that are in flight, and takes them out of the cache. Mutations wait for each
    /// other. If `change` panics, nothing is published.
    ///
    /// Do not call it from a waker or a `change`: it would wait for itself.
    /// Cost: a copy of the value.
    pub fn mutate<R>(&self, change: impl FnOnce(&mut T) -> R) -> (u64, R) {
        let writer = lock(&self.inner.writer);
        let mut value = T::clone(&self.read().value);
        let result = change(&mut value);
        let (old, version) = self.publish(value);
        drop(writer);
        self.retire(&old);
        (version, result)
    }

    /// The old version, and the number of the new one. Under the writer's lock.
    fn publish(&self, value: T) -> (Snapshot<T>, u64) {
        let value = Arc::new(value);
        let Inner { cache, home, chunk_bytes, current, .. } = &*self.inner;
        let region = cache.register_chunked(Shared(value.clone()), *home, *chunk_bytes);
        let mut current = lock(current);
        let version = current.version + 1;
        (std::mem::replace(&mut *current, Snapshot { region, value, version }), version)
    }

    fn retire(&self, old: &Snapshot<T>) {
        old.region.drain();
        let everything = 0..old.region.len();
        let taken = self.inner.cache.invalidate(&old.region, everything);
        taken.expect("the region is this cache's, and the range its own");
    }
}

impl CacheMut<Vec<u8>> {
    /// A private copy of the current version in near memory, to be changed there and written back.
    ///
    /// Waits for the copy. Cost: a block of near memory, for which unused entries leave if they must.
    ///
    /// # Errors
    /// [`DraftError`]. Nothing has happened.
    pub fn draft(&self, near: NodeId) -> Result<Draft, DraftError> {
        let base = self.read();
        let shared = &self.inner.cache.shared;
        let node = &shared.nodes[shared.position(near)?];
        let size_bytes = base.value.len();
        let block = node.room_for(size_bytes, &shared.counters);
        let block = block.ok_or(DraftError::NoRoom { node: near, size_bytes })?;
        let version = base.version;
        let options =
            CopyOptions { source_node: self.inner.home, target_node: Some(near), ..CopyOptions::default() };
        match shared.mover.copy(base, block, options).wait() {
            Ok((_, block, _)) => Ok(Draft { of: self.clone(), block, version }),
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

/// A private copy of one version in near memory. Dropped without [`write_back`](Draft::write_back), it never was.
#[derive(Debug)]
pub struct Draft {
    of: CacheMut<Vec<u8>>,
    block: Block,
    version: u64,
}

impl Draft {
    /// The version it was copied from.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Copies it to new memory at home and publishes that as the next version, whose number it returns; then as
    /// [`CacheMut::mutate`]. Waits for the copy.
    ///
    /// # Errors
    /// [`WriteBackError::Outdated`] with the draft in it if another version was published since it was made;
    /// [`WriteBackError::Copy`].
    pub fn write_back(self) -> Result<u64, WriteBackError> {
        let Draft { of, block, version } = self;
        if of.version() != version {
            return Err(WriteBackError::Outdated { draft: Draft { of, block, version } });
        }
        let target = vec![0; block.len()];
        let options = CopyOptions {
            source_node: Some(block.node()),
            target_node: of.inner.home,
            ..CopyOptions::default()
        };
        let copied = of.inner.cache.shared.mover.copy(block, target, options).wait();
        let (block, value, _) = copied.map_err(|error| WriteBackError::Copy(error.error))?;
        let writer = lock(&of.inner.writer);
        if of.version() != version {
            drop(writer);
            return Err(WriteBackError::Outdated { draft: Draft { of, block, version } });
        }
        let (old, version) = of.publish(value);
        drop(writer);
        of.retire(&old);
        Ok(version)
    }
}

impl Deref for Draft {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.block.as_slice()
    }
}

impl std::ops::DerefMut for Draft {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.block.as_mut_slice()
    }
}

/// Why there is no draft.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// The cache has no budget on the node.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The node is full, and nothing can leave.
    #[error(
        "node {node} has no room for {size_bytes} bytes; let go of entries there, or change the value at home"
    )]
    NoRoom {
        /// The node.
        node: NodeId,
        /// What was needed.
        size_bytes: usize,
    },
    /// The bytes could not be copied.
    #[error("the draft could not be copied; try again, or change the value at home")]
    Copy(#[source] CopyError),
}

/// Why a draft did not become a version.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteBackError {
    /// Somebody else was faster.
    #[error("the draft was made from version {}, which is no longer the current one; make another", draft.version)]
    Outdated {
        /// Unchanged.
        draft: Draft,
    },
    /// The bytes could not be copied; nothing was published, and the draft is gone.
    #[error("the draft could not be copied back and is lost; make another")]
    Copy(#[source] CopyError),
}

//! Sources: memory that somebody owns, registered with a cache.
//!
//! Entries are found by (region, range), never by address. A region's id is never used again, so memory that is freed
//! and allocated anew for something else cannot be mistaken for what was copied from it.
//!
//! Who keeps what alive:
//!
//! ```text
//! Region ──▶ Handle ──▶ Source ──▶ owner      the last Region drops the region's entries from the cache
//! Entry  ──▶ Slot   ──▶ Source                a held entry keeps the source, and so does a copy in flight
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Shared;
use super::directory::{Chunks, Directory};
use crate::memory::{Block, Mapping};
use crate::mover::{Epochs, Operation};
use crate::topology::NodeId;

/// An owner of bytes that stay where they are.
///
/// # Safety
/// As long as the owner lives, wherever it is moved,
/// - `bytes` returns the same address and length each time, and they are readable;
/// - nobody writes them while a slice of them is borrowed or a copy of them is in flight. For an owner that ever
///   writes: from before [`Region::drain`] to the end of the writing nobody accesses the region and no slice of an
///   entry is around, and [`Cache::invalidate`](super::Cache::invalidate) follows, before the next access.
pub unsafe trait RegionOwner: Send + Sync + 'static {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

macro_rules! owned_bytes {
    ($($owner:ty),+) => { $(
        // SAFETY: the bytes live on the heap (or are static) behind an owner that the region holds and lends to
        // nobody mutably, so they neither move nor change until it is dropped.
        unsafe impl RegionOwner for $owner {
            fn bytes(&self) -> &[u8] {
                self
            }
        }
    )+ };
}
owned_bytes!(Vec<u8>, Box<[u8]>, Arc<[u8]>, Arc<Vec<u8>>, &'static [u8], Mapping, Arc<Mapping>);

/// Registered bytes, of which ranges can be accessed through the cache that registered them. Clones share it.
///
/// Dropping the last clone drops the region's entries from the cache and stops nothing: copies in flight run out, and
/// entries that are still held keep their bytes, near and source. The owner is dropped after the last of them, perhaps
/// on the thread that completes a copy.
#[derive(Clone)]
pub struct Region {
    handle: Arc<Handle>,
}

/// What the clones of a [`Region`] share; its end is the region's end.
struct Handle {
    source: Arc<Source<Block>>,
    /// Weak, so that forgotten regions do not keep a cache and its pools.
    cache: Weak<Shared>,
}

impl Region {
    pub(super) fn new(source: Source<Block>, cache: Weak<Shared>) -> Region {
        Region { handle: Arc::new(Handle { source: Arc::new(source), cache }) }
    }

    /// Different for every region this process ever registers.
    pub fn id(&self) -> u64 {
        self.source().id
    }

    /// How often something of it was invalidated. Entries carry the generation they were made in.
    pub fn generation(&self) -> u64 {
        self.source().generation()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.source().chunks.region_bytes()
    }

    /// The size of the chunks that it is looked up by; the last may be shorter.
    pub fn chunk_bytes(&self) -> usize {
        self.source().chunks.chunk_bytes()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node it lies on, if whoever registered it said so.
    pub fn home(&self) -> Option<NodeId> {
        self.source().home
    }

    /// The bytes at home.
    pub fn as_slice(&self) -> &[u8] {
        self.source().bytes()
    }

    /// Blocks until all copies have ended that read this region and were begun before; what others begin meanwhile is
    /// not waited for. A copy whose device was lost counts as over: what it may still read was leaked. So does, in a
    /// forked child, what the parent has in flight. An entry that is held may show
    /// [`Why::InFlight`](super::Why::InFlight) for a moment longer.
    ///
    /// Do not call it from a waker: it may wait for the thread it is on.
    pub fn drain(&self) {
        self.begin_drain().wait();
    }

    /// What is to be waited for is decided now.
    pub(super) fn begin_drain(&self) -> Drain {
        Drain(self.source().flights.drain())
    }

    #[inline]
    pub(super) fn source(&self) -> &Arc<Source<Block>> {
        &self.handle.source
    }

    /// Whether `cache` registered it.
    #[inline]
    pub(super) fn is_of(&self, cache: &Arc<Shared>) -> bool {
        std::ptr::eq(self.handle.cache.as_ptr(), Arc::as_ptr(cache))
    }
}

/// The wait for the copies that read a region and were begun before this was.
pub(super) struct Drain(Operation<(), ()>);

impl Drain {
    pub(super) fn wait(self) {
        // It fails in a process that was forked meanwhile: the copies are not that one's.
        let _ = self.0.wait();
    }
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("id", &self.id())
            .field("generation", &self.generation())
            .field("len", &self.len())
            .field("home", &self.home())
            .finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.upgrade() {
            cache.forget_region(&self.source);
        }
    }
}

/// The bytes of a region and what is known of them; outlives the [`Region`] as long as an entry or a copy needs it.
pub(super) struct Source<B> {
    pub(super) id: u64,
    pub(super) home: Option<NodeId>,
    pub(super) chunks: Chunks,
    /// One for each node of the cache, in its order.
    directories: Box<[Directory<B>]>,
    /// Held by the copies that read the bytes now.
    pub(super) flights: Epochs,
    /// Bumped by `invalidate` before it removes entries.
    generation: AtomicU64,
    owner: Arc<dyn RegionOwner>,
}

impl<B> Source<B> {
    /// For a cache of `nodes_count` nodes; `chunk_bytes` as in [`Chunks::new`].
    pub(super) fn new(
        owner: Arc<dyn RegionOwner>,
        home: Option<NodeId>,
        chunk_bytes: usize,
        nodes_count: usize,
    ) -> Source<B> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed, no partner: only uniqueness matters.
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let chunks = Chunks::new(owner.bytes().len(), chunk_bytes);
        let directories = (0..nodes_count).map(|_| Directory::new(chunks)).collect();
        let (flights, generation) = (Epochs::default(), AtomicU64::new(0));
        Source { id, home, chunks, directories, flights, generation, owner }
    }

    /// Of the cache's node at `position`.
    #[inline]
    pub(super) fn directory(&self, position: usize) -> &Directory<B> {
        &self.directories[position]
    }

    /// Whether the cache has more than one node.
    pub(super) fn has_several_nodes(&self) -> bool {
        self.directories.len() > 1
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.owner.bytes()
    }

    /// The bytes in `range`, which was checked against their length when the range came in.
    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        &self.owner.bytes()[range]
    }

    pub(super) fn generation(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `bump`: whoever labels a copy with a generation copies the
        // bytes as they were written before that generation began, or newer ones.
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn bump(&self) {
        // ORDERING: Release pairs with the Acquire of `generation`.
        self.generation.fetch_add(1, Ordering::Release);
    }
}

//! Regions: memory registered with a cache.
//!
//! Entries are identified by (region, range), never by address. A region's id is never reused, so a stale copy is never
//! mistaken for one of newly allocated memory at the same address.
//!
//! Ownership:
//!
//! ```text
//! Region ──▶ Handle ──▶ Source ──▶ owner      the last Region removes the region's entries from the cache
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
use crate::storage::StoredFile;
use crate::topology::NodeId;

/// An owner of bytes at a fixed address.
///
/// # Safety
/// As long as the owner lives, wherever it is moved,
/// - `bytes` returns the same address and length each time, and they are readable;
/// - nobody writes them while a slice of them is borrowed or a copy of them is in flight. An owner that writes ensures
///   that from before [`Region::drain`] to the end of the writing nobody accesses the region and no slice of an entry
///   exists, and that [`Cache::invalidate`](super::Cache::invalidate) follows before the next access.
pub unsafe trait RegionOwner: Send + Sync + 'static {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

macro_rules! owned_bytes {
    ($($owner:ty),+) => { $(
        // SAFETY: the bytes live on the heap (or are static) behind an owner that the region holds and never borrows
        // mutably, so they neither move nor change until it is dropped.
        unsafe impl RegionOwner for $owner {
            fn bytes(&self) -> &[u8] {
                self
            }
        }
    )+ };
}
owned_bytes!(Vec<u8>, Box<[u8]>, Arc<[u8]>, Arc<Vec<u8>>, &'static [u8], Mapping, Arc<Mapping>);

/// Registered bytes, accessible through the cache that registered them. Clones share it.
///
/// Dropping the last clone removes the region's entries from the cache. Copies in flight complete, and held entries keep
/// their bytes, near and source. The owner is dropped after the last of them, perhaps on the thread that completes a
/// copy.
#[derive(Clone)]
pub struct Region {
    handle: Arc<Handle>,
}

/// Shared by the clones of a [`Region`]; its drop ends the region.
struct Handle {
    source: Arc<Source<Block>>,
    /// Weak, so that forgotten regions do not keep a cache and its pools.
    cache: Weak<Shared>,
}

impl Region {
    pub(super) fn new(source: Source<Block>, cache: Weak<Shared>) -> Region {
        Region { handle: Arc::new(Handle { source: Arc::new(source), cache }) }
    }

    /// The id, unique among all regions that this process ever registers.
    pub fn id(&self) -> u64 {
        self.source().id
    }

    /// The number of invalidations. Entries carry the generation of their creation.
    pub fn generation(&self) -> u64 {
        self.source().generation()
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.source().chunks.region_bytes()
    }

    /// The size of its chunks; the last may be shorter.
    pub fn chunk_bytes(&self) -> usize {
        self.source().chunks.chunk_bytes()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node of its bytes, if given at registration.
    pub fn home(&self) -> Option<NodeId> {
        self.source().home
    }

    /// The bytes at the source.
    pub fn as_slice(&self) -> &[u8] {
        self.source().bytes()
    }

    /// Blocks until all copies of this region that were started earlier are complete. Later ones are not waited for.
    ///
    /// A copy on a lost device counts as complete: the memory that it may still read was leaked. So do, in a forked child,
    /// copies in flight in the parent. A held entry may show [`Why::InFlight`](super::Why::InFlight) for a moment longer.
    ///
    /// Do not call it from a waker: it may wait for its own thread.
    pub fn drain(&self) {
        self.begin_drain().wait();
    }

    /// Starts a drain of the copies in flight now.
    pub(super) fn begin_drain(&self) -> Drain {
        Drain(self.source().flights.drain())
    }

    #[inline]
    pub(super) fn source(&self) -> &Arc<Source<Block>> {
        &self.handle.source
    }

    /// The cache that registered it, while it lives.
    pub(super) fn cache(&self) -> Option<Arc<Shared>> {
        self.handle.cache.upgrade()
    }

    /// Whether `cache` registered it.
    #[inline]
    pub(super) fn is_of(&self, cache: &Arc<Shared>) -> bool {
        std::ptr::eq(self.handle.cache.as_ptr(), Arc::as_ptr(cache))
    }
}

/// A drain of the copies of a region that were in flight at its start.
pub(super) struct Drain(Operation<(), ()>);

impl Drain {
    pub(super) fn wait(self) {
        // It fails in a process that was forked interim: the copies belong to the parent.
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

/// The bytes of a region and their attributes; outlives the [`Region`] while an entry or a copy needs it.
///
/// Directories are written under the lock of their node's index. Any thread reads and raises `generation`.
pub(super) struct Source<B> {
    pub(super) id: u64,
    pub(super) home: Option<NodeId>,
    pub(super) chunks: Chunks,
    /// One for each node of the cache, in its order.
    directories: Box<[Directory<B>]>,
    /// Epochs, held by the copies that read the bytes now.
    pub(super) flights: Epochs,
    /// Raised by `invalidate` before it removes entries.
    generation: AtomicU64,
    origin: Origin,
}

/// What the bytes of a region come from.
enum Origin {
    Memory(Arc<dyn RegionOwner>),
    /// Only [`StoredRegion`](super::StoredRegion) has such a region, and hands out ready copies only.
    File(Arc<StoredFile>),
    /// The program, once. Only [`MadeRegion`](super::MadeRegion) has such a region, and hands out ready bytes only.
    Program,
}

impl<B> Source<B> {
    /// A source for a cache of `nodes_count` nodes; for `chunk_bytes` see [`Chunks::new`].
    pub(super) fn new(
        owner: Arc<dyn RegionOwner>,
        home: Option<NodeId>,
        chunk_bytes: usize,
        nodes_count: usize,
    ) -> Source<B> {
        let chunks = Chunks::new(owner.bytes().len(), chunk_bytes);
        Source::of(Origin::Memory(owner), home, chunks, nodes_count)
    }

    /// A file as a source. It is one chunk.
    pub(super) fn of_file(file: Arc<StoredFile>, nodes_count: usize) -> Source<B> {
        let size_bytes = usize::try_from(file.len()).unwrap_or(usize::MAX);
        Source::of(Origin::File(file), None, Chunks::new(size_bytes, 0), nodes_count)
    }

    /// The source of bytes that the program makes. It has as many addresses as there are.
    pub(super) fn of_program(nodes_count: usize) -> Source<B> {
        Source::of(Origin::Program, None, Chunks::new(usize::MAX, 0), nodes_count)
    }

    fn of(origin: Origin, home: Option<NodeId>, chunks: Chunks, nodes_count: usize) -> Source<B> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed, no partner: only uniqueness matters.
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let directories = (0..nodes_count).map(|_| Directory::new(chunks)).collect();
        let (flights, generation) = (Epochs::default(), AtomicU64::new(0));
        Source { id, home, chunks, directories, flights, generation, origin }
    }

    /// The directory of the cache's node at `position`.
    #[inline]
    pub(super) fn directory(&self, position: usize) -> &Directory<B> {
        &self.directories[position]
    }

    /// Whether the cache has more than one node.
    pub(super) fn has_several_nodes(&self) -> bool {
        self.directories.len() > 1
    }

    /// The bytes in memory: none of a file, and none of the program's.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.origin {
            Origin::Memory(owner) => owner.bytes(),
            Origin::File(_) | Origin::Program => &[],
        }
    }

    /// The file of a source that is not in memory.
    pub(super) fn file(&self) -> Option<&Arc<StoredFile>> {
        match &self.origin {
            Origin::Memory(_) | Origin::Program => None,
            Origin::File(file) => Some(file),
        }
    }

    /// The bytes in `range`, whose bounds the access has checked.
    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        if range.is_empty() { &[] } else { &self.bytes()[range] }
    }

    pub(super) fn generation(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `bump`: bytes that were written before the generation began are
        // visible to the thread that labels a copy with it.
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn bump(&self) {
        // ORDERING: Release pairs with the Acquire of `generation`: the owner's writes become visible with it.
        self.generation.fetch_add(1, Ordering::Release);
    }
}

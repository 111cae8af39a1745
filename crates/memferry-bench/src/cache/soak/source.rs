//! Data whose bytes identify region and version, and owners that count their drops.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use memferry::cache::{AccessError, Cache, Region, RegionOwner};
use memferry::topology::NodeId;

use super::{CHUNK_BYTES, PAGE_BYTES, REGION_BYTES};
use crate::harness::Random;

/// The expected content of bytes.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// The content of the region with this seed.
    Seed(u64),
    /// The content of this version of the changing data.
    Version(u64),
    /// The content of the rewritten region while its pages had these seeds.
    Pages(PageSeeds),
}

impl Expected {
    pub(super) fn byte(&self, at: usize) -> u8 {
        match self {
            Expected::Seed(seed) => content(*seed, at),
            // A version begins with its number.
            Expected::Version(version) => match version.to_le_bytes().get(at) {
                Some(&byte) => byte,
                None => content(!version, at),
            },
            Expected::Pages(seeds) => content(seeds[at / PAGE_BYTES], at),
        }
    }
}

/// Writes the content of a version.
pub(super) fn write_version(bytes: &mut [u8], version: u64) {
    let expected = Expected::Version(version);
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = expected.byte(at));
}

/// The version number in `bytes`.
pub(super) fn version_of(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|number| u64::from_le_bytes(*number))
}

/// A byte of the region with this seed.
fn content(seed: u64, at: usize) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        >> 56) as u8
}

/// A region with a new seed, and that seed.
pub(super) fn register(
    cache: &Cache,
    home: NodeId,
    registered: &AtomicU64,
    dropped_owners: &Arc<AtomicU64>,
) -> (Region, u64) {
    // ORDERING: Relaxed, no partner: only uniqueness matters.
    let seed = registered.fetch_add(1, Ordering::Relaxed) + 1;
    let bytes = (0..REGION_BYTES).map(|at| content(seed, at)).collect();
    let owner = CheckedOwner { bytes, seed, dropped_owners: dropped_owners.clone() };
    // Half of the regions have a known home node.
    (cache.register_chunked(owner, [None, Some(home)][seed as usize % 2], CHUNK_BYTES), seed)
}

/// A source that is checked and overwritten when it is dropped.
struct CheckedOwner {
    bytes: Box<[u8]>,
    seed: u64,
    dropped_owners: Arc<AtomicU64>,
}

// SAFETY: the box is neither borrowed mutably nor replaced before the owner is dropped.
unsafe impl RegionOwner for CheckedOwner {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CheckedOwner {
    fn drop(&mut self) {
        let is_whole = self.bytes.iter().enumerate().all(|(at, &byte)| byte == content(self.seed, at));
        self.bytes.fill(0xDD);
        // A source that was written is not counted, and so fails the soak.
        // ORDERING: SeqCst, as strong as the load in `SoakState::finish`, which waits for the count.
        self.dropped_owners.fetch_add(u64::from(is_whole), Ordering::SeqCst);
    }
}

const PAGES_COUNT: usize = REGION_BYTES.div_ceil(PAGE_BYTES);
/// Seeds of the pages of a rewritten region.
pub(super) type PageSeeds = [u64; PAGES_COUNT];

/// A region whose bytes change in place. `rewrite` changes cells and seeds under the write lock of `seeds`; readers of the
/// region hold the read lock.
pub(super) struct Rewritten {
    region: Region,
    cells: Arc<Cells>,
    /// Held to read by a thread that accesses the region, as long as it has a slice that may be the source's; held to write
    /// while bytes change.
    seeds: RwLock<PageSeeds>,
}

/// The bytes of its owner.
struct Cells(Box<[UnsafeCell<u8>]>);

// SAFETY: only `Rewritten::rewrite` writes them, while no other thread reads or writes them.
unsafe impl Sync for Cells {}
// SAFETY: bytes are not bound to a thread.
unsafe impl Send for Cells {}

/// The owner of the region.
struct Rewritable(Arc<Cells>);

// SAFETY: the cells stay where they are as long as the `Arc` does. They are written under the rules for owners that write:
// see `Rewritten::rewrite`.
unsafe impl RegionOwner for Rewritable {
    fn bytes(&self) -> &[u8] {
        let Cells(cells) = &*self.0;
        // SAFETY: a cell has the layout of its content, and no thread writes while the slice is borrowed.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast::<u8>(), cells.len()) }
    }
}

impl Rewritten {
    pub(super) fn new(cache: &Cache, home: NodeId) -> Rewritten {
        let cells = (0..REGION_BYTES).map(|at| UnsafeCell::new(content(0, at))).collect();
        let cells = Arc::new(Cells(cells));
        let region = cache.register_chunked(Rewritable(cells.clone()), Some(home), CHUNK_BYTES);
        Rewritten { region, cells, seeds: RwLock::new([0; PAGES_COUNT]) }
    }

    /// The region, and a read lock on its seeds.
    pub(super) fn read(&self) -> (&Region, RwLockReadGuard<'_, PageSeeds>) {
        (&self.region, self.seeds.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Rewrites some pages with another seed, and invalidates or refreshes their copies. Returns the result of that call.
    pub(super) fn rewrite(&self, cache: &Cache, random: &mut Random) -> Result<Forgotten, AccessError> {
        let mut seeds = self.seeds.write().unwrap_or_else(PoisonError::into_inner);
        let first = random.below(PAGES_COUNT);
        let pages = first..first + 1 + random.below(PAGES_COUNT - first);
        let range = pages.start * PAGE_BYTES..(pages.end * PAGE_BYTES).min(REGION_BYTES);
        self.region.drain();
        let seed = random.next_u64();
        for at in range.clone() {
            // SAFETY: the lock is held to write, so no thread accesses the region or has a slice of it; all copies that
            // were submitted before are complete, by `drain`.
            unsafe { *self.cells.0[at].get() = content(seed, at) };
        }
        seeds[pages].fill(seed);
        Ok(match random.below(2) {
            0 => Forgotten::Invalidated(cache.invalidate(&self.region, range)?),
            _ => Forgotten::Refreshed(cache.refresh(&self.region, range)?),
        })
    }
}

/// Number of invalidated entries, or of refreshed copies.
pub(super) enum Forgotten {
    Invalidated(usize),
    Refreshed(usize),
}

//! Data that tell from their bytes whose they are and of which version, and owners that tell when they end.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use memferry::cache::{AccessError, Cache, Region, RegionOwner};
use memferry::topology::NodeId;

use super::{CHUNK_BYTES, PAGE_BYTES, REGION_BYTES};
use crate::harness::Random;

/// What bytes have to be.
#[derive(Clone, Debug)]
pub(super) enum Truth {
    /// Those of the region with this seed.
    Seed(u64),
    /// Those of this version of the changing data.
    Version(u64),
    /// Those of the region that is rewritten, when its pages had these seeds.
    Pages(PageSeeds),
}

impl Truth {
    pub(super) fn byte(&self, at: usize) -> u8 {
        match self {
            Truth::Seed(seed) => content(*seed, at),
            // They begin with the version's number.
            Truth::Version(version) => match version.to_le_bytes().get(at) {
                Some(&byte) => byte,
                None => content(!version, at),
            },
            Truth::Pages(seeds) => content(seeds[at / PAGE_BYTES], at),
        }
    }
}

/// Makes `bytes` those of this version.
pub(super) fn write_version(bytes: &mut [u8], version: u64) {
    let truth = Truth::Version(version);
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = truth.byte(at));
}

/// What version `bytes` claim to be of.
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
    ended: &Arc<AtomicU64>,
) -> (Region, u64) {
    let seed = registered.fetch_add(1, Ordering::SeqCst) + 1;
    let bytes = (0..REGION_BYTES).map(|at| content(seed, at)).collect();
    let owner = Mortal { bytes, seed, ended: ended.clone() };
    // Some are on a node, some nobody knows where.
    (cache.register_chunked(owner, [None, Some(home)][seed as usize % 2], CHUNK_BYTES), seed)
}

/// A source that is checked and overwritten when it ends.
struct Mortal {
    bytes: Box<[u8]>,
    seed: u64,
    ended: Arc<AtomicU64>,
}

// SAFETY: the box is neither lent mutably nor replaced before the owner is dropped.
unsafe impl RegionOwner for Mortal {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        let is_whole = self.bytes.iter().enumerate().all(|(at, &byte)| byte == content(self.seed, at));
        self.bytes.fill(0xDD);
        // A source that was written never counts as ended, and so fails the soak.
        self.ended.fetch_add(u64::from(is_whole), Ordering::SeqCst);
    }
}

const PAGES_COUNT: usize = REGION_BYTES.div_ceil(PAGE_BYTES);
/// Of each page of a region that is rewritten.
pub(super) type PageSeeds = [u64; PAGES_COUNT];

/// A region whose bytes change where they are.
pub(super) struct Rewritten {
    region: Region,
    cells: Arc<Cells>,
    /// Held to read by who accesses the region, and for as long as a slice of it is around that may be the source's;
    /// held to write while bytes change.
    seeds: RwLock<PageSeeds>,
}

/// Its owner's bytes.
struct Cells(Box<[UnsafeCell<u8>]>);

// SAFETY: they are written by `Rewritten::rewrite` alone, while nobody else reads or writes them.
unsafe impl Sync for Cells {}
// SAFETY: bytes belong to no thread.
unsafe impl Send for Cells {}

/// What the region holds.
struct Rewritable(Arc<Cells>);

// SAFETY: the cells stay where they are as long as the `Arc` does. They are written under the rules for owners that write:
// see `Rewritten::rewrite`.
unsafe impl RegionOwner for Rewritable {
    fn bytes(&self) -> &[u8] {
        let Cells(cells) = &*self.0;
        // SAFETY: a cell has the layout of its content, and nobody writes while the slice is borrowed.
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

    /// The region, and its seeds for as long as they are held.
    pub(super) fn read(&self) -> (&Region, RwLockReadGuard<'_, PageSeeds>) {
        (&self.region, self.seeds.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives some of the pages another seed, and has the cache forget what it has of them, or copy it anew. What that
    /// returned.
    pub(super) fn rewrite(&self, cache: &Cache, random: &mut Random) -> Result<Forgotten, AccessError> {
        let mut seeds = self.seeds.write().unwrap_or_else(PoisonError::into_inner);
        let first = random.below(PAGES_COUNT);
        let pages = first..first + 1 + random.below(PAGES_COUNT - first);
        let range = pages.start * PAGE_BYTES..(pages.end * PAGE_BYTES).min(REGION_BYTES);
        self.region.drain();
        let seed = random.next_u64();
        for at in range.clone() {
            // SAFETY: the lock is held to write, so nobody accesses the region and no slice of it is around; all
            // copies that were begun before have ended.
            unsafe { *self.cells.0[at].get() = content(seed, at) };
        }
        seeds[pages].fill(seed);
        Ok(match random.below(2) {
            0 => Forgotten::Invalidated(cache.invalidate(&self.region, range)?),
            _ => Forgotten::Refreshed(cache.refresh(&self.region, range)?),
        })
    }
}

/// How many entries, or copies of them.
pub(super) enum Forgotten {
    Invalidated(usize),
    Refreshed(usize),
}

//! Data that tell from their bytes whose they are, and owners that tell when they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::super::{Cache, Region, RegionOwner};
use super::{CHUNK_BYTES, REGION_BYTES};
use crate::topology::NodeId;

/// A byte of the region with this seed.
pub(super) fn content(seed: u64, at: usize) -> u8 {
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

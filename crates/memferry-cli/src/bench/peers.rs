//! Caches of other projects, with `Arc`s of blocks. They are a feature of this crate (`peers`), so that a first build of
//! memferry does not compile them; `cargo xtask bench cache` enables it.

use memferry_bench::cache::HitPeer;

/// All peers, with the blocks `0..keys_count`.
#[cfg(feature = "peers")]
pub(super) fn peers(keys_count: usize, block_bytes: usize) -> Vec<Box<dyn HitPeer>> {
    vec![
        Box::new(others::moka(keys_count, block_bytes)),
        Box::new(others::quick_cache(keys_count, block_bytes)),
    ]
}

/// No peers: the feature is off.
#[cfg(not(feature = "peers"))]
pub(super) fn peers(_keys_count: usize, _block_bytes: usize) -> Vec<Box<dyn HitPeer>> {
    Vec::new()
}

#[cfg(feature = "peers")]
mod others {
    use std::hint::black_box;
    use std::sync::Arc;

    use memferry_bench::cache::HitPeer;
    use quick_cache::UnitWeighter;
    use quick_cache::sync::{Cache, DefaultLifecycle};

    /// Another cache by its lookup.
    struct Other<F> {
        name: &'static str,
        get: F,
    }

    /// Twice the room of the blocks, so that neither evicts: policies may reserve room for new entries.
    const ROOM_FACTOR: usize = 2;

    fn blocks(keys_count: usize, block_bytes: usize) -> impl Iterator<Item = (u64, Arc<[u8]>)> {
        (0..keys_count as u64).map(move |key| (key, vec![1; block_bytes].into()))
    }

    /// `moka` with its defaults.
    pub(super) fn moka(keys_count: usize, block_bytes: usize) -> impl HitPeer {
        let cache = moka::sync::Cache::new((ROOM_FACTOR * keys_count) as u64);
        blocks(keys_count, block_bytes).for_each(|(key, block)| cache.insert(key, block));
        cache.run_pending_tasks();
        Other { name: "moka", get: move |key: u64| cache.get(&key) }
    }

    /// `quick_cache` with its defaults, the hasher included.
    pub(super) fn quick_cache(keys_count: usize, block_bytes: usize) -> impl HitPeer {
        let room = ROOM_FACTOR * keys_count;
        let (hasher, lifecycle) = (ahash::RandomState::new(), DefaultLifecycle::default());
        let cache = Cache::with(room, room as u64, UnitWeighter, hasher, lifecycle);
        blocks(keys_count, block_bytes).for_each(|(key, block)| cache.insert(key, block));
        Other { name: "quick_cache", get: move |key: u64| cache.get(&key) }
    }

    impl<F: Fn(u64) -> Option<Arc<[u8]>> + Sync> HitPeer for Other<F> {
        fn name(&self) -> &str {
            self.name
        }

        fn hits(&self, keys: &[u32]) {
            for &key in keys {
                let block = (self.get)(u64::from(key)).expect("everything fits");
                black_box(block.as_ptr());
            }
        }
    }
}

//! Caches of other projects, with `Arc`s of blocks. They are a feature of this crate (`peers`), so that a first build of
//! memferry does not compile them; `cargo xtask bench cache` enables it.

use memferry_bench::cache::HitPeer;

/// All peers, with the blocks `0..keys_count`.
#[cfg(feature = "peers")]
pub(super) fn peers(keys_count: usize, block_bytes: usize) -> Vec<Box<dyn HitPeer>> {
    vec![
        Box::new(others::Moka::new(keys_count, block_bytes)),
        Box::new(others::Quick::new(keys_count, block_bytes)),
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
    use quick_cache::sync::DefaultLifecycle;

    /// `moka` with its defaults.
    pub(super) struct Moka(moka::sync::Cache<u64, Arc<[u8]>>);

    /// `quick_cache` with its defaults, the hasher included.
    pub(super) struct Quick(QuickCache);
    type QuickCache = quick_cache::sync::Cache<u64, Arc<[u8]>, UnitWeighter, ahash::RandomState>;

    /// Twice the room of the blocks, so that neither evicts: policies may reserve room for new entries.
    const ROOM_FACTOR: usize = 2;

    fn blocks(keys_count: usize, block_bytes: usize) -> impl Iterator<Item = (u64, Arc<[u8]>)> {
        (0..keys_count as u64).map(move |key| (key, vec![1; block_bytes].into()))
    }

    impl Moka {
        pub(super) fn new(keys_count: usize, block_bytes: usize) -> Moka {
            let cache = moka::sync::Cache::new((ROOM_FACTOR * keys_count) as u64);
            blocks(keys_count, block_bytes).for_each(|(key, block)| cache.insert(key, block));
            cache.run_pending_tasks();
            Moka(cache)
        }
    }

    impl Quick {
        pub(super) fn new(keys_count: usize, block_bytes: usize) -> Quick {
            let room = ROOM_FACTOR * keys_count;
            let hasher = ahash::RandomState::new();
            let cache =
                QuickCache::with(room, room as u64, UnitWeighter, hasher, DefaultLifecycle::default());
            blocks(keys_count, block_bytes).for_each(|(key, block)| cache.insert(key, block));
            Quick(cache)
        }
    }

    impl HitPeer for Moka {
        fn name(&self) -> &str {
            "moka"
        }

        fn hits(&self, keys: &[u32]) {
            for &key in keys {
                let block = self.0.get(&u64::from(key)).expect("everything fits");
                black_box(block.as_ptr());
            }
        }
    }

    impl HitPeer for Quick {
        fn name(&self) -> &str {
            "quick_cache"
        }

        fn hits(&self, keys: &[u32]) {
            for &key in keys {
                let block = self.0.get(&u64::from(key)).expect("everything fits");
                black_box(block.as_ptr());
            }
        }
    }
}

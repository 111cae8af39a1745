//! Replays keys through the index of a cache, without memory, and counts hits.

use std::sync::Arc;

use super::index::{Found, Index};
use super::readers::readers;
use super::region::Source;
use super::slot::{Outcome, Slot};
use crate::mover::CopyReport;

/// Number of hits of `keys` in an index of `capacity` entries; each key is a block of one byte.
pub fn index_hits(keys: &[usize], capacity: usize) -> usize {
    let keys_count = keys.iter().max().map_or(0, |max| max + 1);
    // One byte per key.
    let source = Arc::new(Source::new(Arc::new(vec![0; keys_count]), None, 1, 1));
    let index: Index<()> = Index::new(0, readers());
    let mut hits_count = 0;
    for &key in keys {
        let range = key..key + 1;
        match index.find_or_insert(&source, &range, || Slot::in_flight(&source, range.clone())) {
            Found::Known(_) => hits_count += 1,
            Found::New(slot) => {
                slot.complete(Outcome::Near((), CopyReport::default())).set();
                if index.len() > capacity {
                    // The new slot is held here, like one in flight: it is not evicted.
                    index.evict(1, |()| 1);
                }
            }
        }
    }
    hits_count
}

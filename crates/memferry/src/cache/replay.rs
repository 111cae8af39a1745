//! Keys through the index of a cache, without bytes: how often is one still there?

use std::sync::Arc;

use super::index::{Found, Index};
use super::readers::readers;
use super::region::Source;
use super::slot::{Outcome, Slot};
use crate::mover::CopyReport;

/// Hits of `keys` in an index with room for `capacity` of them; each key is a block of one byte.
pub fn index_hits(keys: &[usize], capacity: usize) -> usize {
    let keys_count = keys.iter().max().map_or(0, |max| max + 1);
    // As many bytes as keys, for their ranges.
    let source = Arc::new(Source::new(Arc::new(vec![0; keys_count]), None, 1, 1));
    let index: Index<()> = Index::new(0, readers());
    let mut hits_count = 0;
    for &key in keys {
        let range = key..key + 1;
        match index.find_or_insert(&source, &range, || Slot::in_flight(&source, range.clone())) {
            Found::Known(_) => hits_count += 1,
            Found::New(slot) => {
                slot.settle(Outcome::Near((), CopyReport::default())).set();
                if index.len() > capacity {
                    // The newcomer is held here, as it is while it is copied: it does not evict itself.
                    index.evict(1, |()| 1);
                }
            }
        }
    }
    hits_count
}

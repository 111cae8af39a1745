//! The published advice on depth, batches and the choice of a queue, as pure functions.
//!
//! Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon
//! Scalable Processors" (2024), sections 4.2, 4.3 and 6.1 to 6.3.

use crate::portal::{QueueMode, WorkQueueInfo};

/// Smallest batch: the device reads the list before the first member.
///
/// Source: Kuper et al. (2024), G1 and figure 14.
pub const BATCH_LEN_MIN: usize = 4;
/// Largest batch: the device tracks each member, which slows larger ones down.
///
/// Source: that of [`BATCH_LEN_MIN`].
pub const BATCH_LEN_MAX: usize = 8;
/// Largest member of a batch: from 4 KiB on, four descriptors in flight saturate a device.
///
/// Source: Kuper et al. (2024), section 4.2 ("after asynchronously offloading 4 KB with batch sizes of 4").
pub const BATCHED_BYTES_MAX: usize = 4096;

/// G1: the length of a batch of `waiting` small items; `None` if a batch does not pay.
pub fn batch_len(waiting: usize, len_max: usize) -> Option<usize> {
    let len = waiting.min(len_max).min(BATCH_LEN_MAX);
    (len >= BATCH_LEN_MIN).then_some(len)
}

/// G2, G6: the number of descriptors for a queue: its full depth. With fewer the device idles until completions are
/// handled; more are refused by a shared queue and lost by a dedicated one.
pub fn depth(queue: &WorkQueueInfo) -> usize {
    let entries = match queue.mode {
        QueueMode::Dedicated => queue.size,
        QueueMode::Shared => queue.size.min(queue.threshold),
    };
    entries.max(1) as usize
}

/// G5, G6: the one of `count` equals with the least load for its size; on a tie the first from `first` on. `load` returns
/// load and capacity, or `None` for excluded ones.
pub fn least_loaded(first: usize, count: usize, load: impl Fn(usize) -> Option<(usize, usize)>) -> usize {
    let candidates = (0..count).map(|step| (first + step) % count);
    let loads = candidates.filter_map(|index| load(index).map(|(has, size)| (index, has, size.max(1))));
    // Parts of wholes, compared without division.
    let least = loads.min_by(|(_, has, size), (_, other_has, other_size)| {
        (*has as u128 * *other_size as u128).cmp(&(*other_has as u128 * *size as u128))
    });
    least.map_or(first, |(index, ..)| index)
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    fn queue(mode: QueueMode, size: u32, threshold: u32) -> WorkQueueInfo {
        let operations = crate::operation::OperationSet::default();
        let (name, node) = (String::new(), None);
        let (transfer_bytes_max, batch_max, priority, block_on_fault) = (1, 1, 1, false);
        WorkQueueInfo {
            name,
            mode,
            size,
            threshold,
            priority,
            block_on_fault,
            transfer_bytes_max,
            batch_max,
            operations,
            node,
        }
    }

    #[test]
    fn batches_are_modest() {
        let lens = [0, 3, 4, 5, 8, 9, 100].map(|waiting| batch_len(waiting, 32));
        assert_eq!(lens, [None, None, Some(4), Some(5), Some(8), Some(8), Some(8)]);
        assert_eq!((batch_len(100, 6), batch_len(100, 2)), (Some(6), None), "queues have limits");
    }

    #[test]
    fn a_queue_is_filled_and_no_more() {
        let open_to = |threshold| queue(QueueMode::Shared, 32, threshold);
        assert_eq!((depth(&open_to(32)), depth(&open_to(20)), depth(&open_to(0))), (32, 20, 1));
        assert_eq!(depth(&queue(QueueMode::Dedicated, 16, 0)), 16, "its threshold is no limit");
    }

    #[test]
    fn the_least_loaded_is_chosen_by_its_size() {
        let loads = [Some((4, 8)), Some((3, 4)), None, Some((2, 8)), Some((1, 4))];
        let from = |first| least_loaded(first, loads.len(), |index| loads[index]);
        assert_eq!((from(0), from(3), from(4), from(2)), (3, 3, 4, 3), "on a tie the first");
        assert_eq!(least_loaded(1, 3, |_| None), 1);
        assert_eq!(least_loaded(2, 3, |_| Some((0, 0))), 2, "no load and no capacity");
        assert_eq!(least_loaded(7, 0, |_| None), 7, "no candidates");
    }
}

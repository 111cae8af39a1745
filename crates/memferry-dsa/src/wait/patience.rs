//! How long to wait for a descriptor: as long as its queue makes progress, and a time-out longer.
//!
//! A queue is first in, first out, so that a descriptor waits for those before it. Their completions are progress and
//! start its time anew; completions of those behind it are not, but one of them proves that the device has begun with
//! it. Which is which is counted, not remembered:
//!
//! ```text
//! submission   `ahead` descriptors of this process are in the queue
//! completion   one of the first `ahead`, or the next one: time starts anew
//!              a later one: it says nothing new, since at least one behind it has completed
//! lost         no progress for the time-out
//!              before the device has begun: and for the time of all entries that others may have
//! ```
//!
//! So a device that has lost a descriptor is found after `ahead` + 2 such times at most, however busy it is.
//!
//! Completions of other processes cannot be seen, and a queue that they keep full answers like one that stands still.
//! What bounds them is the size of the queue: no more than its entries, of its largest transfers, can be ahead. That
//! also covers other queues that share the engines. Batches of others may take longer.

use std::time::Duration;

use crate::portal::WorkQueueInfo;

/// The slowest rate at which a device that works still moves data, assumed: a thirtieth of its own.
///
/// Source of the device's rate, 30 GB/s: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming
/// Accelerator in Intel 4th Gen Xeon Scalable Processors" (2024).
const RATE_MIN_BYTES_PER_NS: u64 = 1;

/// The most that the time between two looks counts. Drivers look every 50 ms and more often, so more than this means
/// that this process did not run, or its machine was suspended, and that the device may have stood still as well.
const ATTENDED_MAX: Duration = Duration::from_millis(100);

/// Time in which a thread has attended to devices. The age of descriptors is counted in it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct AttendedTime(Duration);

impl AttendedTime {
    /// So much time has passed since the last look. The attended time so far.
    pub(crate) fn advance(&mut self, elapsed: Duration) -> Duration {
        self.0 += elapsed.min(ATTENDED_MAX);
        self.0
    }

    /// The attended time so far.
    pub(crate) fn now(self) -> Duration {
        self.0
    }
}

/// The wait for one descriptor, in [`AttendedTime`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Completions of the queue when this was last looked at.
    completed: u64,
    /// With more completions than this, one behind the descriptor was among them.
    completed_before_max: u64,
    /// The last progress.
    since: Duration,
}

impl Patience {
    /// Of a descriptor that was submitted now: `ahead` of this process may complete before it, after the `completed` that
    /// have so far.
    pub(crate) fn new(ahead: u64, completed: u64, now: Duration) -> Patience {
        Patience { completed, completed_before_max: completed.saturating_add(ahead), since: now }
    }

    /// Whether the descriptor is lost, `completed` of its queue having completed.
    pub(crate) fn is_over(
        &mut self,
        completed: u64,
        now: Duration,
        queue: &WorkQueueInfo,
        timeout: Duration,
    ) -> bool {
        if completed > self.completed && !self.has_begun() {
            self.since = now;
        }
        self.completed = completed;
        let others = if self.has_begun() { Duration::ZERO } else { time_of_all_entries(queue) };
        now.saturating_sub(self.since) > timeout.saturating_add(others)
    }

    /// Whether a descriptor behind it has completed, so that the device has taken it from the queue.
    fn has_begun(&self) -> bool {
        self.completed > self.completed_before_max
    }
}

/// What all entries of a queue take a slow device, if each is the largest transfer.
fn time_of_all_entries(queue: &WorkQueueInfo) -> Duration {
    Duration::from_nanos(u64::from(queue.size) * u64::from(queue.transfer_bytes_max) / RATE_MIN_BYTES_PER_NS)
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;
    use crate::{OperationSet, QueueMode};

    fn queue(size: u32, transfer_bytes_max: u32) -> WorkQueueInfo {
        WorkQueueInfo {
            name: "wq0.0".to_owned(),
            mode: QueueMode::Shared,
            size,
            threshold: size,
            priority: 10,
            block_on_fault: false,
            transfer_bytes_max,
            batch_max: 32,
            operations: OperationSet::default(),
            node: None,
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The default time-outs are 10 s and 30 s, and 128 entries of 2 GiB take 9 s at best, 256 s at worst.
    #[test]
    fn the_largest_entries_are_waited_for() {
        let queue = queue(128, 2 << 30);
        // All are ours: one completes every 9 s.
        let mut last = Patience::new(127, 1000, seconds(0));
        for done in 0..=127 {
            assert!(!last.is_over(1000 + done, seconds(9 * done), &queue, TIMEOUT), "after {done}");
        }
        assert!(!last.is_over(1127, seconds(9 * 128), &queue, TIMEOUT));
        // All are of other processes: nothing is seen for 250 s.
        let mut first = Patience::new(0, 1000, seconds(0));
        assert!(!first.is_over(1000, seconds(250), &queue, TIMEOUT));
        assert!(first.is_over(1000, seconds(300), &queue, TIMEOUT), "a silent device is found");
    }

    /// Once ten seconds of Ctrl-Z lost every descriptor in flight, and with it the device.
    #[test]
    fn a_stopped_process_ages_nothing() {
        let mut time = AttendedTime::default();
        time.advance(Duration::from_millis(5));
        assert_eq!(time.advance(seconds(3600)), Duration::from_millis(5) + ATTENDED_MAX);
    }

    /// One that is lost is found while others go on completing.
    #[test]
    fn what_is_behind_is_no_progress() {
        let queue = queue(8, 2 << 20);
        let mut lost = Patience::new(2, 50, seconds(0));
        // Two that were ahead, and the first that was behind; then one a second.
        for done in 1..=3 {
            assert!(!lost.is_over(50 + done, seconds(9 * done), &queue, TIMEOUT), "after {done}");
        }
        let found = (0..30).find(|more| lost.is_over(54 + more, seconds(28 + more), &queue, TIMEOUT));
        assert_eq!(found, Some(10), "10 s after the third");
    }
}

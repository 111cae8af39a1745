//! What one of several processes gets that keep a device busy: run it in each of them, under `memferry emulate
//! --timing`.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::page::{NoPage, Page};
use crate::{CompletionRecord, Descriptor, Status};

/// What a process saw.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Load {
    /// From the time at which the queue took a descriptor until its record was seen, in the order of submission.
    pub latencies_ns: Vec<u64>,
    /// Submissions that the queue did not take, because it was at its threshold.
    pub retries: u64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failed {
    /// The queue cannot be used.
    #[error(transparent)]
    Queue(#[from] NoPage),
    /// The device has forgotten a descriptor, or refuses it.
    #[error("a copy of {size_bytes} bytes ended with {status:?} instead of success")]
    Copy {
        /// What should have been copied.
        size_bytes: u32,
        /// How it ended; `None`: not within a minute.
        status: Option<Status>,
    },
}

/// A copy under way.
struct Lane {
    target: Vec<u8>,
    record: CompletionRecord,
    since: Instant,
}

/// Copies `count` times `size_bytes` through the shared queue with the file `queue`, up to `depth` at a time.
///
/// # Errors
/// [`Failed`]
///
/// # Panics
/// If `depth` is zero.
pub fn load(queue: &Path, count: usize, depth: usize, size_bytes: u32) -> Result<Load, Failed> {
    let page = Page::map(queue)?;
    let source = vec![1u8; size_bytes as usize];
    let lane = |_| Lane {
        target: vec![2u8; size_bytes as usize],
        record: CompletionRecord::new(),
        since: Instant::now(),
    };
    // Leaked if a copy does not end: the device may still write then.
    let lanes: &'static mut [Lane] = (0..depth).map(lane).collect::<Vec<_>>().leak();
    let source: &'static [u8] = source.leak();
    let mut load = Load { latencies_ns: Vec::with_capacity(count), retries: 0 };
    for number in 0..count + depth {
        let lane = &mut lanes[number % depth];
        if number >= depth {
            load.latencies_ns.push(wait(lane, size_bytes)?);
        }
        if number < count {
            lane.record.reset();
            let copy = Descriptor::memmove(source.as_ptr(), lane.target.as_mut_ptr(), size_bytes)
                .with_completion(&lane.record);
            // SAFETY: nobody else uses the target, and all that the copy names is never freed.
            while !unsafe { page.enqcmd(&copy) } {
                load.retries += 1;
                std::thread::yield_now();
            }
            lane.since = Instant::now();
        }
    }
    Ok(load)
}

fn wait(lane: &Lane, size_bytes: u32) -> Result<u64, Failed> {
    loop {
        if let Some(completion) = lane.record.poll() {
            let time = lane.since.elapsed();
            return match completion.status {
                Status::Success => Ok(time.as_nanos() as u64),
                status => Err(Failed::Copy { size_bytes, status: Some(status) }),
            };
        }
        if lane.since.elapsed() > Duration::from_secs(60) {
            return Err(Failed::Copy { size_bytes, status: None });
        }
        std::thread::yield_now();
    }
}

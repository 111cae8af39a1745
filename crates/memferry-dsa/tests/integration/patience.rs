//! Time-outs of a client: a queue that makes progress is not lost, and a descriptor that is lost is found.
//!
//! Time once counted from the submission of a descriptor. A healthy device with 32 entries of 42 ms was declared lost
//! after a time-out of 1 s, and 128 MiB were leaked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memferry_dsa::{
    Client, ClientError, ClientOptions, Descriptor, Portal, PortalCounters, PortalKind, Request, Submission,
    SubmitError, Wait, WorkQueueInfo,
};
use memferry_dsa_emulator::shared_queue;

use crate::slow::{Pace, Slow};

const EACH: Duration = Duration::from_millis(100);

fn client(info: WorkQueueInfo, pace: Pace, timeout: Duration) -> Client {
    let options = ClientOptions { timeout, wait: Wait::Block, ..ClientOptions::default() };
    Client::new(vec![Slow::new(info, pace)], options)
}

/// A copy of owned buffers, which survive a device that is declared lost.
fn copy(client: &Client) -> Result<(), ClientError> {
    let buffers = Box::new((vec![7u8; 4096], vec![0u8; 4096]));
    let copied = client.run_owned(buffers, |(source, target)| Request::copy(&*source, target));
    copied.map(|(buffers, ())| assert_eq!(buffers.0, buffers.1)).map_err(|error| error.error)
}

/// 30 copies of 100 ms in one queue, and a time-out of 1 s.
#[test]
fn a_deep_queue_that_makes_progress_is_not_lost() {
    let pace = Pace { ahead: Duration::ZERO, each: EACH, lost_count: 0 };
    let client = client(shared_queue("wq0.0", 32), pace, Duration::from_secs(1));
    thread::scope(|scope| {
        let copies: Vec<_> = (0..30).map(|_| scope.spawn(|| copy(&client))).collect();
        for copied in copies {
            assert_eq!(copied.join().expect("no panic"), Ok(()));
        }
    });
    assert_eq!(client.stats().leaked_bytes, 0);
}

/// A portal whose first submission arrives behind 15 others that began later.
struct Overtaken {
    portal: Arc<Slow>,
    begun: AtomicUsize,
    arrived: AtomicUsize,
}

// SAFETY: passed on.
unsafe impl Portal for Overtaken {
    fn work_queue(&self) -> &WorkQueueInfo {
        self.portal.work_queue()
    }
    fn kind(&self) -> PortalKind {
        self.portal.kind()
    }
    fn supports_batch(&self) -> bool {
        self.portal.supports_batch()
    }
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        let is_first = self.begun.fetch_add(1, Ordering::SeqCst) == 0;
        while is_first && self.arrived.load(Ordering::SeqCst) < 15 {
            thread::yield_now();
        }
        // SAFETY: passed on.
        let submission = unsafe { self.portal.submit(descriptor) };
        self.arrived.fetch_add(1, Ordering::SeqCst);
        submission
    }
    fn completed(&self, count: u32) {
        self.portal.completed(count);
    }
    fn is_gone(&self) -> bool {
        self.portal.is_gone()
    }
    fn counters(&self) -> PortalCounters {
        self.portal.counters()
    }
}

/// A thread that was held up between counting its descriptor and submitting it took the completions of those that came
/// between for completions behind its own, and gave the queue up.
#[test]
fn a_descriptor_that_others_overtake_is_not_lost() {
    let pace = Pace { ahead: Duration::ZERO, each: EACH, lost_count: 0 };
    let (begun, arrived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let portal = Overtaken { portal: Slow::new(shared_queue("wq0.0", 32), pace), begun, arrived };
    let portal = Arc::new(portal);
    let options =
        ClientOptions { timeout: Duration::from_millis(500), wait: Wait::Block, ..ClientOptions::default() };
    let client = Client::new(vec![portal.clone()], options);
    thread::scope(|scope| {
        let first = scope.spawn(|| copy(&client));
        while portal.begun.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let others: Vec<_> = (0..15).map(|_| scope.spawn(|| copy(&client))).collect();
        for copied in others.into_iter().chain([first]) {
            assert_eq!(copied.join().expect("no panic"), Ok(()));
        }
    });
}

/// Another process has filled the queue: nothing of ours completes for four time-outs.
#[test]
fn a_queue_that_others_keep_busy_is_not_lost() {
    // 8 entries of 1 GiB may take 8 s, at 1 GB/s.
    let info = WorkQueueInfo { transfer_bytes_max: 1 << 30, ..shared_queue("wq0.0", 8) };
    let pace = Pace { ahead: Duration::from_secs(2), each: Duration::ZERO, lost_count: 0 };
    assert_eq!(copy(&client(info, pace, Duration::from_millis(500))), Ok(()));
}

/// A descriptor that is lost is found, although others keep completing.
#[test]
fn a_lost_descriptor_of_a_busy_queue_is_found() {
    let pace = Pace { ahead: Duration::ZERO, each: Duration::from_millis(20), lost_count: 1 };
    let client = Arc::new(client(shared_queue("wq0.0", 8), pace, Duration::from_millis(500)));
    let start = Instant::now();
    let is_found = AtomicBool::new(false);
    thread::scope(|scope| {
        let lost = scope.spawn(|| {
            let answer = copy(&client);
            is_found.store(true, Ordering::SeqCst);
            answer
        });
        thread::sleep(Duration::from_millis(5));
        let others = || {
            // A queue that lost a descriptor gets no more work, and the CPU copies.
            while !is_found.load(Ordering::SeqCst) {
                assert!(start.elapsed() < Duration::from_secs(60), "a lost descriptor is waited for");
                assert_eq!(copy(&client), Ok(()));
            }
        };
        (0..3).for_each(|_| drop(scope.spawn(others)));
        let answer = lost.join().expect("no panic");
        assert!(matches!(answer, Err(ClientError::Silent { .. })), "{answer:?}");
    });
    let stats = client.stats();
    assert_eq!((stats.lost, stats.queues_lost), (1, 1), "{stats:?}");
}

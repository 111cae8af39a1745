//! A slow device for tests of timeouts, also used by the tests of `memferry`.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use memferry_dsa::{Descriptor, Portal, PortalCounters, PortalKind, Submission, SubmitError, WorkQueueInfo};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

/// The speed of a slow device.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// The time before the first descriptor, as for the work of other users in the queue.
    pub(crate) ahead: Duration,
    /// The time for each descriptor.
    pub(crate) each: Duration,
    /// The number of lost descriptors, the first ones.
    pub(crate) lost_count: usize,
}

/// A portal to a device that works on one descriptor at a time, in the order of their submission.
pub(crate) struct Slow {
    info: WorkQueueInfo,
    line: Mutex<Sender<Descriptor>>,
}

impl Slow {
    pub(crate) fn new(info: WorkQueueInfo, pace: Pace) -> Arc<Slow> {
        let (line, descriptors) = channel();
        thread::spawn(move || work(&descriptors, pace));
        Arc::new(Slow { info, line: Mutex::new(line) })
    }
}

fn work(descriptors: &Receiver<Descriptor>, pace: Pace) {
    let device = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).expect("a device");
    let portal = device.portal(0);
    thread::sleep(pace.ahead);
    for (number, descriptor) in descriptors.iter().enumerate() {
        thread::sleep(pace.each);
        // SAFETY: the test that submitted it keeps its memory until its completion; that is what is tested.
        while number >= pace.lost_count && unsafe { portal.submit(&descriptor) } != Ok(Submission::Accepted) {
            thread::yield_now();
        }
    }
}

// SAFETY: the emulated device behind keeps the promises; lost descriptors are not processed.
unsafe impl Portal for Slow {
    fn work_queue(&self) -> &WorkQueueInfo {
        &self.info
    }
    fn kind(&self) -> PortalKind {
        PortalKind::Emulated
    }
    fn supports_batch(&self) -> bool {
        false
    }
    unsafe fn submit(&self, descriptor: &Descriptor) -> Result<Submission, SubmitError> {
        self.line.lock().expect("no panic").send(*descriptor).expect("the device lives");
        Ok(Submission::Accepted)
    }
    fn completed(&self, _: u32) {}
    fn is_gone(&self) -> bool {
        false
    }
    fn counters(&self) -> PortalCounters {
        PortalCounters::default()
    }
}

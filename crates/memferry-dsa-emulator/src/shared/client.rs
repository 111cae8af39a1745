//! A client: one process that uses shared devices.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memferry_dsa::{Descriptor, QueueMode, Status, Submission};

use super::layout::{ClientMemory, ClientQueue, DeviceOrder};
use super::memory::Mapping;
use super::trace::{SubmitMethod, Submitter};
use super::{ClientEngine, Devices, QueueAt, Server, futex};
use crate::device::error_register::error_of;
use crate::queue::ring::{ClientId, Stamp};
use crate::queue::{QueueConfig, SubmitOutcome};

/// One of the processes that share devices: it submits descriptors, and its engines execute them.
///
/// A client that has [joined](Server::join) in the server's process leaves when its last clone and its last engine are
/// dropped: descriptors in flight never complete. Any other client leaves when its process ends.
#[derive(Clone)]
pub struct Client(Arc<Membership>);

struct Membership {
    devices: Devices,
    own: Arc<Mapping<ClientMemory>>,
    id: ClientId,
    process: u32,
    stamps: bool,
    traces: bool,
    has_timing: bool,
    /// For a client in the server's process: the server, and the registration to leave with.
    home: Option<(Server, u64)>,
}

impl Client {
    pub(super) fn new(
        devices: &Devices,
        own: Mapping<ClientMemory>,
        id: ClientId,
        process: u32,
        home: Option<(Server, u64)>,
    ) -> Client {
        let (traces, has_timing) = (devices.traces(), devices.timing().is_some());
        Client(Arc::new(Membership {
            devices: devices.clone(),
            own: Arc::new(own),
            id,
            process,
            stamps: has_timing || traces,
            traces,
            has_timing,
            home,
        }))
    }

    /// The process whose memory its descriptors name.
    pub fn process(&self) -> u32 {
        self.0.process
    }

    /// The PASID of its descriptors.
    pub fn pasid(&self) -> u32 {
        self.0.id.into()
    }

    /// The devices.
    pub fn devices(&self) -> &Devices {
        &self.0.devices
    }

    /// An engine that executes this client's descriptors of a device. At most one exists at a time.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn engine(&self, device: usize) -> ClientEngine {
        ClientEngine::new(self, device)
    }

    /// Submits as ENQCMD: an enabled shared queue accepts the descriptor or answers Retry, any other queue answers
    /// Retry. Like the instruction it stores the PASID in `words`.
    ///
    /// Async-signal-safe: no lock, no allocation, few system calls, no panic for a queue from [`QueueAt::new`].
    ///
    /// Source: DSA specification 5.3.
    #[inline]
    pub fn enqcmd(&self, at: QueueAt, words: &mut [u64; 8]) -> Submission {
        self.submit_shared(at, words, self.by(SubmitMethod::Enqcmd))
    }

    /// Submits as MOVDIR64B: an enabled dedicated queue accepts the descriptor or drops it, any other queue ignores it.
    /// Like the device it stores the PASID in `words`.
    ///
    /// Async-signal-safe, as [`enqcmd`](Self::enqcmd).
    #[inline]
    pub fn movdir64b(&self, at: QueueAt, words: &mut [u64; 8]) {
        self.submit_dedicated(at, words, self.by(SubmitMethod::Movdir64b));
    }

    /// Submits as `write(2)` by a thread of the client's process: the kernel uses the instruction that the queue's mode
    /// needs. A dedicated queue accepts the descriptor or drops it without telling the writer.
    pub fn write(&self, at: QueueAt, words: &mut [u64; 8], thread: u32) -> Submission {
        let by = Submitter { way: SubmitMethod::Write, thread };
        if self.config(at).mode() == Some(QueueMode::Dedicated) {
            self.submit_dedicated(at, words, by);
            return Submission::Accepted;
        }
        self.submit_shared(at, words, by)
    }

    #[inline]
    fn submit_shared(&self, at: QueueAt, words: &mut [u64; 8], by: Submitter) -> Submission {
        match self.config(at).mode() {
            Some(QueueMode::Shared) => {}
            // Counted, so that a user finds the mistake: the submitter may try for ever.
            Some(QueueMode::Dedicated) => {
                self.order(at).queues[at.queue].counts.0.retried.fetch_add(1, Ordering::Relaxed);
                self.mine(at).retried.fetch_add(1, Ordering::Relaxed);
                return Submission::Retry;
            }
            None => return Submission::Retry,
        }
        words[0] = words[0] & !u64::from(u32::MAX) | u64::from(self.pasid());
        match self.submit(at, QueueMode::Shared, words, by) {
            SubmitOutcome::Accepted => Submission::Accepted,
            SubmitOutcome::Retry | SubmitOutcome::Lost | SubmitOutcome::Closed => Submission::Retry,
        }
    }

    #[inline]
    fn submit_dedicated(&self, at: QueueAt, words: &mut [u64; 8], by: Submitter) {
        if self.config(at).mode() != Some(QueueMode::Dedicated) {
            return;
        }
        words[0] = words[0] & !0xf_ffff | u64::from(self.pasid());
        if self.submit(at, QueueMode::Dedicated, words, by) == SubmitOutcome::Lost {
            let entry = Descriptor::from_words(*words);
            let error = error_of(Status::QueueOverflow, at.queue, &entry);
            self.order(at).error.report(&error);
        }
    }

    fn submit(&self, at: QueueAt, mode: QueueMode, words: &[u64; 8], by: Submitter) -> SubmitOutcome {
        let config = self.config(at);
        let now_ns = if self.0.stamps { self.0.devices.now_ns() } else { 0 };
        let arrives_ns = now_ns + config.submit_ns();
        let stamp = Stamp { ns: arrives_ns, by: by.to_word() };
        let own = &self.0.own.get().devices[at.device].entries[at.queue];
        let answer = self.order(at).queues[at.queue].submit(config, own, mode, self.0.id, words, stamp);
        match answer {
            SubmitOutcome::Accepted => futex::wake_for_entry(self.asleep(at.device)),
            SubmitOutcome::Retry => _ = self.mine(at).retried.fetch_add(1, Ordering::Relaxed),
            SubmitOutcome::Lost => _ = self.mine(at).dropped.fetch_add(1, Ordering::Relaxed),
            SubmitOutcome::Closed => {}
        }
        if self.0.has_timing {
            while self.0.devices.now_ns() < arrives_ns {
                std::hint::spin_loop();
            }
        }
        answer
    }

    /// The submitter for the trace; without a trace the thread is not looked up.
    #[inline]
    fn by(&self, way: SubmitMethod) -> Submitter {
        Submitter { way, thread: if self.0.traces { thread_id() } else { 0 } }
    }

    #[inline]
    fn config(&self, at: QueueAt) -> &QueueConfig {
        &self.0.devices.device(at.device).queues[at.queue]
    }

    #[inline]
    fn order(&self, at: QueueAt) -> &DeviceOrder {
        self.0.devices.device_order(at.device)
    }

    fn mine(&self, at: QueueAt) -> &ClientQueue {
        &self.0.own.get().devices[at.device].queues[at.queue].0
    }

    /// The futex on which this client's engine of a device sleeps.
    #[inline]
    pub(super) fn asleep(&self, device: usize) -> &AtomicU32 {
        &self.0.devices.order().sleepers[usize::from(self.0.id)][device].0
    }

    /// All memory that the client's process can write, as words: its own memory and the order of the entries. For tests
    /// with a hostile client, which forges them.
    pub fn writable_words(&self) -> [&[AtomicU64]; 2] {
        [self.0.own.words(), self.0.devices.order_words()]
    }

    pub(super) fn own(&self) -> &Arc<Mapping<ClientMemory>> {
        &self.0.own
    }

    pub(super) fn id(&self) -> ClientId {
        self.0.id
    }
}

/// gettid(2).
#[allow(unsafe_code)]
fn thread_id() -> u32 {
    // SAFETY: gettid has no preconditions.
    unsafe { libc::gettid() as u32 }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some((state, registration)) = &self.home {
            state.leave(self.id, *registration);
        }
    }
}

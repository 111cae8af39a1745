//! A process that uses the devices of a state file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::burial::Identity;
use super::layout::{CLIENTS_MAX, ClientQueue, Life};
use super::trace::{By, WayIn};
use super::{ClientEngine, QueueAt, State, futex};
use crate::completion::Status;
use crate::descriptor::Descriptor;
use crate::emulator::queue::{Answer, QueueState};
use crate::emulator::register::SoftwareError;
use crate::emulator::ring::{ClientId, Stamp};
use crate::portal::{QueueMode, Submission};

/// One process among those that share devices: it submits, and its engines execute what it has submitted.
///
/// When the last clone and the last engine are dropped it leaves: what is in flight never completes. A child of `fork`
/// is none of its own; it forgets its parent's ([`std::mem::forget`]) and joins for itself.
#[derive(Clone)]
pub struct Client(Arc<Membership>);

struct Membership {
    state: State,
    id: ClientId,
    process: u32,
    stamps: bool,
    traces: bool,
    has_timing: bool,
}

/// A process cannot use the devices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// All places are taken.
    #[error("{0} processes use the emulated devices already; end some of them")]
    TooMany(usize),
    /// The process id is none of a running process here.
    #[error("/proc knows no process {0}: mount it, for this process id namespace")]
    NoProcess(u32),
}

impl Client {
    /// Joins in the name of a process, whose memory its descriptors name: the calling one, or one that the caller acts
    /// for.
    ///
    /// # Errors
    /// [`JoinError`]: nothing has changed.
    pub fn join(state: &State, process: u32) -> Result<Client, JoinError> {
        let identity = Identity::of(process).ok_or(JoinError::NoProcess(process))?;
        state.free_the_buried();
        let places = &state.file().places;
        let claims = |id: &usize| places[*id].turn(process, Life::Free, Life::Live);
        // What others have left is told of them in the end, so theirs are the last choice.
        let is_new = |id: &usize| state.file().clients[*id].process.load(Ordering::Relaxed) == 0;
        let mut choice = (1..CLIENTS_MAX).filter(is_new).chain(1..CLIENTS_MAX);
        let id = choice.find(claims).ok_or(JoinError::TooMany(CLIENTS_MAX - 1))?;
        identity.write(&places[id]);
        state.file().clients[id].begin(process);
        places[id].executor.store(std::process::id().into(), Ordering::Relaxed);
        let options = state.options();
        Ok(Client(Arc::new(Membership {
            state: state.clone(),
            id: id as ClientId,
            process,
            stamps: options.timing.is_some() || options.trace.is_some(),
            traces: options.trace.is_some(),
            has_timing: options.timing.is_some(),
        })))
    }

    /// The process in whose name it submits.
    pub fn process(&self) -> u32 {
        self.0.process
    }

    /// The number of the address space that descriptors belong to.
    pub fn pasid(&self) -> u32 {
        self.0.id.into()
    }

    /// The state file.
    pub fn state(&self) -> &State {
        &self.0.state
    }

    /// An engine that executes what this client submits to a device. There is at most one at a time.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn engine(&self, device: usize) -> ClientEngine {
        ClientEngine::new(self, device)
    }

    /// ENQCMD: a shared queue that is enabled takes the descriptor or answers Retry; everything else answers Retry. The
    /// submitter is put into `words`, as the instruction puts it into what it submits.
    ///
    /// Also for signal handlers: no lock, no allocation, few system calls, no panic for a [`QueueAt::new`].
    ///
    /// Source: DSA specification 5.3.
    #[inline]
    pub fn enqcmd(&self, at: QueueAt, words: &mut [u64; 8]) -> Submission {
        self.submit_shared(at, words, self.by(WayIn::Enqcmd))
    }

    /// MOVDIR64B: a dedicated queue that is enabled takes the descriptor or loses it; everything else ignores it. The
    /// submitter is put into `words`, as the device does it.
    ///
    /// Also for signal handlers, as [`enqcmd`](Self::enqcmd).
    #[inline]
    pub fn movdir64b(&self, at: QueueAt, words: &mut [u64; 8]) {
        self.submit_dedicated(at, words, self.by(WayIn::Movdir64b));
    }

    /// `write(2)` by a thread of the client's process: what the kernel does with a descriptor then, by the instruction
    /// that the queue's mode needs. A dedicated queue takes it or loses it, and nobody is told.
    pub fn written(&self, at: QueueAt, words: &mut [u64; 8], thread: u32) -> Submission {
        let by = By { way: WayIn::Write, thread };
        if self.queue(at).mode() == Some(QueueMode::Dedicated) {
            self.submit_dedicated(at, words, by);
            return Submission::Accepted;
        }
        self.submit_shared(at, words, by)
    }

    #[inline]
    fn submit_shared(&self, at: QueueAt, words: &mut [u64; 8], by: By) -> Submission {
        let queue = self.queue(at);
        if queue.mode() != Some(QueueMode::Shared) {
            return Submission::Retry;
        }
        words[0] = words[0] & !u64::from(u32::MAX) | u64::from(self.pasid());
        match self.offer(at, QueueMode::Shared, words, by) {
            Answer::Accepted => Submission::Accepted,
            Answer::Retry | Answer::Lost | Answer::Closed => Submission::Retry,
        }
    }

    #[inline]
    fn submit_dedicated(&self, at: QueueAt, words: &mut [u64; 8], by: By) {
        if self.queue(at).mode() != Some(QueueMode::Dedicated) {
            return;
        }
        words[0] = words[0] & !0xf_ffff | u64::from(self.pasid());
        if self.offer(at, QueueMode::Dedicated, words, by) == Answer::Lost {
            let entry = Descriptor::from_words(*words);
            let error = SoftwareError::new(Status::QueueOverflow, at.queue, &entry);
            self.0.state.device(at.device).error.report(&error);
        }
    }

    fn offer(&self, at: QueueAt, mode: QueueMode, words: &[u64; 8], by: By) -> Answer {
        let queue = self.queue(at);
        let now_ns = if self.0.stamps { self.0.state.now_ns() } else { 0 };
        let arrives_ns = now_ns + queue.submit_ns();
        let stamp = Stamp { ns: arrives_ns, by: by.to_word() };
        let answer = queue.offer(mode, self.0.id, words, stamp);
        match answer {
            Answer::Accepted => futex::wake_for_entry(self.asleep(at.device)),
            Answer::Retry => _ = self.mine(at).retried.fetch_add(1, Ordering::Relaxed),
            Answer::Lost => _ = self.mine(at).dropped.fetch_add(1, Ordering::Relaxed),
            Answer::Closed => {}
        }
        if self.0.has_timing {
            while self.0.state.now_ns() < arrives_ns {
                std::hint::spin_loop();
            }
        }
        answer
    }

    /// The calling thread, if there is a trace to tell it.
    #[inline]
    fn by(&self, way: WayIn) -> By {
        By { way, thread: if self.0.traces { thread_id() } else { 0 } }
    }

    fn queue(&self, at: QueueAt) -> &QueueState {
        &self.0.state.device(at.device).queues[at.queue]
    }

    fn mine(&self, at: QueueAt) -> &ClientQueue {
        &self.0.state.file().clients[usize::from(self.0.id)].devices[at.device].queues[at.queue]
    }

    /// The word that this client's engine of a device sleeps on.
    pub(super) fn asleep(&self, device: usize) -> &AtomicU32 {
        &self.0.state.file().clients[usize::from(self.0.id)].devices[device].asleep.0
    }

    pub(super) fn id(&self) -> ClientId {
        self.0.id
    }
}

/// gettid(2).
#[allow(unsafe_code)]
fn thread_id() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::gettid() as u32 }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // A client of another process may have been buried before it was dropped, and its place be somebody else's.
        if self.state.file().places[usize::from(self.id)].process(Life::Live) == Some(self.process) {
            self.state.bury_client(self.id);
        }
        self.state.free_the_buried();
    }
}

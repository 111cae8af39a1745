//! One descriptor in a device, from its submission to its end.
//!
//! It rests on what [`Portal`] says of completions and of [`Portal::is_gone`]. The promise: while a device may access
//! the memory of a call, neither does the call return nor does a panic leave it.
//!
//! ```text
//! completed          the memory is the caller's again
//! gone               the portal says that the device processes nothing any more: an error, the memory is the caller's
//! silent             no progress for a long time, and the device is not gone: it may still write
//!   borrowed memory    cannot be given back and cannot be leaked: the process ends
//!   owned memory       is leaked
//! unwinding          waits until it is completed, then goes on unwinding; after a long time the process ends
//! ```

#![allow(unsafe_code)]

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::completion::{Completion, CompletionRecord};
use crate::portal::Portal;
use crate::wait::{ATTENDED_MAX, Patience, Wait};

/// How long to wait before asking whether the device is gone. Portals look at most as often as that.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// What becomes of memory that a silent device may still write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Memory {
    /// Others have access to it when the call has ended: the process must not live on.
    Borrowed,
    /// It can be leaked.
    Owned,
}

/// How a flight ended.
pub(super) enum Landed {
    Completed(Completion),
    Gone,
    Silent(Duration),
}

/// The descriptors of a client in one queue, those of batches included. Calls add to both; waiting calls read both.
#[derive(Default)]
pub(super) struct Traffic {
    submitted: AtomicU64,
    landed: AtomicU64,
}

/// Descriptors of a call, counted before they are submitted: the device may complete them before `submit` returns.
#[must_use = "a descriptor that is not accepted leaves the traffic"]
pub(super) struct Entered {
    /// Descriptors that had landed before.
    landed_before: u64,
    count: u64,
}

impl Traffic {
    pub(super) fn enter(&self, count: u64) -> Entered {
        // ORDERING: Relaxed: the counts only measure progress; one too many ahead is a longer time-out.
        let landed_before = self.landed.load(Ordering::Relaxed);
        self.submitted.fetch_add(count, Ordering::Relaxed);
        Entered { landed_before, count }
    }

    /// Nothing was accepted.
    pub(super) fn leave(&self, entered: &Entered) {
        self.submitted.fetch_sub(entered.count, Ordering::Relaxed);
    }

    /// Descriptors that may complete after `entered` began and before the last of them: all that have been submitted by
    /// now, the own ones but that last included.
    ///
    /// Called after the device has accepted them. A thread may be held up between counting and submitting, and a full
    /// queue holds it up: descriptors that were counted later are then before its own in the queue.
    fn ahead(&self, entered: &Entered) -> u64 {
        self.submitted.load(Ordering::Relaxed).saturating_sub(entered.landed_before + 1)
    }
}

/// A descriptor in flight.
pub(super) struct Flight<'c> {
    portal: &'c dyn Portal,
    traffic: &'c Traffic,
    record: &'c CompletionRecord,
    /// Of a batch: the records of its members.
    members: &'c [CompletionRecord],
    /// See [`Entered`] and [`Traffic::ahead`].
    landed_before: u64,
    ahead: u64,
    has_ended: bool,
}

impl<'c> Flight<'c> {
    /// Begins with a descriptor that `portal` accepted and whose record is `record`; `members` has those of a batch.
    pub(super) fn new(
        portal: &'c dyn Portal,
        traffic: &'c Traffic,
        entered: &Entered,
        record: &'c CompletionRecord,
        members: &'c [CompletionRecord],
    ) -> Flight<'c> {
        debug_assert_eq!(entered.count, members.len() as u64 + 1);
        let (landed_before, ahead) = (entered.landed_before, traffic.ahead(entered));
        Flight { portal, traffic, record, members, landed_before, ahead, has_ended: false }
    }

    /// Waits for its end. A silent device ends the process if the memory is borrowed.
    pub(super) fn land(mut self, wait: Wait, timeout: Duration, memory: Memory) -> Landed {
        let landed = self.wait(wait, timeout);
        if let (Landed::Silent(waited), Memory::Borrowed) = (&landed, memory) {
            self.give_up(*waited);
        }
        self.has_ended = true;
        landed
    }

    fn wait(&self, wait: Wait, timeout: Duration) -> Landed {
        let start = Instant::now();
        let mut attended = Duration::ZERO;
        let mut patience = Patience::new(self.ahead, self.landed_before, attended);
        let mut counted = 0;
        let mut is_gone = false;
        let (queue, landed) = (self.portal.work_queue(), &self.traffic.landed);
        loop {
            let round = Instant::now();
            // Once more after the device has gone: it may have completed this just before.
            let completed = wait.wait(self.record, if is_gone { ASK_EVERY } else { ASK_EVERY.min(timeout) });
            if let Ok(completion) = completed {
                landed.fetch_add(self.members.len() as u64 + 1 - counted, Ordering::Relaxed);
                self.portal.completed(1);
                return Landed::Completed(completion);
            }
            if is_gone {
                return Landed::Gone;
            }
            let members = self.members.iter().filter(|record| record.poll().is_some()).count() as u64;
            let all_landed = landed.fetch_add(members - counted, Ordering::Relaxed) + members - counted;
            counted = members;
            attended += round.elapsed().min(ATTENDED_MAX);
            is_gone = self.portal.is_gone();
            if patience.is_over(all_landed, attended, queue, timeout) && !is_gone {
                return Landed::Silent(start.elapsed());
            }
        }
    }

    fn give_up(&self, waited: Duration) -> ! {
        let queue = &self.portal.work_queue().name;
        // Not `eprintln!`, which panics when stderr is closed: then nothing would abort.
        let _ = writeln!(
            io::stderr(),
            "memferry-dsa: nothing was heard of {queue} for {waited:?}, and it may still write to memory that a call \
             has borrowed; ending the process. Calls that own their memory survive this."
        );
        std::process::abort()
    }
}

/// Only when a panic passes through `land`.
impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        /// Longer than 128 entries of 2 GiB take a slow device, at 1 GB/s.
        const UNWINDING: Duration = Duration::from_secs(300);
        let start = Instant::now();
        // Not `wait`, which may be what panicked: nothing but the record is asked here.
        while self.record.poll().is_none() {
            if start.elapsed() > UNWINDING {
                std::process::abort();
            }
            std::thread::yield_now();
        }
    }
}

//! One descriptor in a device, from its submission to its end.
//!
//! It rests on what [`Portal`] says of completions and of [`Portal::is_gone`]. The promise: while a device may access
//! the memory of a call, neither does the call return nor does a panic leave it.
//!
//! ```text
//! completed          the memory is the caller's again
//! gone               the portal says that the device processes nothing any more: an error, the memory is the caller's
//! silent             nothing for a long time, and the device is not gone: it may still write
//!   borrowed memory    cannot be given back and cannot be leaked: the process ends
//!   owned memory       is leaked
//! unwinding          waits like the call itself, then goes on unwinding
//! ```

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use crate::completion::{Completion, CompletionRecord};
use crate::portal::Portal;
use crate::wait::Wait;

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

/// A descriptor in flight.
pub(super) struct Flight<'c> {
    portal: &'c dyn Portal,
    record: &'c CompletionRecord,
    has_ended: bool,
}

impl<'c> Flight<'c> {
    /// Begins with a descriptor that `portal` accepted and whose record is `record`.
    pub(super) fn new(portal: &'c dyn Portal, record: &'c CompletionRecord) -> Flight<'c> {
        Flight { portal, record, has_ended: false }
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
        let mut is_gone = false;
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            // Once more after the device has gone: it may have completed this just before.
            let round = if is_gone { ASK_EVERY } else { left.min(ASK_EVERY) };
            if let Ok(completion) = wait.wait(self.record, round) {
                self.portal.settled(1);
                return Landed::Completed(completion);
            }
            if is_gone {
                return Landed::Gone;
            }
            is_gone = self.portal.is_gone();
            if !is_gone && left.is_zero() {
                return Landed::Silent(start.elapsed());
            }
        }
    }

    fn give_up(&self, waited: Duration) -> ! {
        let queue = &self.portal.work_queue().name;
        eprintln!(
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
        /// Longer than any transfer takes.
        const UNWINDING: Duration = Duration::from_secs(60);
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

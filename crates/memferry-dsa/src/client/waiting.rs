//! The wait for one descriptor in a device, until its completion.
//!
//! It relies on the promises of [`Portal`](crate::Portal) about completions and devices that are gone. Its own promise:
//! while a device may access the memory of a call, the call does not return, and no panic leaves it.
//!
//! ```text
//! completed          the memory is the caller's again
//! gone               the portal reports that the device has stopped: an error, the memory is the caller's
//! silent             no progress for a long time, and the device is not gone: it may still write
//!   borrowed memory    cannot be given back and cannot be leaked: the process ends
//!   owned memory       is leaked
//! unwinding          waits until it is completed, then goes on unwinding; after a long time the process ends
//! ```

use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::completion::{Completion, CompletionRecord};
use crate::driver::in_flight::InFlight;
use crate::driver::queue::Queue;
use crate::driver::{Loss, Observer, RecordLine};
use crate::wait::{AttendedTime, Wait};

/// The interval of asking whether the device is gone. Portals read its state at most as often.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The ownership of memory that a silent device may still write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Memory {
    /// Others have access to it after the call: the process must end.
    Borrowed,
    /// It can be leaked.
    Owned,
}

/// A descriptor of this call that a device has.
pub(super) struct Waiting<'c> {
    queue: &'c Queue,
    record: &'c CompletionRecord,
    /// Of a batch: the records of its members.
    members: &'c [RecordLine],
    /// `None` once the wait has ended.
    in_flight: Option<InFlight>,
}

impl<'c> Waiting<'c> {
    /// For the descriptor that `queue` accepted and whose record is `record`; `members` has those of a batch.
    pub(super) fn new(
        in_flight: InFlight,
        queue: &'c Queue,
        record: &'c CompletionRecord,
        members: &'c [RecordLine],
    ) -> Waiting<'c> {
        Waiting { queue, record, members, in_flight: Some(in_flight) }
    }

    /// Waits for the completion. A silent device ends the process if the memory is borrowed.
    ///
    /// # Errors
    /// The reason, and the duration of the wait.
    pub(super) fn wait(
        mut self,
        wait: Wait,
        timeout: Duration,
        memory: Memory,
        observer: &impl Observer,
    ) -> Result<Completion, (Loss, Duration)> {
        let start = Instant::now();
        let mut time = AttendedTime::default();
        loop {
            let round = Instant::now();
            // Read before the record, which may have been written just before the device was gone.
            let was_gone = self.queue.facts().is_gone();
            if let Ok(completion) = wait.wait(self.record, ASK_EVERY.min(timeout)) {
                if let Some(in_flight) = self.in_flight.take() {
                    in_flight.complete(self.queue);
                }
                return Ok(completion);
            }
            let now = time.advance(round.elapsed());
            self.queue.ask(observer);
            let in_flight = self.in_flight.as_mut().expect("it is taken when the wait ends");
            match in_flight.loss(was_gone, self.queue, self.members, now, timeout) {
                // Silent, but gone by now: the record is read once more.
                Some(Loss::Silent) if self.queue.facts().is_gone() => {}
                Some(loss) => {
                    if loss == Loss::Silent && memory == Memory::Borrowed {
                        self.abort(start.elapsed());
                    }
                    self.in_flight = None;
                    return Err((loss, start.elapsed()));
                }
                None => {}
            }
        }
    }

    fn abort(&self, waited: Duration) -> ! {
        let queue = &self.queue.portal().work_queue().name;
        // Not `eprintln!`, which panics when stderr is closed: then nothing would abort.
        let _ = writeln!(
            io::stderr(),
            "memferry-dsa: nothing was heard of {queue} for {waited:?}, and it may still write to memory that a call \
             has borrowed; ending the process. Calls that own their memory survive this."
        );
        std::process::abort()
    }
}

/// Runs only if a panic passes through `wait`.
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.in_flight.is_none() {
            return;
        }
        /// Longer than 128 entries of 2 GiB take a slow device, at 1 GB/s.
        const UNWINDING: Duration = Duration::from_secs(300);
        let start = Instant::now();
        // Not `wait`, which may have panicked: only the record is read here.
        while self.record.poll().is_none() {
            if start.elapsed() > UNWINDING {
                std::process::abort();
            }
            std::thread::yield_now();
        }
    }
}

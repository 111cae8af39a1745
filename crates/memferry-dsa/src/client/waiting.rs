//! The wait for one descriptor in a device, until its completion.
//!
//! It rests on what [`Portal`](crate::Portal) says of completions and of devices that are gone. The promise: while a
//! device may access the memory of a call, neither does the call return nor does a panic leave it.
//!
//! ```text
//! completed          the memory is the caller's again
//! gone               the portal says that the device processes nothing any more: an error, the memory is the caller's
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
    /// Why there is none, and how long it was waited for.
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
            // Before the record is looked at once more: it may have been written just before the device was gone.
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
                // Not heard of and gone: the last look at the record is still to come.
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

/// Only when a panic passes through `wait`.
impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.in_flight.is_none() {
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

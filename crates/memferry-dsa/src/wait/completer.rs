//! The process' completer: one thread that polls completion records for all other threads and tasks.
//!
//! ```text
//! waiter:     enter the record and its waker; announce; sleep
//! completer:  poll all records; wake the waiters of records that are written or have timed out
//!             none left: sleep until an announcement        else: sleep according to `Pace`
//! ```
//!
//! The first wait starts it, and it stays. A forked child has no such thread, and starts its own.
//!
//! It uses at most 5 % of a core, and notices a completion at most a quarter of the transfer's time or 50 us late, never more
//! than 1 ms; see `pace.rs`.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::gate::Gate;
use super::pace::{Next, Pace};
use super::table::{Source, Table, Ticket, TimedOut, Waiter};
use super::timers::reduce_timer_slack;
use crate::completion::{Completion, CompletionRecord};
use crate::fork::{self, PerProcess};
use crate::panics;

/// The options of a [`Completer`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompleterOptions {
    /// The name of its thread.
    pub name: String,
    /// Records that are watched at a time, rounded up to a multiple of 64. Further records are refused.
    pub records_max: usize,
}

impl Default for CompleterOptions {
    /// 1024 records, the entries of all queues of eight devices.
    fn default() -> CompleterOptions {
        CompleterOptions { name: "dsa-completer".to_owned(), records_max: 1024 }
    }
}

/// A thread that watches completion records, and wakes threads and tasks when they are written.
///
/// After a drop, the thread ends when it watches no record.
pub struct Completer {
    shared: Arc<Shared>,
    /// Kept, so that the clock id stays that of the thread.
    join: Option<JoinHandle<()>>,
    clock: Option<libc::clockid_t>,
}

/// | field | written by | read by |
/// |---|---|---|
/// | `table`, `gate` | waiters and the thread | both |
/// | `thread` | `start`, before the first wait | waiters |
/// | `closing` | `drop` | the thread |
/// | counters | the thread; `refused`: waiters | `stats` |
struct Shared {
    table: Table<Record>,
    gate: Gate,
    thread: std::sync::OnceLock<Thread>,
    closing: AtomicBool,
    generation: u32,
    sweeps: AtomicU64,
    sleeps: AtomicU64,
    found: AtomicU64,
    timed_out: AtomicU64,
    refused: AtomicU64,
}

/// The counters of a completer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CompleterStats {
    /// Polls of all records.
    pub sweeps: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// Records that it found written.
    pub found: u64,
    /// Records that timed out.
    pub timed_out: u64,
    /// Records that it had no free entry for.
    pub refused: u64,
    /// CPU time of its thread, if the system reports it.
    pub cpu_time: Option<Duration>,
}

/// The error of a full completer: wait in another way, or try again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the completer has no free entry: raise `records_max`, or wait in another way")]
pub struct Full;

/// A watched record. The waiter keeps it valid.
struct Record(NonNull<CompletionRecord>);

// SAFETY: a record consists of atomics; the caller of `Completer::watch` keeps it valid.
unsafe impl Send for Record {}

impl Source for Record {
    type Found = Completion;
    fn poll(&self) -> Option<Completion> {
        // SAFETY: the table polls only between `enter` and `remove`, and the record is valid in between.
        unsafe { self.0.as_ref() }.poll()
    }
}

impl Completer {
    /// The process' completer, which the first call starts.
    ///
    /// # Errors
    /// The system starts no thread, or forks cannot be detected. The next call tries again.
    pub fn global() -> io::Result<&'static Completer> {
        static GLOBAL: PerProcess<Completer> = PerProcess::new();
        GLOBAL.get_or_try_init(|| Completer::start(CompleterOptions::default()))
    }

    /// Another completer.
    ///
    /// # Errors
    /// The system starts no thread, or forks cannot be detected.
    pub fn start(options: CompleterOptions) -> io::Result<Completer> {
        fork::watch()?;
        let counter = || AtomicU64::new(0);
        let shared = Arc::new(Shared {
            table: Table::new(options.records_max),
            gate: Gate::new(),
            thread: std::sync::OnceLock::new(),
            closing: AtomicBool::new(false),
            generation: fork::generation(),
            sweeps: counter(),
            sleeps: counter(),
            found: counter(),
            timed_out: counter(),
            refused: counter(),
        });
        let join = thread::Builder::new().name(options.name).spawn({
            let shared = shared.clone();
            move || run(&shared)
        })?;
        shared.thread.get_or_init(|| join.thread().clone());
        let clock = clock_of(&join);
        Ok(Completer { shared, join: Some(join), clock })
    }

    /// Waits for one of the records; `None` without enough free entries.
    pub(super) fn wait_any(
        &self,
        records: &[&CompletionRecord],
        timeout: Duration,
    ) -> Option<Result<(usize, Completion), TimedOut>> {
        let start = Instant::now();
        let enter = |record: &&CompletionRecord| {
            // SAFETY: the watches are dropped before this returns, and the records live until then.
            unsafe { self.enter(NonNull::from(*record), Some(Waiter::Thread(thread::current())), timeout) }
        };
        // One record needs no memory for the list of watches.
        let (one, many);
        let watches: &[Watch] = match records {
            [record] => {
                one = [enter(record).ok()?];
                &one
            }
            records => {
                many = records.iter().map(enter).collect::<Result<Vec<_>, Full>>().ok()?;
                &many
            }
        };
        loop {
            if let Some(found) = super::kinds::look(records) {
                return Some(Ok(found));
            }
            let waited = start.elapsed();
            // Usually the completer ends the wait; its thread may be stopped.
            if waited >= timeout || watches.iter().any(|watch| matches!(watch.outcome(), Some(Err(_)))) {
                return Some(Err(TimedOut { waited }));
            }
            thread::park_timeout((timeout - waited).max(Duration::from_millis(1)));
        }
    }

    /// Watches a record. The future is ready when the record is written, or with an error after `timeout`.
    ///
    /// Cost: no memory; one lock now and one at the end.
    ///
    /// # Errors
    /// [`Full`].
    ///
    /// # Safety
    /// The record stays valid until the future is dropped, or for ever if it is forgotten.
    pub unsafe fn watch(&self, record: *const CompletionRecord, timeout: Duration) -> Result<Watch, Full> {
        let record = NonNull::new(record.cast_mut()).ok_or(Full)?;
        // SAFETY: passed on to the caller.
        unsafe { self.enter(record, None, timeout) }
    }

    /// # Safety
    /// As [`watch`](Completer::watch).
    unsafe fn enter(
        &self,
        record: NonNull<CompletionRecord>,
        waiter: Option<Waiter>,
        timeout: Duration,
    ) -> Result<Watch, Full> {
        let shared = &self.shared;
        let ticket = (shared.generation == fork::generation())
            .then(|| shared.table.enter(Record(record), waiter, Instant::now(), timeout))
            .flatten();
        let Some(ticket) = ticket else {
            shared.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Full);
        };
        shared.wake_if_lying();
        Ok(Watch { shared: shared.clone(), ticket: Some(ticket) })
    }

    /// The counters.
    pub fn stats(&self) -> CompleterStats {
        let Shared { sweeps, sleeps, found, timed_out, refused, .. } = &*self.shared;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CompleterStats {
            sweeps: get(sweeps),
            sleeps: get(sleeps),
            found: get(found),
            timed_out: get(timed_out),
            refused: get(refused),
            cpu_time: self.clock.and_then(clock_time),
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if self.shared.generation != fork::generation() {
            // A forked child does not have the thread; the handle may name one of the child's own threads by now.
            return std::mem::forget(self.join.take());
        }
        self.shared.closing.store(true, Ordering::Relaxed);
        self.shared.wake_if_lying();
    }
}

impl Shared {
    /// Announces a new entry or the end.
    fn wake_if_lying(&self) {
        if self.gate.announce()
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }
}

/// A watched record as a future. Dropping it ends the watch.
pub struct Watch {
    shared: Arc<Shared>,
    ticket: Option<Ticket>,
}

impl Watch {
    /// The outcome, if there is one by now.
    pub fn outcome(&self) -> Option<Result<Completion, TimedOut>> {
        self.ask(|shared, ticket| shared.table.outcome(ticket))
    }

    /// Asks the table, unless this is a forked child's copy: no thread polls its records, and its locks may be held for
    /// ever.
    fn ask(
        &self,
        ask: impl FnOnce(&Shared, &Ticket) -> Option<Result<Completion, TimedOut>>,
    ) -> Option<Result<Completion, TimedOut>> {
        if self.shared.generation != fork::generation() {
            return Some(Err(TimedOut { waited: Duration::ZERO }));
        }
        ask(&self.shared, self.ticket.as_ref()?)
    }
}

impl Future for Watch {
    type Output = Result<Completion, TimedOut>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = self.ask(|shared, ticket| shared.table.outcome_or_wake(ticket, context.waker()));
        outcome.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take()
            && self.shared.generation == fork::generation()
        {
            self.shared.table.remove(ticket);
        }
    }
}

/// The thread's work.
fn run(shared: &Shared) {
    reduce_timer_slack();
    let mut wake = Vec::new();
    let mut pace = Pace::new(Instant::now());
    loop {
        // First the count, then the table: later entries are announced later, and prevent the sleep.
        let seen = shared.gate.seen();
        let swept = shared.table.sweep(Instant::now(), &mut wake);
        shared.sweeps.fetch_add(1, Ordering::Relaxed);
        shared.found.fetch_add(swept.found_count as u64, Ordering::Relaxed);
        shared.timed_out.fetch_add(swept.timed_out_count as u64, Ordering::Relaxed);
        for waiter in wake.drain(..) {
            // A task's waker is foreign code. If it panics, the other waiters must still be woken; the panic hook has
            // reported the panic.
            let _ = panics::contain(|| waiter.wake());
        }
        let Some(youngest) = swept.youngest else {
            if shared.closing.load(Ordering::Relaxed) {
                return;
            }
            if shared.gate.lie_down(seen) {
                shared.sleeps.fetch_add(1, Ordering::Relaxed);
                while shared.gate.is_lying() {
                    thread::park();
                }
                pace.slept(Instant::now());
            }
            continue;
        };
        match pace.next(Instant::now(), youngest) {
            Next::Spin => std::hint::spin_loop(),
            Next::Nap(time) => {
                shared.sleeps.fetch_add(1, Ordering::Relaxed);
                thread::sleep(time);
                pace.slept(Instant::now());
            }
            Next::Sleep(time) => {
                if shared.gate.lie_down(seen) {
                    shared.sleeps.fetch_add(1, Ordering::Relaxed);
                    thread::park_timeout(time);
                    shared.gate.get_up();
                    pace.slept(Instant::now());
                }
            }
        }
    }
}

/// The clock of a thread's CPU time.
fn clock_of(join: &JoinHandle<()>) -> Option<libc::clockid_t> {
    use std::os::unix::thread::JoinHandleExt;
    let mut clock = 0;
    // SAFETY: the thread was not joined, so its handle is valid; `clock` is this function's.
    let error = unsafe { libc::pthread_getcpuclockid(join.as_pthread_t(), &raw mut clock) };
    (error == 0).then_some(clock)
}

fn clock_time(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is this function's.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut time) } != 0;
    (!failed).then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The CPU time of the calling thread, to compare kinds of waiting; `None` if the system does not report it.
pub fn thread_cpu_time() -> Option<Duration> {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

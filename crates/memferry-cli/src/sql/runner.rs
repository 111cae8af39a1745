//! Work on the threads of the runtime, which Ctrl-C cancels.

use std::any::Any;
use std::fmt;
use std::future;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use datafusion::common::runtime::SpawnedTask;
use nix::sys::signal::{SigSet, Signal};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinError;

/// The exit status of a process that SIGINT ended, as shells report it.
const STATUS_INTERRUPTED: i32 = 130;

/// Stack of a thread: DataFusion plans nested expressions by recursion, and with 8 MiB a sum of 400 numbers overflows in the
/// development profile. Pages that are not touched take no memory.
const STACK_BYTES: usize = 64 << 20;

/// How long the prompt waits for threads that stop: longer than a batch usually takes, and short for a user.
const STOPPING_MAX: Duration = Duration::from_millis(500);

/// Name of the threads of the runtime.
const THREAD_NAME: &str = "memferry-query";

/// A statement was cancelled by Ctrl-C.
#[derive(Debug)]
pub(super) struct Cancelled;

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the statement was cancelled")
    }
}

impl std::error::Error for Cancelled {}

/// Threads for queries, and the interrupts that cancel them.
pub(super) struct Runner {
    runtime: Runtime,
    interrupts: Option<Interrupts>,
}

impl Runner {
    /// Starts the threads. With `interrupts`, SIGINT cancels work and no longer ends the process.
    pub(super) fn start(interrupts: Option<Interrupts>) -> Result<Runner> {
        Ok(Runner { runtime: runtime()?, interrupts })
    }

    /// Makes sure that threads are free after work was cancelled. A thread stops cancelled work at its next batch; if that
    /// takes long on all of them, others replace them.
    ///
    /// # Errors
    /// The other threads cannot be started.
    pub(super) fn recover(&mut self) -> Result<()> {
        let probe = self.spawn(async {});
        let answered =
            self.runtime.block_on(async { tokio::time::timeout(STOPPING_MAX, probe.join()).await });
        if answered.is_err() {
            mem::replace(&mut self.runtime, runtime()?).shutdown_background();
        }
        Ok(())
    }

    /// Cancels the work that follows on SIGINT; until then SIGINT ends the process.
    pub(super) fn catch_interrupts(&self) {
        if let Some(interrupts) = &self.interrupts {
            // ORDERING: Relaxed, no partner: the flag guards no other memory.
            interrupts.caught.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets interrupts that came when nothing ran.
    pub(super) fn forget_interrupts(&mut self) {
        if let Some(interrupts) = &mut self.interrupts {
            interrupts.count.mark_unchanged();
        }
    }

    /// Runs `work` on the runtime to its end.
    ///
    /// # Errors
    /// [`Cancelled`], and the message of a panic.
    pub(super) fn run<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let task = self.spawn(work);
        self.join(task)
    }

    /// Starts `work` on the runtime; dropping the task cancels it.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> SpawnedTask<T> {
        let _entered = self.runtime.enter();
        SpawnedTask::spawn(work)
    }

    /// Starts `work` as [`spawn`](Self::spawn) does, and returns after its first poll.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(super) fn begin<T: Send + 'static>(
        &mut self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<SpawnedTask<T>> {
        let (polled, begun) = oneshot::channel::<()>();
        let task = self.spawn(async move {
            let (mut work, mut polled) = (pin!(work), Some(polled));
            let poll = |context: &mut task::Context<'_>| {
                let output = work.as_mut().poll(context);
                polled = None;
                output
            };
            future::poll_fn(poll).await
        });
        // Nothing is sent: the channel closes, by a panic, too, which the task then reports.
        let _ = self.wait(begun)?;
        Ok(task)
    }

    /// Waits for a task.
    ///
    /// # Errors
    /// [`Cancelled`], and the message of a panic.
    pub(super) fn join<T: Send + 'static>(&mut self, task: SpawnedTask<T>) -> Result<T> {
        self.wait(task.join())?.map_err(explain_end)
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// [`Cancelled`].
    pub(super) fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        let interrupts = self.interrupts.as_mut();
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = interrupted(interrupts) => Err(Cancelled.into()),
                output = work => Ok(output),
            }
        })
    }
}

fn runtime() -> Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    let runtime = builder.thread_name(THREAD_NAME).thread_stack_size(STACK_BYTES).enable_all().build();
    runtime.context("cannot start the threads for queries")
}

/// Waits for the next interrupt.
async fn interrupted(interrupts: Option<&mut Interrupts>) {
    if let Some(interrupts) = interrupts
        && interrupts.count.changed().await.is_ok()
    {
        return;
    }
    // Without the thread that receives them, none comes.
    future::pending().await
}

/// The error of a task that did not run to its end.
pub(super) fn explain_end(error: JoinError) -> anyhow::Error {
    match error.try_into_panic() {
        Ok(panic) => anyhow::anyhow!(
            "the query failed by a fault in memferry or DataFusion: {}; please report it with the statement",
            message(&*panic)
        ),
        Err(_) => Cancelled.into(),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}

/// Whether a panic on this thread becomes an error of a statement: the hook need not print it.
pub(crate) fn panics_become_errors() -> bool {
    thread::current().name() == Some(THREAD_NAME)
}

/// The signal SIGINT, counted.
pub(super) struct Interrupts {
    count: watch::Receiver<u64>,
    caught: Arc<AtomicBool>,
}

impl Interrupts {
    /// Receives SIGINT on a thread of its own. Threads that were started before still get it, so this comes first.
    pub(super) fn install() -> Result<Interrupts> {
        let failed = "cannot receive interrupts of the terminal";
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGINT);
        signals.thread_block().context(failed)?;
        let (sender, count) = watch::channel(0_u64);
        let caught = Arc::new(AtomicBool::new(false));
        let catching = Arc::clone(&caught);
        let receive = move || {
            while signals.wait().is_ok() {
                if !catching.load(Ordering::Relaxed) {
                    std::process::exit(STATUS_INTERRUPTED);
                }
                sender.send_modify(|count| *count += 1);
            }
        };
        thread::Builder::new().name("interrupts".to_owned()).spawn(receive).context(failed)?;
        Ok(Interrupts { count, caught })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_of_work_are_errors() {
        let mut runner = Runner::start(None).unwrap();
        let error = runner.run(async { assert_eq!(3 % 2, 0, "row 3 is odd") }).unwrap_err();
        assert!(error.to_string().contains("row 3 is odd"), "{error}");
        assert_eq!(runner.run(async { 4 }).unwrap(), 4);
    }

    /// A second move of a column was accepted while the task of the first one had not been polled.
    #[test]
    fn work_that_began_has_been_polled() {
        let mut runner = Runner::start(None).unwrap();
        let polled = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&polled);
        let task = runner.begin(async move {
            thread::sleep(Duration::from_millis(50));
            set.store(true, Ordering::Relaxed);
            tokio::task::yield_now().await;
            7
        });
        assert!(polled.load(Ordering::Relaxed));
        assert_eq!(runner.join(task.unwrap()).unwrap(), 7);
        let task = runner.begin(async { assert_eq!(5 % 2, 0, "row 5 is odd") }).unwrap();
        assert!(runner.join(task).unwrap_err().to_string().contains("row 5 is odd"));
    }

    #[test]
    fn threads_that_do_not_stop_are_replaced() {
        let mut runner = Runner::start(None).unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        let threads_count = thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..threads_count {
            let held = Arc::clone(&held);
            // Waits without yielding, until `release` is dropped.
            drop(runner.spawn(async move {
                let _ = held.lock().unwrap().recv();
            }));
        }
        thread::sleep(Duration::from_millis(50));
        runner.recover().unwrap();
        assert_eq!(runner.run(async { 6 }).unwrap(), 6);
        drop(release);
    }

    #[test]
    fn an_interrupt_cancels_what_runs_and_not_what_comes() {
        let (sender, count) = watch::channel(0_u64);
        let interrupts = Interrupts { count, caught: Arc::default() };
        let mut runner = Runner::start(Some(interrupts)).unwrap();
        let dropped = Arc::new(());
        let held = Arc::clone(&dropped);
        sender.send_modify(|count| *count += 1);
        let work = async move {
            future::pending::<()>().await;
            drop(held);
        };
        assert!(runner.run(work).unwrap_err().is::<Cancelled>());
        // The task is dropped on its thread, soon.
        while Arc::strong_count(&dropped) > 1 {
            thread::yield_now();
        }
        sender.send_modify(|count| *count += 1);
        runner.forget_interrupts();
        assert_eq!(runner.run(async { 5 }).unwrap(), 5);
    }
}

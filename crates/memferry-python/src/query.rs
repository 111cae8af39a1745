//! Queries on the threads of a runtime, which Ctrl-C cancels.

use std::future::Future;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{MemferryError, failed};

/// Stack of a thread: that of `memferry sql`, for nested expressions.
const STACK_BYTES: usize = 64 << 20;

/// How long Ctrl-C waits to be noticed: too short for a user to notice.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(20);

/// The threads of this process, and its id.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

/// The threads of queries.
///
/// # Errors
/// They cannot be started, or they are those of a parent process: a forked child has no threads.
pub(crate) fn handle() -> PyResult<Handle> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    match &*runtime {
        Some((process, runtime)) if *process == process::id() => Ok(runtime.handle().clone()),
        Some(_) => Err(PyRuntimeError::new_err(
            "this process was forked after memferry ran a query, and has none of its threads; start processes with \
             multiprocessing.get_context('spawn')",
        )),
        None => {
            let mut builder = Builder::new_multi_thread();
            builder.thread_name("memferry-query").thread_stack_size(STACK_BYTES).enable_time();
            let started = builder.build().map_err(failed)?;
            let handle = started.handle().clone();
            *runtime = Some((process::id(), started));
            Ok(handle)
        }
    }
}

/// Runs `work` without the interpreter. A signal whose handler raises, such as Ctrl-C, cancels it.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, String>> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::channel();
    let task = handle()?.spawn(async move {
        // Nobody receives what was cancelled.
        let _ = sender.send(work.await);
    });
    loop {
        let received;
        (receiver, received) = py.detach(move || {
            let received = receiver.recv_timeout(SIGNALS_EVERY);
            (receiver, received)
        });
        match received {
            Ok(ended) => return ended.map_err(failed),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(interrupt) = py.check_signals() {
                    task.abort();
                    return Err(interrupt);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(MemferryError::new_err("the query panicked; its message is on stderr"));
            }
        }
    }
}

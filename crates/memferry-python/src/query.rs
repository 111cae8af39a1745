//! Queries on the threads of a runtime, which Ctrl-C and the end of an asyncio task cancel.

use std::future::Future;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

use crate::background;
use crate::error::failed;
use crate::transfer::settle;

/// Stack of a thread: that of `memferry sql`, for nested expressions.
const STACK_BYTES: usize = 64 << 20;

/// How long Ctrl-C waits to be noticed: too short for a user to notice.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(20);

const PANICKED: &str = "the query panicked; its message is on stderr";

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

/// A query in flight, for an event loop.
#[pyclass(frozen, name = "Running", module = "memferry._memferry")]
pub(crate) struct PyRunning {
    future: Py<PyAny>,
    task: AbortHandle,
}

#[pymethods]
impl PyRunning {
    /// The future of the event loop that gets the result.
    #[getter]
    fn future(&self, py: Python<'_>) -> Py<PyAny> {
        self.future.clone_ref(py)
    }

    /// Cancels the query, unless it has ended.
    fn cancel(&self) {
        self.task.abort();
    }
}

/// Starts `work`, whose result goes to a future of the running event loop.
///
/// # Errors
/// There is no running event loop, or as [`handle`].
pub(crate) fn start<T: Send + 'static>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, String>> + Send + 'static,
    to_object: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> PyResult<PyRunning> {
    let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
    let future = event_loop.call_method0("create_future")?.unbind();
    let threads = handle()?;
    let (listener, event_loop) = (future.clone_ref(py), event_loop.unbind());
    let work = threads.spawn(work);
    let task = work.abort_handle();
    threads.spawn(async move {
        let ended = work.await;
        background::run(move |py| {
            let result = match ended {
                Ok(Ok(value)) => to_object(py, value),
                Ok(Err(error)) => Err(failed(error)),
                Err(error) if error.is_cancelled() => Err(failed("the query was cancelled")),
                Err(_) => Err(failed(PANICKED)),
            };
            // A closed loop has no waiters.
            let _ = settle(py, event_loop.bind(py), listener.bind(py), result);
        });
    });
    Ok(PyRunning { future, task })
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
                return Err(failed(PANICKED));
            }
        }
    }
}

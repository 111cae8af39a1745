//! Transfers: copies in flight, to wait for or to await.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use memferry::cache::Location;
use pyo3::prelude::*;

use crate::background;
use crate::buffer::Buffer;
use crate::error::failed;
use crate::query::SIGNALS_EVERY;

/// The result of a transfer.
pub(crate) enum Value {
    /// Copied bytes, and the buffers, to be released.
    Copied(u64, Option<(Buffer, Buffer)>),
    /// Where the bytes of an entry are.
    At(Location),
}

impl Value {
    fn to_object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Value::Copied(bytes, _) => bytes.into_pyobject(py)?.into_any().unbind(),
            Value::At(Location::Near(node)) => node.0.into_pyobject(py)?.into_any().unbind(),
            Value::At(Location::Source(_)) => py.None(),
        })
    }
}

/// The end of a transfer: the error as text.
pub(crate) type Ended = Result<Value, String>;

pub(crate) type Work = Pin<Box<dyn Future<Output = Ended> + Send>>;

enum State {
    /// With pairs of an event loop and a future of it.
    InFlight(Work, Vec<(Py<PyAny>, Py<PyAny>)>),
    Ended(Ended),
}

/// A copy in flight, polled whenever it is woken: it completes without a waiting thread.
///
/// The lock of `state` covers polls: those of transfers store the waker and never call it.
///
/// A fork may happen while an engine holds the lock: a child must not take it ([`PyTransfer::flight`]).
struct Flight {
    state: Mutex<State>,
    ended: Condvar,
}

impl Flight {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(self: &Arc<Self>) {
        let mut state = self.lock();
        let State::InFlight(work, listeners) = &mut *state else { return };
        let waker = Arc::clone(self).into();
        let Poll::Ready(ended) = work.as_mut().poll(&mut Context::from_waker(&waker)) else { return };
        let listeners = mem::take(listeners);
        *state = State::Ended(ended);
        drop(state);
        self.ended.notify_all();
        if !listeners.is_empty() {
            let flight = Arc::clone(self);
            background::run(move |py| {
                flight.release(py);
                for (event_loop, future) in listeners {
                    // A closed loop has no waiters.
                    let _ = flight.tell(py, event_loop.bind(py), future.bind(py));
                }
            });
        }
    }

    /// Whether the transfer has ended, after waiting for it for at most `time`.
    fn wait_for(self: &Arc<Self>, time: Duration) -> bool {
        let in_flight = |state: &mut State| matches!(state, State::InFlight(..));
        let waited = self.ended.wait_timeout_while(self.lock(), time, in_flight);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Releases the buffers of a transfer that has ended.
    fn release(&self, py: Python<'_>) {
        let buffers = match &mut *self.lock() {
            State::Ended(Ok(Value::Copied(_, buffers))) => buffers.take(),
            _ => None,
        };
        if let Some((source, target)) = buffers {
            source.release(py);
            target.release(py);
        }
    }

    /// The result of a transfer that has ended.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.release(py);
        match &*self.lock() {
            State::Ended(Ok(value)) => value.to_object(py),
            State::Ended(Err(error)) => Err(failed(error)),
            State::InFlight(..) => Err(failed("the transfer is in flight")),
        }
    }

    /// Sets the result of `future` in its event loop.
    fn tell(&self, py: Python<'_>, event_loop: &Bound<'_, PyAny>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        settle(py, event_loop, future, self.result(py))
    }
}

/// Sets the result of `future` in its event loop, unless it was cancelled.
pub(crate) fn settle(
    py: Python<'_>,
    event_loop: &Bound<'_, PyAny>,
    future: &Bound<'_, PyAny>,
    result: PyResult<Py<PyAny>>,
) -> PyResult<()> {
    let settle = py.import("memferry._await")?.getattr("settle")?;
    let (value, error) = match result {
        Ok(value) => (value, None),
        Err(error) => (py.None(), Some(error.into_value(py))),
    };
    event_loop.call_method1("call_soon_threadsafe", (settle, future, value, error)).map(drop)
}

impl Wake for Flight {
    fn wake(self: Arc<Self>) {
        self.advance();
    }
}

/// A copy in flight. It goes on if this object is dropped, and keeps its buffers until then.
#[pyclass(frozen, name = "Transfer", module = "memferry")]
pub(crate) struct PyTransfer {
    flight: Arc<Flight>,
    /// The process that started it.
    process: u32,
}

impl PyTransfer {
    pub(crate) fn follow(work: Work) -> Self {
        let state = Mutex::new(State::InFlight(work, Vec::new()));
        let flight = Arc::new(Flight { state, ended: Condvar::new() });
        flight.advance();
        Self { flight, process: process::id() }
    }

    /// # Errors
    /// The transfer belongs to the parent of this process.
    fn flight(&self) -> PyResult<&Arc<Flight>> {
        if self.process == process::id() {
            return Ok(&self.flight);
        }
        Err(failed(
            "this process was forked after the transfer had started, and the transfer belongs to the parent; start it \
             again, with other buffers",
        ))
    }
}

impl Drop for PyTransfer {
    /// In a forked child the transfer stays in memory: an engine may have been changing it at the fork.
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(Arc::clone(&self.flight));
        }
    }
}

#[pymethods]
impl PyTransfer {
    /// Whether the transfer has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let flight = self.flight()?;
        let ended = matches!(&*flight.lock(), State::Ended(_));
        if ended {
            flight.release(py);
        }
        Ok(ended)
    }

    /// Waits for the end and returns the result. Ctrl-C ends the wait; the copy goes on.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let flight = self.flight()?;
        while !py.detach(|| flight.wait_for(SIGNALS_EVERY)) {
            py.check_signals()?;
        }
        flight.result(py)
    }

    fn __await__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let flight = self.flight()?;
        let event_loop = py.import("asyncio")?.call_method0("get_running_loop")?;
        let future = event_loop.call_method0("create_future")?;
        // Without the interpreter: a thread that polls may hold the lock.
        py.detach(|| flight.advance());
        let waits = match &mut *flight.lock() {
            State::InFlight(_, listeners) => {
                listeners.push((event_loop.clone().unbind(), future.clone().unbind()));
                true
            }
            State::Ended(_) => false,
        };
        if !waits {
            flight.tell(py, &event_loop, &future)?;
        }
        Ok(future.call_method0("__await__")?.unbind())
    }
}

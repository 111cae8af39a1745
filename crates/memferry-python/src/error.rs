//! Errors as exceptions, and objects that were closed.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, PyResult, Python, create_exception};

create_exception!(memferry, MemferryError, PyRuntimeError, "An operation or a query of memferry failed.");

/// An operation that failed.
pub(crate) fn failed(error: impl Display) -> PyErr {
    MemferryError::new_err(error.to_string())
}

/// An argument that cannot be used.
pub(crate) fn wrong(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Something that Python code can close.
pub(crate) struct Closable<T: Send> {
    name: &'static str,
    /// `None` after `close`.
    value: Mutex<Option<T>>,
}

impl<T: Clone + Send> Closable<T> {
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        Self { name, value: Mutex::new(Some(value)) }
    }

    /// Calls `use_it` with the value.
    ///
    /// # Errors
    /// It is closed.
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&T) -> PyResult<R>) -> PyResult<R> {
        match &*self.value.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(value) => use_it(value),
            None => Err(PyRuntimeError::new_err(format!("the {0} is closed; make a new {0}", self.name))),
        }
    }

    pub(crate) fn get(&self) -> PyResult<T> {
        self.with(|value| Ok(value.clone()))
    }

    /// Drops the value without the interpreter: that may wait for threads.
    pub(crate) fn close(&self, py: Python<'_>) {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(value));
    }
}

impl<T: Send> Drop for Closable<T> {
    /// As `close`, for objects that were not closed.
    fn drop(&mut self) {
        let Some(value) = self.value.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let mut value = Some(value);
        // After the interpreter's end there is nothing to release, and the value drops with this function.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}

//! Errors as exceptions, and objects that were closed.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::{PyErr, PyResult, create_exception};

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
pub(crate) struct Closable<T> {
    name: &'static str,
    /// `None` after `close`.
    value: Mutex<Option<T>>,
}

impl<T: Clone> Closable<T> {
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

    /// Takes the value. Drop it without the interpreter: that may wait for threads.
    pub(crate) fn close(&self) -> Option<T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

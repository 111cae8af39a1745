//! memferry for Python.
//!
//! ```text
//! memferry (python/memferry/__init__.py)   sql(), type stubs
//!    _memferry (this crate)                Machine, Mover, Transfer, Cache, Region, Entry, Session, Table
//!       buffer       memory of Python objects, exported for as long as a copy needs it
//!       background   the one thread that attaches to the interpreter on behalf of engines
//! ```
//!
//! Engines never wait for the interpreter, and the interpreter is never held while a thread waits for an engine or a query.

mod background;
mod buffer;
mod cache;
mod error;
mod machine;
mod mover;
mod provider;
mod query;
mod session;
mod table;
mod transfer;

use pyo3::pymodule;

/// The native part of the package `memferry`.
#[pymodule]
mod _memferry {
    #[pymodule_export]
    use crate::cache::{PyCache, PyEntry, PyRegion};
    #[pymodule_export]
    use crate::error::MemferryError;
    #[pymodule_export]
    use crate::machine::{PyMachine, PyNode};
    #[pymodule_export]
    use crate::mover::PyMover;
    #[pymodule_export]
    use crate::provider::PyProvider;
    #[pymodule_export]
    use crate::session::PySession;
    #[pymodule_export]
    use crate::table::PyTable;
    #[pymodule_export]
    use crate::transfer::PyTransfer;
}

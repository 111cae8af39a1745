//! Caches: near copies of read-only Python memory.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use memferry::Access;
use memferry::cache::{Cache, Entry, Location, Region};
use memferry::topology::NodeId;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffer::Buffer;
use crate::error::{Closable, failed, wrong};
use crate::mover::PyMover;
use crate::transfer::{PyTransfer, Value};

/// Keeps copies of registered bytes in near memory, within a budget for each node.
#[pyclass(frozen, name = "Cache", module = "memferry")]
pub(crate) struct PyCache(Closable<Arc<Cache>>);

/// Bytes registered with a cache, which belong to it until the region is dropped.
#[pyclass(frozen, name = "Region", module = "memferry")]
pub(crate) struct PyRegion(Region);

/// Bytes of a region where they are fastest to read: a read-only buffer, whose bytes stay where they are.
#[pyclass(frozen, name = "Entry", module = "memferry")]
pub(crate) struct PyEntry(Entry);

#[pymethods]
impl PyCache {
    /// A cache that copies with `mover`, with a budget in bytes for each node.
    #[new]
    fn new(mover: &PyMover, budgets: BTreeMap<u32, usize>) -> PyResult<Self> {
        let mut builder = Cache::builder(mover.get()?);
        for (node, bytes) in budgets {
            builder = builder.budget(NodeId(node), bytes);
        }
        Ok(Self(Closable::new("cache", Arc::new(builder.build().map_err(wrong)?))))
    }

    /// Registers the bytes of a read-only object, in memory of `node`, looked up in chunks.
    #[pyo3(signature = (object, *, node=None, chunk_bytes=0))]
    fn register(
        &self,
        object: &Bound<'_, PyAny>,
        node: Option<u32>,
        chunk_bytes: usize,
    ) -> PyResult<PyRegion> {
        let cache = self.0.get()?;
        if let Some(node) = node {
            cache.machine().node(NodeId(node)).map_err(wrong)?;
        }
        let buffer = Buffer::constant(object)?;
        Ok(PyRegion(cache.register_chunked(buffer, node.map(NodeId), chunk_bytes)))
    }

    /// The bytes `start..stop` of `region`. A miss starts a copy to `node`; meanwhile the entry is at the source.
    #[pyo3(signature = (region, start=0, stop=None, *, node=None))]
    fn access(
        &self,
        region: &PyRegion,
        start: usize,
        stop: Option<usize>,
        node: Option<u32>,
    ) -> PyResult<PyEntry> {
        let range = start..stop.unwrap_or(region.0.len());
        let access = Access { near: node.map(NodeId), ..Access::default() };
        self.0.with(|cache| Ok(PyEntry(cache.access(&region.0, range, access).map_err(wrong)?)))
    }

    /// Removes entries that overlap `start..stop`, after copies in flight; returns how many.
    #[pyo3(signature = (region, start=0, stop=None))]
    fn invalidate(
        &self,
        py: Python<'_>,
        region: &PyRegion,
        start: usize,
        stop: Option<usize>,
    ) -> PyResult<usize> {
        let (cache, range): (_, Range<usize>) = (self.0.get()?, start..stop.unwrap_or(region.0.len()));
        py.detach(|| cache.invalidate(&region.0, range)).map_err(wrong)
    }

    /// Removes entries that nobody holds; returns how many.
    fn flush(&self, py: Python<'_>) -> PyResult<usize> {
        let cache = self.0.get()?;
        Ok(py.detach(|| cache.flush()))
    }

    /// Removes all entries; returns how many. Held ones keep their bytes.
    fn clear(&self, py: Python<'_>) -> PyResult<usize> {
        let cache = self.0.get()?;
        Ok(py.detach(|| cache.clear()))
    }

    /// Counters.
    fn stats(&self) -> PyResult<BTreeMap<&'static str, u64>> {
        let stats = self.0.get()?.stats();
        Ok([
            ("accesses", stats.accesses),
            ("hits_ready", stats.hits_ready),
            ("hits_in_flight", stats.hits_in_flight),
            ("misses", stats.misses),
            ("submissions", stats.submissions),
            ("evictions", stats.evictions),
            ("no_room", stats.no_room),
            ("failed", stats.failed),
        ]
        .into())
    }

    /// Ends the use of the cache. Entries that are held keep their bytes.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

#[pymethods]
impl PyRegion {
    fn __len__(&self) -> usize {
        self.0.len()
    }
}

#[pymethods]
impl PyEntry {
    /// The node of the copy, or `None` while the bytes are at the source.
    #[getter]
    fn node(&self) -> Option<u32> {
        match self.0.location() {
            Location::Near(node) => Some(node.0),
            Location::Source(_) => None,
        }
    }

    /// A transfer that ends when the copy is ready. Its result is the node, or `None` if the bytes stay at the source.
    fn ready(&self) -> PyTransfer {
        let entry = self.0.clone();
        PyTransfer::follow(Box::pin(async move { Ok(Value::At(entry.ready().await)) }))
    }

    fn __len__(&self) -> usize {
        self.0.as_slice().len()
    }

    /// Fills a `Py_buffer` with the bytes where they are now.
    ///
    /// # Safety
    /// The interpreter calls it with a valid `view`.
    unsafe fn __getbuffer__(this: PyRef<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the view is NULL"));
        }
        let bytes = this.0.as_slice();
        let len = ffi::Py_ssize_t::try_from(bytes.len()).map_err(failed)?;
        // SAFETY: `view` is valid, as the interpreter promises. The view holds this object, this object the entry, and an
        // entry keeps its bytes readable in place, those of the source as well.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                this.as_ptr(),
                bytes.as_ptr().cast_mut().cast::<c_void>(),
                len,
                1,
                flags,
            )
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(this.py())) }
    }
}

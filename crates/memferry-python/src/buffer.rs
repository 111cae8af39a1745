//! Memory of Python objects, by the buffer protocol.
//!
//! A [`Buffer`] holds an export of its object: until it is released, the object can neither be freed nor resized.

use std::ops::Range;

use memferry::cache::RegionOwner;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::background;
use crate::error::wrong;

/// The contiguous bytes of a Python object.
///
/// Python code that writes to an object while memferry copies it changes what is copied, as with any extension module that
/// releases the interpreter.
pub(crate) struct Buffer(Option<PyUntypedBuffer>);

impl Buffer {
    fn of(object: &Bound<'_, PyAny>, name: &str) -> PyResult<PyUntypedBuffer> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(format!(
                "the {name} is not contiguous; pass a contiguous copy, such as numpy.ascontiguousarray(...)"
            )));
        }
        Ok(buffer)
    }

    /// The buffers of a copy.
    ///
    /// # Errors
    /// One of them has no contiguous bytes, the target is read-only, their sizes differ, or they overlap.
    pub(crate) fn pair(source: &Bound<'_, PyAny>, target: &Bound<'_, PyAny>) -> PyResult<(Self, Self)> {
        let (source, target) = (Self::of(source, "source")?, Self::of(target, "target")?);
        if target.readonly() {
            return Err(PyBufferError::new_err(
                "the target is read-only; pass a writable object, such as a bytearray or a NumPy array",
            ));
        }
        let (from, to) = (source.len_bytes(), target.len_bytes());
        if from != to {
            return Err(wrong(format!(
                "the source has {from} bytes and the target {to}; pass equal sizes, such as memoryview(x)[:n]"
            )));
        }
        let (from, to) = (addresses(&source), addresses(&target));
        if from.start < to.end && to.start < from.end {
            return Err(wrong("source and target overlap; copy to other memory"));
        }
        Ok((Self(Some(source)), Self(Some(target))))
    }

    /// Bytes that nobody writes as long as they are exported.
    pub(crate) fn constant(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Self::of(object, "object")?;
        if !buffer.readonly() {
            return Err(PyBufferError::new_err(
                "the object is writable, and copies of it would be outdated after a write; pass a read-only one, such as \
                 bytes or memoryview(x).toreadonly(), and do not write to x until the region is dropped",
            ));
        }
        Ok(Self(Some(buffer)))
    }

    fn bytes(&self) -> (*mut u8, usize) {
        let buffer = self.0.as_ref().expect("taken only by `release` and `drop`, which end it");
        (buffer.buf_ptr().cast(), buffer.len_bytes())
    }

    /// Ends the export now.
    pub(crate) fn release(mut self, py: Python<'_>) {
        if let Some(buffer) = self.0.take() {
            buffer.release(py);
        }
    }
}

fn addresses(buffer: &PyUntypedBuffer) -> Range<usize> {
    let start = buffer.buf_ptr().addr();
    start..start + buffer.len_bytes()
}

impl Drop for Buffer {
    /// Perhaps on the thread of an engine, which must not wait for the interpreter.
    fn drop(&mut self) {
        if let Some(buffer) = self.0.take() {
            background::run(|py| buffer.release(py));
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match self.bytes() {
            (_, 0) => &[],
            // SAFETY: the export keeps the bytes where they are, contiguous (checked by `of`).
            (start, len) => unsafe { std::slice::from_raw_parts(start, len) },
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match self.bytes() {
            (_, 0) => &mut [],
            // SAFETY: as above; only targets are written, which are writable and do not overlap their source (`pair`).
            (start, len) => unsafe { std::slice::from_raw_parts_mut(start, len) },
        }
    }
}

// SAFETY: the export keeps address and length until the drop; the caller of `constant` promised not to write.
unsafe impl RegionOwner for Buffer {
    fn bytes(&self) -> &[u8] {
        self.as_ref()
    }
}

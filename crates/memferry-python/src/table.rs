//! Arrow tables, exchanged by capsules without copies of their rows.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ffi::FFI_ArrowSchema;
use arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use arrow::util::pretty::pretty_format_batches;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::failed;

/// Rows that `repr` shows.
const SHOWN_ROWS: usize = 20;

/// The rows of a result.
#[pyclass(frozen, name = "Table", module = "memferry")]
pub(crate) struct PyTable {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
}

/// Takes the rows of an object with `__arrow_c_stream__`, such as a table of pyarrow, polars or pandas.
pub(crate) fn import(object: &Bound<'_, PyAny>) -> PyResult<(SchemaRef, Vec<RecordBatch>)> {
    // Not `getattr(...).ok()`: the exception of a property belongs to the caller.
    let Some(export) = object.getattr_opt("__arrow_c_stream__")? else {
        return Err(PyTypeError::new_err(format!(
            "{} has no __arrow_c_stream__; pass a table of pyarrow, polars, pandas or memferry, or the path of files",
            object.get_type()
        )));
    };
    let capsule = export.call0()?.cast_into::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(c"arrow_array_stream"))?;
    // SAFETY: a capsule of this name has a stream of the C stream interface, which is moved out: the release callback of
    // the one that stays is NULL, as the interface asks for.
    let stream = unsafe { FFI_ArrowArrayStream::from_raw(stream.as_ptr().cast()) };
    // Without the GIL: a producer may wait for threads that take it.
    let imported = object.py().detach(move || {
        let reader = ArrowArrayStreamReader::try_new(stream)?;
        let schema = reader.schema();
        Ok((schema, reader.collect::<Result<Vec<_>, ArrowError>>()?))
    });
    let py = object.py();
    imported.map_err(|error: ArrowError| {
        let failure = failed(format!("cannot read the rows of {}: {error}", object.get_type()));
        // The stream interface has codes and texts only. A producer in Python may have left its exception in the thread.
        failure.set_cause(py, PyErr::take(py));
        failure
    })
}

#[pymethods]
impl PyTable {
    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    #[getter]
    fn num_columns(&self) -> usize {
        self.schema.fields().len()
    }

    #[getter]
    fn column_names(&self) -> Vec<&str> {
        self.schema.fields().iter().map(|field| field.name().as_str()).collect()
    }

    /// The Arrow C stream interface. The rows are those of this table, whatever schema is requested.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The protocol lets a producer ignore it: consumers check the schema that they get.
        let _ = requested_schema;
        let batches = self.batches.clone().into_iter().map(Ok);
        let reader = RecordBatchIterator::new(batches, Arc::clone(&self.schema));
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref()).map_err(failed)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// A table of pyarrow, without a copy.
    fn to_arrow<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("pyarrow")?.call_method1("table", (this,))
    }

    /// A data frame of pandas, by pyarrow.
    fn to_pandas<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::to_arrow(this)?.call_method0("to_pandas")
    }

    /// A data frame of polars.
    fn to_polars<'py>(this: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("polars")?.call_method1("DataFrame", (this,))
    }

    fn __len__(&self) -> usize {
        self.num_rows()
    }

    fn __repr__(&self) -> PyResult<String> {
        let mut left = SHOWN_ROWS;
        let mut shown = Vec::new();
        for batch in &self.batches {
            let rows = batch.num_rows().min(left);
            shown.push(batch.slice(0, rows));
            left -= rows;
        }
        if shown.is_empty() {
            shown.push(RecordBatch::new_empty(Arc::clone(&self.schema)));
        }
        let rows = self.num_rows();
        let text = pretty_format_batches(&shown).map_err(failed)?;
        let more = if rows > SHOWN_ROWS {
            format!("\nthe first {SHOWN_ROWS} of {rows} rows")
        } else {
            String::new()
        };
        Ok(format!("{text}{more}"))
    }
}

//! Tables for the PyPI package `datafusion`, by its C interface.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::table_provider::FFI_TableProvider;
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::query;

/// A table whose scans are planned in our session: expressions of another session are opaque, and a scan could not see
/// which columns its filter reads. Settings are those of our session too.
#[derive(Debug)]
struct Planned {
    table: Arc<dyn TableProvider>,
    context: OurContext,
}

/// A session, without a debug form of its own.
struct OurContext(SessionContext);

impl std::fmt::Debug for OurContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.session_id())
    }
}

#[async_trait]
impl TableProvider for Planned {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.table.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        _theirs: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.table.scan(&self.context.0.state(), projection, filters, limit).await
    }
}

/// A table that `datafusion.SessionContext.register_table` takes.
///
/// Its scans run here, filters included. What that interface lacks: filters that a join finds at run time do not reach the
/// scan.
#[pyclass(frozen, name = "TableProvider", module = "memferry")]
pub(crate) struct PyProvider(Arc<Planned>);

impl PyProvider {
    pub(crate) fn new(table: Arc<dyn TableProvider>, context: SessionContext) -> Self {
        Self(Arc::new(Planned { table, context: OurContext(context) }))
    }
}

#[pymethods]
impl PyProvider {
    fn __datafusion_table_provider__<'py>(
        &self,
        py: Python<'py>,
        session: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        check_version(py)?;
        let codec = match session.cast::<PyCapsule>() {
            Ok(codec) => codec.clone(),
            Err(_) => session.call_method0("__datafusion_logical_extension_codec__")?.cast_into()?,
        };
        let codec = codec.pointer_checked(Some(c"datafusion_logical_extension_codec"))?;
        // SAFETY: a capsule of this name has this struct, of the same version (`check_version`), and is alive.
        let codec = unsafe { codec.cast::<FFI_LogicalExtensionCodec>().as_ref() }.clone();
        let provider = FFI_TableProvider::new_with_ffi_codec(
            Arc::clone(&self.0) as _,
            true,
            Some(query::handle()?),
            codec,
        );
        PyCapsule::new_with_value(py, provider, c"datafusion_table_provider")
    }
}

/// Compares the version of the package `datafusion` with the interface of this crate, before a struct of it is read.
fn check_version(py: Python<'_>) -> PyResult<()> {
    let version: String = py.import("datafusion")?.getattr("__version__")?.extract()?;
    let ours = datafusion_ffi::version();
    if version.split('.').next() == Some(ours.to_string().as_str()) {
        return Ok(());
    }
    Err(PyImportError::new_err(format!(
        "datafusion {version} is installed, and this memferry has the interface of version {ours}; install \
         datafusion=={ours}.*, or query with memferry.sql"
    )))
}

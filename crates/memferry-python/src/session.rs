//! Sessions: tables and queries.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use memferry_query::load::LoadingTable;
use memferry_query::{Layout, SessionOptions, TieredTable, Tiers, files, session};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::error::{Closable, failed, wrong};
use crate::machine::PyMachine;
use crate::provider::PyProvider;
use crate::query::{self, PyRunning};
use crate::table::{PyTable, import};

#[derive(Clone)]
struct Open {
    context: SessionContext,
    tiers: Arc<Tiers>,
    options: SessionOptions,
}

/// Tables, and queries over them.
#[pyclass(frozen, name = "Session", module = "memferry")]
pub(crate) struct PySession(Closable<Open>);

impl PySession {
    fn provider(&self, py: Python<'_>, name: &str) -> PyResult<Arc<dyn TableProvider>> {
        let (context, name) = (self.0.get()?.context, name.to_owned());
        query::run(py, async move {
            context.table_provider(name.as_str()).await.map_err(|error| error.to_string())
        })
    }
}

async fn collect(context: SessionContext, query: String) -> Result<PyTable, String> {
    let rows = async {
        let frame = context.sql(&query).await?;
        let schema = Arc::clone(frame.schema().inner());
        let batches = frame.collect().await?;
        // A plan may know better what is never null.
        let schema = batches.first().map_or(schema, RecordBatch::schema);
        Ok::<_, DataFusionError>(PyTable { schema, batches })
    };
    rows.await.map_err(|error| error.to_string())
}

#[pymethods]
impl PySession {
    /// A session whose loaded tables are on the home node of `machine`, with copies on the near node.
    #[new]
    #[pyo3(signature = (machine=None, *, budget_bytes=None, partitions=None))]
    fn new(
        py: Python<'_>,
        machine: Option<&PyMachine>,
        budget_bytes: Option<u64>,
        partitions: Option<usize>,
    ) -> PyResult<Self> {
        let machine = match machine {
            Some(machine) => machine.0.clone(),
            None => PyMachine::discover()?.0,
        };
        let tiers =
            py.detach(|| Tiers::builder(machine).budget_bytes(budget_bytes).build()).map_err(failed)?;
        let mut options = SessionOptions { tiers: Some(Arc::clone(&tiers)), ..SessionOptions::default() };
        match partitions {
            Some(0) => return Err(wrong("partitions is 0; pass at least 1")),
            Some(partitions) => options.partitions = partitions,
            None => {}
        }
        let context = session(&options);
        Ok(Self(Closable::new("session", Open { context, tiers, options })))
    }

    /// Registers a table: an object with `__arrow_c_stream__`, whose rows are not copied, or the path of files.
    fn register(&self, py: Python<'_>, name: &str, table: &Bound<'_, PyAny>) -> PyResult<()> {
        let Open { context, options, .. } = self.0.get()?;
        if table.is_instance_of::<PyString>() || table.get_type().hasattr("__fspath__")? {
            let path = py.import("os")?.call_method1("fspath", (table,))?;
            let (name, path) = (name.to_owned(), path.extract::<String>()?);
            return query::run(py, async move {
                files::register(&context, &name, &path).await.map_err(|error| error.to_string())
            });
        }
        let (schema, batches) = import(table)?;
        let mut partitions = vec![Vec::new(); options.partitions];
        for (index, batch) in batches.into_iter().enumerate() {
            partitions[index % options.partitions].push(batch);
        }
        let table = MemTable::try_new(schema, partitions).map_err(wrong)?;
        context.register_table(name, Arc::new(table)).map_err(wrong)?;
        Ok(())
    }

    /// Loads a registered table, or some of its columns, into memory of the home node. Queries then copy columns near.
    #[pyo3(signature = (name, columns=None))]
    fn load(&self, py: Python<'_>, name: &str, columns: Option<Vec<String>>) -> PyResult<()> {
        let source = self.provider(py, name)?;
        let Open { context, tiers, options } = self.0.get()?;
        if source.downcast_ref::<TieredTable>().is_some() {
            return Err(wrong(format!(
                "table {name} is loaded; to load other columns, run DROP TABLE {name} and register it again"
            )));
        }
        let columns: Option<Vec<&str>> =
            columns.as_ref().map(|columns| columns.iter().map(String::as_str).collect());
        let table = LoadingTable::try_new(source, columns.as_deref(), Arc::clone(&tiers)).map_err(wrong)?;
        let layout = Layout {
            partitions: options.partitions,
            ..Layout::new(Arc::clone(tiers.machine()), tiers.home())
        };
        let (from, reading) = (Arc::new(table), context.clone());
        let data = query::run(py, async move {
            from.load(&reading, &layout, Arc::new(())).await.map_err(|error| error.to_string())
        })?;
        let table = TieredTable::try_new(Arc::new(data), tiers).map_err(failed)?;
        context.deregister_table(name).map_err(failed)?;
        context.register_table(name, Arc::new(table)).map_err(failed)?;
        Ok(())
    }

    /// Runs a statement and returns its rows. Ctrl-C cancels it.
    fn sql(&self, py: Python<'_>, query: &str) -> PyResult<PyTable> {
        query::run(py, collect(self.0.get()?.context, query.to_owned()))
    }

    /// A coroutine that runs a statement and returns its rows. The end of its task cancels the statement.
    fn sql_async<'py>(this: &Bound<'py, Self>, query: &str) -> PyResult<Bound<'py, PyAny>> {
        this.py().import("memferry._await")?.call_method1("query", (this, query))
    }

    /// Starts a statement for the running event loop.
    fn _start(&self, py: Python<'_>, query: &str) -> PyResult<PyRunning> {
        let work = collect(self.0.get()?.context, query.to_owned());
        query::start(py, work, |py, table| Ok(Py::new(py, table)?.into_any()))
    }

    /// A table for the session of another DataFusion, see [`PyProvider`].
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<PyProvider> {
        Ok(PyProvider::new(self.provider(py, name)?, self.0.get()?.context))
    }

    /// Ends the use of the session. Results keep their rows.
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

//! `LOAD TABLE`: rows of files and views in the memory of the home node.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use memferry_bench_query::{QueryError, layout};
use memferry_query::{LoadError, TableData, TieredTable, load};

use super::session::Session;
use crate::error::usage;
use crate::output::{count, size};
use crate::progress::Bar;
use crate::query::{explain_error, query_error};

/// A table that was loaded, and the table that it replaced: other columns are loaded from that.
pub(super) struct Loaded {
    table: Arc<dyn TableProvider>,
    source: Arc<dyn TableProvider>,
}

impl Session<'_> {
    /// Loads a table, or some of its columns, and replaces it by the table in memory. If it fails, the table stays as it is.
    pub(super) fn load(
        &mut self,
        name: &TableReference,
        columns: Option<&[String]>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let started = Instant::now();
        let source = self.source(name)?;
        let layout = layout(&self.tiers, self.partitions);
        let (context, from) = (self.context.clone(), Arc::clone(&source));
        let columns: Option<Vec<String>> = columns.map(<[String]>::to_vec);
        let bar: Arc<Bar> = Arc::new(Bar::new("loading"));
        let shown = Arc::clone(&bar);
        let loaded: Result<Result<TableData>> = self.runner.run(async move {
            let mut frame = context.read_table(from).map_err(explain_error)?;
            if let Some(columns) = &columns {
                let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
                frame = frame.select_columns(&columns).map_err(explain_error)?;
            }
            let plan = frame.create_physical_plan().await.map_err(explain_error)?;
            let loaded = load::from_plan(plan, &context.task_ctx(), &layout, bar).await;
            loaded.map_err(|error| match error {
                LoadError::Plan(error) => explain_error(error),
                error => error.into(),
            })
        });
        // Tasks that were cancelled may hold it for a moment, when the prompt is there again.
        shown.clear();
        let data = loaded??;
        let text = format!(
            "loaded {name}: {}, {}, {} on node {},",
            count(data.rows(), "row"),
            count(data.schema().fields().len(), "column"),
            size(data.size_bytes() as u64),
            data.home()
        );
        let table = TieredTable::try_new(Arc::new(data), Arc::clone(&self.tiers.tiers));
        let table: Arc<dyn TableProvider> = Arc::new(table.map_err(QueryError::from).map_err(query_error)?);
        self.context.deregister_table(name.clone()).map_err(explain_error)?;
        self.context.register_table(name.clone(), Arc::clone(&table)).map_err(explain_error)?;
        self.loaded.retain(|loaded| !Arc::ptr_eq(&loaded.source, &source));
        self.loaded.push(Loaded { table, source });
        if self.has_notes() {
            self.note(&text, started.elapsed(), out)?;
        }
        Ok(())
    }

    /// The table to read from: what is registered, or what that was loaded from.
    fn source(&mut self, name: &TableReference) -> Result<Arc<dyn TableProvider>> {
        let (context, reference) = (self.context.clone(), name.clone());
        let provider = self.runner.run(async move { context.table_provider(reference).await })?;
        let provider = provider.map_err(explain_error)?;
        if let Some(loaded) = self.loaded.iter().find(|loaded| Arc::ptr_eq(&loaded.table, &provider)) {
            return Ok(Arc::clone(&loaded.source));
        }
        if provider.downcast_ref::<TieredTable>().is_some() {
            return Err(usage(format!("table {name} was made in memory; it need not be loaded")));
        }
        Ok(provider)
    }
}

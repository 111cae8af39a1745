//! `LOAD TABLE`: rows of files and views in memory, on the home node or where a placement says.

use std::io::{self, Write};
use std::ptr::addr_eq;
use std::sync::{Arc, Weak};
use std::time::Instant;

use anyhow::Result;
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::runtime::SpawnedTask;
use futures::FutureExt;
use memferry_bench_query::{QueryError, layout};
use memferry_query::load::{LoadingTable, Progress};
use memferry_query::{Layout, LoadError, TableData, TieredTable};
use memferry_session::explain_load;

use super::placement::nodes_of;
use super::runner::explain_end;
use super::session::Session;
use super::statement::LoadTable;
use crate::error::{self, usage};
use crate::output::{count, size};
use crate::progress::Bar;
use crate::query::{explain_error, query_error};

/// A table that was loaded, and the table that it replaced: other columns are loaded from that.
pub(super) struct Loaded {
    /// Its memory is freed when the table is dropped or replaced.
    table: Weak<dyn TableProvider>,
    source: Arc<dyn TableProvider>,
}

/// A table that is being loaded.
pub(super) struct Loading {
    name: TableReference,
    table: Arc<LoadingTable>,
    /// The table of the files.
    source: Arc<dyn TableProvider>,
    /// The table that had the name before.
    before: Arc<dyn TableProvider>,
    started: Instant,
    task: SpawnedTask<Result<TableData, LoadError>>,
}

impl Session<'_> {
    /// Loads a table, or some of its columns, and replaces it by the table in memory. If it fails, the table stays as it is.
    ///
    /// In the background, the table is one whose ready parts queries use, until [`finish_loads`](Self::finish_loads).
    pub(super) fn load(&mut self, load: &LoadTable, out: &mut dyn Write) -> Result<()> {
        let name = &load.table;
        let before = self.provider(name)?;
        let source = self.source(name, &before)?;
        let columns: Option<Vec<&str>> =
            load.columns.as_ref().map(|columns| columns.iter().map(String::as_str).collect());
        let tiers = Arc::clone(&self.tiers.tiers);
        let table =
            LoadingTable::try_new(Arc::clone(&source), columns.as_deref(), tiers).map_err(explain_load)?;
        let table = Arc::new(table);
        let bar = (!load.in_background).then(|| Arc::new(Bar::new("loading")));
        let progress: Arc<dyn Progress + Send> = match &bar {
            Some(bar) => Arc::clone(bar) as _,
            None => Arc::new(()),
        };
        let placement = match &load.placement {
            Some(placement) => placement.clone(),
            None => self.kept_placement(&source, load.columns.as_deref()),
        };
        let packed = load.packed.clone();
        let layout = Layout { placement, packed, ..layout(&self.tiers, self.partitions) };
        let (context, from) = (self.context.clone(), Arc::clone(&table));
        let started = Instant::now();
        let task = self.runner.spawn(async move { from.load(&context, &layout, progress).await });
        let loading = Loading { name: name.clone(), table, source, before, started, task };
        let Some(bar) = bar else {
            self.replace(name, Arc::clone(&loading.table) as _)?;
            self.loading.push(loading);
            return Ok(());
        };
        let data = self.runner.join(loading.task);
        // Tasks that were cancelled may hold it for a moment, when the prompt is there again.
        bar.clear();
        self.loaded(&loading.name, loading.source, data?.map_err(explain_load)?, started, out)
    }

    /// Replaces the tables whose loads have ended: by those in memory, or by their files if the load has failed.
    pub(super) fn finish_loads(&mut self, out: &mut dyn Write) -> Result<()> {
        let mut loading = std::mem::take(&mut self.loading).into_iter();
        while let Some(mut load) = loading.next() {
            let Some(ended) = (&mut load.task).now_or_never() else {
                self.loading.push(load);
                continue;
            };
            let Loading { name, table, source, before, started, .. } = load;
            // DROP TABLE or CREATE TABLE may have replaced it.
            let registered = self.provider(&name).ok();
            let table: Arc<dyn TableProvider> = table;
            if !registered.is_some_and(|registered| Arc::ptr_eq(&registered, &table)) {
                continue;
            }
            let data = ended.map_err(explain_end).and_then(|loaded| loaded.map_err(explain_load));
            let Err(error) = data.and_then(|data| self.loaded(&name, source, data, started, out)) else {
                continue;
            };
            self.replace(&name, before)?;
            let error = error.context(format!("table {name} is not loaded, and is as it was before"));
            if !self.interactive {
                self.loading.extend(loading);
                return Err(error);
            }
            // An error of standard error cannot be reported.
            let _ = writeln!(io::stderr(), "error: {}", error::sentence(&error));
        }
        Ok(())
    }

    /// Puts a loaded table in place of the one before.
    fn loaded(
        &mut self,
        name: &TableReference,
        source: Arc<dyn TableProvider>,
        data: TableData,
        started: Instant,
        out: &mut dyn Write,
    ) -> Result<()> {
        let text = format!("loaded {name}: {},", extent(&data));
        let table = self.replace_by(name, data)?;
        self.loaded.retain(|loaded| loaded.table.strong_count() > 0);
        self.loaded.push(Loaded { table: Arc::downgrade(&table), source });
        if self.has_notes() {
            self.note(&text, started.elapsed(), out)?;
        }
        Ok(())
    }

    /// Makes a table of rows in memory, in place of the one before.
    pub(super) fn replace_by(
        &mut self,
        name: &TableReference,
        data: TableData,
    ) -> Result<Arc<dyn TableProvider>> {
        let table = TieredTable::try_new(Arc::new(data), Arc::clone(&self.tiers.tiers));
        let table: Arc<dyn TableProvider> = Arc::new(table.map_err(QueryError::from).map_err(query_error)?);
        self.replace(name, Arc::clone(&table))?;
        Ok(table)
    }

    fn replace(&mut self, name: &TableReference, table: Arc<dyn TableProvider>) -> Result<()> {
        self.context.deregister_table(name.clone()).map_err(explain_error)?;
        self.context.register_table(name.clone(), table).map_err(explain_error)?;
        Ok(())
    }

    /// The table that is registered as `name`.
    pub(super) fn provider(&mut self, name: &TableReference) -> Result<Arc<dyn TableProvider>> {
        let (context, reference) = (self.context.clone(), name.clone());
        let provider = self.runner.run(async move { context.table_provider(reference).await })?;
        provider.map_err(explain_error)
    }

    /// The table to read from: the registered one, or its source if it was loaded.
    fn source(
        &self,
        name: &TableReference,
        provider: &Arc<dyn TableProvider>,
    ) -> Result<Arc<dyn TableProvider>> {
        if let Some(loaded) =
            self.loaded.iter().find(|loaded| addr_eq(loaded.table.as_ptr(), Arc::as_ptr(provider)))
        {
            return Ok(Arc::clone(&loaded.source));
        }
        if provider.downcast_ref::<LoadingTable>().is_some() {
            return Err(usage(format!("table {name} is being loaded; wait until it is, or DROP it")));
        }
        if provider.downcast_ref::<TieredTable>().is_some() {
            return Err(usage(format!("table {name} was made in memory; it need not be loaded")));
        }
        Ok(Arc::clone(provider))
    }
}

/// Rows, columns, bytes and nodes of a table, in words.
pub(super) fn extent(data: &TableData) -> String {
    format!(
        "{}, {}, {} on {}",
        count(data.rows(), "row"),
        count(data.schema().fields().len(), "column"),
        size(data.size_bytes() as u64),
        nodes_of(data)
    )
}

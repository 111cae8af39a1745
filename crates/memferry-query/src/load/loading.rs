//! Tables that are being loaded: queries use the parts that are ready.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DFSchema, unqualified_field_not_found};
use datafusion::datasource::TableType;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::union::UnionExec;
use datafusion::prelude::SessionContext;

use super::plan::from_plan_in_sections;
use super::{LoadError, Progress};
use crate::data::{Layout, RowGroup, TableData};
use crate::files::{Remainder, Section};
use crate::table::{TieredTable, pushdown_of};
use crate::tiers::Tiers;

/// Sections of one load that are ready, and their rows. Tasks of a load that has failed may still add to its own list.
type Loaded = Arc<Mutex<Vec<(Section, Vec<RowGroup>)>>>;

/// A table of files that is loaded while queries run: rows that are ready come from memory, the others from the files.
///
/// A query uses the parts that are ready when it is planned. Files that were written since the load began are read, whatever
/// was loaded of them. If the load fails or is cancelled, the table is that of the files. Sources other than whole Parquet files
/// become ready at the end only: the result of [`load`](LoadingTable::load).
pub struct LoadingTable {
    source: Arc<dyn TableProvider>,
    /// Positions of its columns in `source`.
    columns: Vec<usize>,
    schema: SchemaRef,
    tiers: Arc<Tiers>,
    /// Grows while the table is loaded; `None` before and after a load that failed.
    ready: Mutex<Option<Loaded>>,
}

impl LoadingTable {
    /// A table of all columns of `source`, or of `columns`; nothing is loaded yet.
    ///
    /// # Errors
    /// [`LoadError::Plan`]: there is no such column.
    pub fn try_new(
        source: Arc<dyn TableProvider>,
        columns: Option<&[&str]>,
        tiers: Arc<Tiers>,
    ) -> Result<LoadingTable, LoadError> {
        let all = source.schema();
        let columns = match columns {
            Some(names) => {
                let known = DFSchema::try_from(Arc::clone(&all))?;
                let index = |name: &&str| {
                    known
                        .index_of_column_by_name(None, name)
                        .ok_or_else(|| unqualified_field_not_found(name, &known))
                };
                names.iter().map(index).collect::<Result<Vec<_>>>()?
            }
            None => (0..all.fields().len()).collect(),
        };
        let schema = Arc::new(all.project(&columns).map_err(DataFusionError::from)?);
        Ok(LoadingTable { source, columns, schema, tiers, ready: Mutex::new(None) })
    }

    /// Loads the table. Dropping the future cancels the load.
    ///
    /// # Errors
    /// As [`from_plan`](super::from_plan).
    pub async fn load(
        self: &Arc<Self>,
        context: &SessionContext,
        layout: &Layout,
        progress: Arc<dyn Progress + Send>,
    ) -> Result<TableData, LoadError> {
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        let frame = context.read_table(Arc::clone(&self.source))?.select_columns(&names)?;
        let plan = frame.create_physical_plan().await?;
        let loaded = Loaded::default();
        *lock(&self.ready) = Some(Arc::clone(&loaded));
        let mut unless_loaded = Forget(Some((self, Arc::clone(&loaded))));
        let ready = move |section: &Section, groups: &[RowGroup]| {
            lock(&loaded).push((section.clone(), groups.to_vec()));
        };
        let loaded =
            from_plan_in_sections(plan, &context.task_ctx(), layout, progress, Arc::new(ready)).await?;
        unless_loaded.0 = None;
        Ok(loaded)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets what is ready of a table: of a load that did not end, nothing is kept.
struct Forget<'a>(Option<(&'a LoadingTable, Loaded)>);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some((table, loaded)) = &self.0 {
            // Another load may have begun.
            lock(&table.ready).take_if(|ready| Arc::ptr_eq(ready, loaded));
        }
    }
}

#[async_trait]
impl TableProvider for LoadingTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let of_files = self.source.supports_filters_pushdown(filters)?;
        filters
            .iter()
            .zip(of_files)
            .map(|(filter, of_files)| {
                Ok(match pushdown_of(filter)? {
                    TableProviderFilterPushDown::Exact => of_files,
                    refused => refused,
                })
            })
            .collect()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let projection = projection.cloned().unwrap_or_else(|| (0..self.columns.len()).collect());
        let of_source = projection.iter().map(|&column| self.columns[column]).collect();
        let plan = self.source.scan(state, Some(&of_source), filters, limit).await?;
        let ready = lock(&self.ready).as_ref().map(|loaded| lock(loaded).clone()).unwrap_or_default();
        let sections: Vec<&Section> = ready.iter().map(|(section, _)| section).collect();
        let Some(remainder) = Remainder::of(plan.as_ref(), &sections) else { return Ok(plan) };
        if remainder.replaced.is_empty() {
            return Ok(plan);
        }
        let mut partitions = vec![Vec::new(); state.config().target_partitions()];
        let count = partitions.len();
        for (index, position) in remainder.replaced.into_iter().enumerate() {
            partitions[index % count].extend(ready[position].1.iter().cloned());
        }
        let data = TableData::new(Arc::clone(&self.schema), partitions, self.tiers.home());
        // A row group that does not fit the budget ends the load with that error. Until then the files are read.
        let Ok(loaded) = TieredTable::try_new(Arc::new(data), Arc::clone(&self.tiers)) else {
            return Ok(plan);
        };
        let loaded = loaded.scan(state, Some(&projection), filters, limit).await?;
        match remainder.plan {
            Some(files) => UnionExec::try_new(vec![loaded, files]),
            None => Ok(loaded),
        }
    }
}

impl fmt::Debug for LoadingTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadingTable").field("schema", &self.schema).finish_non_exhaustive()
    }
}

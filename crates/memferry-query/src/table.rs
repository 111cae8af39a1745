//! `TieredTable`: rows at home and near copies of columns, as a DataFusion table.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::TreeNode;
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use thiserror::Error;

use crate::data::TableData;
use crate::near::ColumnRegions;
use crate::options::MemferryOptions;
use crate::scan::{ScanSettings, TieredScanExec};
use crate::tiers::Tiers;

/// A table of row groups whose late columns are prefetched while filters run.
///
/// Filters are pushed into the scan exactly. The columns of the filter are read at home. Copies of the other columns of the
/// query, the *late* columns, start at once. Only rows that passed are materialised, from the near copy if it is ready and
/// from home if not.
#[derive(Debug)]
pub struct TieredTable {
    columns: Arc<TieredColumns>,
}

/// The immutable state that the scans of a table share.
#[derive(Debug)]
pub(crate) struct TieredColumns {
    pub(crate) data: Arc<TableData>,
    pub(crate) tiers: Arc<Tiers>,
    /// Regions by partition, row group, column.
    pub(crate) regions: Vec<Vec<Vec<ColumnRegions>>>,
}

impl TieredTable {
    /// Registers the columns of `data` with the cache of `tiers`. Nothing is copied yet.
    ///
    /// # Errors
    /// [`BudgetTooSmall`] if a given near budget cannot hold one row group. (The default budget of a nearly full node may be
    /// too small: copies then find no room, which is counted.)
    pub fn try_new(data: Arc<TableData>, tiers: Arc<Tiers>) -> Result<Self, BudgetTooSmall> {
        let regions: Vec<Vec<Vec<ColumnRegions>>> = data
            .partitions()
            .iter()
            .map(|groups| {
                groups
                    .iter()
                    .map(|group| {
                        let columns = group.batch().columns().iter();
                        columns.map(|c| ColumnRegions::register(tiers.cache(), data.home(), c)).collect()
                    })
                    .collect()
            })
            .collect();
        let group_bytes_max = regions
            .iter()
            .flatten()
            .map(|group: &Vec<ColumnRegions>| group.iter().map(ColumnRegions::size_bytes).sum())
            .max()
            .unwrap_or(0);
        if tiers.budget_was_given() && group_bytes_max > tiers.budget_bytes() {
            return Err(BudgetTooSmall { budget_bytes: tiers.budget_bytes(), group_bytes_max });
        }
        Ok(Self { columns: Arc::new(TieredColumns { data, tiers, regions }) })
    }

    /// The rows.
    pub fn data(&self) -> &Arc<TableData> {
        &self.columns.data
    }
}

#[async_trait]
impl TableProvider for TieredTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.columns.data.schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        filters.iter().map(|filter| pushdown_of(filter)).collect()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = self.schema();
        let predicate = conjunction(filters.to_vec())
            .map(|filter| state.create_physical_expr(filter, &DFSchema::try_from(Arc::clone(&schema))?))
            .transpose()?;
        let projection = projection.cloned().unwrap_or_else(|| (0..schema.fields().len()).collect());
        let settings = ScanSettings {
            options: MemferryOptions::of(state.config_options()),
            batch_rows: state.config().batch_size(),
        };
        let scan =
            TieredScanExec::try_new(Arc::clone(&self.columns), projection, predicate, limit, settings)?;
        Ok(Arc::new(scan))
    }
}

/// Whether scans of tables in memory evaluate `filter`.
pub(crate) fn pushdown_of(filter: &Expr) -> Result<TableProviderFilterPushDown> {
    Ok(if filter.is_volatile() || has_subquery(filter)? {
        TableProviderFilterPushDown::Unsupported
    } else {
        TableProviderFilterPushDown::Exact
    })
}

fn has_subquery(filter: &Expr) -> Result<bool> {
    filter.exists(|e| {
        Ok(matches!(
            e,
            Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::OuterReferenceColumn(..)
        ))
    })
}

/// The near budget cannot hold even one row group of a table.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the near budget of {budget_bytes} bytes cannot hold one row group of {group_bytes_max} bytes; \
     raise the budget or load the table in smaller row groups"
)]
pub struct BudgetTooSmall {
    /// Bytes that near copies may take.
    pub budget_bytes: u64,
    /// Bytes of the largest row group, all columns.
    pub group_bytes_max: u64,
}

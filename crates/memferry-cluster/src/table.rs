//! A sharded table of a coordinator, as a table of DataFusion.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{DFSchema, Result, Statistics, plan_err};
use datafusion::datasource::{TableType, provider_as_source, source_as_provider};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown, TableScan};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;

use crate::description::MapId;
use crate::report::{PlannedTable, TableReport};
use crate::scan::{ShardRead, ShardScanExec};
use crate::shards::{Members, ShardKey};

/// A table whose rows are on the workers of a map. Filters are evaluated there, exactly.
#[derive(Debug)]
pub struct ShardedTable {
    id: MapId,
    name: String,
    files: u64,
    key: Option<ShardKey>,
    schema: SchemaRef,
    statistics: Arc<Statistics>,
    members: Arc<Members>,
    announced: bool,
}

impl ShardedTable {
    /// The table of `report`, divided by `key`, for queries that use the workers of `members`.
    pub(crate) fn new(
        id: MapId,
        report: &TableReport,
        PlannedTable { schema, statistics }: PlannedTable,
        key: Option<ShardKey>,
        members: Arc<Members>,
    ) -> ShardedTable {
        let (name, files) = (report.name.clone(), report.files);
        ShardedTable { id, name, files, key, schema, statistics, members, announced: true }
    }

    /// This table, with scans that workers begin before they are executed, or not.
    #[must_use]
    pub fn announced(self, announced: bool) -> ShardedTable {
        ShardedTable { announced, ..self }
    }
}

/// A plan whose tables of a cluster are those of `context`, which has `reports`; it may be of an earlier session.
///
/// # Errors
/// A table has other columns than when the plan was made, or there is none any more.
pub(crate) async fn with_tables_of(
    context: &SessionContext,
    reports: &[TableReport],
    plan: LogicalPlan,
) -> Result<LogicalPlan> {
    let mut tables = HashMap::new();
    for report in reports {
        tables.insert(report.name.as_str(), context.table_provider(report.name.as_str()).await?);
    }
    let replaced = plan.transform_down_with_subqueries(|node| {
        let LogicalPlan::TableScan(scan) = &node else { return Ok(Transformed::no(node)) };
        let provider = source_as_provider(&scan.source)?;
        let Some(earlier) = provider.downcast_ref::<ShardedTable>() else {
            return Ok(Transformed::no(node));
        };
        match tables.get(earlier.name.as_str()).filter(|table| table.schema() == earlier.schema) {
            Some(table) => {
                let source = provider_as_source(Arc::clone(table));
                Ok(Transformed::yes(LogicalPlan::TableScan(TableScan { source, ..scan.clone() })))
            }
            None => plan_err!(
                "the table {} of the cluster has other columns than when the statement was planned; plan it again",
                earlier.name
            ),
        }
    });
    replaced.data()
}

/// Whether a filter depends on a row and nothing else, so that it gives the same wherever it is evaluated.
pub(crate) fn is_of_rows(filter: &Expr) -> Result<bool> {
    let has_subquery = filter.exists(|expr| {
        Ok(matches!(
            expr,
            Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_) | Expr::OuterReferenceColumn(..)
        ))
    })?;
    Ok(!filter.is_volatile() && !has_subquery)
}

#[async_trait]
impl TableProvider for ShardedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(self.statistics.as_ref().clone())
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        filters
            .iter()
            .map(|filter| {
                Ok(if is_of_rows(filter)? {
                    TableProviderFilterPushDown::Exact
                } else {
                    TableProviderFilterPushDown::Unsupported
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
        let predicate = conjunction(filters.to_vec())
            .map(|filter| state.create_physical_expr(filter, &DFSchema::try_from(Arc::clone(&self.schema))?))
            .transpose()?;
        let map = self.members.map();
        let read = ShardRead {
            id: self.id,
            table: self.name.clone(),
            files: self.files,
            key: self.key.clone(),
            schema: Arc::clone(&self.schema),
            projection: projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect()),
            predicate,
            fetch: limit,
            announced: self.announced,
            lost: self.members.lost().keys().copied().collect(),
            map: Arc::clone(map),
        };
        let mut partitions = vec![Vec::new(); state.config().target_partitions()];
        let count = partitions.len();
        (0..map.shards_count()).for_each(|shard| partitions[shard % count].push(shard));
        let mut scan =
            ShardScanExec::try_new(Arc::new(read), partitions, Some(Arc::clone(&self.statistics)))?;
        if self.key.is_none() {
            scan = scan.of_shards(scan.with_rows(scan.partitions().to_vec()))?;
        }
        Ok(Arc::new(scan))
    }
}

//! The demand of a scan: which bytes of its files it will read, in the order of need.

use std::sync::Arc;

use datafusion::arrow::datatypes::{FieldRef, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource, ParquetSource};
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, DynamicFilterTracking};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_adapter::{DefaultPhysicalExprAdapterFactory, PhysicalExprAdapterFactory};
use datafusion::physical_plan::PhysicalExpr;
use parquet::file::metadata::ParquetMetaData;

use super::prune::{self, RowGroups};

/// What a scan will read: columns, in the order of need, of the row groups that its predicate leaves.
///
/// The optimizer rule computes it once for each scan of a plan, from the plan alone. The reader of a file applies it to the
/// file's metadata, see [`row_groups`](Self::row_groups).
#[derive(Debug, Clone)]
pub struct Demand {
    /// Schema of the files: that of the table without its partition columns.
    file_schema: SchemaRef,
    /// Names and types of partition columns, whose values are those of the directories.
    partition_columns: Vec<String>,
    first: Vec<usize>,
    late: Vec<usize>,
    predicate: Option<Arc<dyn PhysicalExpr>>,
    /// Whether the scan prunes row groups by statistics, and pages by the page index.
    prunes: (bool, bool),
    rows_max: Option<usize>,
    adapter: Arc<dyn PhysicalExprAdapterFactory>,
}

impl Demand {
    /// The demand of a scan as DataFusion configured it.
    ///
    /// # Errors
    /// Those of walking an expression.
    pub fn of(config: &FileScanConfig, source: &ParquetSource) -> Result<Self> {
        let table = source.table_schema();
        let file_schema = Arc::clone(table.file_schema());
        let mut projected = vec![];
        for column in source.projection().into_iter().flatten() {
            projected.extend(file_columns(&column.expr, &file_schema)?);
        }
        projected.sort_unstable();
        projected.dedup();
        let predicate = source.filter();
        // Without pushdown the decoder reads all columns of a row group at once, and the filter runs above the scan.
        let options = &source.table_parquet_options().global;
        let first = match &predicate {
            Some(predicate) if options.pushdown_filters => {
                let mut columns = file_columns(predicate, &file_schema)?;
                columns.sort_unstable();
                columns.dedup();
                columns
            }
            _ => projected.clone(),
        };
        let late = projected.into_iter().filter(|column| !first.contains(column)).collect();
        Ok(Self {
            file_schema,
            partition_columns: table
                .table_partition_cols()
                .iter()
                .map(|field| field.name().clone())
                .collect(),
            first,
            late,
            predicate,
            prunes: (options.pruning, options.enable_page_index),
            rows_max: config.limit,
            adapter: config
                .expr_adapter_factory
                .clone()
                .unwrap_or_else(|| Arc::new(DefaultPhysicalExprAdapterFactory)),
        })
    }

    /// The demand for `columns` alone, all of them before anything else.
    pub(super) fn only(&self, columns: Vec<usize>) -> Self {
        Self { first: columns, late: vec![], ..self.clone() }
    }

    /// Schema of the files, which [`first`](Self::first) and [`late`](Self::late) refer to.
    pub fn file_schema(&self) -> &SchemaRef {
        &self.file_schema
    }

    /// Columns that the scan needs of each row group before anything else.
    pub fn first(&self) -> &[usize] {
        &self.first
    }

    /// Columns that the scan needs only if rows of the row group passed its filter.
    pub fn late(&self) -> &[usize] {
        &self.late
    }

    /// All columns that the scan needs.
    pub(super) fn fields(&self) -> Vec<FieldRef> {
        let columns = self.first.iter().chain(&self.late);
        columns.map(|&column| Arc::clone(&self.file_schema.fields()[column])).collect()
    }

    /// Filter of the scan, with the dynamic filters of joins and TopK in their current state.
    pub fn predicate(&self) -> Option<&Arc<dyn PhysicalExpr>> {
        self.predicate.as_ref()
    }

    /// Rows after which the scan ends.
    pub fn rows_max(&self) -> Option<usize> {
        self.rows_max
    }

    /// Whether [`row_groups`](Self::row_groups) may leave fewer row groups later, and a watch of that.
    pub(crate) fn tracking(&self) -> DynamicFilterTracking {
        self.predicate.as_ref().map_or(DynamicFilterTracking::Static, DynamicFilterTracking::classify)
    }

    /// The row groups of `file` that the scan reads, in the order of the file, judged by the statistics of row groups and
    /// by the page index if `metadata` has it.
    ///
    /// Statistics that cannot be judged leave the row group.
    ///
    /// # Errors
    /// A predicate that does not fit the file.
    pub fn row_groups(&self, file: &PartitionedFile, metadata: &ParquetMetaData) -> Result<RowGroups> {
        prune::row_groups(self, file, metadata)
    }

    /// Whether a filter that is found while the query runs may exclude row groups of a scan by their statistics.
    ///
    /// It cannot if all row groups share values of its columns: a range of values, or a list of them, that leaves one row
    /// group mostly leaves all. Whole files may be excluded, so it may if the scan has several.
    pub(super) fn may_exclude_later(&self, is_one_file: bool, metadata: &ParquetMetaData) -> Result<bool> {
        let Some(columns) = self.dynamic_columns()? else { return Ok(false) };
        // Whole files are excluded by the values of their directories as well, and without the setting for row groups.
        Ok(!is_one_file || (self.prunes_row_groups() && prune::separates(self, &columns, metadata)?))
    }

    /// The columns of the files in filters that are found while the query runs; `None` without such a filter.
    fn dynamic_columns(&self) -> Result<Option<Vec<usize>>> {
        let mut columns = vec![];
        let mut is_found = false;
        if let Some(predicate) = &self.predicate {
            predicate.apply(|expr| {
                if expr.downcast_ref::<DynamicFilterPhysicalExpr>().is_none() {
                    return Ok(TreeNodeRecursion::Continue);
                }
                is_found = true;
                columns.extend(file_columns(expr, &self.file_schema)?);
                Ok(TreeNodeRecursion::Jump)
            })?;
        }
        columns.sort_unstable();
        columns.dedup();
        Ok(is_found.then_some(columns))
    }

    pub(super) fn prunes_row_groups(&self) -> bool {
        self.prunes.0
    }

    pub(super) fn prunes_pages(&self) -> bool {
        self.prunes.1
    }

    pub(super) fn partition_columns(&self) -> &[String] {
        &self.partition_columns
    }

    pub(super) fn adapter(&self) -> &dyn PhysicalExprAdapterFactory {
        self.adapter.as_ref()
    }
}

/// Indices of the file's columns that an expression reads. Partition columns have no bytes in the file.
fn file_columns(expr: &Arc<dyn PhysicalExpr>, file_schema: &SchemaRef) -> Result<Vec<usize>> {
    Ok(collect_columns(expr)
        .iter()
        .filter_map(|column: &Column| file_schema.index_of(column.name()).ok())
        .collect())
}

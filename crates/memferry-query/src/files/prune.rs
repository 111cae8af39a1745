//! The row groups and pages of a file that a predicate leaves.
//!
//! DataFusion's opener decides the same, but keeps its decision private. Both call the same functions with the same
//! predicate. Where the opener knows more (Bloom filters, a dynamic filter that changed meanwhile), it requests fewer row
//! groups than this found; the reader then drops what it read ahead.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileMetrics;
use datafusion::datasource::physical_plan::parquet::{
    PagePruningAccessPlanFilter, ParquetAccessPlan, RowGroupAccess, RowGroupAccessPlanFilter,
    apply_file_schema_type_coercions,
};
use datafusion::physical_expr::PhysicalExprSimplifier;
use datafusion::physical_expr_adapter::replace_columns_with_literals;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use datafusion::physical_plan::PhysicalExpr;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use parquet::arrow::arrow_reader::RowSelection;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::arrow::parquet_to_arrow_schema;
use parquet::file::metadata::ParquetMetaData;

use super::Demand;

/// Row groups of a file that a scan reads, and of each the rows, if not all.
#[derive(Debug, Clone)]
pub struct RowGroups {
    groups: Vec<RowGroup>,
}

/// A row group that a scan reads.
#[derive(Debug, Clone)]
pub struct RowGroup {
    /// Its ordinal in the file.
    pub index: usize,
    /// The rows of its pages that are read; `None` for all.
    pub rows: Option<RowSelection>,
}

impl RowGroups {
    /// In the order of the file.
    pub fn as_slice(&self) -> &[RowGroup] {
        &self.groups
    }

    pub(crate) fn into_vec(self) -> Vec<RowGroup> {
        self.groups
    }
}

pub(super) fn row_groups(
    demand: &Demand,
    file: &PartitionedFile,
    metadata: &ParquetMetaData,
) -> Result<RowGroups> {
    let groups = metadata.row_groups();
    let plan = match file.extensions.get::<ParquetAccessPlan>() {
        Some(plan) if plan.len() == groups.len() => plan.clone(),
        _ => ParquetAccessPlan::new_all(groups.len()),
    };
    let mut filter = RowGroupAccessPlanFilter::new(plan);
    if let Some(range) = &file.range {
        filter.prune_by_range(groups, range);
    }
    let plan = match demand.predicate() {
        Some(predicate) if filter.remaining_row_group_count() > 0 => {
            let schema = physical_schema(demand, metadata)?;
            let predicate = adapt(demand, file, predicate, &schema)?;
            prune(demand, filter, &predicate, &schema, metadata, file)
        }
        _ => filter.build(),
    };
    let read = plan.into_inner().into_iter().enumerate();
    let read = read.filter_map(|(index, access)| match access {
        RowGroupAccess::Skip => None,
        RowGroupAccess::Scan => Some(RowGroup { index, rows: None }),
        RowGroupAccess::Selection(rows) => Some(RowGroup { index, rows: Some(rows) }),
    });
    let mut read: Vec<RowGroup> = read.collect();
    // With a filter it is unknown how many row groups have that many rows that pass.
    if let (Some(rows_max), None) = (demand.rows_max(), demand.predicate()) {
        let mut rows = 0;
        read.retain(|group| {
            let is_needed = rows < rows_max as i64;
            rows += groups[group.index].num_rows();
            is_needed
        });
    }
    Ok(RowGroups { groups: read })
}

/// Whether the statistics of one of `columns` show two row groups that have no value in common: a filter can leave one of them
/// and exclude the other.
pub(super) fn separates(demand: &Demand, columns: &[usize], metadata: &ParquetMetaData) -> Result<bool> {
    let schema = physical_schema(demand, metadata)?;
    let descriptor = metadata.file_metadata().schema_descr();
    for &column in columns {
        let name = demand.file_schema().field(column).name();
        // Neither a column that the file lacks, nor a nested one, has statistics to prune by.
        let Ok(statistics) = StatisticsConverter::try_new(name, &schema, descriptor) else { continue };
        let (least, greatest) = (
            statistics.row_group_mins(metadata.row_groups())?,
            statistics.row_group_maxes(metadata.row_groups())?,
        );
        let extreme = |values: &ArrayRef, wanted: Ordering| {
            let mut found: Option<ScalarValue> = None;
            for row in (0..values.len()).filter(|&row| values.is_valid(row)) {
                let value = ScalarValue::try_from_array(values, row)?;
                if found.as_ref().is_none_or(|found| value.partial_cmp(found) == Some(wanted)) {
                    found = Some(value);
                }
            }
            Ok::<_, DataFusionError>(found)
        };
        let (last_start, first_end) =
            (extreme(&least, Ordering::Greater)?, extreme(&greatest, Ordering::Less)?);
        if let (Some(last_start), Some(first_end)) = (last_start, first_end)
            && last_start.partial_cmp(&first_end) == Some(Ordering::Greater)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Schema of the arrays that the file decodes to.
fn physical_schema(demand: &Demand, metadata: &ParquetMetaData) -> Result<SchemaRef> {
    let file = metadata.file_metadata();
    let own = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())?;
    Ok(Arc::new(apply_file_schema_type_coercions(demand.file_schema(), &own).unwrap_or(own)))
}

/// The predicate over the columns of this file.
fn adapt(
    demand: &Demand,
    file: &PartitionedFile,
    predicate: &Arc<dyn PhysicalExpr>,
    schema: &SchemaRef,
) -> Result<Arc<dyn PhysicalExpr>> {
    let names = demand.partition_columns().iter().map(String::as_str);
    let values: HashMap<&str, &ScalarValue> = names.zip(&file.partition_values).collect();
    let predicate = match values.is_empty() {
        true => Arc::clone(predicate),
        false => replace_columns_with_literals(Arc::clone(predicate), &values)?,
    };
    let adapter = demand.adapter().create(Arc::clone(demand.file_schema()), Arc::clone(schema))?;
    PhysicalExprSimplifier::new(schema).simplify(adapter.rewrite(predicate)?)
}

fn prune(
    demand: &Demand,
    mut filter: RowGroupAccessPlanFilter,
    predicate: &Arc<dyn PhysicalExpr>,
    schema: &Schema,
    metadata: &ParquetMetaData,
    file: &PartitionedFile,
) -> ParquetAccessPlan {
    let groups = metadata.row_groups();
    let descriptor = metadata.file_metadata().schema_descr();
    // The opener has counted the same already.
    let uncounted = ExecutionPlanMetricsSet::new();
    let metrics = ParquetFileMetrics::new(0, file.object_meta.location.as_ref(), &uncounted);
    let builder = PruningPredicateBuilder::new().with_file_schema(Arc::new(schema.clone()));
    if demand.prunes_row_groups()
        && let Some(pruning) = builder.build(Arc::clone(predicate))
    {
        filter.prune_by_statistics(schema, descriptor, groups, &pruning, &metrics);
    }
    let plan = filter.build();
    let has_index = metadata.column_index().is_some() && metadata.offset_index().is_some();
    if !has_index || !demand.prunes_pages() {
        return plan;
    }
    let pages = PagePruningAccessPlanFilter::new(predicate, Arc::new(schema.clone()));
    match pages.filter_number() {
        0 => plan,
        _ => pages.prune_plan_with_page_index(plan, schema, descriptor, metadata, &metrics),
    }
}

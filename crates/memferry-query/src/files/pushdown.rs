//! Whether the decoder of a scan evaluates the filter.
//!
//! Pushed down, the filter's columns are decoded first and late columns only where rows passed. The filter above the scan
//! stays, over the rows that are left, so answers do not depend on the decision. It pays if few rows pass and the late
//! columns are much wider than those of the filter; otherwise cutting batches into selected rows costs more than it saves.
//! Pruning by statistics and page index is independent of it.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::TreeNode;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource, ParquetSource};
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, DynamicFilterTracking};
use datafusion::physical_expr::intervals::utils::check_support;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{AnalysisContext, analyze, conjunction, split_conjunction};
use datafusion::physical_plan::PhysicalExpr;

use crate::options::Pushdown;
use crate::scan::has_floats;

/// The decision for a scan with a filter, and its reason in words.
#[derive(Debug, Clone)]
pub(super) struct Decision {
    pub(super) is_pushed: bool,
    reason: String,
}

/// Largest estimated share of rows that pass. Source: measurements in docs/decisions/filter-pushdown.md.
const PASS_SHARE_MAX: f64 = 0.01;

/// Least width of the late columns, in widths of the filter's columns. Source: as above.
const LATE_WIDTHS_MIN: usize = 8;

impl Decision {
    /// `None` for a scan without a filter.
    pub(super) fn of(mode: Pushdown, config: &FileScanConfig, source: &ParquetSource) -> Option<Self> {
        let predicate = source.filter()?;
        let decision = |is_pushed, reason: &str| Self { is_pushed, reason: reason.to_owned() };
        // The optimizer has removed the filter above the scan.
        if source.table_parquet_options().global.pushdown_filters {
            return Some(decision(true, "set by datafusion.execution.parquet.pushdown_filters"));
        }
        Some(match mode {
            Pushdown::On if finds_floats(&predicate, source.table_schema().table_schema()) => {
                decision(false, "part of the filter is found while the query runs, over floats")
            }
            Pushdown::On => decision(true, "set by memferry.pushdown"),
            Pushdown::Off => decision(false, "set by memferry.pushdown"),
            Pushdown::Auto => match DynamicFilterTracking::classify(&predicate) {
                DynamicFilterTracking::Static => Self::estimate(&predicate, config, source),
                _ => decision(false, "part of the filter is found while the query runs"),
            },
        })
    }

    fn estimate(predicate: &Arc<dyn PhysicalExpr>, config: &FileScanConfig, source: &ParquetSource) -> Self {
        let schema = source.table_schema().table_schema();
        let filter = collect_columns(predicate);
        let width = |name: &str| schema.field_with_name(name).map_or(0, |field| width(field.data_type()));
        let filter_bytes: usize = filter.iter().map(|column| width(column.name())).sum();
        let projected =
            source.projection().into_iter().flatten().flat_map(|column| collect_columns(&column.expr));
        let mut late: Vec<_> = projected.filter(|column| !filter.contains(column)).collect();
        late.sort_unstable_by_key(|column| column.index());
        late.dedup();
        let late_bytes: usize = late.iter().map(|column| width(column.name())).sum();
        if late_bytes < filter_bytes * LATE_WIDTHS_MIN {
            let reason =
                format!("late columns have {late_bytes} bytes a row and those of the filter {filter_bytes}");
            return Self { is_pushed: false, reason };
        }
        match pass_share(predicate, config, schema) {
            None => Self { is_pushed: false, reason: "statistics do not tell how many rows pass".to_owned() },
            Some(share) => Self {
                is_pushed: share <= PASS_SHARE_MAX,
                reason: format!("by statistics {:.1} % of the rows pass", share * 100.0),
            },
        }
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pushdown={} ({})", if self.is_pushed { "on" } else { "off" }, self.reason)
    }
}

/// Whether a filter has a part that is found while the query runs, over floats. The decoder would evaluate it by the bits, but 0.0
/// and -0.0 are equal in a join.
fn finds_floats(predicate: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> bool {
    let is_float = |name: &str| schema.field_with_name(name).is_ok_and(|field| has_floats(field.data_type()));
    let found = predicate.exists(|node| {
        Ok(node.downcast_ref::<DynamicFilterPhysicalExpr>().is_some()
            && collect_columns(node).iter().any(|column| is_float(column.name())))
    });
    found.unwrap_or(true)
}

/// Bytes of a decoded value; of text and nested values those of a short one.
fn width(data_type: &DataType) -> usize {
    data_type.primitive_width().unwrap_or(16)
}

/// An upper estimate of the share of rows that pass, as if values were spread evenly between their least and largest.
/// Conjuncts that statistics cannot judge count as always true.
fn pass_share(predicate: &Arc<dyn PhysicalExpr>, config: &FileScanConfig, schema: &SchemaRef) -> Option<f64> {
    let judged = split_conjunction(predicate).into_iter().filter(|conjunct| check_support(conjunct, schema));
    let judged: Vec<_> = judged.map(Arc::clone).collect();
    if judged.is_empty() {
        return None;
    }
    let statistics = config.statistics();
    let context = AnalysisContext::try_from_statistics(schema, &statistics.column_statistics).ok()?;
    analyze(&conjunction(judged), context, schema).ok()?.selectivity
}

//! Joins in place: two tables that are sharded by the columns of their join meet on the same worker, so no row is sent.
//!
//! ```text
//! HashJoinExec: on=[(l_orderkey, o_orderkey)]         HashJoinExec: on=[(l_orderkey, o_orderkey)]
//!   RepartitionExec: Hash([l_orderkey])                 ShardScanExec: lineitem, by l_orderkey
//!     ShardScanExec: lineitem, by l_orderkey     ─▶     ShardScanExec: orders, by o_orderkey
//!   RepartitionExec: Hash([o_orderkey])
//!     ShardScanExec: orders, by o_orderkey
//! ```
//!
//! Partition `p` of task `t` has the same shards on both sides, because all tables have one map. The output is then divided
//! by shards and not by DataFusion's hash, so the exchanges stay where an operator above relies on that hash.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{Distribution, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::InterleaveExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, Partitioning, ReplaceChildrenOptions,
};

use crate::scan::ShardScanExec;

/// Removes the exchanges below joins of tables that are sharded by the joined columns.
#[derive(Debug)]
pub struct JoinInPlace;

impl PhysicalOptimizerRule for JoinInPlace {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        rewritten(plan, false)
    }

    fn name(&self) -> &str {
        "JoinInPlace"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// `is_relied_on`: whether an operator above relies on the partitions of `plan`.
fn rewritten(plan: Arc<dyn ExecutionPlan>, is_relied_on: bool) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = match plan.downcast_ref::<HashJoinExec>().filter(|_| !is_relied_on).and_then(in_place) {
        Some([left, right]) => {
            let own: Vec<u64> = plan
                .dynamic_expressions_produced()
                .iter()
                .filter_map(|filter| filter.expression_id())
                .collect();
            return with_children(&plan, vec![for_join(left, &own)?, for_join(right, &own)?]);
        }
        None => plan,
    };
    let divides_anew = plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortPreservingMergeExec>();
    // It has no requirement, and puts the partitions with one number of all inputs together.
    let interleaves = plan.is::<InterleaveExec>();
    let requirements = plan.input_distribution_requirements();
    let relies: Vec<bool> = requirements
        .per_child_distributions()
        .map(|required| {
            let required =
                !matches!(required, Distribution::UnspecifiedDistribution | Distribution::SinglePartition);
            required || interleaves || (is_relied_on && !divides_anew)
        })
        .collect();
    if plan.children().is_empty() {
        return Ok(plan);
    }
    let children = plan
        .children()
        .into_iter()
        .enumerate()
        .map(|(index, child)| rewritten(Arc::clone(child), relies.get(index).copied().unwrap_or(true)))
        .collect::<Result<Vec<_>>>()?;
    with_children(&plan, children)
}

/// A plan with other children.
pub(crate) fn with_children(
    plan: &Arc<dyn ExecutionPlan>,
    children: Vec<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Arc::clone(plan).replace_children(children, options)
}

/// The sides of a join without their exchanges.
fn in_place(join: &HashJoinExec) -> Option<[&Arc<dyn ExecutionPlan>; 2]> {
    if join.mode != PartitionMode::Partitioned {
        return None;
    }
    let (left, right) = (exchanged(join.left())?, exchanged(join.right())?);
    let (left_key, right_key) = (shard_column(left)?, shard_column(right)?);
    let by_shards = join.on().iter().any(|(on_left, on_right)| {
        is_column(on_left, left_key.column) && is_column(on_right, right_key.column)
    });
    let equal = left_key.bounds == right_key.bounds
        && left_key.data_type == right_key.data_type
        && left.output_partitioning().partition_count() == right.output_partitioning().partition_count();
    (by_shards && equal).then_some([left, right])
}

/// A side whose scan declares that its partitions are divided by the joined column. Nothing above the join relies on it.
fn for_join(plan: &Arc<dyn ExecutionPlan>, own_filters: &[u64]) -> Result<Arc<dyn ExecutionPlan>> {
    if let (Some(scan), Some(key)) = (plan.downcast_ref::<ShardScanExec>(), shard_column(plan)) {
        return Ok(Arc::new(scan.for_join(key.column, own_filters)?));
    }
    let children =
        plan.children().into_iter().map(|child| for_join(child, own_filters)).collect::<Result<_>>()?;
    with_children(plan, children)
}

/// The input of an exchange by hash.
fn exchanged(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    let exchange = plan.downcast_ref::<RepartitionExec>()?;
    matches!(exchange.partitioning(), Partitioning::Hash(..)).then(|| exchange.input())
}

fn is_column(expr: &Arc<dyn PhysicalExpr>, index: usize) -> bool {
    expr.downcast_ref::<Column>().is_some_and(|column| column.index() == index)
}

/// The column of an operator's output by which the rows of its partitions are sharded.
struct ShardColumn {
    column: usize,
    data_type: DataType,
    bounds: Option<Vec<i64>>,
}

/// Follows the key of a table through operators that leave rows in their partitions.
fn shard_column(plan: &Arc<dyn ExecutionPlan>) -> Option<ShardColumn> {
    if let Some(scan) = plan.downcast_ref::<ShardScanExec>() {
        let key = scan.read().key.as_ref()?;
        let column = scan.schema().index_of(&key.column).ok()?;
        let data_type = scan.schema().field(column).data_type().clone();
        return Some(ShardColumn { column, data_type, bounds: key.bounds.clone() });
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let key = shard_column(projection.input())?;
        let column = projection.expr().iter().position(|expr| is_column(&expr.expr, key.column))?;
        return Some(ShardColumn { column, ..key });
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let key = shard_column(filter.input())?;
        let column = match filter.projection() {
            Some(projection) => projection.iter().position(|&column| column == key.column)?,
            None => key.column,
        };
        return Some(ShardColumn { column, ..key });
    }
    let cooperative = plan.downcast_ref::<CooperativeExec>()?;
    shard_column(cooperative.children().first()?)
}

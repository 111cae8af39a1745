//! Joins and groups in place: rows that meet are in the same shards, so none is sent.
//!
//! ```text
//! HashJoinExec: on=[(l_orderkey, o_orderkey)]         HashJoinExec: on=[(l_orderkey, o_orderkey)]
//!   RepartitionExec: Hash([l_orderkey])                 ShardScanExec: lineitem, by l_orderkey
//!     ShardScanExec: lineitem, by l_orderkey     ─▶     HashJoinExec: CollectLeft
//!   RepartitionExec: Hash([o_orderkey])                   CoalescePartitionsExec: customer
//!     HashJoinExec: CollectLeft                           ShardScanExec: orders, by o_orderkey
//!       CoalescePartitionsExec: customer
//!       ShardScanExec: orders, by o_orderkey
//! ```
//!
//! Partition `p` of task `t` has the same shards of all tables, because they have one map. Operators on the way from a scan to the
//! join leave rows in their partitions, other joins in place among them. Groups by the key of a table are in place, too. The
//! output is then divided by shards and not by DataFusion's hash, so the exchanges stay where an operator above relies on that
//! hash.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{Distribution, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::combine_partial_final_agg::CombinePartialFinalAggregate;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::execution_plan::InvariantLevel;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::InterleaveExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, Partitioning, ReplaceChildrenOptions,
};

use crate::scan::ShardScanExec;

/// Removes the exchanges below joins and groups by the columns that shard their tables.
#[derive(Debug)]
pub struct JoinInPlace;

impl PhysicalOptimizerRule for JoinInPlace {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // Groups in place need no partial ones, which were for the exchange.
        CombinePartialFinalAggregate::new().optimize(rewritten(plan, false)?, config)
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
    if !is_relied_on && is_in_place(&plan) {
        let in_place = without_exchanges(&plan, &[], false)?;
        if is_executable(&in_place) {
            return Ok(in_place);
        }
    }
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

/// Whether the rows that an operator brings together are in the same shards.
fn is_in_place(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return join.mode == PartitionMode::Partitioned && shard_columns(join).is_some();
    }
    // Single, where the rows were exchanged by a join below.
    let partitioned = [AggregateMode::FinalPartitioned, AggregateMode::SinglePartitioned];
    let aggregate = plan.downcast_ref::<AggregateExec>();
    aggregate.is_some_and(|aggregate| partitioned.contains(aggregate.mode())) && shard_column(plan).is_some()
}

/// Whether DataFusion accepts the partitions that the scans declare: not for joins by several columns, which it wants to be divided by
/// all of them.
fn is_executable(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let checked = plan.apply(|node| {
        node.check_invariants(InvariantLevel::Executable)?;
        Ok(TreeNodeRecursion::Continue)
    });
    checked.is_ok()
}

/// Whether a join compares only the columns that shard its sides.
pub(crate) fn is_by_shards(join: &HashJoinExec) -> bool {
    join.on().len() == 1 && shard_columns(join).is_some()
}

/// A plan whose rows stay in their shards, without the exchanges by hash on the way from its scans. The scans declare that their
/// partitions are divided by the key; no operator above relies on it.
///
/// Joins on the way lose their dynamic filters, whose ids are `own_filters` below them. Those of joins in place find the part of a
/// row's partition by DataFusion's hash. And a join waits for all its partitions before it publishes its filter, which is forever if a
/// join in place above has nothing to look for in one of them: `may_be_skipped`.
fn without_exchanges(
    plan: &Arc<dyn ExecutionPlan>,
    own_filters: &[u64],
    may_be_skipped: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let (Some(scan), Some(key)) = (plan.downcast_ref::<ShardScanExec>(), shard_column(plan)) {
        return Ok(Arc::new(scan.for_join(key.column, own_filters)?));
    }
    if let Some(exchange) = plan.downcast_ref::<RepartitionExec>() {
        return without_exchanges(exchange.input(), own_filters, may_be_skipped);
    }
    let Some(join) = plan.downcast_ref::<HashJoinExec>() else {
        let children =
            plan.children().into_iter().map(|child| without_exchanges(child, own_filters, may_be_skipped));
        return with_children(plan, children.collect::<Result<_>>()?);
    };
    let is_collected = join.mode == PartitionMode::CollectLeft;
    let keeps_filter = is_collected && !may_be_skipped;
    let produced = plan.dynamic_expressions_produced();
    let produced = produced.iter().filter(|_| !keeps_filter).filter_map(|filter| filter.expression_id());
    let own: Vec<u64> = produced.chain(own_filters.iter().copied()).collect();
    let sides = if is_collected {
        [rewritten(Arc::clone(join.left()), false)?, without_exchanges(join.right(), &own, may_be_skipped)?]
    } else {
        // The side to build from is always read.
        [without_exchanges(join.left(), &own, may_be_skipped)?, without_exchanges(join.right(), &own, true)?]
    };
    let join = with_children(plan, sides.to_vec())?;
    if keeps_filter { Ok(join) } else { join.reset_state() }
}

fn is_column(expr: &Arc<dyn PhysicalExpr>, index: usize) -> bool {
    expr.downcast_ref::<Column>().is_some_and(|column| column.index() == index)
}

/// The column of an operator's output by which the rows of its partitions are sharded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ShardColumn {
    column: usize,
    data_type: DataType,
    bounds: Option<Vec<i64>>,
    partitions: usize,
}

impl ShardColumn {
    fn at(self, column: Option<usize>) -> Option<ShardColumn> {
        Some(ShardColumn { column: column?, ..self })
    }
}

/// Follows the key of a table through operators that leave rows in their partitions, and through exchanges by hash, which are
/// to be removed.
fn shard_column(plan: &Arc<dyn ExecutionPlan>) -> Option<ShardColumn> {
    if let Some(scan) = plan.downcast_ref::<ShardScanExec>() {
        let key = scan.read().key.as_ref()?;
        let column = scan.schema().index_of(&key.column).ok()?;
        let data_type = scan.schema().field(column).data_type().clone();
        let partitions = scan.partitions().len();
        return Some(ShardColumn { column, data_type, bounds: key.bounds.clone(), partitions });
    }
    if let Some(exchange) = plan.downcast_ref::<RepartitionExec>() {
        let by_hash = matches!(exchange.partitioning(), Partitioning::Hash(..));
        return shard_column(exchange.input()).filter(|_| by_hash);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let key = shard_column(projection.input())?;
        let column = projection.expr().iter().position(|expr| is_column(&expr.expr, key.column));
        return key.at(column);
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let key = shard_column(filter.input())?;
        let column = in_projection(key.column, filter.projection().as_deref());
        return key.at(column);
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let groups = aggregate.group_expr();
        // A final one with one partition has collected its rows, and the key is not followed through that.
        let key = shard_column(aggregate.input()).filter(|_| groups.is_single())?;
        let column = groups.expr().iter().position(|(expr, _)| is_column(expr, key.column));
        return key.at(column);
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return shard_column_of_join(join);
    }
    let cooperative = plan.downcast_ref::<CooperativeExec>()?;
    shard_column(cooperative.children().first()?)
}

fn in_projection(column: usize, projection: Option<&[usize]>) -> Option<usize> {
    match projection {
        Some(projection) => projection.iter().position(|&projected| projected == column),
        None => Some(column),
    }
}

/// The key in the output of a join whose rows stay where they are.
fn shard_column_of_join(join: &HashJoinExec) -> Option<ShardColumn> {
    // A side whose unmatched rows are not put out: a column of it has only values of its rows.
    let (left_stays, right_stays) = match join.join_type {
        JoinType::Inner => (true, true),
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => (true, false),
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => (false, true),
        // Columns of both sides are null where they have no match.
        JoinType::Full => return None,
    };
    let [left, right] = match join.mode {
        PartitionMode::CollectLeft if right_stays => [None, shard_column(join.right())],
        PartitionMode::Partitioned => shard_columns(join)?.map(Some),
        _ => return None,
    };
    let right_start = match join.join_type {
        JoinType::Inner | JoinType::Right => join.left().schema().fields().len(),
        _ => 0,
    };
    let left = left.filter(|_| left_stays);
    let right =
        right.filter(|_| right_stays).map(|key| ShardColumn { column: key.column + right_start, ..key });
    [left, right].into_iter().flatten().find_map(|key| {
        let column = in_projection(key.column, join.projection.as_deref());
        key.at(column)
    })
}

/// The keys of both sides, if the join compares them.
fn shard_columns(join: &HashJoinExec) -> Option<[ShardColumn; 2]> {
    let (left, right) = (shard_column(join.left())?, shard_column(join.right())?);
    let by_shards = join
        .on()
        .iter()
        .any(|(on_left, on_right)| is_column(on_left, left.column) && is_column(on_right, right.column));
    let equal = left.bounds == right.bounds
        && left.data_type == right.data_type
        && left.partitions == right.partitions;
    (by_shards && equal).then_some([left, right])
}

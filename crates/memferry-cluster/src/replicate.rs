//! Tables that each worker holds: a join builds its table from them where it runs, instead of receiving their rows.
//!
//! ```text
//! HashJoinExec: CollectLeft                         HashJoinExec: CollectLeft
//!   CoalescePartitionsExec                            CoalescePartitionsExec
//!     NetworkBroadcastExec ◀─ BroadcastExec    ─▶       FilterExec
//!                               FilterExec                ShardScanExec: nation, in each task
//!                                 ShardScanExec: nation
//! ```
//!
//! The planner of datafusion-distributed broadcasts the build side of each such join, so this comes after it. The task of the
//! broadcast and its messages to each other task are saved.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion_distributed::{
    BroadcastExec, DistributedLeafExec, NetworkBoundaryExt, NetworkBroadcastExec, WorkerResolver,
    get_distributed_worker_resolver,
};

use crate::colocate::with_children;
use crate::scan::{REPLICATED_SHARD, ShardScanExec};

/// Plans by another planner, which distributes, and reads replicated tables in each task.
#[derive(Debug)]
pub(crate) struct ReadReplicas {
    pub(crate) distributed: Arc<dyn QueryPlanner + Send + Sync>,
}

#[async_trait]
impl QueryPlanner for ReadReplicas {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.distributed.create_physical_plan(query, session).await?;
        let tasks = get_distributed_worker_resolver(session.config())?.get_urls()?.len();
        rewritten(plan, false, tasks)
    }
}

/// `on_worker`: whether the plan is executed by workers; the coordinator has no tables. `tasks`: those of a stage, at most.
fn rewritten(plan: Arc<dyn ExecutionPlan>, on_worker: bool, tasks: usize) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.children().is_empty() {
        return Ok(plan);
    }
    let below = on_worker || plan.is_network_boundary();
    let children = plan.children().into_iter().map(|child| match child.downcast_ref::<BroadcastExec>() {
        // A broadcast of one task to itself has the rows of its input, but would take a panic there for their end.
        Some(broadcast) if !plan.is_network_boundary() => broadcast.input(),
        _ => child,
    });
    let children = children.map(|child| rewritten(Arc::clone(child), below, tasks)).collect::<Result<_>>()?;
    let plan = with_children(&plan, children)?;
    match broadcast(&plan).filter(|input| on_worker && is_replicated(input)) {
        Some(input) => in_each_task(input, tasks),
        None => Ok(plan),
    }
}

/// The same rows in each task.
fn in_each_task(plan: &Arc<dyn ExecutionPlan>, tasks: usize) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(scan) = replicated_scan(plan) {
        let mut partitions = vec![Vec::new(); scan.partitions().len()];
        partitions[0].push(REPLICATED_SHARD);
        let whole: Arc<dyn ExecutionPlan> = Arc::new(scan.of_shards(partitions)?);
        let variants = vec![Arc::clone(&whole); tasks];
        return Ok(Arc::new(DistributedLeafExec::try_new(whole, variants)?));
    }
    let children = plan.children().into_iter().map(|child| in_each_task(child, tasks));
    with_children(plan, children.collect::<Result<_>>()?)
}

/// The rows that are sent to all tasks.
fn broadcast(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    plan.downcast_ref::<NetworkBroadcastExec>()?;
    plan.children().first()?.downcast_ref::<BroadcastExec>().map(BroadcastExec::input)
}

/// The scan of a replicated table, before and after the scan was made the leaf of a distributed plan.
fn replicated_scan(plan: &Arc<dyn ExecutionPlan>) -> Option<&ShardScanExec> {
    let leaf = plan.downcast_ref::<DistributedLeafExec>().map_or(plan, DistributedLeafExec::original);
    leaf.downcast_ref::<ShardScanExec>().filter(|scan| scan.read().key.is_none())
}

/// Whether a worker finds all rows of a plan by itself, the same ones as any other. The first rows are others on each: files are loaded
/// side by side.
pub(crate) fn is_replicated(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if plan.children().is_empty() {
        return replicated_scan(plan).is_some_and(|scan| scan.read().fetch.is_none());
    }
    let is_join = plan
        .downcast_ref::<HashJoinExec>()
        .is_some_and(|join| *join.partition_mode() == PartitionMode::CollectLeft);
    let keeps_rows = is_join
        || plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<CooperativeExec>();
    let mut is_same_everywhere = true;
    let visited = plan.apply_expressions(&mut |expr: &Arc<dyn PhysicalExpr>| {
        is_same_everywhere &= !is_volatile(expr);
        Ok(TreeNodeRecursion::Continue)
    });
    keeps_rows
        && visited.is_ok()
        && is_same_everywhere
        && plan.fetch().is_none()
        && plan.children().into_iter().all(is_replicated)
}

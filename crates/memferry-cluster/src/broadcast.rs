//! Which joins send one side to all tasks. DataFusion compares a side with a fixed size, as one process has no network.
//!
//! ```text
//! both sides are sharded by the key      ─▶ Partitioned: `JoinInPlace` removes the exchanges
//! each worker holds the build side       ─▶ CollectLeft: `ReadReplicas` reads it in each task
//! the probe side is many times larger    ─▶ CollectLeft: sending the build side to all tasks is cheaper than exchanging both
//! otherwise                              ─▶ as DataFusion has planned
//! ```
//!
//! With `b` bytes to build from, `p` to probe and `n` tasks, an exchange sends `b + p`, and a broadcast sends `n b`. Each task then
//! builds a table of all of it, which costs about as much as sending. So a broadcast is chosen for `2 n b < b + p`. The probe side
//! stays where it is, which may save the exchange of the next join as well.

use std::sync::Arc;

use datafusion::common::config::ConfigExtension;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinType, Result, extensions_options};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::colocate::{is_by_shards, with_children};
use crate::replicate::is_replicated;
use crate::report::width_bytes;

/// Most bytes of a side that is sent to all tasks: each worker has a table of it. `join-max-broadcast-table-size` of Trino has
/// this default.
pub(crate) const BYTES_MAX: usize = 100 << 20;

extensions_options! {
    /// The tasks of a plan, and what may be sent to all of them.
    pub struct BroadcastOptions {
        /// Tasks of a stage that reads shards.
        pub tasks: usize, default = 1
        /// Most bytes of the side of a join that is sent to all tasks since the other side is larger.
        pub bytes_max: usize, default = BYTES_MAX
    }
}

impl ConfigExtension for BroadcastOptions {
    const PREFIX: &'static str = "memferry_broadcast";
}

/// Chooses between exchanges and a broadcast for each join. Runs when join sides are known and exchanges are not planned yet.
#[derive(Debug)]
pub(crate) struct ChooseBroadcasts;

impl PhysicalOptimizerRule for ChooseBroadcasts {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = config.extensions.get::<BroadcastOptions>().cloned().unwrap_or_default();
        // From the scans up, since the mode of a join decides where its rows are.
        plan.transform_up(|node| {
            let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(Transformed::no(node)) };
            match mode(join, &options)? {
                mode if mode == join.mode => Ok(Transformed::no(node)),
                mode => Ok(Transformed::yes(Arc::new(join.builder().with_partition_mode(mode).build()?))),
            }
        })
        .data()
    }

    fn name(&self) -> &str {
        "ChooseBroadcasts"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Applies a limit of a side that is sent to all tasks before it is sent. datafusion-distributed 4.0 would let each task apply it, to rows
/// in the order in which they arrive there. Runs after DataFusion's rules, which merge such limits into one operator.
#[derive(Debug)]
pub(crate) struct LimitBeforeBroadcast;

impl PhysicalOptimizerRule for LimitBeforeBroadcast {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let is_broadcast = node
                .downcast_ref::<HashJoinExec>()
                .is_some_and(|join| *join.partition_mode() == PartitionMode::CollectLeft)
                || node.is::<NestedLoopJoinExec>()
                || node.is::<CrossJoinExec>();
            let mut children: Vec<_> = node.children().into_iter().cloned().collect();
            let limit = children.first().filter(|_| is_broadcast).and_then(|side| {
                side.downcast_ref::<CoalescePartitionsExec>().and_then(|merged| merged.fetch())
            });
            let Some(limit) = limit else { return Ok(Transformed::no(node)) };
            children[0] = Arc::new(GlobalLimitExec::new(Arc::clone(&children[0]), 0, Some(limit)));
            Ok(Transformed::yes(with_children(&node, children)?))
        })
        .data()
    }

    fn name(&self) -> &str {
        "LimitBeforeBroadcast"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn mode(join: &HashJoinExec, options: &BroadcastOptions) -> Result<PartitionMode> {
    // A join that looks for any null in the other side needs all of it.
    if join.null_aware {
        return Ok(join.mode);
    }
    if is_by_shards(join) {
        return Ok(PartitionMode::Partitioned);
    }
    // Rows of a side that all tasks have must not be put out by each of them.
    let only_probes = matches!(
        join.join_type,
        JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
    );
    if only_probes && (is_replicated(join.left()) || is_far_smaller(join, options)?) {
        return Ok(PartitionMode::CollectLeft);
    }
    Ok(join.mode)
}

/// Whether sending the build side to all tasks is cheaper than exchanging both sides.
fn is_far_smaller(join: &HashJoinExec, options: &BroadcastOptions) -> Result<bool> {
    let (Some(build), Some(probe)) = (size_bytes(join.left())?, size_bytes(join.right())?) else {
        return Ok(false);
    };
    let sent = build.saturating_mul(options.tasks.max(1)).saturating_mul(2);
    Ok(build <= options.bytes_max && sent < build.saturating_add(probe))
}

/// The estimated size of a plan's rows. Estimates of joins have rows and no bytes.
fn size_bytes(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<usize>> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())?;
    let row_bytes: u64 = plan.schema().fields().iter().map(|field| width_bytes(field.data_type())).sum();
    Ok(statistics.num_rows.get_value().map(|rows| rows.saturating_mul(row_bytes as usize)))
}

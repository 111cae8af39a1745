//! Tables from plans of DataFusion: files in any format that it reads, views, queries.

use std::panic;
use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use tokio::task::JoinSet;

use super::{LoadError, Progress};
use crate::data::{Layout, PartitionWriter, RowGroup, TableData};

/// The rows of `plan`, as a table with a partition for each partition of the plan. A source that can be split, such as a
/// Parquet file with several row groups, is read in `layout.partitions` parts.
///
/// Partitions are read by tasks of the current runtime. Dropping the future stops them and their reads at their next batch.
///
/// # Errors
/// [`LoadError::Plan`]: the rows cannot be read. [`LoadError::Table`]: they cannot be held.
///
/// # Panics
/// Outside of a runtime of tokio, and if the plan panics.
pub async fn from_plan(
    plan: Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    layout: &Layout,
    progress: Arc<dyn Progress + Send>,
) -> Result<TableData, LoadError> {
    let plan = split(plan, context, layout.partitions)?;
    let writer = PartitionWriter::new(plan.schema(), layout)?;
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())?;
    if let Some(&rows) = statistics.num_rows.get_value() {
        progress.total(rows as u64);
    }
    let count = plan.output_partitioning().partition_count();
    // Dropping the set stops its tasks.
    let mut tasks: JoinSet<Result<(usize, Vec<RowGroup>), LoadError>> = JoinSet::new();
    for partition in 0..count {
        let mut batches = plan.execute(partition, Arc::clone(context))?;
        let (mut writer, progress) = (writer.clone(), Arc::clone(&progress));
        tasks.spawn(async move {
            while let Some(batch) = batches.next().await {
                let batch = batch?;
                writer.push(&batch)?;
                progress.advance(batch.num_rows() as u64);
            }
            Ok((partition, writer.finish()?))
        });
    }
    let mut partitions = vec![Vec::new(); count.max(1)];
    while let Some(joined) = tasks.join_next().await {
        // Nobody else stops these tasks: they end or panic.
        let (partition, groups) = joined.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()))?;
        partitions[partition] = groups;
    }
    Ok(TableData::new(plan.schema(), partitions, layout.home))
}

fn split(
    plan: Arc<dyn ExecutionPlan>,
    context: &TaskContext,
    partitions: usize,
) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
    if plan.output_partitioning().partition_count() >= partitions {
        return Ok(plan);
    }
    let split = plan.repartitioned(partitions, context.session_config().options())?;
    Ok(split.unwrap_or(plan))
}

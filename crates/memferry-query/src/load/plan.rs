//! Tables from plans of DataFusion: files in any format that it reads, views, queries.

use std::panic;
use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::StreamExt;
use tokio::task::JoinSet;

use super::{LoadError, Progress};
use crate::data::{Layout, PartitionWriter, RowGroup, TableData};
use crate::files::{Section, SectionScan};

/// The rows of `plan`, as a table with a partition for each partition of the plan. A source that can be split, such as a
/// Parquet file with several row groups, is read in `layout.partitions` parts.
///
/// Partitions are read by tasks of the current runtime. Dropping the future stops them and their reads at their next batch.
/// The bytes of Parquet files are not kept near.
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
    from_plan_in_sections(plan, context, layout, progress, Arc::new(|_, _| ())).await
}

/// Takes the row groups of a section that is ready.
pub(super) type Ready = Arc<dyn Fn(&Section, &[RowGroup]) + Send + Sync>;

/// As [`from_plan`]; also says which sections are ready.
pub(super) async fn from_plan_in_sections(
    plan: Arc<dyn ExecutionPlan>,
    context: &Arc<TaskContext>,
    layout: &Layout,
    progress: Arc<dyn Progress + Send>,
    ready: Ready,
) -> Result<TableData, LoadError> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new())?;
    if let Some(&rows) = statistics.num_rows.get_value() {
        progress.total(rows as u64);
    }
    let (plan, sections) = match SectionScan::of(&plan, layout).await? {
        Some(scan) => (scan.plan, Some(scan.partitions)),
        None => (split(plan, context, layout.partitions)?, None),
    };
    let writer = PartitionWriter::new(plan.schema(), layout)?;
    let count = plan.output_partitioning().partition_count();
    // Dropping the set stops its tasks.
    let mut tasks: JoinSet<Result<(usize, Vec<RowGroup>), LoadError>> = JoinSet::new();
    for partition in 0..count {
        let batches = plan.execute(partition, Arc::clone(context))?;
        let sections = sections.as_ref().map(|partitions| partitions[partition].clone());
        let (progress, ready) = (Arc::clone(&progress), Arc::clone(&ready));
        let writer = writer.of_partition(partition);
        tasks.spawn(async move {
            let groups = match sections {
                Some(sections) => read_sections(batches, &sections, &writer, &*progress, &*ready).await,
                None => read(batches, writer, &*progress).await,
            };
            Ok((partition, groups?))
        });
    }
    let mut partitions = vec![Vec::new(); count.max(1)];
    while let Some(joined) = tasks.join_next().await {
        if let Ok(Ok((partition, groups))) = joined {
            partitions[partition] = groups;
            continue;
        }
        // The memory of all tasks is free before the error returns.
        tasks.shutdown().await;
        // Nobody else stops these tasks: they end or panic.
        return Err(match joined {
            Ok(result) => result.expect_err("matched above"),
            Err(error) => panic::resume_unwind(error.into_panic()),
        });
    }
    Ok(TableData::placed(plan.schema(), partitions, layout)?)
}

async fn read(
    mut batches: SendableRecordBatchStream,
    mut writer: PartitionWriter,
    progress: &dyn Progress,
) -> Result<Vec<RowGroup>, LoadError> {
    while let Some(batch) = batches.next().await {
        let batch = batch?;
        writer.push(&batch)?;
        progress.advance(batch.num_rows() as u64);
    }
    Ok(writer.finish()?)
}

/// As [`read`], with row groups that end where sections do.
async fn read_sections(
    mut batches: SendableRecordBatchStream,
    sections: &[Section],
    writer: &PartitionWriter,
    progress: &dyn Progress,
    ready: &(dyn Fn(&Section, &[RowGroup]) + Send + Sync),
) -> Result<Vec<RowGroup>, LoadError> {
    let wrong = |section: &Section| {
        let file = &section.file.location;
        let text = format!("{file} has not as many rows as its metadata say; write it again");
        LoadError::Plan(DataFusionError::Execution(text))
    };
    let mut groups: Vec<RowGroup> = Vec::new();
    let mut rest = None;
    for section in sections {
        let mut writer = writer.of_rows(section.rows, groups.len());
        let mut missing = section.rows as usize;
        while missing > 0 {
            let batch = match rest.take() {
                Some(batch) => batch,
                None => batches.next().await.ok_or_else(|| wrong(section))??,
            };
            let rows = batch.num_rows().min(missing);
            writer.push(&batch.slice(0, rows))?;
            rest = (rows < batch.num_rows()).then(|| batch.slice(rows, batch.num_rows() - rows));
            missing -= rows;
            progress.advance(rows as u64);
        }
        let loaded = writer.finish()?;
        ready(section, &loaded);
        groups.extend(loaded);
    }
    if rest.is_none() {
        rest = batches.next().await.transpose()?;
    }
    match (rest, sections.last()) {
        (Some(_), Some(last)) => Err(wrong(last)),
        _ => Ok(groups),
    }
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

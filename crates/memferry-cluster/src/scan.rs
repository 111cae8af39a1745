//! The scan of shards: planned by the coordinator, read where the shards are.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::{Column, DynamicFilterTracking};
use datafusion::physical_expr::utils::reassign_expr_columns;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::coalesce::LimitedBatchCoalescer;
use datafusion::physical_plan::execution_plan::{
    Boundedness, CardinalityEffect, EmissionType, SchedulingType,
};
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use crate::ahead::Ahead;
use crate::catalog::PlannedScan;
use crate::description::MapId;
use crate::shards::{ShardKey, ShardMap};
use crate::sources::{Opening, Sources};

/// The shard in which a table without key has all its rows. Each worker holds it.
pub(crate) const REPLICATED_SHARD: usize = 0;

/// A read of a table, without its shards: it is the same in each task of a query.
#[derive(Clone, Debug)]
pub struct ShardRead {
    /// The description that the query was planned with.
    pub id: MapId,
    /// The name of the table.
    pub table: String,
    /// A digest of the files that the table was loaded from.
    pub files: u64,
    /// How the table is divided; without it each worker holds all rows. Unknown on workers, where nothing is planned.
    pub key: Option<ShardKey>,
    /// The columns of the table.
    pub schema: SchemaRef,
    /// Columns in output order.
    pub projection: Vec<usize>,
    /// A filter over the columns of the table.
    pub predicate: Option<Arc<dyn PhysicalExpr>>,
    /// Rows that are enough.
    pub fetch: Option<usize>,
    /// Whether a worker begins to read when the plan arrives, before the scan is executed.
    pub announced: bool,
    /// Workers that are not to be asked for shards.
    pub lost: Vec<usize>,
    /// Shards and their workers.
    pub map: Arc<ShardMap>,
}

/// Reads shards: from the memory of this worker, or over the network from one that holds them.
///
/// Each partition reads its shards one after the other. In a plan of the coordinator it has all shards; each task gets a
/// variant with its own.
#[derive(Clone, Debug)]
pub struct ShardScanExec {
    read: Arc<ShardRead>,
    partitions: Vec<Vec<usize>>,
    /// Over the output; rows that fail one are not needed, but may be in the output.
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
    /// The scan of this worker's shards, when one of them is read.
    planned: Arc<PlannedScan>,
    /// Reads that have begun; of this plan, and of its copies.
    ahead: Arc<Ahead>,
    /// The output column by which the partitions are declared as divided, for a join in place.
    join_column: Option<usize>,
    /// Of all shards; unknown on workers, where nothing is planned.
    statistics: Option<Arc<Statistics>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl ShardScanExec {
    /// A scan of `partitions`, lists of shards. `statistics` are those of the table, all columns.
    ///
    /// # Errors
    /// If the table does not have the columns.
    pub fn try_new(
        read: Arc<ShardRead>,
        partitions: Vec<Vec<usize>>,
        statistics: Option<Arc<Statistics>>,
    ) -> Result<ShardScanExec> {
        ShardScanExec::declared(read, partitions, None, statistics)
    }

    fn declared(
        read: Arc<ShardRead>,
        partitions: Vec<Vec<usize>>,
        join_column: Option<usize>,
        statistics: Option<Arc<Statistics>>,
    ) -> Result<ShardScanExec> {
        let output = Arc::new(read.schema.project(&read.projection)?);
        let partitioning = match join_column {
            Some(index) => {
                let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(output.field(index).name(), index));
                Partitioning::Hash(vec![column], partitions.len())
            }
            None => Partitioning::UnknownPartitioning(partitions.len()),
        };
        let properties = PlanProperties::new(
            EquivalenceProperties::new(output),
            partitioning,
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        let (properties, metrics) = (Arc::new(properties), ExecutionPlanMetricsSet::new());
        Ok(ShardScanExec {
            read,
            partitions,
            dynamic: vec![],
            planned: Arc::default(),
            ahead: Arc::default(),
            join_column,
            statistics,
            properties,
            metrics,
        })
    }

    /// This scan, with its partitions declared as divided by a hash of an output column, which is that of the shards.
    ///
    /// Only for a join with a table of the same map: the hash is not DataFusion's. So the join's own dynamic filter is left
    /// out: it finds the part of a row's partition by DataFusion's hash.
    pub(crate) fn for_join(&self, column: usize, own_filters: &[u64]) -> Result<ShardScanExec> {
        let (read, partitions) = (Arc::clone(&self.read), self.partitions.clone());
        let is_own = |filter: &&Arc<dyn PhysicalExpr>| {
            filter.expression_id().is_some_and(|id| own_filters.contains(&id))
        };
        let dynamic = self.dynamic.iter().filter(|filter| !is_own(filter)).cloned().collect();
        let scan = ShardScanExec::declared(read, partitions, Some(column), self.statistics.clone())?;
        Ok(scan.with_dynamic(dynamic))
    }

    /// This scan with filters that operators above find while the query runs.
    pub(crate) fn with_dynamic(self, dynamic: Vec<Arc<dyn PhysicalExpr>>) -> ShardScanExec {
        ShardScanExec { dynamic, planned: Arc::default(), ..self }
    }

    /// Begins to read what is announced.
    pub(crate) fn read_ahead(&self, context: &Arc<TaskContext>) -> Result<()> {
        if self.read.announced {
            let sources = Sources::of(context)?;
            let opening =
                Opening { sources, planned: Arc::clone(&self.planned), context: Arc::clone(context) };
            self.ahead.begin(&self.read, &self.partitions, &self.dynamic, &opening);
        }
        Ok(())
    }

    /// Filters that operators above find while the query runs, over the output.
    pub fn dynamic(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.dynamic
    }

    /// The table and its columns.
    pub fn read(&self) -> &Arc<ShardRead> {
        &self.read
    }

    /// Those of `shards` that have rows of the table.
    pub(crate) fn with_rows(&self, mut shards: Vec<Vec<usize>>) -> Vec<Vec<usize>> {
        if self.read.key.is_none() {
            shards.iter_mut().for_each(|shards| shards.retain(|&shard| shard == REPLICATED_SHARD));
        }
        shards
    }

    /// The shards of each partition.
    pub fn partitions(&self) -> &[Vec<usize>] {
        &self.partitions
    }

    /// The same read of other shards.
    ///
    /// # Errors
    /// As [`try_new`](ShardScanExec::try_new).
    pub fn of_shards(&self, partitions: Vec<Vec<usize>>) -> Result<ShardScanExec> {
        let (read, statistics) = (Arc::clone(&self.read), self.statistics.clone());
        let scan = ShardScanExec::declared(read, partitions, self.join_column, statistics)?;
        Ok(scan.with_dynamic(self.dynamic.clone()))
    }

    /// The statistics of a filter over the whole table, as DataFusion estimates them.
    fn filtered(&self, args: &StatisticsArgs) -> Result<Statistics> {
        let all = (0..self.read.schema.fields().len()).collect();
        let whole =
            ShardRead { projection: all, predicate: None, fetch: None, ..ShardRead::clone(&self.read) };
        let whole =
            ShardScanExec::try_new(Arc::new(whole), self.partitions.clone(), self.statistics.clone())?;
        let Some(predicate) = &self.read.predicate else { return whole.table_statistics() };
        let predicate = reassign_expr_columns(Arc::clone(predicate), &whole.schema())?;
        let filter = FilterExecBuilder::new(predicate, Arc::new(whole)).build()?;
        Ok(StatisticsContext::new().compute(&filter, args)?.as_ref().clone())
    }

    fn table_statistics(&self) -> Result<Statistics> {
        let unknown = || Statistics::new_unknown(&self.read.schema);
        Ok(self.statistics.as_ref().map_or_else(unknown, |statistics| statistics.as_ref().clone()))
    }
}

type Batches = BoxStream<'static, Result<RecordBatch>>;

/// Small batches as batches of `batch_rows`: a small table has few rows in each shard, and each batch has a cost in each
/// operator and message above.
fn merged(batches: Batches, schema: SchemaRef, batch_rows: usize) -> impl Stream<Item = Result<RecordBatch>> {
    // Rows without columns are only counted.
    let coalescer =
        (!schema.fields().is_empty()).then(|| LimitedBatchCoalescer::new(schema, batch_rows, None));
    stream::try_unfold((batches, coalescer), async |(mut batches, mut coalescer)| {
        let batch = next_merged(&mut batches, &mut coalescer).await?;
        Ok(batch.map(|batch| (batch, (batches, coalescer))))
    })
}

/// The first rows: each shard has been cut by itself.
fn first_rows(
    batches: impl Stream<Item = Result<RecordBatch>> + Send + 'static,
    fetch: Option<usize>,
) -> impl Stream<Item = Result<RecordBatch>> {
    let rows_left = fetch.unwrap_or(usize::MAX);
    stream::try_unfold((batches.boxed(), rows_left), async |(mut batches, rows_left)| {
        if rows_left == 0 {
            return Ok(None);
        }
        let Some(batch) = batches.try_next().await? else { return Ok(None) };
        let rows = batch.num_rows().min(rows_left);
        Ok(Some((batch.slice(0, rows), (batches, rows_left - rows))))
    })
}

async fn next_merged(
    batches: &mut Batches,
    coalescer: &mut Option<LimitedBatchCoalescer>,
) -> Result<Option<RecordBatch>> {
    loop {
        let Some(merging) = coalescer else { return batches.try_next().await };
        if let Some(batch) = merging.next_completed_batch() {
            return Ok(Some(batch));
        }
        match batches.try_next().await? {
            Some(batch) => {
                // Without a limit there is no reason to stop.
                let _ = merging.push_batch(batch)?;
            }
            None => {
                merging.finish()?;
                let last = merging.next_completed_batch();
                *coalescer = None;
                return Ok(last);
            }
        }
    }
}

impl DisplayAs for ShardScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShardRead { table, schema, projection, predicate, fetch, .. } = &*self.read;
        let names: Vec<&str> =
            projection.iter().map(|&column| schema.field(column).name().as_str()).collect();
        write!(f, "ShardScanExec: table={table}, columns=[{}]", names.join(", "))?;
        if let Some(predicate) = predicate {
            write!(f, ", predicate={predicate}")?;
        }
        for filter in &self.dynamic {
            write!(f, ", dynamic={filter}")?;
        }
        if let Some(fetch) = fetch {
            write!(f, ", fetch={fetch}")?;
        }
        write!(f, ", shards={}", self.partitions.iter().map(Vec::len).sum::<usize>())
    }
}

impl ExecutionPlan for ShardScanExec {
    fn name(&self) -> &str {
        "ShardScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        for filter in self.read.predicate.iter().chain(&self.dynamic) {
            if f(filter)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("ShardScanExec has no children") }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(shards) = self.partitions.get(partition).cloned() else {
            return internal_err!("ShardScanExec has no partition {partition}");
        };
        let (read, dynamic) = (Arc::clone(&self.read), self.dynamic.clone());
        let batch_rows = context.session_config().batch_size();
        let opening =
            Opening { sources: Sources::of(&context)?, planned: Arc::clone(&self.planned), context };
        let ahead = Arc::clone(&self.ahead);
        let batches = stream::iter(shards)
            .then(move |shard| {
                let (opening, read) = (opening.clone(), Arc::clone(&read));
                let (dynamic, opened) = (dynamic.clone(), ahead.take(partition, shard, &read));
                async move {
                    match opened {
                        Some(rows) => rows,
                        None => opening.open(&read, shard, &dynamic).await,
                    }
                }
            })
            .try_flatten();
        let batches = first_rows(merged(batches.boxed(), self.schema(), batch_rows), self.read.fetch);
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let counted = batches.map(move |batch| batch.map(|batch| batch.record_output(&baseline)));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), counted)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        _inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        // Of one partition nothing is known.
        if args.partition().is_some() || self.statistics.is_none() {
            return Ok(Arc::new(Statistics::new_unknown(&self.schema())));
        }
        let of_table =
            if self.read.predicate.is_some() { self.filtered(args)? } else { self.table_statistics()? };
        Ok(Arc::new(of_table.project(Some(&self.read.projection))))
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    /// Takes the dynamic filters of joins and TopK; those of the query itself come with the table.
    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let (mut taken, mut dynamic) = (vec![], self.dynamic.clone());
        for parent in &result.parent_filters {
            let takes = phase == FilterPushdownPhase::Post
                && self.read.fetch.is_none()
                && DynamicFilterTracking::classify(&parent.filter).contains_dynamic_filter();
            if takes {
                dynamic.push(Arc::clone(&parent.filter));
            }
            taken.push(if takes { PushedDown::Yes } else { PushedDown::No });
        }
        let mut propagation: FilterPushdownPropagation<Arc<dyn ExecutionPlan>> =
            FilterPushdownPropagation::with_parent_pushdown_result(taken);
        if dynamic.len() > self.dynamic.len() {
            propagation.updated_node = Some(Arc::new(self.clone().with_dynamic(dynamic)));
        }
        Ok(propagation)
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        let read = Arc::new(ShardRead { fetch, ..ShardRead::clone(&self.read) });
        let (planned, metrics) = (Arc::default(), ExecutionPlanMetricsSet::new());
        Some(Arc::new(ShardScanExec { read, planned, metrics, ..self.clone() }))
    }

    fn fetch(&self) -> Option<usize> {
        self.read.fetch
    }
}

//! The filter above a scan of files: its conjuncts one by one, cheapest rejection first, as a scan of memory evaluates them.
//!
//! DataFusion evaluates `a AND b AND c` as one expression over each batch. Where few rows pass `a`, it gathers these rows of
//! all columns for the rest, and puts the results back row by row: more work than comparing the columns whole.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::split_conjunction;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coalesce::{LimitedBatchCoalescer, PushBatchStatus};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, replace_children_if_necessary};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties};
use futures::{StreamExt, stream};

use crate::options::MemferryOptions;
use crate::scan::{FilterInput, FilterOptions, RowFilter, Selection, predicate_of};

/// Does the work of a [`FilterExec`], which it keeps: its predicate, projection, properties and statistics are those.
#[derive(Debug, Clone)]
pub(super) struct ConjunctsExec {
    filter: Arc<FilterExec>,
    options: FilterOptions,
    metrics: ExecutionPlanMetricsSet,
}

impl ConjunctsExec {
    /// `None` where DataFusion evaluates as well: a single conjunct, or one whose results depend on how often it is called.
    pub(super) fn of(filter: &FilterExec, options: &MemferryOptions) -> Option<Self> {
        let predicate = filter.predicate();
        if !options.split_filters || is_volatile(predicate) || split_conjunction(predicate).len() < 2 {
            return None;
        }
        let options = FilterOptions { reorder: options.reorder_filters, sparse: options.sparse_filters };
        Some(Self { filter: Arc::new(filter.clone()), options, metrics: ExecutionPlanMetricsSet::new() })
    }
}

impl DisplayAs for ConjunctsExec {
    fn fmt_as(&self, style: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(style, DisplayFormatType::Default | DisplayFormatType::Verbose) {
            f.write_str("ConjunctsExec, in place of ")?;
        }
        self.filter.fmt_as(style, f)
    }
}

impl ExecutionPlan for ConjunctsExec {
    fn name(&self) -> &'static str {
        "ConjunctsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.filter.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.filter.children()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.filter.maintains_input_order()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let filter: Arc<dyn ExecutionPlan> = Arc::clone(&self.filter) as _;
        let filter = replace_children_if_necessary(filter, children)?;
        let Some(filter) = filter.downcast_ref::<FilterExec>() else {
            return internal_err!("a FilterExec becomes another operator with a new child");
        };
        Ok(Arc::new(Self { filter: Arc::new(filter.clone()), ..self.as_ref().clone() }))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { metrics: ExecutionPlanMetricsSet::new(), ..self.as_ref().clone() }))
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.filter.apply_expressions(visit)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        self.filter.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.filter.cardinality_effect()
    }

    fn fetch(&self) -> Option<usize> {
        self.filter.fetch()
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.filter.input().execute(partition, context)?;
        let conjuncts: Vec<_> =
            split_conjunction(self.filter.predicate()).into_iter().map(Arc::clone).collect();
        let schema = input.schema();
        // Rows and values are for dynamic conjuncts, which never are in a FilterExec.
        let rows = FilterInput { schema: &schema, rows: 0, values: &|_| None };
        let filter = RowFilter::try_new(&conjuncts, &rows, self.options)?;
        let schema = self.schema();
        let output =
            LimitedBatchCoalescer::new(Arc::clone(&schema), self.filter.batch_size(), self.filter.fetch());
        let filtered = Filtered {
            input: Some(input),
            filter,
            projection: self.filter.projection().as_deref().map(<[usize]>::to_vec),
            schema: Arc::clone(&schema),
            output,
            baseline: BaselineMetrics::new(&self.metrics, partition),
        };
        let batches = stream::try_unfold(filtered, async |mut filtered| {
            let batch = filtered.next_batch().await?;
            Ok(batch.map(|batch| (batch, filtered)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, Box::pin(batches))))
    }
}

/// One partition while it runs.
struct Filtered {
    /// `None` after its end, or once there are as many rows as the filter may put out.
    input: Option<SendableRecordBatchStream>,
    filter: RowFilter,
    /// Columns of the input in the order of the output; `None` for all.
    projection: Option<Vec<usize>>,
    schema: SchemaRef,
    output: LimitedBatchCoalescer,
    baseline: BaselineMetrics,
}

impl Filtered {
    async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.next_completed_batch() {
                return Ok(Some(batch.record_output(&self.baseline)));
            }
            let Some(input) = &mut self.input else {
                self.baseline.done();
                return Ok(None);
            };
            let batch = input.next().await.transpose()?;
            let compute = self.baseline.elapsed_compute().clone();
            let _timer = compute.timer();
            let status = match batch {
                Some(batch) => match self.passed(&batch)? {
                    Some(passed) => self.output.push_batch(passed)?,
                    None => PushBatchStatus::Continue,
                },
                None => PushBatchStatus::LimitReached,
            };
            if matches!(status, PushBatchStatus::LimitReached) {
                self.input = None;
                self.output.finish()?;
            }
        }
    }

    /// The rows of a batch that pass; `None` if no row does.
    fn passed(&mut self, batch: &RecordBatch) -> Result<Option<RecordBatch>> {
        let selection = self.filter.select(batch.num_rows(), &|column| Arc::clone(batch.column(column)))?;
        let projected = match &self.projection {
            Some(projection) => batch.project(projection)?,
            None => batch.clone(),
        };
        match selection {
            Selection::None => Ok(None),
            Selection::All { .. } => Ok(Some(projected)),
            Selection::Some { mask, count } => {
                let rows = predicate_of(&mask);
                let columns = projected.columns().iter().map(|column| rows.filter(column));
                let options = RecordBatchOptions::new().with_row_count(Some(count));
                let columns = columns.collect::<Result<_, _>>()?;
                Ok(Some(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?))
            }
        }
    }
}

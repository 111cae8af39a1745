//! The filter above a scan of files: its conjuncts one by one, cheapest rejection first, as a scan of memory evaluates them.
//!
//! DataFusion evaluates `a AND b AND c` as one expression over each batch. Where few rows pass `a`, it gathers these rows of
//! all columns for the rest, and puts the results back row by row: more work than comparing the columns whole.
//!
//! The filters that hash joins find while they build are conjuncts as well. DataFusion prunes row groups and pages by them,
//! and passes every other row on to the join.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::datasource::physical_plan::FileSource;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_expr::split_conjunction;
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coalesce::{LimitedBatchCoalescer, PushBatchStatus};
use datafusion::physical_plan::execution_plan::{CardinalityEffect, replace_children_if_necessary};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties};
use futures::{StreamExt, stream};

use super::contain::ContainExec;
use super::metrics::parquet_scan;
use crate::options::MemferryOptions;
use crate::scan::{FilterInput, FilterOptions, RowFilter, Selection, is_literal, is_plain, predicate_of};

/// The dynamic filters that the hash joins of a plan find, by the id of the expression.
///
/// Those of other operators are not among them: the filter of a minimum or of a TopK gets stricter with each batch, so it
/// excludes most by ending the scan, and gathering rows to full batches would delay it.
pub(super) struct JoinFilters(HashSet<u64>);

impl JoinFilters {
    /// # Errors
    /// Those of walking a plan.
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>, options: &MemferryOptions) -> Result<Self> {
        let mut ids = HashSet::new();
        if options.split_filters && options.dynamic_filters {
            plan.apply(|node| {
                if node.downcast_ref::<HashJoinExec>().is_some() {
                    let filters = node.dynamic_expressions_produced();
                    ids.extend(filters.iter().filter_map(|filter| filter.expression_id()));
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(Self(ids))
    }

    /// Those that DataFusion handed to a scan, over the columns that the scan puts out. A filter over others is left out, and
    /// so are all of them if the decoder evaluates them.
    fn at(&self, scan: &ContainExec) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
        let Some((_, source)) = parquet_scan(scan.scan()) else { return Ok(vec![]) };
        let Some(predicate) = source.filter() else { return Ok(vec![]) };
        if self.0.is_empty() || source.table_parquet_options().global.pushdown_filters {
            return Ok(vec![]);
        }
        // Columns that keep their name: another output may have the name of a column and be something else.
        let output: HashSet<&str> = source
            .projection()
            .into_iter()
            .flatten()
            .filter(|output| {
                output.expr.downcast_ref::<Column>().is_some_and(|column| column.name() == output.alias)
            })
            .map(|output| output.alias.as_str())
            .collect();
        let schema = scan.schema();
        let mut filters = vec![];
        for conjunct in split_conjunction(&predicate) {
            let is_of_join = conjunct
                .downcast_ref::<DynamicFilterPhysicalExpr>()
                .and_then(PhysicalExpr::expression_id)
                .is_some_and(|id| self.0.contains(&id));
            let is_put_out = || collect_columns(conjunct).iter().all(|column| output.contains(column.name()));
            if is_of_join && is_put_out() && is_plain(conjunct)? {
                filters.push(reassign_expr_columns(Arc::clone(conjunct), &schema)?);
            }
        }
        Ok(filters)
    }
}

/// Does the work of a [`FilterExec`], which it keeps: its predicate, projection, properties and statistics are those. Rows
/// that no join wants are left out as well.
#[derive(Debug, Clone)]
pub(super) struct ConjunctsExec {
    /// With the predicate `true` if the plan has no filter above the scan.
    filter: Arc<FilterExec>,
    /// Filters of joins, over the input.
    joins: Vec<Arc<dyn PhysicalExpr>>,
    /// Those of the filter, or of the scan if the plan has no filter there. Shared, so that the operators above keep theirs.
    properties: Arc<PlanProperties>,
    options: FilterOptions,
    metrics: ExecutionPlanMetricsSet,
}

impl ConjunctsExec {
    /// In place of a filter above a scan. `None` where DataFusion evaluates as well: a single conjunct, or one whose results
    /// depend on how often it is called.
    ///
    /// # Errors
    /// Those of rewriting an expression.
    pub(super) fn of(
        filter: &FilterExec,
        joins: &JoinFilters,
        options: &MemferryOptions,
    ) -> Result<Option<Self>> {
        // A scan under joins has had a filter of its own put above it already.
        let above_scan = filter.input().downcast_ref::<Self>().map(Self::input);
        let input = above_scan.unwrap_or(filter.input());
        let Some(scan) = input.downcast_ref::<ContainExec>() else { return Ok(None) };
        let predicate = filter.predicate();
        if !options.split_filters || is_volatile(predicate) {
            return Ok(None);
        }
        let joins = joins.at(scan)?;
        if split_conjunction(predicate).len() + joins.len() < 2 {
            return Ok(None);
        }
        let filter: Arc<dyn ExecutionPlan> = Arc::new(filter.clone());
        let filter = filter_of(replace_children_if_necessary(filter, vec![Arc::clone(input)])?)?;
        let properties = Arc::clone(filter.properties());
        Ok(Some(Self::new(filter, joins, properties, options)))
    }

    /// Above a scan of whose rows joins want some. `None` if no join said so.
    ///
    /// # Errors
    /// Those of rewriting an expression.
    pub(super) fn above(
        scan: &Arc<dyn ExecutionPlan>,
        joins: &JoinFilters,
        options: &MemferryOptions,
        batch_rows: usize,
    ) -> Result<Option<Self>> {
        let joins = scan.downcast_ref().map_or(Ok(vec![]), |scan| joins.at(scan))?;
        if joins.is_empty() {
            return Ok(None);
        }
        let filter =
            FilterExecBuilder::new(lit(true), Arc::clone(scan)).with_batch_size(batch_rows).build()?;
        Ok(Some(Self::new(filter, joins, Arc::clone(scan.properties()), options)))
    }

    fn new(
        filter: FilterExec,
        joins: Vec<Arc<dyn PhysicalExpr>>,
        properties: Arc<PlanProperties>,
        options: &MemferryOptions,
    ) -> Self {
        let options = FilterOptions { reorder: options.reorder_filters, sparse: options.sparse_filters };
        Self { filter: Arc::new(filter), joins, properties, options, metrics: ExecutionPlanMetricsSet::new() }
    }

    fn input(&self) -> &Arc<dyn ExecutionPlan> {
        self.filter.input()
    }

    /// The conjuncts of the plan's own filter; none if there is no such filter.
    fn own(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        let mut conjuncts = split_conjunction(self.filter.predicate());
        conjuncts.retain(|conjunct| !is_literal(conjunct, true));
        conjuncts
    }
}

impl DisplayAs for ConjunctsExec {
    fn fmt_as(&self, style: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_line = matches!(style, DisplayFormatType::Default | DisplayFormatType::Verbose);
        let joins = self.joins.len();
        if self.own().is_empty() {
            return if is_line { write!(f, "ConjunctsExec: filters of joins={joins}") } else { Ok(()) };
        }
        if is_line {
            f.write_str("ConjunctsExec, in place of ")?;
        }
        self.filter.fmt_as(style, f)?;
        if is_line && joins > 0 { write!(f, ", filters of joins={joins}") } else { Ok(()) }
    }
}

impl ExecutionPlan for ConjunctsExec {
    fn name(&self) -> &'static str {
        "ConjunctsExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
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
        let filter = filter_of(replace_children_if_necessary(filter, children)?)?;
        let owner: &dyn ExecutionPlan = if self.own().is_empty() { filter.input().as_ref() } else { &filter };
        let properties = Arc::clone(owner.properties());
        Ok(Arc::new(Self { filter: Arc::new(filter), properties, ..self.as_ref().clone() }))
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self { metrics: ExecutionPlanMetricsSet::new(), ..self.as_ref().clone() }))
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        if self.filter.apply_expressions(visit)? == TreeNodeRecursion::Stop {
            return Ok(TreeNodeRecursion::Stop);
        }
        for filter in &self.joins {
            if visit(filter)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        if self.own().is_empty() {
            return Ok(Arc::new(inputs[0].as_ref().clone().to_inexact()));
        }
        self.filter.statistics_from_inputs(inputs, args)
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        self.filter.cardinality_effect()
    }

    fn fetch(&self) -> Option<usize> {
        self.filter.fetch()
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input().execute(partition, context)?;
        let conjuncts: Vec<_> = self.own().into_iter().chain(&self.joins).map(Arc::clone).collect();
        let schema = input.schema();
        // Neither is known before the rows are decoded. Without them no filter is evaluated by value.
        let rows = FilterInput { schema: &schema, rows: 0, results: &Arc::default(), values: &|_| None };
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

fn filter_of(plan: Arc<dyn ExecutionPlan>) -> Result<FilterExec> {
    match plan.downcast_ref::<FilterExec>() {
        Some(filter) => Ok(filter.clone()),
        None => internal_err!("a FilterExec becomes another operator with a new child"),
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
        let selection =
            self.filter.select(batch.num_rows(), &|column: usize| Arc::clone(batch.column(column)))?;
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

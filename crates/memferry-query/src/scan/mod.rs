//! The scan of a tiered table: late columns, the decision to prefetch, and its place in a plan.
//!
//! A scan with the predicate `p` promises its parents what a projection over `FilterExec(p)` over the scan without it
//! would promise: the same output partitioning, constants, equivalences and row estimates. It builds such
//! operators and copies their properties, so that join orders do not depend on whether a table is tiered.

mod admission;
mod claims;
mod comparison;
mod cost_query;
mod filter;
mod keys;
mod places;
mod report;
mod stream;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Statistics, internal_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::execution_plan::{
    Boundedness, CardinalityEffect, EmissionType, SchedulingType,
};
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::filter_pushdown::{
    ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown,
};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use memferry_schedule::{Domains, Stealing};
pub use report::ScanReport;

pub(crate) use self::filter::{
    FilterInput, FilterOptions, RowFilter, Selection, ValueResults, has_floats, is_literal, is_plain,
    predicate_of,
};

use self::admission::Decided;
use self::claims::RowGroupClaims;
use crate::options::MemferryOptions;
use crate::placement::Reader;
use crate::table::TieredColumns;

/// Reads row groups: late columns from ready near copies, all others from home.
#[derive(Debug, Clone)]
pub struct TieredScanExec {
    columns: Arc<TieredColumns>,
    /// Table columns in output order.
    projection: Vec<usize>,
    /// Over the table's schema; rows must satisfy it.
    predicate: Option<Arc<dyn PhysicalExpr>>,
    /// Over the table's schema; rows that fail it are not needed, but may be in the output.
    dynamic: Vec<Arc<dyn PhysicalExpr>>,
    /// Results of `dynamic` for values of columns.
    results: Arc<ValueResults>,
    fetch: Option<usize>,
    settings: ScanSettings,
    properties: Arc<PlanProperties>,
    /// The filter and projection with the properties of this scan; `None` without predicate.
    as_filter: Option<Arc<dyn ExecutionPlan>>,
    decided: Decided,
    /// The row groups that partitions claim; `None` for a scan that is not on domains.
    claims: Option<RowGroupClaims>,
    metrics: ExecutionPlanMetricsSet,
}

/// Settings of a session for its scans, taken when it plans them.
#[derive(Debug, Clone)]
pub(crate) struct ScanSettings {
    pub(crate) options: MemferryOptions,
    /// Rows of a batch.
    pub(crate) batch_rows: usize,
}

impl TieredScanExec {
    /// A scan. `projection` are table columns in output order; `predicate` refers to the table's schema.
    pub(crate) fn try_new(
        columns: Arc<TieredColumns>,
        projection: Vec<usize>,
        predicate: Option<Arc<dyn PhysicalExpr>>,
        fetch: Option<usize>,
        settings: ScanSettings,
    ) -> Result<Self> {
        let output = Arc::new(columns.data.schema().project(&projection)?);
        let properties = PlanProperties::new(
            EquivalenceProperties::new(output),
            Partitioning::UnknownPartitioning(columns.data.partitions().len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        let scan = Self {
            columns,
            projection,
            predicate: None,
            dynamic: vec![],
            results: Arc::default(),
            fetch,
            settings,
            properties: Arc::new(properties),
            as_filter: None,
            decided: Decided::default(),
            claims: None,
            metrics: ExecutionPlanMetricsSet::new(),
        };
        match predicate {
            Some(predicate) => scan.with_predicate(predicate),
            None => Ok(scan),
        }
    }

    /// This scan without the dynamic filters that are `taken`; `None` if it has none of them.
    pub(crate) fn without_dynamic(
        &self,
        taken: impl Fn(&Arc<dyn PhysicalExpr>) -> Result<bool>,
    ) -> Result<Option<Self>> {
        let mut dynamic = vec![];
        for filter in &self.dynamic {
            if !taken(filter)? {
                dynamic.push(Arc::clone(filter));
            }
        }
        Ok((dynamic.len() < self.dynamic.len()).then(|| Self { dynamic, ..self.clone() }))
    }

    /// This scan, limited to rows that satisfy `predicate`.
    fn with_predicate(&self, predicate: Arc<dyn PhysicalExpr>) -> Result<Self> {
        // The properties of a FilterExec over the columns that it and the output need.
        let filter_columns = columns_of([&predicate]);
        let mut needed = self.projection.clone();
        needed.extend(filter_columns.iter().filter(|c| !self.projection.contains(c)));
        let unfiltered = Self::try_new(Arc::clone(&self.columns), needed, None, None, self.settings.clone())?;
        let rebased = reassign_expr_columns(Arc::clone(&predicate), &unfiltered.schema())?;
        let dropped = unfiltered.projection.len() > self.projection.len();
        let mut as_filter: Arc<dyn ExecutionPlan> =
            Arc::new(FilterExecBuilder::new(rebased, Arc::new(unfiltered)).build()?);
        if dropped {
            let output = self.schema();
            let kept = output.fields().iter().enumerate().map(|(place, field)| {
                let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), place));
                (column, field.name().clone())
            });
            as_filter = Arc::new(ProjectionExec::try_new(kept, as_filter)?);
        }
        let properties = as_filter.properties().as_ref().clone();
        Ok(Self {
            properties: Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative)),
            predicate: Some(predicate),
            as_filter: Some(as_filter),
            metrics: ExecutionPlanMetricsSet::new(),
            ..self.clone()
        })
    }

    /// This scan, whose partitions run on the domains `chosen` in turns and claim row groups.
    pub(crate) fn on_domains(&self, domains: &Domains, chosen: &[usize], stealing: Stealing) -> Self {
        let TieredColumns { data, tiers, .. } = &*self.columns;
        let claims = RowGroupClaims::new(data, tiers, domains, chosen, stealing);
        Self { claims: Some(claims), metrics: ExecutionPlanMetricsSet::new(), ..self.clone() }
    }

    /// The number of row groups of its table.
    pub(crate) fn row_groups_count(&self) -> usize {
        self.columns.data.partitions().iter().map(Vec::len).sum()
    }

    /// The CPUs that a partition runs on; without domains those of the thread, and of a machine that is only described those
    /// beside the home node of tables.
    fn reader_of(&self, partition: usize) -> Reader {
        let tiers = &self.columns.tiers;
        match &self.claims {
            Some(claims) => Reader::OfNode(claims.cpus_of(partition)),
            None => {
                let home = tiers.machine().node(tiers.home());
                Reader::OfThread(home.map_or(tiers.home(), |home| home.cpu_node))
            }
        }
    }

    /// Columns that the filters read.
    fn filter_columns(&self) -> BTreeSet<usize> {
        columns_of(self.predicate.iter().chain(&self.dynamic))
    }

    /// Columns that are read only for rows that passed: output columns that the predicate does not read. Without a predicate
    /// no column is late, since no scan runs during which it could be copied.
    fn late_columns(&self) -> BTreeSet<usize> {
        match &self.predicate {
            Some(predicate) => {
                let early = columns_of([predicate]);
                self.projection.iter().copied().filter(|c| !early.contains(c)).collect()
            }
            None => BTreeSet::new(),
        }
    }

    fn window_groups(&self) -> usize {
        self.settings.options.window_groups.max(1)
    }

    fn names(&self, columns: impl IntoIterator<Item = usize>) -> String {
        let schema = self.columns.data.schema();
        columns.into_iter().map(|c| schema.field(c).name().as_str()).collect::<Vec<_>>().join(", ")
    }
}

fn columns_of<'a>(filters: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>) -> BTreeSet<usize> {
    filters.into_iter().flat_map(collect_columns).map(|column| column.index()).collect()
}

impl DisplayAs for TieredScanExec {
    fn fmt_as(&self, _style: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TieredScanExec: output=[{}]", self.names(self.projection.iter().copied()))?;
        if let Some(predicate) = &self.predicate {
            write!(f, ", late=[{}], predicate={predicate}", self.names(self.late_columns()))?;
        }
        for dynamic in &self.dynamic {
            write!(f, ", dynamic={dynamic}")?;
        }
        if let Some(fetch) = self.fetch {
            write!(f, ", fetch={fetch}")?;
        }
        if let Some(places) = places::of(self) {
            write!(f, ", places=[{places}]")?;
        }
        write!(f, ", prefetch={}", self.admission())?;
        match &self.claims {
            Some(claims) => write!(f, ", stealing={}", claims.stealing()),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for TieredScanExec {
    fn name(&self) -> &'static str {
        "TieredScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("TieredScanExec is a leaf") }
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        // Dynamic filters belong to the last run; no operator would update them in the next one.
        let metrics = ExecutionPlanMetricsSet::new();
        Ok(Arc::new(Self { dynamic: vec![], results: Arc::default(), metrics, ..self.as_ref().clone() }))
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut recursion = TreeNodeRecursion::Continue;
        for filter in self.predicate.iter().chain(&self.dynamic) {
            recursion = visit(filter)?;
            if recursion == TreeNodeRecursion::Stop {
                break;
            }
        }
        Ok(recursion)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        _inputs: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        match &self.as_filter {
            Some(filter) => StatisticsContext::new().compute(filter.as_ref(), args),
            None => Ok(Arc::new(self.columns.data.statistics(
                args.partition(),
                Some(&self.projection),
                self.settings.batch_rows,
            ))),
        }
    }

    fn cardinality_effect(&self) -> CardinalityEffect {
        CardinalityEffect::LowerEqual
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(Arc::new(Self { fetch, ..self.clone() }))
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    /// A projection that only picks columns becomes the scan's own.
    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let mut picked = vec![];
        for expr in projection.expr() {
            match expr.expr.downcast_ref::<Column>() {
                Some(column) if column.name() == expr.alias => picked.push(self.projection[column.index()]),
                _ => return Ok(None),
            }
        }
        let mut scan = Self::try_new(
            Arc::clone(&self.columns),
            picked,
            self.predicate.clone(),
            self.fetch,
            self.settings.clone(),
        )?;
        scan.dynamic.clone_from(&self.dynamic);
        Ok(Some(Arc::new(scan)))
    }

    /// Takes the predicates of filters above (those with subqueries come this way), and the dynamic filters of joins
    /// and TopK over expressions that cannot fail: they are evaluated on rows that the predicate may reject.
    fn handle_child_pushdown_result(
        &self,
        _phase: FilterPushdownPhase,
        result: ChildPushdownResult,
        _config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        let mut taken = vec![];
        let (mut exact, mut dynamic) = (vec![], self.dynamic.clone());
        for parent in &result.parent_filters {
            let is_dynamic = filter::is_dynamic(&parent.filter);
            let refused_dynamic =
                is_dynamic && !(self.settings.options.dynamic_filters && filter::is_plain(&parent.filter)?);
            if self.fetch.is_some() || is_volatile(&parent.filter) || refused_dynamic {
                taken.push(PushedDown::No);
                continue;
            }
            // Parents know this scan's output; filters are kept in terms of the table.
            let filter = reassign_expr_columns(Arc::clone(&parent.filter), self.columns.data.schema())?;
            if is_dynamic {
                dynamic.push(filter)
            } else {
                exact.push(filter)
            }
            taken.push(PushedDown::Yes);
        }
        let mut propagation = FilterPushdownPropagation::with_parent_pushdown_result(taken);
        if exact.is_empty() && dynamic.len() == self.dynamic.len() {
            return Ok(propagation);
        }
        let mut scan = if exact.is_empty() {
            self.clone()
        } else {
            self.with_predicate(conjunction(self.predicate.iter().cloned().chain(exact)))?
        };
        scan.dynamic = dynamic;
        propagation.updated_node = Some(Arc::new(scan));
        Ok(propagation)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition >= self.columns.data.partitions().len() {
            return internal_err!("TieredScanExec has no partition {partition}");
        }
        stream::start(self, partition, &context)
    }
}

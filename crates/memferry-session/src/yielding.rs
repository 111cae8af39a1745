//! Joins that stop soon after they are cancelled, and let other tasks of their thread run.
//!
//! A task is cancelled when it yields. A join can make millions of batches of one batch of its input, so it yields where it puts
//! them out. A join whose condition drops all rows puts nothing out for hours, and asks its input for a batch now and then: it
//! yields there, too. DataFusion's own operator for it counts batches, and a join may work for seconds on each; this one
//! counts time.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, SessionStateBuilder, TaskContext};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties, replace_children_if_necessary,
};
use datafusion::prelude::SessionContext;
use futures::Stream;

/// A task that worked for so long yields: short for a user, and long against the microsecond that yielding costs.
const SLICE: Duration = Duration::from_millis(10);

/// A session with the tables and settings of `context`, whose joins yield when they ask for input and when they put rows out.
/// [`open`](crate::open) makes such a session.
pub fn with_yielding_joins(context: &SessionContext) -> SessionContext {
    let state = context.state();
    if state.physical_optimizers().iter().any(|rule| rule.name() == YieldingJoins.name()) {
        return context.clone();
    }
    let state = SessionStateBuilder::new_from_existing(state);
    SessionContext::new_with_state(state.with_physical_optimizer_rule(Arc::new(YieldingJoins)).build())
}

/// A plan whose joins yield when they ask for input and when they put rows out.
///
/// # Errors
/// An operator does not accept other inputs with the same rows.
pub fn yielding_joins(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let wrapped = plan.transform_up(|node| {
        if !node.name().ends_with("JoinExec") {
            return Ok(Transformed::no(node));
        }
        let yielding = |input| Arc::new(YieldExec { input }) as Arc<dyn ExecutionPlan>;
        let inputs = node.children().into_iter().map(|input| yielding(Arc::clone(input))).collect();
        Ok(Transformed::yes(yielding(replace_children_if_necessary(node, inputs)?)))
    });
    wrapped.map(|wrapped| wrapped.data)
}

#[derive(Debug)]
struct YieldingJoins;

impl PhysicalOptimizerRule for YieldingJoins {
    fn name(&self) -> &str {
        "YieldingJoins"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        yielding_joins(plan)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The batches of its input. It is transparent, but for the time at which it yields.
#[derive(Debug)]
struct YieldExec {
    input: Arc<dyn ExecutionPlan>,
}

impl DisplayAs for YieldExec {
    fn fmt_as(&self, _style: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YieldExec: a cancelled join stops here")
    }
}

impl ExecutionPlan for YieldExec {
    fn name(&self) -> &'static str {
        "YieldExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(input), true) => Ok(Arc::new(YieldExec { input })),
            _ => internal_err!("YieldExec has one child"),
        }
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.input.execute(partition, context)?;
        Ok(Box::pin(Yielding { input, yielded: Instant::now() }))
    }
}

struct Yielding {
    input: SendableRecordBatchStream,
    /// The last time that it did.
    yielded: Instant,
}

impl Stream for Yielding {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.yielded.elapsed() >= SLICE {
            self.yielded = Instant::now();
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.input.as_mut().poll_next(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.input.size_hint()
    }
}

impl RecordBatchStream for Yielding {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

//! Joins that stop soon after they are cancelled, and let other tasks of their thread run.
//!
//! A task is cancelled when it yields. A join can make millions of batches of one batch of its input, so it yields where it puts
//! them out. A join whose condition drops all rows puts nothing out for hours, and gets a batch of its input now and then: it
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

/// A session with the tables and settings of `context`, whose joins yield when they get input and when they put rows out.
/// [`open`](crate::open) makes such a session.
pub fn with_yielding_joins(context: &SessionContext) -> SessionContext {
    let state = context.state();
    if state.physical_optimizers().iter().any(|rule| rule.name() == YieldingJoins.name()) {
        return context.clone();
    }
    let state = SessionStateBuilder::new_from_existing(state);
    SessionContext::new_with_state(state.with_physical_optimizer_rule(Arc::new(YieldingJoins)).build())
}

/// A plan whose joins yield when they get input and when they put rows out.
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
        Ok(Box::pin(Yielding { input, yielded: Instant::now(), held: None }))
    }
}

/// It yields after it got a batch, never before: each yield follows progress. If they yielded before, hundreds of nested joins whose
/// slices are over would do so one after the other, each time from the root of the plan, and the slice of the first would be over
/// again before the last is reached.
struct Yielding {
    input: SendableRecordBatchStream,
    /// The last time that it did, or that its input did.
    yielded: Instant,
    /// The batch with which it yielded.
    held: Option<RecordBatch>,
}

impl Stream for Yielding {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(batch) = self.held.take() {
            return Poll::Ready(Some(Ok(batch)));
        }
        match self.input.as_mut().poll_next(context) {
            Poll::Ready(Some(Ok(batch))) if self.yielded.elapsed() >= SLICE => {
                self.held = Some(batch);
                context.waker().wake_by_ref();
            }
            Poll::Pending => (),
            ready => return ready,
        }
        self.yielded = Instant::now();
        Poll::Pending
    }
}

impl RecordBatchStream for Yielding {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};
    use std::thread::sleep;

    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::common::cast::as_int64_array;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use futures::{StreamExt, stream};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn numbers(count: i64) -> SendableRecordBatchStream {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let of = Arc::clone(&schema);
        let batch = move |n| {
            let column = Arc::new(Int64Array::from(vec![n]));
            Ok(RecordBatch::try_new(Arc::clone(&of), vec![column]).unwrap())
        };
        Box::pin(RecordBatchStreamAdapter::new(schema, stream::iter((0..count).map(batch))))
    }

    fn yielding(input: SendableRecordBatchStream) -> SendableRecordBatchStream {
        Box::pin(Yielding { input, yielded: Instant::now(), held: None })
    }

    /// Works for a slice each time that it is asked, before it asks `input`.
    fn slow(mut input: SendableRecordBatchStream) -> SendableRecordBatchStream {
        let schema = input.schema();
        let polled = stream::poll_fn(move |context| {
            sleep(SLICE);
            input.poll_next_unpin(context)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, polled))
    }

    /// The numbers that come, and how often the stream yielded. Each yield wakes its task.
    fn drain(mut stream: SendableRecordBatchStream, polls_max: usize) -> (Vec<i64>, usize) {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let (mut numbers, mut yields) = (Vec::new(), 0);
        for _ in 0..polls_max {
            match stream.poll_next_unpin(&mut Context::from_waker(&waker)) {
                Poll::Pending => yields += 1,
                Poll::Ready(None) => {
                    assert_eq!(wakes.0.load(Ordering::Relaxed), yields);
                    return (numbers, yields);
                }
                Poll::Ready(Some(batch)) => {
                    let batch = batch.unwrap();
                    numbers.extend(as_int64_array(batch.column(0)).unwrap().values());
                }
            }
        }
        panic!("{numbers:?} after {polls_max} polls, {yields} of them yields");
    }

    #[test]
    fn it_yields_once_a_slice_and_loses_nothing() {
        assert_eq!(drain(yielding(slow(numbers(5))), 20), (vec![0, 1, 2, 3, 4], 5));
        assert_eq!(drain(yielding(numbers(0)), 1), (vec![], 0));
    }

    /// The slice of each is over whenever it is asked, as with hundreds of joins on a busy machine.
    #[test]
    fn nested_ones_get_on() {
        let nested = (0..4).fold(numbers(2), |input, _| yielding(slow(input)));
        assert_eq!(drain(nested, 20).0, [0, 1]);
    }
}

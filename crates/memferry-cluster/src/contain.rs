//! Panics of tasks become errors of their queries.
//!
//! datafusion-distributed 4.0 polls each partition of a task in a task of tokio that nobody waits for, and so does its `BroadcastExec`.
//! A panic there drops the sender of the rows, and their reader takes that for the end: the answer would lack rows and look whole.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties};
use datafusion_distributed::BroadcastExec;
use futures::StreamExt;

use crate::colocate::with_children;

/// A plan of `worker` whose panics are errors.
pub(crate) fn contained(plan: Arc<dyn ExecutionPlan>, worker: &str) -> Result<Arc<dyn ExecutionPlan>> {
    let contain = |plan: &Arc<dyn ExecutionPlan>| -> Arc<dyn ExecutionPlan> {
        Arc::new(ContainExec { plan: Arc::clone(plan), worker: Arc::from(worker) })
    };
    // Such a head is replaced when the task starts, by one over the same input.
    if plan.is::<RepartitionExec>() || plan.is::<BroadcastExec>() {
        return with_children(&plan, plan.children().into_iter().map(contain).collect());
    }
    Ok(contain(&plan))
}

/// Takes the place of a plan. It is not an operator of its own: metrics are sent by the places of operators.
#[derive(Debug)]
struct ContainExec {
    plan: Arc<dyn ExecutionPlan>,
    worker: Arc<str>,
}

impl DisplayAs for ContainExec {
    fn fmt_as(&self, style: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.plan.fmt_as(style, f)
    }
}

impl ExecutionPlan for ContainExec {
    fn name(&self) -> &str {
        self.plan.name()
    }

    fn downcast_delegate(&self) -> Option<&dyn ExecutionPlan> {
        Some(self.plan.as_ref())
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.plan.children()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = with_children(&self.plan, children)?;
        Ok(Arc::new(ContainExec { plan, worker: Arc::clone(&self.worker) }))
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.plan.apply_expressions(visit)
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        // After a panic, neither the plan nor its rows are used again.
        let rows = catch_unwind(AssertUnwindSafe(|| self.plan.execute(partition, context)))
            .unwrap_or_else(|panic| Err(fault(panic.as_ref(), &self.worker)))?;
        let (schema, worker) = (rows.schema(), Arc::clone(&self.worker));
        let rows = AssertUnwindSafe(rows)
            .catch_unwind()
            .map(move |batch| batch.unwrap_or_else(|panic| Err(fault(panic.as_ref(), &worker))));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
    }
}

fn fault(panic: &(dyn Any + Send), worker: &str) -> DataFusionError {
    let text = text_of(panic);
    let text = format!(
        "a fault in memferry or DataFusion on worker {worker}: {text}; please report it with the statement"
    );
    DataFusionError::External(text.into())
}

/// The message of a panic.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no message",
    }
}

//! `DomainExec`: runs partitions of its input on domains, and hands their batches over.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{Stream, StreamExt};
use memferry_schedule::Scheduler;

/// Batches that wait for the consumer, for each partition. With fewer, a domain waits for each wake-up of the other one.
const BATCHES_MAX: usize = 8;

/// Runs each partition of its input on a domain: partition `p` on the `p mod n`-th of its `n` domains.
///
/// A *hop* is a batch that one runtime hands to another. A consumer on the domain of the partition polls the input itself,
/// without a hop. Properties, statistics, rows and their order are those of the input.
///
/// Cancel: dropping a stream aborts the task on the other runtime.
#[derive(Debug)]
pub struct DomainExec {
    input: Arc<dyn ExecutionPlan>,
    scheduler: Scheduler,
    /// Indices of domains, never empty.
    domains: Arc<[usize]>,
    metrics: ExecutionPlanMetricsSet,
}

impl DomainExec {
    pub(super) fn new(input: Arc<dyn ExecutionPlan>, scheduler: Scheduler, domains: Arc<[usize]>) -> Self {
        Self { input, scheduler, domains, metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl DisplayAs for DomainExec {
    fn fmt_as(&self, _style: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DomainExec: binding={}, domains={:?}", self.scheduler.binding(), self.domains)
    }
}

impl ExecutionPlan for DomainExec {
    fn name(&self) -> &'static str {
        "DomainExec"
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
            (Some(input), true) => {
                Ok(Arc::new(Self::new(input, self.scheduler.clone(), Arc::clone(&self.domains))))
            }
            _ => internal_err!("DomainExec has one child"),
        }
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    /// The input is executed at once, because scans request their first copies then, and polled on its domain from the first
    /// poll on, because a join polls its probe side only when its filters for it are complete.
    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let domain = self.domains[partition % self.domains.len()];
        let input = {
            // Tasks that operators spawn in execute run on the domain too.
            let _runtime = self.scheduler.handle(Some(domain)).enter();
            self.input.execute(partition, context)?
        };
        let hops = MetricBuilder::new(&self.metrics)
            .with_new_label("domain", domain.to_string())
            .counter("hops", partition);
        let schema = input.schema();
        Ok(Box::pin(Handed {
            state: State::Waiting(input),
            schema,
            domain,
            scheduler: self.scheduler.clone(),
            hops,
        }))
    }
}

/// A partition that runs on a domain.
struct Handed {
    state: State,
    schema: SchemaRef,
    domain: usize,
    /// Keeps the runtime alive.
    scheduler: Scheduler,
    hops: Count,
}

enum State {
    /// The input, until the first poll.
    Waiting(SendableRecordBatchStream),
    /// The input, polled by a consumer on the same domain.
    Here(SendableRecordBatchStream),
    /// What a task on the domain sends.
    Other(SendableRecordBatchStream),
    /// While the state changes.
    Changing,
}

impl Handed {
    fn start(&self, mut input: SendableRecordBatchStream) -> State {
        if self.scheduler.current_domain() == Some(self.domain) {
            return State::Here(input);
        }
        let mut task = RecordBatchReceiverStreamBuilder::new(Arc::clone(&self.schema), BATCHES_MAX);
        let sender = task.tx();
        let run = async move {
            while let Some(batch) = input.next().await {
                let is_last = batch.is_err();
                if sender.send(batch).await.is_err() || is_last {
                    break;
                }
            }
            Ok(())
        };
        task.spawn_on(run, self.scheduler.handle(Some(self.domain)));
        State::Other(task.build())
    }
}

impl Stream for Handed {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if matches!(this.state, State::Waiting(_))
            && let State::Waiting(input) = std::mem::replace(&mut this.state, State::Changing)
        {
            this.state = this.start(input);
        }
        match &mut this.state {
            State::Here(input) => input.as_mut().poll_next(context),
            State::Other(batches) => {
                let poll = batches.as_mut().poll_next(context);
                if matches!(poll, Poll::Ready(Some(Ok(_)))) {
                    this.hops.add(1);
                }
                poll
            }
            State::Waiting(_) | State::Changing => Poll::Ready(Some(internal_err!(
                "the partition panicked when it began on domain {}",
                this.domain
            ))),
        }
    }
}

impl RecordBatchStream for Handed {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use datafusion::physical_plan::EmptyRecordBatchStream;
    use futures::FutureExt;
    use memferry::topology::Machine;
    use memferry_schedule::{Binding, Domains};

    use super::*;

    /// It once ended as if it had no rows.
    #[test]
    fn a_partition_that_panicked_when_it_began_fails() {
        let domains = Domains::of(&Machine::discover().unwrap()).unwrap();
        let schema = Arc::new(arrow::datatypes::Schema::empty());
        let mut handed = Handed {
            state: State::Waiting(Box::pin(EmptyRecordBatchStream::new(Arc::clone(&schema)))),
            schema,
            domain: domains.len(),
            scheduler: Scheduler::start(domains, Binding::Opportunistic).unwrap(),
            hops: Count::new(),
        };
        let mut poll = || handed.next().now_or_never();
        assert!(catch_unwind(AssertUnwindSafe(&mut poll)).is_err(), "there is no such domain");
        let error = poll().unwrap().unwrap().unwrap_err();
        assert!(error.to_string().contains("the partition panicked"), "{error}");
    }
}

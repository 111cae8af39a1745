//! The server of the study: the tables, workers on CPUs of the run, and a session for each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Int32Type, Int64Type};
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use memferry_dsa::internals::affinity;
use memferry_query::{Prefetch, QueryDomains, SessionOptions, TieredScanExec, TieredTable, session};
use tokio::runtime::{Builder, Handle, Runtime};

use super::places::Places;
use super::places::cpus;
use super::workload::Workload;
use crate::QueryError;

/// Names of the counters of a scan on domains, in memory of the domain, of its neighbours, of other sockets: row groups, and
/// the bytes that were read of them.
const BY_DISTANCE: [[&str; 2]; 3] = [
    ["row_groups_local", "bytes_local"],
    ["row_groups_same_socket", "bytes_same_socket"],
    ["row_groups_remote", "bytes_remote"],
];

/// Stack of a thread: DataFusion plans nested expressions by recursion, and with 8 MiB a sum of 400 numbers overflows in the
/// development profile. Pages that are not touched take no memory.
const STACK_BYTES: usize = 64 << 20;

/// A server with workers as a run wants them. Dropping it ends them.
pub(super) struct Server {
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    /// The CPUs of its workers.
    #[cfg(feature = "postgres")]
    cpus: Vec<u32>,
    /// Workers of each of the two domains.
    workers: [usize; 2],
    /// The session of which those of connections are copies: they share its tables.
    template: SessionContext,
    traffic: Arc<Traffic>,
}

/// Row groups and bytes that the workers of each of the two domains have read, by distance.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Which of the two is a domain of the run.
    domains: Vec<usize>,
    /// Relaxed: they are counts.
    read: [[[AtomicU64; 2]; 3]; 2],
}

/// What the workers of each of the two domains have read, by distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) row_groups: u64,
    pub(super) bytes: u64,
}

impl Traffic {
    fn add(&self, plan: &dyn ExecutionPlan) {
        if plan.downcast_ref::<TieredScanExec>().is_some()
            && let Some(metrics) = plan.metrics()
        {
            for metric in metrics.iter() {
                let name = metric.value().name();
                let place = BY_DISTANCE.iter().enumerate().find_map(|(distance, names)| {
                    names.iter().position(|it| *it == name).map(|counter| (distance, counter))
                });
                let domain = metric.labels().iter().find(|label| label.name() == "domain");
                if let (Some((distance, counter)), Some(domain)) = (place, domain)
                    && let Some(&domain) =
                        domain.value().parse().ok().and_then(|domain: usize| self.domains.get(domain))
                {
                    self.read[domain][distance][counter]
                        .fetch_add(metric.value().as_usize() as u64, Ordering::Relaxed);
                }
            }
        }
        for child in plan.children() {
            self.add(child.as_ref());
        }
    }

    /// The counts so far.
    pub(super) fn read(&self) -> [[Read; 3]; 2] {
        self.read.each_ref().map(|of_domain| {
            of_domain.each_ref().map(|counters| {
                let [row_groups, bytes] = counters.each_ref().map(|counter| counter.load(Ordering::Relaxed));
                Read { row_groups, bytes }
            })
        })
    }
}

impl Server {
    /// # Errors
    /// [`QueryError::Invalid`] if the workers cannot be where the run wants them, [`QueryError::Threads`],
    /// [`QueryError::DataFusion`].
    pub(super) fn start(
        places: &Places,
        workload: &Workload,
        tables: &[Arc<TieredTable>; 2],
    ) -> Result<Server, QueryError> {
        let domains = places.workers(workload.workers)?;
        let mut workers = [0; 2];
        for domain in domains.iter() {
            workers[places.index_of(domain)] += domain.cpus.len();
        }
        let of_run = domains.iter().map(|domain| places.index_of(domain)).collect();
        let traffic = Traffic { domains: of_run, read: Default::default() };
        let cpus = cpus(&domains);
        let runtime = confined_runtime("server", cpus.len(), Some(cpus.clone()))?;
        let options = SessionOptions {
            prefetch: Prefetch::Off,
            partitions: cpus.len(),
            domains: Some(QueryDomains::new(domains)),
            binding: workload.binding,
            stealing: workload.stealing,
            ..SessionOptions::default()
        };
        let template = session(&options);
        for (index, table) in tables.iter().enumerate() {
            template.register_table(format!("tbl_{index}"), Arc::clone(table) as _)?;
        }
        Ok(Server {
            runtime: Some(runtime),
            #[cfg(feature = "postgres")]
            cpus,
            workers,
            template,
            traffic: Arc::new(traffic),
        })
    }

    /// The runtime of its workers.
    pub(super) fn handle(&self) -> Handle {
        self.runtime.as_ref().expect("it is not being dropped").handle().clone()
    }

    /// The CPUs of its workers.
    #[cfg(feature = "postgres")]
    pub(super) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// Workers of each of the two domains.
    pub(super) fn workers(&self) -> [usize; 2] {
        self.workers
    }

    /// What the workers have read.
    pub(super) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// Sessions over both tables.
    pub(super) fn sessions(&self) -> Sessions {
        Sessions { template: self.template.clone(), traffic: Arc::clone(&self.traffic) }
    }
}

/// Makes the sessions of connections: each has its own settings.
#[derive(Clone)]
pub(super) struct Sessions {
    template: SessionContext,
    traffic: Arc<Traffic>,
}

impl Sessions {
    pub(super) fn open(&self) -> Session {
        let context = SessionContext::new_with_state(self.template.state());
        Session { context, traffic: Arc::clone(&self.traffic) }
    }
}

/// The session of a connection.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) context: SessionContext,
    traffic: Arc<Traffic>,
}

impl Session {
    /// A statement, parsed and optimised.
    pub(super) async fn prepare(&self, sql: &str) -> Result<Prepared, DataFusionError> {
        let plan = self.context.state().create_logical_plan(sql).await?;
        self.optimise(&plan)
    }

    /// A plan, optimised. Statements are left as they are.
    pub(super) fn optimise(&self, plan: &LogicalPlan) -> Result<Prepared, DataFusionError> {
        let plan = match plan {
            LogicalPlan::Statement(_) => plan.clone(),
            plan => self.context.state().optimize(plan)?,
        };
        Ok(Prepared { session: self.clone(), plan })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Its last tasks end at their next `await`; dropping a runtime would wait for them in any context.
            runtime.shutdown_background();
        }
    }
}

/// A runtime whose threads run on `cpus`, or on any.
pub(super) fn confined_runtime(
    name: &str,
    threads_count: usize,
    cpus: Option<Vec<u32>>,
) -> Result<Runtime, QueryError> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads_count.max(1)).thread_name(format!("sncdb {name}"));
    builder.thread_stack_size(STACK_BYTES).enable_all();
    if let Some(cpus) = cpus {
        // The CPUs are allowed ones, or `Places` would not have them; the thread is of use anywhere.
        builder.on_thread_start(move || drop(affinity::confine(&cpus)));
    }
    builder.build().map_err(QueryError::Threads)
}

/// A statement that was parsed and optimised once. Its physical plan is made for each execution: DataFusion has none with
/// parameters.
#[derive(Clone)]
pub(super) struct Prepared {
    session: Session,
    pub(super) plan: LogicalPlan,
}

impl Prepared {
    /// Executes it with values for its parameters, in their order.
    pub(super) async fn execute(
        &self,
        values: Vec<ScalarValue>,
    ) -> Result<Vec<RecordBatch>, DataFusionError> {
        let running = self.start(values).await?;
        running.batches().try_collect().await
    }

    /// Begins to execute it.
    pub(super) async fn start(&self, values: Vec<ScalarValue>) -> Result<Running, DataFusionError> {
        let Session { context, traffic } = &self.session;
        let plan = match values.is_empty() {
            true => self.plan.clone(),
            false => self.plan.clone().with_param_values(values)?,
        };
        let plan = match plan {
            // EXECUTE has a plan with values, which is not optimised yet; SET and the like take effect here.
            LogicalPlan::Statement(_) => {
                context.execute_logical_plan(plan).await?.create_physical_plan().await?
            }
            plan => {
                let state = context.state();
                state.query_planner().create_physical_plan(&plan, &state).await?
            }
        };
        let stream = execute_stream(Arc::clone(&plan), context.task_ctx())?;
        Ok(Running { stream, plan, traffic: Arc::clone(traffic) })
    }
}

/// A statement that is being executed.
pub(super) struct Running {
    stream: SendableRecordBatchStream,
    plan: Arc<dyn ExecutionPlan>,
    traffic: Arc<Traffic>,
}

impl Running {
    /// Names and types of its columns.
    #[cfg(feature = "postgres")]
    pub(super) fn schema(&self) -> datafusion::arrow::datatypes::SchemaRef {
        self.stream.schema()
    }

    /// The answer. What its scans have read counts when it is complete.
    pub(super) fn batches(self) -> impl Stream<Item = Result<RecordBatch, DataFusionError>> + Send + 'static {
        let Running { stream, plan, traffic } = self;
        let end = stream::poll_fn(move |_| {
            traffic.add(plan.as_ref());
            Poll::Ready(None)
        });
        stream.chain(end.fuse())
    }
}

/// The integers of an answer, in ascending order.
///
/// # Errors
/// [`QueryError::Invalid`] for another column than one of integers.
pub(super) fn integers(batches: &[RecordBatch]) -> Result<Vec<i64>, QueryError> {
    let mut integers = Vec::new();
    for batch in batches.iter().filter(|batch| batch.num_rows() > 0) {
        let column = batch.column(0);
        match column.data_type() {
            DataType::Int32 => {
                integers.extend(column.as_primitive::<Int32Type>().values().iter().map(|&it| i64::from(it)))
            }
            DataType::Int64 => integers.extend_from_slice(column.as_primitive::<Int64Type>().values()),
            other => {
                return Err(QueryError::Invalid(format!(
                    "an answer is of type {other}, and should be integers"
                )));
            }
        }
    }
    integers.sort_unstable();
    Ok(integers)
}

//! The server of the study: the tables, workers on CPUs of the run, and a session for each connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Int32Type, Int64Type};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use memferry_dsa::internals::affinity;
use memferry_query::{Prefetch, QueryDomains, SessionOptions, TieredScanExec, TieredTable, session};
use tokio::runtime::{Builder, Handle, Runtime};

use super::places::cpus;
use super::places::Places;
use super::workload::Workload;
use crate::QueryError;

/// Names of the counters of a scan on domains: bytes read in memory of the domain, of its neighbours, of other sockets.
const BYTES_BY_DISTANCE: [&str; 3] = ["bytes_local", "bytes_same_socket", "bytes_remote"];

/// A server with workers as a run wants them. Dropping it ends them.
pub(super) struct Server {
    /// `None` while it is dropped.
    runtime: Option<Runtime>,
    options: SessionOptions,
    tables: [Arc<TieredTable>; 2],
    traffic: Arc<Traffic>,
}

/// Bytes that the workers of each domain have read, by distance. Relaxed: they are counts.
#[derive(Debug)]
pub(super) struct Traffic(Vec<[AtomicU64; 3]>);

impl Traffic {
    fn add(&self, plan: &dyn ExecutionPlan) {
        if plan.downcast_ref::<TieredScanExec>().is_some()
            && let Some(metrics) = plan.metrics()
        {
            for metric in metrics.iter() {
                let distance = BYTES_BY_DISTANCE.iter().position(|&name| name == metric.value().name());
                let domain = metric.labels().iter().find(|label| label.name() == "domain");
                if let (Some(distance), Some(domain)) = (distance, domain)
                    && let Some(read) = domain.value().parse().ok().and_then(|domain: usize| self.0.get(domain))
                {
                    read[distance].fetch_add(metric.value().as_usize() as u64, Ordering::Relaxed);
                }
            }
        }
        for child in plan.children() {
            self.add(child.as_ref());
        }
    }

    /// The counts so far.
    pub(super) fn bytes(&self) -> Vec<[u64; 3]> {
        self.0.iter().map(|read| read.each_ref().map(|bytes| bytes.load(Ordering::Relaxed))).collect()
    }
}

impl Server {
    /// # Errors
    /// [`QueryError::Invalid`] if the workers cannot be where the run wants them, [`QueryError::Threads`].
    pub(super) fn start(
        places: &Places,
        workload: &Workload,
        tables: &[Arc<TieredTable>; 2],
    ) -> Result<Server, QueryError> {
        let domains = places.workers(workload.workers)?;
        let traffic = Traffic((0..domains.len()).map(|_| Default::default()).collect());
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
        Ok(Server { runtime: Some(runtime), options, tables: tables.clone(), traffic: Arc::new(traffic) })
    }

    /// The runtime of its workers.
    pub(super) fn handle(&self) -> Handle {
        self.runtime.as_ref().expect("it is not being dropped").handle().clone()
    }

    /// What the workers have read.
    pub(super) fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// A session over both tables.
    ///
    /// # Errors
    /// [`QueryError::DataFusion`].
    pub(super) fn session(&self) -> Result<SessionContext, QueryError> {
        let context = session(&self.options);
        for (index, table) in self.tables.iter().enumerate() {
            context.register_table(format!("tbl_{index}"), Arc::clone(table) as _)?;
        }
        Ok(context)
    }

    /// A statement of a new session, prepared.
    ///
    /// # Errors
    /// [`QueryError::DataFusion`].
    pub(super) async fn prepare(&self, sql: &str) -> Result<Prepared, QueryError> {
        let context = self.session()?;
        let plan = context.sql(sql).await?.into_optimized_plan()?;
        Ok(Prepared { context, plan, traffic: Arc::clone(&self.traffic) })
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
    builder.worker_threads(threads_count.max(1)).thread_name(format!("sncdb {name}")).enable_all();
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
    context: SessionContext,
    plan: LogicalPlan,
    traffic: Arc<Traffic>,
}

impl Prepared {
    /// Executes it with a key for its parameter, if it has one.
    pub(super) async fn execute(&self, key: Option<i32>) -> Result<Vec<RecordBatch>, DataFusionError> {
        let plan = match key {
            Some(key) => self.plan.clone().with_param_values(vec![ScalarValue::Int32(Some(key))])?,
            None => self.plan.clone(),
        };
        let state = self.context.state();
        let plan = state.query_planner().create_physical_plan(&plan, &state).await?;
        let batches = collect(Arc::clone(&plan), self.context.task_ctx()).await?;
        self.traffic.add(plan.as_ref());
        Ok(batches)
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
            DataType::Int32 => integers.extend(column.as_primitive::<Int32Type>().values().iter().map(|&it| i64::from(it))),
            DataType::Int64 => integers.extend_from_slice(column.as_primitive::<Int64Type>().values()),
            other => return Err(QueryError::Invalid(format!("an answer is of type {other}, and should be integers"))),
        }
    }
    integers.sort_unstable();
    Ok(integers)
}

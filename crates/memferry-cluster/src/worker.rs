//! A worker: it listens at once, loads its shards, and executes tasks of queries.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow_flight::flight_service_server::FlightServiceServer;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::prelude::SessionContext;
use datafusion_distributed::{
    DistributedConfig, DistributedExt, Worker, WorkerPlanRewriteEvent, WorkerPlanRewriteEventResponse,
    WorkerQueryContext,
};
use futures::FutureExt;
use memferry_query::{MemferryOptions, SessionOptions, Tiers};
use memferry_session::yielding_joins;
use tokio::net::TcpListener;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::ahead::Budget;
use crate::catalog::ShardCatalog;
use crate::channels::{Channels, KEEP_ALIVE};
use crate::codec::ShardCodec;
use crate::contain::contained;
use crate::credentials::Security;
use crate::description::Description;
use crate::error::ClusterError;
use crate::plan_channel::PlanChannels;
use crate::scan::ShardScanExec;
use crate::service::{ShardService, WorkerState};

/// How long connections may take to end when no query runs any more.
pub(crate) const CLOSING_MAX: Duration = Duration::from_secs(2);

/// A worker that listens and has not loaded its tables yet.
#[derive(Debug)]
pub struct ClusterWorker {
    state: Arc<WorkerState>,
    security: Arc<Security>,
    listener: TcpListener,
}

impl ClusterWorker {
    /// Listens on `listen` as the worker `address` of `description`.
    ///
    /// # Errors
    /// [`NotAWorker`](ClusterError::NotAWorker), [`Listen`](ClusterError::Listen).
    pub async fn listen(
        description: Description,
        address: &str,
        listen: &str,
        options: SessionOptions,
        security: Security,
    ) -> Result<ClusterWorker, ClusterError> {
        if !description.workers.iter().any(|worker| worker == address) {
            let workers = description.workers.clone();
            return Err(ClusterError::NotAWorker { address: address.to_owned(), workers });
        }
        let listener = TcpListener::bind(listen)
            .await
            .map_err(|source| ClusterError::Listen { address: listen.to_owned(), source })?;
        let mut mark = [0; 8];
        getrandom::fill(&mut mark).map_err(|error| {
            let source = std::io::Error::other(error.to_string());
            ClusterError::Listen { address: listen.to_owned(), source }
        })?;
        let state = WorkerState {
            address: address.to_owned(),
            mark: u64::from_le_bytes(mark),
            description,
            catalog: OnceLock::new(),
            channels: Channels::new(security.credentials.clone()),
            plans: PlanChannels::default(),
            budget: Budget::default(),
            options,
        };
        Ok(ClusterWorker { state: Arc::new(state), security: Arc::new(security), listener })
    }

    /// The address on which it listens.
    ///
    /// # Errors
    /// Those of the operating system.
    pub fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Loads the tables and answers until `stop` is ready. `session` reads the files; `loaded` is called when queries can use the
    /// worker. Queries that run when `stop` is ready go on to their end.
    ///
    /// # Errors
    /// [`Certificate`](ClusterError::Certificate); those of [`ShardCatalog::load`]: the worker stops.
    pub async fn run(
        self,
        session: &SessionContext,
        tiers: &Arc<Tiers>,
        loaded: impl FnOnce(&ShardCatalog),
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ClusterError> {
        let state = Arc::clone(&self.state);
        let load = async {
            let catalog =
                ShardCatalog::load(&state.description, &state.address, session, tiers).await.map(Arc::new)?;
            loaded(&catalog);
            // Set once, here.
            let _ = state.catalog.set(catalog);
            // From here on, the service ends the worker.
            std::future::pending::<Result<(), ClusterError>>().await
        };
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE));
        if let Some(tls) = self.security.server_tls() {
            server = server.tls_config(tls).map_err(|source| ClusterError::Certificate { source })?;
        }
        let shards = FlightServiceServer::new(ShardService(Arc::clone(&self.state)))
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let [one, other] = [Arc::clone(&self.security), Arc::clone(&self.security)];
        let tasks = self.state.plans.serve(self.tasks().into_worker_server());
        let stop = stop.shared();
        let closed = closed(stop.clone(), self.state.plans.clone());
        let server = server
            .add_service(InterceptedService::new(tasks, move |request| one.check(request)))
            .add_service(InterceptedService::new(shards, move |request| other.check(request)))
            .serve_with_incoming_shutdown(TcpIncoming::from(self.listener).with_nodelay(Some(true)), stop);
        tokio::select! {
            ended = load => ended,
            ended = server => ended.map_err(|error| {
                ClusterError::Query(DataFusionError::External(Box::new(error)))
            }),
            () = closed => Ok(()),
        }
    }

    /// The part of the service that executes tasks.
    fn tasks(&self) -> Worker {
        let state = Arc::clone(&self.state);
        // Functions are the same for each task, and take longer to register than many tasks run. So is the runtime.
        let template = SessionStateBuilder::new().with_default_features().build();
        Worker::from_session_builder(move |mut context: WorkerQueryContext| {
            let (state, mut session) = (Arc::clone(&state), template.clone());
            let reads = state.plans.of(&context.headers);
            async move {
                let sources = state.sources()?.of_plan(reads);
                let mut memferry = MemferryOptions::default();
                memferry.prefetch = state.options.prefetch;
                let config = session.config_mut();
                *config = context.builder.config().take().unwrap_or_default().with_option_extension(memferry);
                config.set_extension(Arc::new(sources));
                config.set_distributed_user_codec(ShardCodec);
                config.set_distributed_channel_resolver(state.channels.for_plan());
                let receive = move |event: WorkerPlanRewriteEvent<'_>| receive(event, &state.address);
                config.set_distributed_worker_plan_rewrite_handler(receive);
                Ok::<_, DataFusionError>(session)
            }
        })
        .with_version(self.state.description.id().to_string())
    }
}

/// Waits until `stop` is ready and connections without queries have had time to end. One on which nothing is sent does not end by
/// itself, not even when it is asked to.
async fn closed(stop: impl Future<Output = ()>, plans: PlanChannels) {
    stop.await;
    let mut busy = Instant::now();
    while busy.elapsed() < CLOSING_MAX {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if plans.are_open() {
            busy = Instant::now();
        }
    }
}

/// Begins to read what the scans of a plan that has arrived at `worker` will read, if the plan announces it. Its panics are errors. Its
/// joins yield: one that works for 2 s on each thread would leave pings and questions without answer, and the worker would be lost.
fn receive(
    event: WorkerPlanRewriteEvent<'_>,
    worker: &str,
) -> Result<WorkerPlanRewriteEventResponse, DataFusionError> {
    let context = Arc::new(TaskContext::default().with_session_config(event.session_config.clone()));
    event.plan.apply(|node| {
        if let Some(scan) = node.downcast_ref::<ShardScanExec>() {
            scan.read_ahead(&context)?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    // Metrics are sent by the places of operators in the coordinator's plan.
    let is_counted = DistributedConfig::from_session_config(event.session_config)?.collect_metrics;
    let plan = if is_counted { event.plan } else { yielding_joins(event.plan)? };
    Ok(WorkerPlanRewriteEventResponse::new(contained(plan, worker)?))
}

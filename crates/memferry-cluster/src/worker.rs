//! A worker: it listens at once, loads its shards, and executes tasks of queries.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use arrow_flight::flight_service_server::FlightServiceServer;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use datafusion_distributed::{DistributedExt, Worker, WorkerQueryContext};
use memferry_query::{MemferryOptions, SessionOptions, Tiers};
use tokio::net::TcpListener;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::catalog::ShardCatalog;
use crate::channels::{Channels, KEEP_ALIVE};
use crate::codec::ShardCodec;
use crate::credentials::Security;
use crate::description::Description;
use crate::error::ClusterError;
use crate::service::{ShardService, WorkerState};

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
        let state = WorkerState {
            address: address.to_owned(),
            description,
            catalog: OnceLock::new(),
            channels: Channels::new(security.credentials.clone()),
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
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .http2_adaptive_window(Some(true));
        if let Some(tls) = self.security.server_tls() {
            server = server.tls_config(tls).map_err(|source| ClusterError::Certificate { source })?;
        }
        let shards = FlightServiceServer::new(ShardService(Arc::clone(&self.state)))
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let [one, other] = [Arc::clone(&self.security), Arc::clone(&self.security)];
        let tasks = self.tasks().into_worker_server();
        let server = server
            .add_service(InterceptedService::new(tasks, move |request| one.check(request)))
            .add_service(InterceptedService::new(shards, move |request| other.check(request)))
            .serve_with_incoming_shutdown(TcpIncoming::from(self.listener).with_nodelay(Some(true)), stop);
        tokio::select! {
            ended = load => ended,
            ended = server => ended.map_err(|error| {
                ClusterError::Query(DataFusionError::External(Box::new(error)))
            }),
        }
    }

    fn tasks(&self) -> Worker {
        let state = Arc::clone(&self.state);
        Worker::from_session_builder(move |context: WorkerQueryContext| {
            let state = Arc::clone(&state);
            async move {
                let sources = state.sources()?;
                let mut builder = context.builder;
                let mut memferry = MemferryOptions::default();
                memferry.prefetch = state.options.prefetch;
                let config = builder.config().get_or_insert_default();
                *config = std::mem::take(config).with_option_extension(memferry);
                config.set_extension(Arc::new(sources));
                config.set_distributed_user_codec(ShardCodec);
                config.set_distributed_channel_resolver(state.channels.for_plan());
                Ok::<_, DataFusionError>(builder.build())
            }
        })
        .with_version(self.state.description.id().to_string())
    }
}

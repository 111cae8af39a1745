//! The server: its ports, its threads, and its end.
//!
//! ```text
//! start ─▶ serving ─ SIGTERM ─▶ no new connections, /ready says no ─ queries end, or the grace is over ─▶ stopped
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use arrow_flight::flight_service_server::FlightServiceServer;
use memferry_query::Tiers;
use memferry_session::error::usage;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Identity, Server as Transport, ServerTlsConfig};
use tonic::{Request, Status};

use super::access::Access;
use super::connections::Connections;
use super::http;
use super::limits::Limits;
use super::log::{Level, Log};
use super::metrics::Metrics;
use super::prepared::PreparedStatements;
use super::proven::Proven;
use super::queries::Queries;
use super::service::Service;
use super::shared::Shared;
use super::tables::Tables;
use crate::worker::CLOSING_MAX;

/// Stack of a query thread: DataFusion plans nested expressions by recursion, and with 8 MiB a sum of 400 numbers overflows
/// in the development profile. Pages that are not touched take no memory.
const STACK_BYTES: usize = 64 << 20;

/// How long a client may take for the handshake of TLS.
const TLS_TIME_MAX: Duration = Duration::from_secs(10);

/// Connections at the same time: half of the file descriptors that a process has by default.
const CONNECTIONS_MAX: usize = 512;

/// The bytes with which a connection of HTTP 2 begins, which a client must send ...
const PREFACE_BYTES: usize = 24;
/// ... in this time.
const PREFACE_TIME_MAX: Duration = Duration::from_secs(10);

/// Calls of one connection at the same time. Each may hold a message of the largest size.
const STREAMS_MAX: u32 = 128;

/// A client that is not heard of for so long is asked whether it is there, ...
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// ... and is gone if it does not answer in this time: its queries are cancelled.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a server.
#[derive(Debug)]
pub struct ServerOptions {
    /// Address of the Flight SQL service; port 0 chooses one.
    pub listen: SocketAddr,
    /// Address of metrics and health, if there are any.
    pub http: Option<SocketAddr>,
    /// Certificate and key; without them, the service speaks plain text.
    pub tls: Option<TlsFiles>,
    /// Who may use the server.
    pub access: Access,
    /// Its limits.
    pub limits: Limits,
    /// Whether statements that create, change or write something are executed.
    pub updates: bool,
    /// The log.
    pub log: Log,
}

/// The contents of a certificate file and a key file, in PEM.
pub struct TlsFiles {
    /// The certificate of the server, with those of the authorities above it.
    pub certificate: Vec<u8>,
    /// The private key.
    pub key: Vec<u8>,
}

impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsFiles").finish_non_exhaustive()
    }
}

/// Threads that plan: it takes milliseconds.
const PLANNING_THREADS: usize = 2;

/// Name of the threads of queries.
const THREAD_NAME: &str = "memferry-query";

/// Whether a panic on this thread becomes an error of a query: the hook need not print it.
pub fn panics_become_errors() -> bool {
    std::thread::current().name() == Some(THREAD_NAME) || memferry_query::load::panics_become_errors()
}

/// Threads on which a server plans and runs queries. Dropped, they end when their work does.
#[derive(Debug)]
pub struct QueryThreads {
    /// `None` when dropped.
    runtimes: Option<[Runtime; 2]>,
    queries: Handle,
    planning: Handle,
}

impl QueryThreads {
    /// Starts a thread for each CPU, and two that plan.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn start() -> Result<QueryThreads> {
        let runtime = |threads_count: Option<usize>| {
            let mut builder = Builder::new_multi_thread();
            builder.thread_name(THREAD_NAME).thread_stack_size(STACK_BYTES).enable_all();
            if let Some(count) = threads_count {
                builder.worker_threads(count);
            }
            builder.build().context("cannot start the threads for queries")
        };
        let (queries, planning) = (runtime(None)?, runtime(Some(PLANNING_THREADS))?);
        let handles = (queries.handle().clone(), planning.handle().clone());
        Ok(QueryThreads { runtimes: Some([queries, planning]), queries: handles.0, planning: handles.1 })
    }

    /// The threads on which the tables of a server should be loaded.
    pub fn queries(&self) -> &Handle {
        &self.queries
    }
}

impl Drop for QueryThreads {
    fn drop(&mut self) {
        // Waiting is not allowed on a thread of another runtime.
        self.runtimes.take().into_iter().flatten().for_each(Runtime::shutdown_background);
    }
}

/// A running server. [`stop`](Server::stop) ends it; dropping it does not.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    http_address: Option<SocketAddr>,
    shared: Arc<Shared>,
    network: JoinHandle<Result<(), tonic::transport::Error>>,
    /// Metrics, and the task that forgets.
    helpers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Opens the ports and serves `tables` on the current runtime; queries run on `threads`. `tiers` are those of the metrics.
    ///
    /// # Errors
    /// An address that cannot be listened on, a certificate or key that cannot be used.
    pub async fn start(
        tables: impl Into<Tables>,
        tiers: Arc<Tiers>,
        threads: &QueryThreads,
        options: ServerOptions,
    ) -> Result<Server> {
        let ServerOptions { listen, http, tls, access, limits, updates, log } = options;
        let mut transport = Transport::builder()
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .max_concurrent_streams(STREAMS_MAX);
        let has_tls = tls.is_some();
        if let Some(TlsFiles { certificate, key }) = tls {
            let tls =
                ServerTlsConfig::new().identity(Identity::from_pem(certificate, key)).timeout(TLS_TIME_MAX);
            transport = transport.tls_config(tls).map_err(|error| {
                usage(format!(
                    "certificate and key cannot be used: {}; both must be PEM files",
                    causes(&error)
                ))
            })?;
        }
        let listener = bind(listen, "--listen").await?;
        let address = listener.local_addr().context("the port of the service is not known")?;
        let (stopping, mut stopped) = watch::channel(false);
        let message_bytes = limits.message_bytes;
        let shared = Arc::new(Shared {
            tables: Proven::new(tables.into()),
            tiers,
            access,
            updates,
            queries: Arc::new(Queries::default()),
            prepared: PreparedStatements::default(),
            places: Arc::new(Semaphore::new(limits.queries)),
            limits,
            query_threads: threads.queries.clone(),
            planning_threads: threads.planning.clone(),
            metrics: Metrics::default(),
            log,
            stopping,
        });
        let mut helpers = vec![tokio::spawn(Arc::clone(&shared).forget_idle())];
        let mut http_address = None;
        if let Some(at) = http {
            let listener = bind(at, "--http").await?;
            http_address = Some(listener.local_addr().context("the port of the metrics is not known")?);
            let shared = Arc::clone(&shared);
            helpers.push(tokio::spawn(async move {
                if let Err(error) = http::run(listener, Arc::clone(&shared)).await {
                    shared.log.event(Level::Warning, "http", json!({ "error": error.to_string() }));
                }
            }));
        }
        let service = Service::new(Arc::clone(&shared))?;
        let service = FlightServiceServer::new(service).max_decoding_message_size(message_bytes);
        let checking = Arc::clone(&shared);
        let checked = InterceptedService::new(service, move |mut request: Request<()>| {
            let user = checking.authenticate(request.metadata())?;
            request.extensions_mut().insert(user);
            Ok::<_, Status>(request)
        });
        let log = shared.log.clone();
        let incoming =
            Connections::new(listener, CONNECTIONS_MAX, PREFACE_BYTES, PREFACE_TIME_MAX, log).stream();
        let network =
            tokio::spawn(transport.add_service(checked).serve_with_incoming_shutdown(incoming, async move {
                // The sender is gone if the server is: that is an end, too.
                let _ = stopped.wait_for(|stopping| *stopping).await;
            }));
        shared.log.event(
            Level::Info,
            "start",
            json!({
                "address": address.to_string(),
                "http": http_address.map(|address| address.to_string()),
                "tls": has_tls,
                "authentication": !shared.access.is_open(),
                "updates": updates,
                "version": env!("CARGO_PKG_VERSION"),
            }),
        );
        Ok(Server { address, http_address, shared, network, helpers })
    }

    /// The address of the service.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of metrics and health.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http_address
    }

    /// Number of queries that run or wait.
    pub fn queries_count(&self) -> usize {
        self.shared.queries.count().1
    }

    /// The metrics, as the HTTP port shows them.
    pub fn metrics(&self) -> String {
        self.shared.metrics.text(self.shared.gauges(), &self.shared.tiers)
    }

    /// Refuses new connections, lets queries end within the grace of the limits, and cancels the others.
    ///
    /// # Errors
    /// The network has failed meanwhile.
    pub async fn stop(mut self) -> Result<()> {
        let started = Instant::now();
        self.shared.stopping.send_replace(true);
        self.shared.log.event(Level::Info, "stopping", json!({ "queries": self.queries_count() }));
        while self.queries_count() > 0 && started.elapsed() < self.shared.limits.grace {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let cancelled = self.queries_count();
        self.shared.places.close();
        self.shared.queries.stop_all();
        let ended = tokio::time::timeout(CLOSING_MAX, &mut self.network).await;
        if ended.is_err() {
            self.network.abort();
        }
        self.helpers.iter().for_each(JoinHandle::abort);
        let fields = json!({ "cancelled": cancelled, "seconds": started.elapsed().as_secs_f64() });
        self.shared.log.event(Level::Info, "stopped", fields);
        match ended {
            Ok(Ok(Err(error))) => Err(anyhow::anyhow!("the network failed: {}", causes(&error))),
            _ => Ok(()),
        }
    }
}

async fn bind(address: SocketAddr, option: &str) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}; choose another address or port with {option}"))
}

/// An error and its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

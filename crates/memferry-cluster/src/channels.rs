//! Connections to workers. A worker that does not answer a ping for 2 s is lost, and errors say which one it was.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightClient, Ticket};
use async_trait::async_trait;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest, GetWorkerInfoResponse,
    SetPlanRequest, WorkerChannel, WorkerToCoordinatorMsg,
};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::HeaderMap;
use prost::Message;
use tokio::sync::Notify;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use url::Url;

use crate::codec::ScanMessage;
use crate::credentials::Credentials;
use crate::error::ClusterError;
use crate::report::{ACTION, WorkerReport};
use crate::scan::ShardRead;

/// Time between pings, for the answer to a ping, and for a connection. Two of them end before a user gives up, and a busy
/// worker answers pings in milliseconds.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// Bytes of a stream on their way to its reader. At 100 Gb/s and 50 us to a machine and back, 0.6 MB are on the way. An adaptive
/// window starts with 64 KiB, less than a batch, and measures with pings.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// Bytes of all streams of a connection: more than they take, so that a stream whose reader waits stops no other one.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;

/// Largest frame: a batch has some hundreds of kilobytes, and HTTP/2 sends 16 KiB in one by default.
const FRAME_BYTES_MAX: u32 = 256 << 10;

/// Connections to workers, made when they are needed and shared by the queries of a process.
#[derive(Clone, Debug, Default)]
pub struct Channels {
    pool: Arc<Pool>,
    credentials: Arc<Credentials>,
    failures: Arc<Failures>,
}

#[derive(Debug, Default)]
struct Pool {
    channels: Mutex<HashMap<String, Channel>>,
    /// Decoded bytes of batches from other workers. Only a statistic: no ordering with anything else.
    received_bytes: AtomicU64,
}

/// Workers that one plan saw fail, in order.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    seen: Mutex<Vec<(String, String)>>,
    changed: Notify,
}

impl Failures {
    fn add(&self, worker: &str, what: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.push((worker.to_owned(), what.to_owned()));
        drop(seen);
        self.changed.notify_one();
    }

    /// The first failure, which caused the others.
    pub(crate) fn first(&self) -> Option<(String, String)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).first().cloned()
    }

    /// Waits for a failure. One that was seen before counts.
    pub(crate) async fn seen(&self) {
        self.changed.notified().await;
    }
}

impl Channels {
    /// No connections yet.
    pub fn new(credentials: Credentials) -> Channels {
        Channels { credentials: Arc::new(credentials), ..Channels::default() }
    }

    /// The same connections, with no failure seen: for a plan of its own.
    pub(crate) fn for_plan(&self) -> Channels {
        Channels { failures: Arc::default(), ..self.clone() }
    }

    pub(crate) fn failures(&self) -> &Arc<Failures> {
        &self.failures
    }

    /// Decoded bytes of batches that came from workers.
    pub fn received_bytes(&self) -> u64 {
        self.pool.received_bytes.load(Ordering::Relaxed)
    }

    /// Forgets connections to other workers than those for which `is_named` says so. Streams that use one go on.
    pub(crate) fn keep_only(&self, is_named: impl Fn(&String) -> bool) {
        let mut channels = self.pool.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.retain(|worker, _| is_named(worker));
    }

    /// Connections that are kept.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.pool.channels.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn channel(&self, worker: &str) -> Result<Channel, ClusterError> {
        let mut channels = self.pool.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(worker) {
            return Ok(channel.clone());
        }
        let scheme = if self.credentials.has_tls() { "https" } else { "http" };
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{worker}"))
            .map_err(|_| ClusterError::Address { address: worker.to_owned() })?
            .connect_timeout(KEEP_ALIVE)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        if let Some(tls) = self.credentials.tls() {
            let failed = |error: tonic::transport::Error| ClusterError::Worker {
                worker: worker.to_owned(),
                what: self.reason(&error),
            };
            endpoint = endpoint.tls_config(tls).map_err(failed)?;
        }
        // Connects when it is used, and again after a failure.
        let channel = endpoint.connect_lazy();
        channels.insert(worker.to_owned(), channel.clone());
        Ok(channel)
    }

    pub(crate) fn flight(&self, worker: &str) -> Result<FlightClient, ClusterError> {
        let client = FlightServiceClient::new(self.channel(worker)?)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        let mut client = FlightClient::new_from_inner(client);
        if let Some(token) = self.credentials.token() {
            // It was a header.
            let _ = client.add_header("authorization", token);
        }
        Ok(client)
    }

    /// The report of a worker, within `limit`; `None` if it is still the one with the mark `known`.
    pub(crate) async fn report(
        &self,
        worker: &str,
        known: Option<u64>,
        limit: Duration,
    ) -> Result<Option<WorkerReport>, ClusterError> {
        let failed = |what: String| ClusterError::Worker { worker: worker.to_owned(), what };
        let mut client = self.flight(worker)?;
        let ask = async {
            let answers = client.do_action(Action::new(ACTION, WorkerReport::ask_with(known))).await?;
            answers.try_collect::<Vec<_>>().await
        };
        let answers = match timeout(limit, ask).await {
            Ok(answers) => answers.map_err(|error| failed(self.reason(&error)))?,
            Err(_) => return Err(failed(format!("no answer within {} ms", limit.as_millis()))),
        };
        if known.is_some() && answers.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&answers.concat()).map(Some).map_err(|error| {
            failed(format!("its report cannot be read ({error}): it is of another version of memferry"))
        })
    }

    /// The rows of a shard, from a worker that holds it.
    pub(crate) async fn read_shard(
        &self,
        worker: &str,
        read: &ShardRead,
        shard: usize,
    ) -> Result<SendableRecordBatchStream> {
        let message = ScanMessage::new(read, &[vec![shard]])?;
        let mut client = self.flight(worker)?;
        let (own, worker) = (self.clone(), worker.to_owned());
        let seen = {
            let (own, worker) = (own.clone(), worker.clone());
            move |error| own.seen(&worker, flight_error(error))
        };
        let rows = client.do_get(Ticket::new(message.encode_to_vec())).await.map_err(&seen)?;
        let rows = rows.map_err(seen).inspect_ok(move |batch| own.received(batch));
        let schema = Arc::new(read.schema.project(&read.projection)?);
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    /// The reason of an error of a connection, with advice.
    pub(crate) fn reason(&self, error: &(dyn Error + 'static)) -> String {
        self.credentials.advise(reason(error))
    }

    fn received(&self, batch: &RecordBatch) {
        let size_bytes: usize = batch.columns().iter().map(size_bytes).sum();
        self.pool.received_bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
    }

    /// Names the worker in errors of its connection; other errors are those of the query.
    fn seen(&self, worker: &str, error: DataFusionError) -> DataFusionError {
        let Some(what) = connection_error(&error) else { return error };
        let what = self.credentials.advise(what);
        self.failures.add(worker, &what);
        ClusterError::Worker { worker: worker.to_owned(), what }.into()
    }
}

/// Bytes of the rows of a column: the buffers of a message are those of all its columns.
fn size_bytes(column: &ArrayRef) -> usize {
    let text_bytes = match column.data_type() {
        DataType::Utf8View => column.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => column.as_binary_view().total_buffer_bytes_used(),
        _ => 0,
    };
    // Of types without a size of a slice, the whole.
    let slice_bytes = column.to_data().get_slice_memory_size();
    text_bytes + slice_bytes.unwrap_or_else(|_| column.get_array_memory_size())
}

fn flight_error(error: arrow_flight::error::FlightError) -> DataFusionError {
    match error {
        // The text of an error that the worker reported; see `service`.
        arrow_flight::error::FlightError::Tonic(status) if status.code() == tonic::Code::Aborted => {
            DataFusionError::Execution(status.message().to_owned())
        }
        error => DataFusionError::External(Box::new(error)),
    }
}

/// The reason, if an error is of a connection: such errors are not sent by workers, so they are of types of this process.
fn connection_error(error: &DataFusionError) -> Option<String> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.is::<tonic::Status>()
            || error.is::<arrow_flight::error::FlightError>()
            || error.is::<tonic::transport::Error>()
        {
            return Some(reason(error));
        }
        next = match error.downcast_ref::<DataFusionError>() {
            Some(DataFusionError::External(inner)) => Some(inner.as_ref()),
            Some(DataFusionError::Shared(inner)) => Some(inner.as_ref()),
            Some(DataFusionError::Context(_, inner)) => Some(inner.as_ref()),
            _ => error.source(),
        };
    }
    None
}

/// The innermost text: the outer ones are "transport error" and the like.
fn reason(error: &(dyn Error + 'static)) -> String {
    let mut innermost: &(dyn Error + 'static) = error;
    loop {
        let next = match innermost.downcast_ref::<arrow_flight::error::FlightError>() {
            Some(arrow_flight::error::FlightError::Tonic(status)) => {
                let status: &(dyn Error + 'static) = status.as_ref();
                Some(status)
            }
            _ => innermost.source(),
        };
        match next {
            Some(next) => innermost = next,
            None => break,
        }
    }
    match innermost.downcast_ref::<tonic::Status>() {
        Some(status) => status.message().to_owned(),
        None => innermost.to_string(),
    }
}

/// The address in the URL of a worker.
fn address(url: &Url) -> String {
    format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default())
}

/// The URL of a worker.
pub(crate) fn url(worker: &str) -> Result<Url, ClusterError> {
    // An address without port 80, which a URL would leave out.
    format!("http://{worker}").parse().map_err(|_| ClusterError::Address { address: worker.to_owned() })
}

#[async_trait]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        let worker = address(url);
        let channel = self.credentials.authorized(self.channel(&worker)?);
        let inner = create_worker_client(BoxCloneSyncChannel::new(channel));
        Ok(Box::new(NamedChannel { inner, worker, channels: self.clone() }))
    }
}

/// A connection whose errors name the worker.
struct NamedChannel {
    inner: Box<dyn WorkerChannel>,
    worker: String,
    channels: Channels,
}

impl NamedChannel {
    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.channels.seen(&self.worker, error))
    }

    fn stream<T: 'static>(&self, stream: BoxStream<'static, Result<T>>) -> BoxStream<'static, Result<T>> {
        let (channels, worker) = (self.channels.clone(), self.worker.clone());
        stream.map_err(move |error| channels.seen(&worker, error)).boxed()
    }
}

#[async_trait]
impl WorkerChannel for NamedChannel {
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        request: SetPlanRequest,
        messages: BoxStream<'static, CoordinatorToWorkerMsg>,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        let answers = self.inner.coordinator_channel(headers, request, messages, metrics, context).await;
        self.named(answers).map(|answers| self.stream(answers))
    }

    async fn execute_task(
        &mut self,
        headers: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        let streams = self.inner.execute_task(headers, request, metrics, context).await;
        let streams = self.named(streams)?;
        let counted = |stream| {
            let channels = self.channels.clone();
            self.stream(stream).inspect_ok(move |batch| channels.received(batch)).boxed()
        };
        Ok(streams.into_iter().map(counted).collect())
    }

    async fn get_worker_info(&mut self, request: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        let answer = self.inner.get_worker_info(request).await;
        self.named(answer)
    }
}

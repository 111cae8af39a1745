//! The run of a query: within its memory, its time and its place among the others.
//!
//! ```text
//! DoGet ─▶ waits for a place ─▶ task on the query threads ─ channel of one batch ─▶ Rows ─▶ client
//!                                 holds place and memory                              │
//!                                        ▲                                            │
//!                                        └── cancelled: dropped, CancelFlightInfo, ───┘
//!                                            out of time, shutdown
//! ```
//!
//! The task holds the place until it has really stopped: a join that does not look up for a second keeps others out for
//! that second, rather than running beside them. The task stops by itself when it must, even if the client reads nothing:
//! the rows are not polled then.

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskState, Poll, ready};
use std::time::{Duration, Instant};

use datafusion::arrow::array::{Array, RecordBatch, UInt64Array};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::{FairSpillPool, MemoryPool, TrackConsumersPool};
use datafusion::logical_expr::LogicalPlan;
use futures::future::BoxFuture;
use futures::{FutureExt, Stream, StreamExt};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::{Code, Status};

use super::access::User;
use super::error;
use super::log::Level;
use super::metrics::Outcome;
use super::plain;
use super::queries::{Running, Stop};
use super::shared::Shared;
use super::statement::Planned;
use super::tables::Tables;

/// Consumers of memory that an error about memory names.
const CONSUMERS_NAMED: NonZeroUsize = NonZeroUsize::new(3).expect("3 is not 0");

/// Starts a query. Resolves when it has a place.
///
/// # Errors
/// `RESOURCE_EXHAUSTED` if none gets free in time, `CANCELLED`, `UNAVAILABLE`.
pub(super) async fn start(
    shared: &Arc<Shared>,
    planned: Planned,
    running: Running,
    user: User,
) -> Result<Rows, Status> {
    let mut report = Report::new(shared, &planned, &running, user);
    let place = match wait_for_place(shared, &running).await {
        Ok(place) => place,
        Err((outcome, status)) => {
            report.end(outcome, Some(&status));
            return Err(status);
        }
    };
    // One batch is sent while the next is computed.
    let (sender, batches) = mpsc::channel(1);
    let pool: Arc<dyn MemoryPool> = Arc::new(TrackConsumersPool::new(
        FairSpillPool::new(shared.limits.query_memory_bytes),
        CONSUMERS_NAMED,
    ));
    let time = shared.limits.query_time;
    let interruption = interruption(running.stop(), time).boxed();
    let (tables, schema) = (shared.tables.clone(), Arc::clone(&planned.schema));
    let task = {
        let _entered = shared.query_threads.enter();
        SpawnedTask::spawn(async move {
            let interruption = self::interruption(running.stop(), time);
            // Until the task has stopped, which is after it was cancelled.
            let _held = (place, running);
            tokio::select! {
                biased;
                end = interruption => Err(end),
                ended = run_all(&tables, &planned, &pool, sender) => ended.map_err(End::Failed),
            }
        })
    };
    Ok(Rows { shared: Arc::clone(shared), batches, task: Some(task), interruption, schema, report })
}

/// Why a query ended before its last row.
enum End {
    Stopped(Stop),
    Late,
    Failed(DataFusionError),
}

/// Resolves when a query must end.
async fn interruption(stop: impl Future<Output = Stop>, time: Duration) -> End {
    tokio::select! {
        biased;
        stop = stop => End::Stopped(stop),
        () = tokio::time::sleep(time) => End::Late,
    }
}

/// Waits until fewer queries run than may.
async fn wait_for_place(
    shared: &Arc<Shared>,
    running: &Running,
) -> Result<OwnedSemaphorePermit, (Outcome, Status)> {
    let place = Arc::clone(&shared.places).acquire_owned();
    tokio::select! {
        biased;
        stop = running.stop() => Err(stopped(stop)),
        place = tokio::time::timeout(shared.limits.wait, place) => match place {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_closed)) => Err(stopped(Stop::Shutdown)),
            Err(_late) => {
                Err((Outcome::Refused, error::too_many(shared.limits.queries, shared.limits.wait)))
            }
        },
    }
}

fn stopped(stop: Stop) -> (Outcome, Status) {
    match stop {
        Stop::Cancelled => (Outcome::Cancelled, error::cancelled()),
        Stop::Shutdown => (Outcome::Stopped, error::shutting_down()),
    }
}

/// Runs a statement for each row of its parameters, and sends the batches.
async fn run_all(
    tables: &Tables,
    planned: &Planned,
    pool: &Arc<dyn MemoryPool>,
    sender: mpsc::Sender<RecordBatch>,
) -> Result<(), DataFusionError> {
    for (row, plan) in planned.plans().enumerate() {
        if row > 0 {
            // Planning does not wait for anything: the query must be able to end here.
            tokio::task::yield_now().await;
        }
        run(tables, plan?, &planned.schema, pool, &sender).await?;
    }
    Ok(())
}

/// Runs one plan, and sends its batches.
async fn run(
    tables: &Tables,
    plan: LogicalPlan,
    schema: &SchemaRef,
    pool: &Arc<dyn MemoryPool>,
    sender: &mpsc::Sender<RecordBatch>,
) -> Result<(), DataFusionError> {
    let mut rows = tables.run(plan, pool).await?;
    while let Some(batch) = rows.next().await {
        let batch = plain::batch(&batch?, schema)?;
        if sender.send(batch).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// The batches of a running query. Dropping it cancels the query, its reads and its copies.
pub(super) struct Rows {
    shared: Arc<Shared>,
    batches: mpsc::Receiver<RecordBatch>,
    /// `None` when it has ended.
    task: Option<SpawnedTask<Result<(), End>>>,
    interruption: BoxFuture<'static, End>,
    schema: SchemaRef,
    report: Report,
}

impl Rows {
    pub(super) fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Runs an update to its end. Returns the rows that it has written, or -1 if it does not say.
    pub(super) async fn count(mut self) -> Result<i64, Status> {
        let mut count = -1_i64;
        while let Some(batch) = self.next().await {
            // DataFusion answers writes with one column of this name.
            if let Some(column) = batch?.column_by_name("count")
                && let Some(numbers) = column.as_any().downcast_ref::<UInt64Array>()
            {
                let sum = (0..numbers.len()).map(|row| numbers.value(row)).sum::<u64>();
                count = count.max(0).saturating_add(i64::try_from(sum).unwrap_or(i64::MAX));
            }
        }
        Ok(count)
    }

    fn end(&mut self, end: End) -> Poll<Option<Result<RecordBatch, Status>>> {
        let limits = &self.shared.limits;
        let (outcome, status) = match end {
            End::Stopped(stop) => stopped(stop),
            End::Late => (Outcome::Time, error::out_of_time(limits.query_time)),
            End::Failed(error) => {
                let is_memory = matches!(error.find_root(), DataFusionError::ResourcesExhausted(_));
                let outcome = if is_memory { Outcome::Memory } else { Outcome::Failed };
                (outcome, error::of_query(error, limits.query_memory_bytes))
            }
        };
        self.end_with(outcome, status)
    }

    fn end_with(&mut self, outcome: Outcome, status: Status) -> Poll<Option<Result<RecordBatch, Status>>> {
        self.report.end(outcome, Some(&status));
        // Cancels what still runs.
        self.task = None;
        self.batches.close();
        Poll::Ready(Some(Err(status)))
    }
}

impl Stream for Rows {
    type Item = Result<RecordBatch, Status>;

    fn poll_next(mut self: Pin<&mut Self>, state: &mut TaskState<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.task.is_none() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(end) = this.interruption.poll_unpin(state) {
            return this.end(end);
        }
        if let Some(batch) = ready!(this.batches.poll_recv(state)) {
            this.report.batch(&batch);
            return Poll::Ready(Some(Ok(batch)));
        }
        let Some(task) = &mut this.task else { return Poll::Ready(None) };
        let ended = ready!(task.poll_unpin(state));
        this.task = None;
        match ended {
            Ok(Ok(())) => {
                this.report.end(Outcome::Done, None);
                Poll::Ready(None)
            }
            Ok(Err(end)) => this.end(end),
            Err(end) => this.end_with(Outcome::Failed, error::of_end(end)),
        }
    }
}

/// The line of the log about a query, and its part in the metrics; written once, at the latest when dropped.
struct Report {
    shared: Arc<Shared>,
    id: String,
    user: User,
    text: Arc<str>,
    started: Instant,
    first: Option<Duration>,
    rows_count: usize,
    bytes: usize,
    is_written: bool,
}

impl Report {
    fn new(shared: &Arc<Shared>, planned: &Planned, running: &Running, user: User) -> Report {
        Report {
            shared: Arc::clone(shared),
            id: running.id().to_string(),
            user,
            text: Arc::clone(planned.text()),
            started: Instant::now(),
            first: None,
            rows_count: 0,
            bytes: 0,
            is_written: false,
        }
    }

    fn batch(&mut self, batch: &RecordBatch) {
        let bytes = batch.get_array_memory_size();
        self.rows_count += batch.num_rows();
        self.bytes += bytes;
        self.shared.metrics.sent(batch.num_rows(), bytes);
        if self.first.is_none() {
            let elapsed = self.started.elapsed();
            self.shared.metrics.first_batch(elapsed);
            self.first = Some(elapsed);
        }
    }

    fn end(&mut self, outcome: Outcome, status: Option<&Status>) {
        if std::mem::replace(&mut self.is_written, true) {
            return;
        }
        let elapsed = self.started.elapsed();
        self.shared.metrics.ended(outcome, elapsed);
        let mut fields = json!({
            "query": self.id,
            "user": &*self.user.0,
            "outcome": outcome.name(),
            "seconds": elapsed.as_secs_f64(),
            "first_batch_seconds": self.first.map(|time| time.as_secs_f64()),
            "rows": self.rows_count,
            "bytes": self.bytes,
        });
        if let Some(status) = status {
            fields["error"] = status.message().into();
        }
        if self.shared.log.has_statements() {
            fields["statement"] = (&*self.text).into();
        }
        let is_fault = status.is_some_and(|it| matches!(it.code(), Code::Internal | Code::DataLoss));
        let level = if is_fault { Level::Warning } else { Level::Info };
        self.shared.log.event(level, "query", fields);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.end(Outcome::Disconnected, None);
    }
}

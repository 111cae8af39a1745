//! A query on the workers of the server, from its first rows to its last. It ends early if its client is gone or cancels it.

use std::any::Any;
use std::future::{Future, pending};
use std::io;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::DataFusionError;
use datafusion::scalar::ScalarValue;
use futures::channel::oneshot;
use futures::future::{BoxFuture, Shared};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, stream};
use pgwire::api::portal::Format;
use pgwire::api::results::{FieldInfo, QueryResponse, Response, Tag};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::data::DataRow;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::super::server::Prepared;
use super::statement::{explain, user_error};
use super::values::{fields_of, rows_of};

/// Rows as they are sent.
pub(super) type Rows = BoxStream<'static, PgWireResult<DataRow>>;

type Batches = BoxStream<'static, Result<RecordBatch, DataFusionError>>;

/// Runs `work` on the threads of `workers`. Dropping the future cancels the work, which ends when it yields.
///
/// # Errors
/// Those of the work; a panic is one too.
pub(super) async fn on<T: Send + 'static>(
    workers: &Handle,
    work: impl Future<Output = PgWireResult<T>> + Send + 'static,
) -> PgWireResult<T> {
    let mut task = JoinSet::new();
    task.spawn_on(work, workers);
    match task.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) if error.is_panic() => {
            let text = text_of(error.into_panic().as_ref());
            Err(user_error("XX000", format!("the query has panicked: {text}; please report this")))
        }
        // The server is being dropped.
        Some(Err(_)) | None => Err(PgWireError::QueryCanceled),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned())
}

/// A query whose first rows are there.
pub(super) struct Begun {
    workers: Handle,
    schema: SchemaRef,
    first: Option<RecordBatch>,
    rest: Batches,
}

impl Begun {
    /// Begins a query on the workers, and waits for its first rows.
    ///
    /// # Errors
    /// Those of the query.
    pub(super) async fn begin(
        workers: &Handle,
        prepared: Prepared,
        values: Vec<ScalarValue>,
    ) -> PgWireResult<Begun> {
        let begin = async move {
            let running = prepared.start(values).await.map_err(explain)?;
            let schema = running.schema();
            let mut rest = running.batches().boxed();
            let first = rest.next().await.transpose().map_err(explain)?;
            Ok((schema, first, rest))
        };
        let (schema, first, rest) = on(workers, begin).await?;
        Ok(Begun { workers: workers.clone(), schema, first, rest })
    }

    /// Its answer, whose rows end with an error if `stop` completes.
    ///
    /// # Errors
    /// The client wants another number of formats than the answer has columns.
    pub(super) fn response(self, format: &Format, stop: &Stop) -> PgWireResult<Response> {
        if self.schema.fields().is_empty() {
            return Ok(Response::Execution(Tag::new("OK")));
        }
        let (fields, rows) = self.rows(format, stop)?;
        Ok(Response::Query(QueryResponse::new(fields, rows)))
    }

    /// Its columns and rows; the latter end with an error if `stop` completes.
    ///
    /// # Errors
    /// The client wants another number of formats than the answer has columns.
    pub(super) fn rows(self, format: &Format, stop: &Stop) -> PgWireResult<(Arc<Vec<FieldInfo>>, Rows)> {
        let Begun { workers, schema, first, rest } = self;
        let fields = fields_of(&schema, format)?;
        let of_rows = Arc::clone(&fields);
        let rest =
            stream::try_unfold((workers, rest, stop.clone()), |(workers, mut rest, stop)| async move {
                let next =
                    async move { Ok(rest.next().await.transpose().map_err(explain)?.map(|it| (it, rest))) };
                let next = tokio::select! {
                    next = on(&workers, next) => next?,
                    () = stop.completed() => return Err(PgWireError::QueryCanceled),
                };
                Ok(next.map(|(batch, rest)| (batch, (workers, rest, stop))))
            });
        let rows = stream::iter(first.map(Ok)).chain(rest).flat_map(move |batch| {
            stream::iter(match batch.and_then(|batch| rows_of(&batch, &of_rows)) {
                Ok(rows) => rows.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            })
        });
        Ok((fields, rows.boxed()))
    }
}

/// Completes when a query should end: its client is gone, or has cancelled it.
#[derive(Clone)]
pub(super) struct Stop(Shared<BoxFuture<'static, ()>>);

impl Stop {
    pub(super) fn when(socket: Arc<TcpStream>, cancelled: Option<oneshot::Receiver<()>>) -> Stop {
        let cancelled = async move {
            let is_cancelled = match cancelled {
                Some(cancelled) => cancelled.await.is_ok(),
                None => false,
            };
            if !is_cancelled {
                // Nobody can cancel it any more.
                pending::<()>().await;
            }
        };
        let either = async move {
            tokio::select! {
                () = gone(socket) => {}
                () = cancelled => {}
            }
        };
        Stop(either.boxed().shared())
    }

    pub(super) fn completed(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.clone()
    }
}

/// Completes when the client has closed its connection.
pub(super) async fn gone(socket: Arc<TcpStream>) {
    loop {
        match socket.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => {}
            _ => return,
        }
        // Bytes of its next message: it is there. They are left to pgwire; an answer that they are not there makes the next
        // call wait for the next event.
        let _ = socket.try_io(Interest::READABLE, || io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
    }
}

//! One of many clients, and the answers that it should get.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use arrow_flight::error::FlightError;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::{CancelFlightInfoRequest, FlightClient, FlightInfo, Ticket};
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::util::pretty::pretty_format_batches;
use futures::{StreamExt, TryStreamExt};
use memferry_bench::harness::Random;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::server::ServerProcess;

/// Queries whose rows have one order and exact values: scans with and without late columns, groups, joins, sorts.
const QUERIES: [&str; 8] = [
    "select 1 as one",
    "select count(*) as n from lineitem where l_quantity < 24",
    "select l_returnflag, sum(l_extendedprice * (1 - l_discount)) as sum, count(*) as n from lineitem group by 1 order by 1",
    "select o_orderpriority, count(*) as n from orders join lineitem on o_orderkey = l_orderkey where l_tax > 0.05 group by 1 \
     order by 1",
    "select l_orderkey, l_linenumber, l_comment from lineitem where l_quantity < 3 order by 1, 2 limit 500",
    "select n_name, count(*) as n from nation join customer on n_nationkey = c_nationkey group by 1 order by 1",
    "select p_brand, max(p_retailprice) as most from part where p_size < 20 group by 1 order by 1",
    "select c_name, o_orderkey from customer join orders on c_custkey = o_custkey where o_totalprice > 300000 order by 1, 2",
];

/// A query of many rows, long enough to be cancelled on its way.
const LONG: &str = "select a.l_orderkey, a.l_comment, b.o_comment from lineitem a join orders b on a.l_quantity > b.o_custkey \
                    where a.l_extendedprice > 1000";

/// The query of prepared statements.
const PREPARED: &str = "select count(*) as n from orders where o_orderkey < ?";

/// The answers to [`QUERIES`] on a server without other clients.
#[derive(Debug, PartialEq)]
pub(super) struct Expected(Vec<String>);

impl Expected {
    pub(super) async fn of(server: &ServerProcess) -> Result<Expected> {
        let mut client = connect(&server.endpoint()).await.map_err(|status| anyhow!("{status}"))?;
        let mut answers = Vec::new();
        for sql in QUERIES {
            let rows = query(&mut client, sql).await;
            answers.push(text(
                &rows.map_err(|status| anyhow!("{status}")).context("the server does not answer")?,
            ));
        }
        Ok(Expected(answers))
    }
}

/// What one client or all of them have counted.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Times of right answers.
    pub(super) seconds: Vec<f64>,
    pub(super) wrong_answers: u64,
    pub(super) cancelled: u64,
    pub(super) dropped: u64,
    pub(super) disconnected: u64,
    pub(super) prepared: u64,
    pub(super) refused: u64,
    pub(super) too_many: u64,
    pub(super) unexpected_errors: u64,
    pub(super) first_unexpected: Option<String>,
}

impl Counts {
    pub(super) fn add(&mut self, other: Counts) {
        self.seconds.extend(other.seconds);
        self.wrong_answers += other.wrong_answers;
        self.cancelled += other.cancelled;
        self.dropped += other.dropped;
        self.disconnected += other.disconnected;
        self.prepared += other.prepared;
        self.refused += other.refused;
        self.too_many += other.too_many;
        self.unexpected_errors += other.unexpected_errors;
        self.first_unexpected = self.first_unexpected.take().or(other.first_unexpected);
    }
}

/// A client that does one thing after the other, by chance.
pub(super) struct Client {
    endpoint: Endpoint,
    random: Random,
    expected: Arc<Expected>,
    counts: Counts,
}

impl Client {
    pub(super) fn new(endpoint: Endpoint, random: Random, expected: Arc<Expected>) -> Client {
        Client { endpoint, random, expected, counts: Counts::default() }
    }

    /// Goes on until `end`.
    pub(super) async fn run(mut self, end: Instant) -> Counts {
        while Instant::now() < end {
            if let Err(status) = self.session(end).await {
                self.error(&status);
            }
        }
        self.counts
    }

    fn error(&mut self, status: &Status) {
        match status.code() {
            Code::ResourceExhausted if status.message().contains("queries are running") => {
                self.counts.too_many += 1
            }
            _ => {
                self.counts.unexpected_errors += 1;
                self.counts.first_unexpected.get_or_insert_with(|| status.to_string());
            }
        }
    }

    /// One connection, until it is lost by chance.
    async fn session(&mut self, end: Instant) -> Result<(), Status> {
        let mut client = connect(&self.endpoint).await?;
        while Instant::now() < end {
            match self.random.below(100) {
                0..60 => self.answered(&mut client).await?,
                60..70 => self.cancelled(&mut client).await?,
                70..80 => self.dropped(&mut client).await?,
                80..90 => self.prepared(&mut client).await?,
                90..95 => self.nonsense(&mut client).await?,
                _ => {
                    let long = long_rows(&mut client).await?;
                    // The connection is closed while the query runs.
                    drop((client, long));
                    self.counts.disconnected += 1;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    async fn answered(&mut self, client: &mut FlightSqlServiceClient<Channel>) -> Result<(), Status> {
        let number = self.random.below(QUERIES.len());
        let started = Instant::now();
        let rows = query(client, QUERIES[number]).await?;
        let elapsed = started.elapsed();
        match text(&rows) == self.expected.0[number] {
            true => self.counts.seconds.push(elapsed.as_secs_f64()),
            false => self.counts.wrong_answers += 1,
        }
        Ok(())
    }

    /// Cancels a query at a random moment: before it is fetched, while it waits, or while it runs.
    async fn cancelled(&mut self, client: &mut FlightSqlServiceClient<Channel>) -> Result<(), Status> {
        let info = client.execute(LONG.to_owned(), None).await.map_err(to_status)?;
        let mut canceller = FlightClient::new_from_inner(client.inner().clone());
        let pause = Duration::from_micros(self.random.below(50_000) as u64);
        let cancelling = async {
            tokio::time::sleep(pause).await;
            canceller.cancel_flight_info(CancelFlightInfoRequest::new(info.clone())).await.map_err(to_status)
        };
        let fetching = async {
            let mut rows = client.do_get(ticket(&info)?).await.map_err(to_status)?;
            while let Some(batch) = rows.next().await {
                batch.map_err(to_status)?;
            }
            Ok::<(), Status>(())
        };
        let (fetched, cancelled) = futures::join!(fetching, cancelling);
        for outcome in [fetched, cancelled.map(drop)] {
            match outcome {
                // Not found: it was cancelled before, or has ended.
                Err(status) if !matches!(status.code(), Code::Cancelled | Code::NotFound) => {
                    return Err(status);
                }
                _ => {}
            }
        }
        self.counts.cancelled += 1;
        Ok(())
    }

    /// Takes a few batches, and no more.
    async fn dropped(&mut self, client: &mut FlightSqlServiceClient<Channel>) -> Result<(), Status> {
        let mut rows = long_rows(client).await?;
        for _ in 0..self.random.below(4) {
            if let Some(batch) = rows.next().await {
                batch.map_err(to_status)?;
            }
        }
        self.counts.dropped += 1;
        Ok(())
    }

    async fn prepared(&mut self, client: &mut FlightSqlServiceClient<Channel>) -> Result<(), Status> {
        let mut statement = client.prepare(PREPARED.to_owned(), None).await.map_err(to_status)?;
        let most = self.random.below(1000) as i64;
        let column: ArrayRef = Arc::new(Int64Array::from(vec![most]));
        let parameters = RecordBatch::try_from_iter([("most", column)]);
        let parameters = parameters.map_err(|error| Status::internal(error.to_string()))?;
        statement.set_parameters(parameters).map_err(to_status)?;
        let info = statement.execute().await.map_err(to_status)?;
        let rows: Vec<RecordBatch> =
            client.do_get(ticket(&info)?).await.map_err(to_status)?.try_collect().await.map_err(to_status)?;
        let count = rows.first().and_then(|batch| batch.column(0).as_any().downcast_ref::<Int64Array>());
        // The keys of TPC-H: the first eight of each 32.
        let expected = (1..most).filter(|key| key % 32 < 8).count() as i64;
        match count.map(|column| column.value(0)) == Some(expected) {
            true => self.counts.prepared += 1,
            false => self.counts.wrong_answers += 1,
        }
        // Some are left to be forgotten by the server.
        if self.random.below(4) > 0 {
            statement.close().await.map_err(to_status)?;
        }
        Ok(())
    }

    /// Requests that must be refused.
    async fn nonsense(&mut self, client: &mut FlightSqlServiceClient<Channel>) -> Result<(), Status> {
        let outcome = match self.random.below(4) {
            0 => query(client, "selec 1").await.map(drop),
            1 => query(client, "create table nonsense as select 1").await.map(drop),
            2 => client.do_get(Ticket::new(vec![0xff; 40])).await.map(drop).map_err(to_status),
            _ => query(client, &format!("select '{}'", "x".repeat(5 << 20))).await.map(drop),
        };
        match outcome.map_err(|status| status.code()) {
            Err(Code::InvalidArgument | Code::PermissionDenied | Code::OutOfRange) => {
                self.counts.refused += 1;
                Ok(())
            }
            other => Err(Status::internal(format!("nonsense was answered with {other:?}"))),
        }
    }
}

async fn connect(endpoint: &Endpoint) -> Result<FlightSqlServiceClient<Channel>, Status> {
    let channel = endpoint.connect().await.map_err(|error| Status::unavailable(format!("{error:?}")))?;
    Ok(FlightSqlServiceClient::new(channel))
}

async fn query(client: &mut FlightSqlServiceClient<Channel>, sql: &str) -> Result<Vec<RecordBatch>, Status> {
    let info = client.execute(sql.to_owned(), None).await.map_err(to_status)?;
    let rows = client.do_get(ticket(&info)?).await.map_err(to_status)?;
    rows.try_collect().await.map_err(to_status)
}

async fn long_rows(
    client: &mut FlightSqlServiceClient<Channel>,
) -> Result<arrow_flight::decode::FlightRecordBatchStream, Status> {
    let info = client.execute(LONG.to_owned(), None).await.map_err(to_status)?;
    client.do_get(ticket(&info)?).await.map_err(to_status)
}

fn ticket(info: &FlightInfo) -> Result<Ticket, Status> {
    let ticket = info.endpoint.first().and_then(|endpoint| endpoint.ticket.clone());
    ticket.ok_or_else(|| Status::internal("the answer has no ticket"))
}

fn to_status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        error => Status::internal(error.to_string()),
    }
}

fn text(rows: &[RecordBatch]) -> String {
    pretty_format_batches(rows).map_or_else(|error| error.to_string(), |text| text.to_string())
}

//! A server with tables, and clients of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_flight::error::FlightError;
use arrow_flight::sql::client::FlightSqlServiceClient;
use arrow_flight::{FlightInfo, Ticket};
use clap::Parser;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use memferry_cluster::serve::{Access, Limits, Log, QueryThreads, Server, ServerOptions};
use memferry_query::Tiers;
use memferry_session::{Opened, SessionArguments, load_tables};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub(super) type Client = FlightSqlServiceClient<Channel>;

/// A query that would run for many minutes, without a row. Each batch of its join takes milliseconds.
pub(super) const ENDLESS: &str = "select count(*) from t a, t b, (select v from t where v < 500) c \
    where a.v + b.v + c.v < 0 and a.v * b.v < c.v - 1000000";

/// A query that would send rows for hours.
pub(super) const ENDLESS_ROWS: &str = "select a.v, b.name from t a, t b where a.v + b.v >= 0";

/// Rows of the table `t`.
pub(super) const ROWS: usize = 20_000;

#[derive(Parser)]
struct Given {
    #[command(flatten)]
    session: SessionArguments,
}

/// A server over the table `t` of a file, with `v` from 0 and `name`, and the TPC-H tables in memory.
pub(super) struct Fixture {
    pub(super) server: Server,
    /// Of the server; tests may add tables.
    pub(super) context: SessionContext,
    tiers: Arc<Tiers>,
    pub(super) directory: TempDir,
    pub(super) threads: QueryThreads,
}

impl Fixture {
    pub(super) async fn start() -> Fixture {
        Fixture::with(|_| ()).await
    }

    pub(super) async fn with(change: impl FnOnce(&mut ServerOptions)) -> Fixture {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("t.parquet");
        write_table(&file, ROWS).await;
        let table = format!("t={}", file.display());
        // Copies are made even if they do not pay.
        let given = ["", "--table", &table, "--tpch", "0.01", "--prefetch", "always", "--budget", "64MiB"];
        let given = Given::parse_from(given).session;
        let opened = memferry_session::open(&given, || Box::new(())).unwrap();
        Opened::register(opened.context.clone(), given.tables.clone()).await.unwrap();
        load_tables(&given, false, &opened).await.unwrap();
        let mut options = ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            http: Some("127.0.0.1:0".parse().unwrap()),
            tls: None,
            access: Access::open(),
            limits: Limits { grace: Duration::from_millis(200), ..Limits::default() },
            updates: false,
            log: Log::none(),
        };
        change(&mut options);
        let threads = QueryThreads::start().unwrap();
        let context = opened.context.clone();
        let tiers = opened.tiers.tiers.clone();
        let server = Server::start(&context, tiers.clone(), &threads, options).await.unwrap();
        Fixture { server, context, tiers, directory, threads }
    }

    /// Another server over the same tables.
    pub(super) async fn another(&self, options: ServerOptions) -> anyhow::Result<Server> {
        Server::start(&self.context, self.tiers.clone(), &self.threads, options).await
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn endpoint(&self, scheme: &str) -> Endpoint {
        Endpoint::from_shared(format!("{scheme}://{}", self.server.address())).unwrap()
    }

    pub(super) async fn client(&self) -> Client {
        FlightSqlServiceClient::new(self.endpoint("http").connect().await.unwrap())
    }

    /// A metric of the server.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let text = self.server.metrics();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no metric {name} in\n{text}")).parse().unwrap()
    }

    /// Waits until nothing runs and no copy is in flight.
    pub(super) async fn idle(&self) {
        self.until("no query runs", || {
            self.metric("memferry_serve_queries_running") == 0.0
                && self.server.queries_count() == 0
                && self.metric("memferry_copies_in_flight") == 0.0
        })
        .await;
    }

    /// Waits until a query sends nothing more, because its client does not read.
    pub(super) async fn waits_for_client(&self) {
        let mut sent = -1.0;
        while sent != self.metric("memferry_serve_rows_total") {
            sent = self.metric("memferry_serve_rows_total");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    pub(super) async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < Duration::from_secs(20), "not so: {what}\n{}", self.server.metrics());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The server answers a new client.
    pub(super) async fn answers(&self) {
        let rows =
            query(&mut self.client().await, "select count(*) as n from lineitem where l_quantity < 24").await;
        assert_eq!(rows.unwrap()[0].num_rows(), 1);
        self.idle().await;
    }
}

/// Writes a file with so many rows.
pub(super) async fn write_table(file: &std::path::Path, rows: usize) {
    let context = SessionContext::new();
    let text = format!(
        "copy (select value as v, 'name ' || (value % 7) as name from generate_series(0, {})) to '{}' stored as parquet",
        rows - 1,
        file.display()
    );
    context.sql(&text).await.unwrap().collect().await.unwrap();
}

/// Runs a query and collects its rows.
pub(super) async fn query(client: &mut Client, sql: &str) -> Result<Vec<RecordBatch>, Status> {
    let info = client.execute(sql.to_owned(), None).await.map_err(to_status)?;
    fetch(client, &info).await
}

/// Collects the rows of an answer of GetFlightInfo.
pub(super) async fn fetch(client: &mut Client, info: &FlightInfo) -> Result<Vec<RecordBatch>, Status> {
    let rows = client.do_get(ticket(info)).await.map_err(to_status)?;
    rows.try_collect().await.map_err(to_status)
}

pub(super) fn ticket(info: &FlightInfo) -> Ticket {
    info.endpoint[0].ticket.clone().unwrap()
}

pub(super) fn to_status(error: FlightError) -> Status {
    match error {
        FlightError::Tonic(status) => *status,
        error => Status::new(Code::Unknown, error.to_string()),
    }
}

/// Rows as text.
pub(super) fn text(rows: &[RecordBatch]) -> String {
    pretty_format_batches(rows).unwrap().to_string()
}

/// The answer to a request of HTTP 1.1.
pub(super) async fn http_get(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

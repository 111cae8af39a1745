//! Queries beyond their memory, their time and their number, and messages beyond their size.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_flight::Action;
use async_trait::async_trait;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::error::DataFusionError;
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use super::fixture::{ENDLESS, ENDLESS_ROWS, Fixture, query, ticket, to_status};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_beyond_its_memory_fails_and_the_others_go_on() {
    let fixture = Fixture::with(|options| options.limits.query_memory_bytes = 256 << 10).await;
    let mut client = fixture.client().await;
    let other = "select a.n_nationkey, b.n_name from nation a, nation b".to_owned();
    let other = client.execute(other, None).await.unwrap();
    let mut rows = client.do_get(ticket(&other)).await.unwrap();
    let sql = "select count(*) as n from t a join t b on a.v = b.v + 1 and a.name < b.name";
    let error = query(&mut fixture.client().await, sql).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("262144 bytes of memory (--memory)"), "{error}");
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"memory\"}"), 1.0);
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    while let Some(batch) = rows.next().await {
        batch.unwrap();
    }
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_beyond_its_time_is_stopped() {
    let fixture = Fixture::with(|options| options.limits.query_time = Duration::from_secs(2)).await;
    let mut client = fixture.client().await;
    for sql in [ENDLESS, ENDLESS_ROWS] {
        let error = query(&mut client, sql).await.unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
        assert!(error.message().contains("longer than the 2 s"), "{error}");
    }
    fixture.idle().await;
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"time\"}"), 2.0);
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_whose_client_reads_no_more_is_stopped() {
    let fixture = Fixture::with(|options| {
        options.limits.query_time = Duration::from_secs(4);
        options.limits.queries = 1;
        options.limits.wait = Duration::from_secs(20);
    })
    .await;
    let mut client = fixture.client().await;
    let info = client.execute(ENDLESS_ROWS.to_owned(), None).await.unwrap();
    let mut rows = client.do_get(ticket(&info)).await.unwrap();
    rows.next().await.unwrap().unwrap();
    // It gets the place.
    query(&mut fixture.client().await, "select 1 as n").await.unwrap();
    let error = loop {
        if let Err(error) = rows.next().await.unwrap() {
            break to_status(error);
        }
    };
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"time\"}"), 1.0);
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_parameters_are_planned_one_by_one() {
    let fixture = Fixture::with(|options| options.limits.query_time = Duration::from_secs(5)).await;
    let mut client = fixture.client().await;
    let columns = (0..5000).map(|it| format!(", {it} as c{it}")).collect::<String>();
    let mut statement = client.prepare(format!("select ? as p{columns}"), None).await.unwrap();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    statement.set_parameters(RecordBatch::try_from_iter([("p", numbers)]).unwrap()).unwrap();
    let started = Instant::now();
    let info = statement.execute().await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "all rows were planned at once");
    let mut rows = client.do_get(ticket(&info)).await.unwrap();
    assert_eq!(rows.next().await.unwrap().unwrap().num_rows(), 1);
    drop(rows);
    fixture.answers().await;
}

/// A schema whose tables are never found.
#[derive(Debug)]
struct Stuck;

#[async_trait]
impl SchemaProvider for Stuck {
    fn table_names(&self) -> Vec<String> {
        vec![]
    }

    async fn table(&self, _: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        std::future::pending().await
    }

    fn table_exist(&self, _: &str) -> bool {
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planning_beyond_the_time_of_a_query_is_stopped() {
    let fixture = Fixture::with(|options| options.limits.query_time = Duration::from_secs(2)).await;
    let catalog = fixture.context.catalog("datafusion").unwrap();
    catalog.register_schema("stuck", Arc::new(Stuck)).unwrap();
    let mut client = fixture.client().await;
    let planned = query(&mut client, "select * from stuck.t");
    let planned =
        tokio::time::timeout(Duration::from_secs(20), planned).await.expect("it is planned on and on");
    let error = planned.unwrap_err();
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_beyond_the_limit_wait_and_are_refused() {
    let fixture = Fixture::with(|options| {
        options.limits.queries = 2;
        // A query that is dropped below ends within it.
        options.limits.wait = Duration::from_secs(5);
    })
    .await;
    let mut client = fixture.client().await;
    let mut running = Vec::new();
    for _ in 0..2 {
        let info = client.execute(ENDLESS_ROWS.to_owned(), None).await.unwrap();
        let mut rows = client.do_get(ticket(&info)).await.unwrap();
        rows.next().await.unwrap().unwrap();
        running.push(rows);
    }
    let error = query(&mut client, "select 1 as n").await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("2 queries are running"), "{error}");
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"refused\"}"), 1.0);
    // One that waits gets the place of one that ends.
    let mut waiting = fixture.client().await;
    let answer = tokio::spawn(async move { query(&mut waiting, "select 1 as n").await });
    fixture.until("it waits", || fixture.metric("memferry_serve_queries_waiting") == 1.0).await;
    running.pop();
    answer.await.unwrap().unwrap();
    drop(running);
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_beyond_its_size_is_refused() {
    let fixture = Fixture::with(|options| options.limits.message_bytes = 64 << 10).await;
    let mut client = fixture.client().await;
    let sql = format!("select '{}' as n", "x".repeat(128 << 10));
    let error = query(&mut client, &sql).await.unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    query(&mut client, &format!("select '{}' as n", "x".repeat(32 << 10))).await.unwrap();
    let action = Action::new("CancelFlightInfo", vec![0_u8; 128 << 10]);
    let error = to_status(client.do_action(action).await.unwrap_err());
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_say_nothing_are_closed() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let mut silent = Vec::new();
    for address in [fixture.server.address(), fixture.server.http_address().unwrap()] {
        for bytes in ["", "PRI * HTTP"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(bytes.as_bytes()).await.unwrap();
            silent.push(stream);
        }
    }
    for mut stream in silent {
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        // With an error if the server has not read all.
        let _ = closed.expect("it was not closed");
    }
    // One that says something may be silent afterwards.
    query(&mut client, "select 1 as n").await.unwrap();
}

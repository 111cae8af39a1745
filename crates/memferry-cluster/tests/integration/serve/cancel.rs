//! Queries that are cancelled, or whose client goes away.

use std::time::Duration;

use arrow_flight::{CancelFlightInfoRequest, CancelStatus, FlightClient, FlightInfo};
use futures::StreamExt;
use tonic::Code;

use super::fixture::{ENDLESS, ENDLESS_ROWS, Fixture, fetch, ticket, to_status};

async fn cancel(fixture: &Fixture, info: FlightInfo) -> Result<CancelStatus, tonic::Status> {
    let mut client = FlightClient::new(fixture.endpoint("http").connect().await.unwrap());
    let request = CancelFlightInfoRequest::new(info);
    let result = client.cancel_flight_info(request).await.map_err(to_status)?;
    Ok(CancelStatus::try_from(result.status).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_query_is_cancelled() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let info = client.execute(ENDLESS.to_owned(), None).await.unwrap();
    let (running, mut fetching) = (info.clone(), fixture.client().await);
    let fetched = tokio::spawn(async move { fetch(&mut fetching, &running).await });
    fixture.until("it runs", || fixture.metric("memferry_serve_queries_running") == 1.0).await;
    assert_eq!(cancel(&fixture, info.clone()).await.unwrap(), CancelStatus::Cancelling);
    let error = tokio::time::timeout(Duration::from_secs(10), fetched).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Cancelled);
    fixture.idle().await;
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"cancelled\"}"), 1.0);
    assert_eq!(cancel(&fixture, info).await.unwrap_err().code(), Code::NotFound);
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_whose_client_reads_no_more_is_cancelled() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let info = client.execute(ENDLESS_ROWS.to_owned(), None).await.unwrap();
    let mut rows = client.do_get(ticket(&info)).await.unwrap();
    rows.next().await.unwrap().unwrap();
    fixture.waits_for_client().await;
    assert_eq!(cancel(&fixture, info).await.unwrap(), CancelStatus::Cancelling);
    fixture.idle().await;
    let error = loop {
        if let Err(error) = rows.next().await.unwrap() {
            break to_status(error);
        }
    };
    assert_eq!(error.code(), Code::Cancelled);
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"cancelled\"}"), 1.0);
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_query_is_cancelled() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let info = client.execute("select 1 as n".to_owned(), None).await.unwrap();
    assert_eq!(cancel(&fixture, info.clone()).await.unwrap(), CancelStatus::Cancelled);
    assert_eq!(fetch(&mut client, &info).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(cancel(&fixture, FlightInfo::new()).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_stream_stops_the_query() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let info = client.execute(ENDLESS_ROWS.to_owned(), None).await.unwrap();
    let mut rows = client.do_get(ticket(&info)).await.unwrap();
    assert!(rows.next().await.unwrap().unwrap().num_rows() > 0);
    assert_eq!(fixture.metric("memferry_serve_queries_running"), 1.0);
    drop(rows);
    fixture.idle().await;
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"disconnected\"}"), 1.0);
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_client_stops_its_query_before_any_row() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let info = client.execute(ENDLESS.to_owned(), None).await.unwrap();
    let fetching = tokio::spawn(async move { client.do_get(ticket(&info)).await.unwrap().next().await });
    fixture.until("it runs", || fixture.metric("memferry_serve_queries_running") == 1.0).await;
    fetching.abort();
    fixture.idle().await;
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"disconnected\"}"), 1.0);
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_queries_make_no_more_copies_and_reads() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    // Copies columns of lineitem near, for hours: the join reads it again and again.
    let sql = "select a.l_orderkey, a.l_comment from lineitem a, lineitem b where a.l_quantity < 24 and b.l_tax > 0.01";
    let info = client.execute(sql.to_owned(), None).await.unwrap();
    let mut rows = client.do_get(ticket(&info)).await.unwrap();
    rows.next().await.unwrap().unwrap();
    drop(rows);
    fixture.idle().await;
    let started = fixture.metric("memferry_copies_started_total");
    let rows = fixture.metric("memferry_serve_rows_total");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(fixture.metric("memferry_copies_started_total"), started);
    assert_eq!(fixture.metric("memferry_serve_rows_total"), rows);
    let ended =
        fixture.metric("memferry_copies_arrived_total") + fixture.metric("memferry_copies_failed_total");
    assert_eq!(started, ended, "copies were leaked");
    fixture.answers().await;
}

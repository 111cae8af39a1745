//! The end of a server, its metrics and its health.

use std::time::{Duration, Instant};

use futures::StreamExt;
use tonic::Code;

use super::fixture::{ENDLESS_ROWS, Fixture, fetch, http_get, ticket, to_status};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_queries_may_end() {
    let fixture = Fixture::with(|options| options.limits.grace = Duration::from_secs(20)).await;
    let mut client = fixture.client().await;
    let info = client.execute("select v, name from t order by name, v".to_owned(), None).await.unwrap();
    let mut rows = client.do_get(ticket(&info)).await.unwrap();
    let mut count = rows.next().await.unwrap().unwrap().num_rows();
    let Fixture { server, threads: _threads, directory: _directory, .. } = fixture;
    let address = server.address();
    let stopping = tokio::spawn(server.stop());
    while let Some(batch) = rows.next().await {
        count += batch.unwrap().num_rows();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(count, super::fixture::ROWS);
    let started = Instant::now();
    stopping.await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "it waited though no query ran");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_beyond_the_grace_are_stopped() {
    let fixture = Fixture::with(|options| options.limits.grace = Duration::from_secs(4)).await;
    let mut client = fixture.client().await;
    let info = client.execute(ENDLESS_ROWS.to_owned(), None).await.unwrap();
    let mut rows = client.do_get(ticket(&info)).await.unwrap();
    rows.next().await.unwrap().unwrap();
    let http = fixture.server.http_address().unwrap();
    assert!(http_get(http, "/ready").await.starts_with("HTTP/1.1 200"));
    let Fixture { server, threads: _threads, directory: _directory, .. } = fixture;
    let stopping = tokio::spawn(server.stop());
    let draining = tokio::spawn(async move {
        while let Some(batch) = rows.next().await {
            if let Err(error) = batch {
                return to_status(error);
            }
        }
        panic!("the endless query has ended");
    });
    // Within the grace, in which it still answers.
    let mut ready = http_get(http, "/ready").await;
    while ready.starts_with("HTTP/1.1 200") {
        tokio::time::sleep(Duration::from_millis(10)).await;
        ready = http_get(http, "/ready").await;
    }
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("shutting down"), "{ready}");
    assert!(http_get(http, "/health").await.starts_with("HTTP/1.1 200"));
    let error = draining.await.unwrap();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    stopping.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_in_the_format_of_prometheus() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let info = client.execute("select v from t".to_owned(), None).await.unwrap();
    fetch(&mut client, &info).await.unwrap();
    let answer = http_get(fixture.server.http_address().unwrap(), "/metrics").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    let mut known = std::collections::HashSet::new();
    for line in body.lines() {
        if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, kind) = typed.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(known.insert(name.to_owned()), "{name} has two types");
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
            let name = name.split('{').next().unwrap();
            let plain = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(
                known.contains(name) || plain.is_some_and(|name| known.contains(name)),
                "{line} has no type"
            );
        }
    }
    assert!(body.contains(&format!("memferry_serve_rows_total {}\n", super::fixture::ROWS)), "{body}");
    for line in [
        "memferry_serve_query_seconds_count 1",
        "memferry_serve_first_batch_seconds_count 1",
        "memferry_serve_queries_total{outcome=\"done\"} 1",
    ] {
        assert!(body.lines().any(|it| it == line), "{line} is missing:\n{body}");
    }
    // Integers of 8 bytes.
    let bytes = fixture.metric("memferry_serve_bytes_total");
    assert!(bytes >= 8.0 * super::fixture::ROWS as f64, "{bytes}");
    let lost = http_get(fixture.server.http_address().unwrap(), "/nowhere").await;
    assert!(lost.starts_with("HTTP/1.1 404"), "{lost}");
}

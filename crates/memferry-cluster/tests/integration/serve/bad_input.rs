//! Nonsense from the network, statements that would crash the server, and tables whose files vanish or break.

use std::fs::{self, File};
use std::sync::Arc;

use arrow_flight::{Action, FlightDescriptor, Ticket};
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Request};

use super::fixture::{Fixture, fetch, query, text, to_status, write_table};

/// The first bytes of a connection of HTTP 2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_on_the_port() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u8
    };
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // A frame of the largest length, and one of an unknown type with less content than it says.
    let frames: [&[u8]; 3] =
        [&[0xff; 9], &[0, 0x10, 0, 0xee, 0xff, 0, 0, 0, 1], &[0, 0, 0, 0, 0, 0, 0, 0, 0]];
    for case in 0..40 {
        let mut bytes = Vec::new();
        if case % 2 == 0 {
            bytes.extend_from_slice(PREFACE);
            bytes.extend_from_slice(&settings);
            bytes.extend_from_slice(frames[case / 2 % 3]);
        }
        bytes.extend((0..case * 50).map(|_| random()));
        let mut stream = tokio::net::TcpStream::connect(fixture.server.address()).await.unwrap();
        // The server may close the connection at any time.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        let _ = tokio::time::timeout(std::time::Duration::from_secs(10), reading)
            .await
            .expect("it was not closed");
        query(&mut client, "select 1 as n").await.unwrap();
    }
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_in_messages() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    for bytes in [&b""[..], b"nonsense", &[0xff; 100], &[0x0a, 0x7f]] {
        let error = to_status(client.do_get(Ticket::new(bytes.to_vec())).await.err().unwrap());
        assert!(matches!(error.code(), Code::InvalidArgument | Code::Unimplemented), "{bytes:?}: {error}");
        let descriptor = Request::new(FlightDescriptor::new_cmd(bytes.to_vec()));
        let error = client.inner_mut().get_flight_info(descriptor).await.unwrap_err();
        assert!(matches!(error.code(), Code::InvalidArgument | Code::Unimplemented), "{bytes:?}: {error}");
        for action in ["CancelFlightInfo", "CreatePreparedStatement", "ClosePreparedStatement", "nonsense"] {
            let error = to_status(client.do_action(Action::new(action, bytes.to_vec())).await.unwrap_err());
            assert!(
                matches!(error.code(), Code::InvalidArgument | Code::Unimplemented),
                "{action} {bytes:?}: {error}"
            );
        }
    }
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_nest_deeply() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let nations = |count| (0..count).map(|it| format!("nation a{it}")).collect::<Vec<_>>().join(", ");
    // Each has the tables of the one before twice.
    let mut queries = vec!["q0 as (select 1 from nation)".to_owned()];
    queries.extend((0..30).map(|it| format!("q{} as (select 1 from q{it} a, q{it} b)", it + 1)));
    for sql in [
        format!("select 1{}", " + 1".repeat(100_000)),
        format!("select {}1{}", "(".repeat(10_000), ")".repeat(10_000)),
        format!("select {}1", "- ".repeat(10_000)),
        format!("select {} true", "not ".repeat(10_000)),
        vec!["select 1 as a"; 5000].join(" union all "),
        format!("select 1{}", " in (1)".repeat(100_000)),
        format!("select {}'1 day'", "interval ".repeat(100_000)),
        format!("select {}int{}", "nullable(".repeat(100_000), ")".repeat(100_000)),
        format!("{}select 1", "explain ".repeat(100_000)),
        format!("select 1 from {}", nations(20_000)),
        format!("with {} select 1 from q30", queries.join(", ")),
    ] {
        let error = query(&mut client, &sql).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{}: {error}", &sql[..40]);
    }
    // The deepest that is allowed is planned and run.
    query(&mut client, &format!("select 1{} as sum", " + 1".repeat(998))).await.unwrap();
    query(&mut client, &vec!["select 1 as a"; 330].join(" union all ")).await.unwrap();
    query(&mut client, &format!("select true{} as many", " in (true)".repeat(999))).await.unwrap();
    query(&mut client, &format!("select 1 from {} limit 1", nations(300))).await.unwrap();
    let mut statement = client.prepare(format!("select ?{} as sum", " + 1".repeat(997)), None).await.unwrap();
    let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    statement.set_parameters(RecordBatch::try_from_iter([("a", one)]).unwrap()).unwrap();
    let info = statement.execute().await.unwrap();
    assert!(text(&fetch(&mut client, &info).await.unwrap()).contains("| 998 |"));
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_vanish_or_break() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    for (name, expected) in
        [("vanished", Code::NotFound), ("cut", Code::DataLoss), ("emptied", Code::DataLoss)]
    {
        let file = fixture.path(&format!("{name}.parquet"));
        write_table(&file, 50_000).await;
        memferry_query::files::register(&fixture.context, name, &file.display().to_string()).await.unwrap();
        let sql = format!("select sum(v) as sum, count(distinct name) as n from {name}");
        query(&mut client, &sql).await.unwrap();
        let planned = client.execute(sql.clone(), None).await.unwrap();
        let bytes = fs::metadata(&file).unwrap().len();
        match name {
            "vanished" => fs::remove_file(&file).unwrap(),
            "cut" => File::options().write(true).open(&file).unwrap().set_len(bytes / 2).unwrap(),
            _ => File::options().write(true).open(&file).unwrap().set_len(0).unwrap(),
        }
        // A query that was planned before, and one that is planned now.
        let before = fetch(&mut client, &planned).await.unwrap_err();
        let after = query(&mut client, &sql).await.unwrap_err();
        for error in [before, after] {
            assert_eq!(error.code(), expected, "{name}: {error}");
            assert!(error.message().contains(&format!("{name}.parquet")), "the file is not named: {error}");
        }
        fixture.answers().await;
    }
}

/// A file that another program replaces between two queries, and between plan and rows of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_change() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let file = fixture.path("changed.parquet");
    write_table(&file, 50_000).await;
    memferry_query::files::register(&fixture.context, "changed", &file.display().to_string()).await.unwrap();
    let sql = "select count(*) as n, sum(v) as sum from changed where v >= 0";
    let sum = |rows: i64| format!("| {rows} | {} |", rows * (rows - 1) / 2);
    let answer = text(&query(&mut client, sql).await.unwrap());
    assert!(answer.contains(&sum(50_000)), "{answer}");
    let planned = client.execute(sql.to_owned(), None).await.unwrap();
    let other = fixture.path("other.parquet");
    write_table(&other, 20_000).await;
    fs::rename(other, &file).unwrap();
    match fetch(&mut client, &planned).await {
        Ok(rows) => {
            let answer = text(&rows);
            assert!(answer.contains(&sum(20_000)), "neither the new rows nor an error: {answer}");
        }
        Err(error) => assert!(error.message().contains("changed.parquet"), "{error}"),
    }
    let answer = text(&query(&mut client, sql).await.unwrap());
    assert!(answer.contains(&sum(20_000)), "{answer}");
    fixture.answers().await;
}

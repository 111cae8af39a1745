//! `memferry-cluster serve --cluster`: clients of Flight SQL over the tables of workers, all of them processes.

use std::io::BufReader;
use std::process::ChildStderr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_flight::sql::CommandGetTables;
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use futures::TryStreamExt;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::fixture::{Client, fetch, query, text, ticket};
use super::program::{Process, program, read_to};
use crate::processes::{Workers, alone, expected};

/// A server over the tables of workers, which is told of the first one, and a client of it.
async fn serve(workers: &Workers) -> (Process, BufReader<ChildStderr>, Client) {
    let mut command = program();
    command.args(["--listen", "127.0.0.1:0", "--partitions", "2", "--cluster", &workers.addresses[0]]);
    let mut process = Process(command.spawn().unwrap());
    let mut log = BufReader::new(process.0.stderr.take().unwrap());
    let start = read_to(&mut log, "start");
    let address = format!("http://{}", start["address"].as_str().unwrap());
    let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
    (process, log, Client::new(channel))
}

/// Runs a prepared statement with a number as its parameter.
async fn prepared(client: &mut Client, sql: &str, parameters: &[i64]) -> Result<Vec<String>, Status> {
    let mut statement = client.prepare(sql.to_owned(), None).await.unwrap();
    let mut answers = Vec::new();
    for &parameter in parameters {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![parameter]));
        statement.set_parameters(RecordBatch::try_from_iter([("$1", column)]).unwrap()).unwrap();
        let info = statement.execute().await.unwrap();
        answers.push(text(&fetch(client, &info).await?));
    }
    Ok(answers)
}

const JOINED: &str = "select n_name, count(*) as n, sum(o_totalprice) as total from orders \
    join customer on o_custkey = c_custkey join nation on c_nationkey = n_nationkey group by n_name order by n_name";

const ONE_CUSTOMER: &str = "select count(*) as n from orders where o_custkey = ?";

#[tokio::test(flavor = "multi_thread")]
async fn clients_query_the_tables_of_workers() {
    let mut workers = Workers::ready(2).await;
    let alone = alone().await;
    let (_process, mut log, mut client) = serve(&workers).await;
    let joined = text(&expected(&alone, JOINED).await);
    assert_eq!(text(&query(&mut client, JOINED).await.unwrap()), joined);
    let line = read_to(&mut log, "query");
    assert_eq!((line["outcome"].as_str(), line["rows"].as_u64()), (Some("done"), Some(25)), "{line}");
    let mut of_customers = Vec::new();
    for customer in [7, 10] {
        let sql = ONE_CUSTOMER.replace('?', &customer.to_string());
        of_customers.push(text(&expected(&alone, &sql).await));
    }
    assert_ne!(of_customers[0], of_customers[1]);
    assert_eq!(prepared(&mut client, ONE_CUSTOMER, &[7, 10]).await.unwrap(), of_customers);
    // A plan that was made before a worker is lost, and is fetched later.
    let planned = client.execute(JOINED.to_owned(), None).await.unwrap();
    // Also the one that the server was told of.
    workers.kill(0);
    assert_eq!(text(&fetch(&mut client, &planned).await.unwrap()), joined);
    assert_eq!(text(&query(&mut client, JOINED).await.unwrap()), joined);
    workers.kill(1);
    let began = Instant::now();
    let error = query(&mut client, JOINED).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains(&workers.addresses[1]), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // The server has gone on, and uses the workers when they are back.
    workers.start(0, 1, "");
    workers.start(1, 1, "");
    workers.wait(2).await;
    let began = Instant::now();
    while let Err(error) = query(&mut client, JOINED).await {
        // It gives a worker that did not answer before little time.
        assert!(began.elapsed() < Duration::from_secs(60), "{error}");
    }
    assert_eq!(prepared(&mut client, ONE_CUSTOMER, &[10]).await.unwrap(), of_customers[1..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_and_metadata_are_those_of_the_cluster() {
    let mut workers = Workers::ready(2).await;
    let (_process, _log, mut client) = serve(&workers).await;
    let command = CommandGetTables { include_schema: true, ..CommandGetTables::default() };
    let info = client.get_tables(command).await.unwrap();
    let tables: Vec<RecordBatch> = client.do_get(ticket(&info)).await.unwrap().try_collect().await.unwrap();
    let names: Vec<&str> = tables
        .iter()
        .flat_map(|batch| batch.column_by_name("table_name").unwrap().as_string::<i32>().iter().flatten())
        .collect();
    for table in ["customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier"] {
        assert!(names.contains(&table), "{names:?}");
    }
    for sql in ["show tables", "describe orders", JOINED] {
        assert!(!query(&mut client, sql).await.unwrap().is_empty(), "{sql}");
    }
    let explained = text(&query(&mut client, &format!("explain {JOINED}")).await.unwrap());
    assert!(explained.contains("ShardScanExec"), "{explained}");
    for (sql, code) in [
        ("select x from orders", Code::InvalidArgument),
        ("select count(*) from nowhere", Code::InvalidArgument),
        ("select o_orderkey / (o_orderkey - o_orderkey) as x from orders", Code::InvalidArgument),
        ("create table u as values (1)", Code::PermissionDenied),
    ] {
        let error = query(&mut client, sql).await.unwrap_err();
        assert_eq!(error.code(), code, "{sql}: {error}");
    }
    // A table with other columns than when the statement was planned.
    let planned = client.execute("select count(n_comment) as n from nation".to_owned(), None).await.unwrap();
    for worker in 0..2 {
        workers.kill(worker);
        workers.start_with(worker, 2, "", &[("nation", "region")]);
    }
    workers.wait(2).await;
    let error = fetch(&mut client, &planned).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert!(error.message().contains("the table nation of the cluster has other columns"), "{error}");
    let rows = query(&mut client, "select count(r_name) as n from nation").await.unwrap();
    assert!(text(&rows).contains("| 5 |"), "{}", text(&rows));
}

/// Dropping the rows of a query ends it on the workers, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_query_ends_on_the_workers() {
    let workers = Workers::ready(2).await;
    let (_process, mut log, mut client) = serve(&workers).await;
    let sql =
        "select a.l_comment, b.l_shipinstruct from lineitem a join lineitem b on a.l_suppkey = b.l_suppkey";
    let info = client.execute(sql.to_owned(), None).await.unwrap();
    let mut rows = client.do_get(ticket(&info)).await.unwrap();
    assert!(rows.try_next().await.unwrap().unwrap().num_rows() > 0);
    drop(rows);
    let line = read_to(&mut log, "query");
    assert_eq!(line["outcome"].as_str(), Some("disconnected"), "{line}");
    let began = Instant::now();
    loop {
        let cpu = workers.cpu_ticks();
        tokio::time::sleep(Duration::from_millis(300)).await;
        if workers.cpu_ticks() - cpu < 5 {
            break;
        }
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "the workers go on with a query that was cancelled"
        );
    }
    assert!(
        text(&query(&mut client, "select count(*) as n from orders").await.unwrap()).contains("| 15000 |")
    );
}

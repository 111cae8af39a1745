//! Statements that create, change or write something.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use tonic::Code;

use super::fixture::{Fixture, query, text, to_status};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_are_refused() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let file = fixture.path("stolen.parquet");
    for sql in [
        "create table u as select 1 as a".to_owned(),
        "create external table passwords stored as csv location '/etc/passwd'".to_owned(),
        format!("copy (select 1 as a) to '{}'", file.display()),
        format!("explain analyze copy (select 1 as a) to '{}'", file.display()),
        "insert into t values (1, 'a')".to_owned(),
        "drop table t".to_owned(),
        "set datafusion.execution.batch_size = 1".to_owned(),
    ] {
        let error = query(&mut client, &sql).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied, "{sql}: {error}");
        let error = to_status(client.execute_update(sql.clone(), None).await.unwrap_err());
        assert_eq!(error.code(), Code::PermissionDenied, "{sql}: {error}");
        let error = to_status(client.prepare(sql.clone(), None).await.unwrap_err());
        assert_eq!(error.code(), Code::PermissionDenied, "{sql}: {error}");
    }
    assert!(!file.exists());
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allowed_updates_are_executed() {
    let fixture = Fixture::with(|options| options.updates = true).await;
    let mut client = fixture.client().await;
    let update = async |sql: &str| fixture.client().await.execute_update(sql.to_owned(), None).await;
    update("create table u as select v from t where v < 3").await.unwrap();
    assert_eq!(update("insert into u values (10), (11)").await.unwrap(), 2);
    let file = fixture.path("copied.parquet");
    assert_eq!(update(&format!("copy u to '{}'", file.display())).await.unwrap(), 5);
    assert!(file.exists());
    // A statement without rows may also be sent as a query.
    let rows = query(&mut client, "create view w as select sum(v) as sum from u").await.unwrap();
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
    assert!(text(&query(&mut client, "select sum from w").await.unwrap()).contains("| 24"));

    let mut statement = client.prepare("insert into u values (?)".to_owned(), None).await.unwrap();
    let values =
        RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef)]).unwrap();
    statement.set_parameters(values).unwrap();
    assert_eq!(statement.execute_update().await.unwrap(), 3);
    assert!(text(&query(&mut client, "select sum from w").await.unwrap()).contains("| 30"));

    // Not a table of CREATE TABLE: as memferry sql says it.
    let error = to_status(update("insert into t values (1, 'a')").await.unwrap_err());
    assert!(error.message().contains("write a file with COPY"), "{error}");
    let error = to_status(update("set datafusion.execution.batch_size = 1").await.unwrap_err());
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    let error = to_status(client.begin_transaction().await.unwrap_err());
    assert_eq!(error.code(), Code::Unimplemented, "{error}");
    fixture.answers().await;
}

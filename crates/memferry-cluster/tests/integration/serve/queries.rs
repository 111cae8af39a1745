//! Queries and prepared statements.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::DataType;
use tonic::Code;

use super::fixture::{Fixture, fetch, query, text, to_status};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_those_of_the_session() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    for sql in [
        "select sum(v) as sum, count(*) as n from t where v < 1000",
        "select name, count(*) as n, min(v) as least from t group by name order by name",
        "select l_returnflag, sum(l_extendedprice * (1 - l_discount)) as sum from lineitem where l_quantity < 24 group by \
         l_returnflag order by 1",
        "select o_orderpriority, count(*) as n from orders join lineitem on o_orderkey = l_orderkey where l_tax > 0.05 \
         group by 1 order by 1",
        "select v from t where v < 0",
        "explain select 1",
    ] {
        let rows = query(&mut client, sql).await.unwrap();
        let expected = fixture.context.sql(sql).await.unwrap().collect().await.unwrap();
        if sql.starts_with("select v") {
            assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
        } else {
            assert_eq!(text(&rows), text(&expected), "{sql}");
        }
    }
    fixture.idle().await;
    assert_eq!(fixture.metric("memferry_serve_queries_total{outcome=\"done\"}"), 6.0);
    assert!(fixture.metric("memferry_copies_started_total") > 0.0, "nothing was copied near");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_are_plain_and_known_before_the_rows() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let info = client.execute("select name, v from t".to_owned(), None).await.unwrap();
    let rows = fetch(&mut client, &info).await.unwrap();
    let schema = info.try_decode_schema().unwrap();
    assert_eq!(*schema.field(0).data_type(), DataType::Utf8);
    assert_eq!(schema, *rows[0].schema());
    assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), super::fixture::ROWS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tickets_are_fetched_once() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let info = client.execute("select 1 as one".to_owned(), None).await.unwrap();
    fetch(&mut client, &info).await.unwrap();
    assert_eq!(fetch(&mut client, &info).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_statements_say_what_is_wrong() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    for (sql, says) in [
        ("selec 1", "cannot parse the statement"),
        ("select nothing from t", "nothing"),
        ("select * from nowhere", "--table NAME=LOCATION"),
        ("", "the statement is empty"),
        ("select 1; select 2", "several statements"),
        ("select v from t where v = ?", "1 parameters, and 0 were sent"),
    ] {
        let error = query(&mut client, sql).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{sql}: {error}");
        assert!(error.message().contains(says), "{sql}: {error}");
    }
    fixture.answers().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_statements_take_parameters() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let sql = "select count(*) as n from t where v >= ? and v < ? and name = ?";
    let mut statement = client.prepare(sql.to_owned(), None).await.unwrap();
    let types: Vec<DataType> = statement
        .parameter_schema()
        .unwrap()
        .fields()
        .iter()
        .map(|field| field.data_type().clone())
        .collect();
    assert_eq!(types[..2], [DataType::Int64, DataType::Int64]);
    assert_eq!(statement.dataset_schema().unwrap().field(0).name(), "n");
    let parameters = |from: i64, to: i64, name: &str| {
        let columns: [(&str, ArrayRef); 3] = [
            ("a", Arc::new(Int64Array::from(vec![from]))),
            ("b", Arc::new(Int64Array::from(vec![to]))),
            ("c", Arc::new(StringArray::from(vec![name]))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    for (from, to, name, expected) in [(0, 70, "name 3", 10), (7, 14, "name 0", 1), (0, 70, "none", 0)] {
        statement.set_parameters(parameters(from, to, name)).unwrap();
        let info = statement.execute().await.unwrap();
        let rows = fetch(&mut client, &info).await.unwrap();
        assert_eq!(
            rows[0].column(0).as_ref(),
            &Int64Array::from(vec![expected]) as &dyn datafusion::arrow::array::Array
        );
    }
    // Several rows of parameters: the answers follow each other.
    let columns: [(&str, ArrayRef); 3] = [
        ("a", Arc::new(Int64Array::from(vec![0, 0]))),
        ("b", Arc::new(Int64Array::from(vec![7, 14]))),
        ("c", Arc::new(StringArray::from(vec!["name 1", "name 1"]))),
    ];
    statement.set_parameters(RecordBatch::try_from_iter(columns).unwrap()).unwrap();
    let info = statement.execute().await.unwrap();
    let rows = fetch(&mut client, &info).await.unwrap();
    let counts: Vec<i64> = rows
        .iter()
        .flat_map(|batch| {
            let column = batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
            column.values().to_vec()
        })
        .collect();
    assert_eq!(counts, [1, 2]);
    let wrong = RecordBatch::try_from_iter([("a", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap();
    statement.set_parameters(wrong).unwrap();
    let error = to_status(statement.execute().await.unwrap_err());
    assert!(error.message().contains("has 3 parameters, and 1 were sent"), "{error}");
    assert_eq!(fixture.metric("memferry_serve_prepared_statements"), 1.0);
    statement.close().await.unwrap();
    assert_eq!(fixture.metric("memferry_serve_prepared_statements"), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn named_parameters() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let mut statement =
        client.prepare("select count(*) as n from t where v < $most".to_owned(), None).await.unwrap();
    let most =
        RecordBatch::try_from_iter([("most", Arc::new(Int64Array::from(vec![5])) as ArrayRef)]).unwrap();
    statement.set_parameters(most).unwrap();
    let info = statement.execute().await.unwrap();
    assert!(text(&fetch(&mut client, &info).await.unwrap()).contains("| 5 |"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planned_queries_and_prepared_statements_are_forgotten() {
    let fixture = Fixture::with(|options| {
        options.limits.planned = 3;
        options.limits.prepared = 2;
    })
    .await;
    let mut client = fixture.client().await;
    let mut infos = Vec::new();
    for number in 0..5 {
        infos.push(client.execute(format!("select {number} as n"), None).await.unwrap());
        let statement = client.prepare(format!("select {number} as n"), None).await.unwrap();
        std::mem::forget(statement);
    }
    assert_eq!(fixture.metric("memferry_serve_queries_planned"), 3.0);
    assert_eq!(fixture.metric("memferry_serve_prepared_statements"), 2.0);
    assert_eq!(fetch(&mut client, &infos[0]).await.unwrap_err().code(), Code::NotFound);
    fetch(&mut client, &infos[4]).await.unwrap();
    let fixture = Fixture::with(|options| {
        options.limits.planned_time = std::time::Duration::from_millis(50);
        options.limits.idle_time = std::time::Duration::from_millis(50);
    })
    .await;
    let mut client = fixture.client().await;
    client.execute("select 1 as n".to_owned(), None).await.unwrap();
    std::mem::forget(client.prepare("select 1 as n".to_owned(), None).await.unwrap());
    fixture
        .until("nothing is kept", || {
            fixture.metric("memferry_serve_queries_planned") == 0.0
                && fixture.metric("memferry_serve_prepared_statements") == 0.0
        })
        .await;
}

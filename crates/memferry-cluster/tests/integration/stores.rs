//! Workers that load their shards from an object store: in this process, from a store in memory.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use datafusion::object_store::memory::InMemory;
use datafusion::object_store::path::Path as Key;
use datafusion::object_store::{ObjectStore, ObjectStoreExt};
use datafusion::prelude::SessionContext;
use memferry::topology::Machine;
use memferry_bench_query::{tpch_file, tpch_files};
use memferry_cluster::measure::free_addresses;
use memferry_cluster::{Cluster, ClusterError, ClusterWorker, Description, Security};
use memferry_query::{SessionOptions, Tiers};

/// A session that reaches a bucket with orders as one object and customer as a directory of two.
async fn session() -> SessionContext {
    let files = tpch_files(0.01, Path::new(env!("CARGO_TARGET_TMPDIR")), &()).unwrap();
    let store = InMemory::new();
    let orders = fs::read(tpch_file(&files, "orders")).unwrap();
    store.put(&Key::from("data/orders.parquet"), orders.into()).await.unwrap();
    let customer = fs::read(tpch_file(&files, "customer")).unwrap();
    for part in ["data/customer/1.parquet", "data/customer/2.parquet"] {
        store.put(&Key::from(part), customer.clone().into()).await.unwrap();
    }
    let session = SessionContext::new();
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    session.register_object_store(&"s3://bucket".parse().unwrap(), store);
    session
}

/// A description of two workers with free ports.
fn description(orders: &str) -> Description {
    let workers = free_addresses(2).unwrap();
    let text = format!(
        "version = 1\nreplicas = 1\nworkers = {workers:?}\n\
         [[tables]]\nname = \"orders\"\nlocation = \"s3://bucket/data/{orders}\"\nkey = \"o_orderkey\"\n\
         [[tables]]\nname = \"customer\"\nlocation = \"s3://bucket/data/customer/\"\nkey = \"c_custkey\"\n"
    );
    text.parse().unwrap()
}

async fn worker(description: &Description, address: &str) -> ClusterWorker {
    let (options, security) = (SessionOptions::default(), Security::default());
    ClusterWorker::listen(description.clone(), address, address, options, security).await.unwrap()
}

fn tiers() -> Arc<Tiers> {
    Tiers::builder(Arc::new(Machine::discover().unwrap())).build().unwrap()
}

fn number(batches: &[RecordBatch]) -> i64 {
    batches.iter().find(|batch| batch.num_rows() > 0).unwrap().column(0).as_primitive::<Int64Type>().value(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_load_shards_from_an_object_store() {
    let (session, tiers) = (session().await, tiers());
    let description = description("orders.parquet");
    for address in &description.workers {
        let worker = worker(&description, address).await;
        let (session, tiers) = (session.clone(), Arc::clone(&tiers));
        tokio::spawn(async move {
            worker.run(&session, &tiers, |_| (), std::future::pending()).await.unwrap();
        });
    }
    let cluster = Cluster::new(description.workers.clone(), 2).unwrap();
    let began = Instant::now();
    // With one replica of each shard, a query needs both workers.
    let orders = loop {
        match cluster.query_whole("SELECT count(*) FROM orders").await {
            Ok(answer) => break number(&answer.collect().await.unwrap()),
            Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(orders, 15_000);
    // Both objects of the directory.
    let joined = "SELECT count(*) FROM orders JOIN customer ON o_custkey = c_custkey";
    let answer = cluster.query_whole(joined).await.unwrap();
    assert_eq!(number(&answer.collect().await.unwrap()), 30_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_missing_or_cut_off_is_named() {
    let session = session().await;
    let store =
        session.runtime_env().object_store_registry.get_store(&"s3://bucket".parse().unwrap()).unwrap();
    let whole = store.get(&Key::from("data/orders.parquet")).await.unwrap().bytes().await.unwrap();
    store.put(&Key::from("data/short.parquet"), whole.slice(..whole.len() / 2).into()).await.unwrap();
    for object in ["missing.parquet", "short.parquet"] {
        let description = description(object);
        let address = description.workers[0].clone();
        let worker = worker(&description, &address).await;
        let ended = worker.run(&session, &tiers(), |_| (), std::future::pending()).await;
        let error = ended.unwrap_err();
        assert!(matches!(error, ClusterError::Load { .. }), "{object}: {error}");
        let text = error.to_string();
        assert!(text.contains("orders") && text.contains(object), "{object}: {text}");
    }
}

//! Plans of DataFusion become tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::prelude::SessionContext;
use memferry::topology::Machine;
use memferry_query::load::{self, Progress};
use memferry_query::{Layout, LoadError, SessionOptions, TableData, session};

const ROWS: i64 = 20_000;

#[derive(Default)]
struct Counted {
    total: AtomicU64,
    advanced: AtomicU64,
}

impl Progress for Counted {
    fn total(&self, rows: u64) {
        self.total.fetch_add(rows, Ordering::Relaxed);
    }

    fn advance(&self, rows: u64) {
        self.advanced.fetch_add(rows, Ordering::Relaxed);
    }
}

/// A session with the table `t`, whose column `a` has the numbers from 0.
fn context() -> SessionContext {
    let context = session(&SessionOptions::default());
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    context.register_batch("t", RecordBatch::try_from_iter([("a", column)]).unwrap()).unwrap();
    context
}

async fn loaded(query: &str, progress: &Arc<Counted>) -> Result<TableData, LoadError> {
    let context = context();
    let plan = context.sql(query).await.unwrap().create_physical_plan().await.unwrap();
    let machine = Arc::new(Machine::discover().unwrap());
    let home = machine.nodes()[0].id;
    let layout = Layout { partitions: 2, row_group_rows: 1024, ..Layout::new(machine, home) };
    load::from_plan(plan, &context.task_ctx(), &layout, Arc::clone(progress) as Arc<_>).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_have_the_rows_of_the_plan_in_their_order() {
    let progress = Arc::new(Counted::default());
    let table = loaded("select a from t", &progress).await.unwrap();
    let values: Vec<i64> = table
        .batches(8192)
        .iter()
        .flatten()
        .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect();
    assert_eq!(values, (0..ROWS).collect::<Vec<_>>());
    assert!(table.partitions().iter().flatten().all(|group| group.rows() <= 1024));
    assert_eq!(progress.advanced.load(Ordering::Relaxed), ROWS as u64);
    assert_eq!(progress.total.load(Ordering::Relaxed), ROWS as u64);
}

#[tokio::test]
async fn a_plan_without_rows_is_a_table_without_rows() {
    let table = loaded("select a from t where a < 0", &Arc::default()).await.unwrap();
    assert_eq!((table.rows(), table.schema().fields().len()), (0, 1));
}

#[tokio::test]
async fn an_error_of_the_plan_is_an_error_of_loading() {
    let error = loaded("select 1 / (a - 5) from t", &Arc::default()).await.unwrap_err();
    assert!(matches!(&error, LoadError::Plan(_)) && error.to_string().contains("zero"), "{error}");
}

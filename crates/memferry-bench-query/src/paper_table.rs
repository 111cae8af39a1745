//! The table of the papers' query: two columns of 64-bit integers, a filter on one and a sum over the other.
//!
//! Source: A. C. Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", bachelor's
//! thesis, TU Dresden 2024, section 6.1: `SCAN a`, `SCAN b`, `AGGREGATE`.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use memferry_query::load::{BATCH_ROWS, PartitionedSource, Progress, from_readers};
use memferry_query::{Layout, LoadError, TableData};

use memferry_bench::harness::Random;

/// Values of `a` and `b` are uniform in `0..VALUES_COUNT`.
const VALUES_COUNT: i64 = 1_000_000;

/// The papers' query: a filter on column `a` of table `ab` ([`paper_table`]) that passes `selectivity` of the rows, and
/// the sum of `b`.
///
/// ```
/// # use memferry_bench_query::paper_query;
/// assert_eq!(paper_query(0.02), "select sum(b) from ab where a < 20000");
/// ```
pub fn paper_query(selectivity: f64) -> String {
    format!("select sum(b) from ab where a < {}", (selectivity * VALUES_COUNT as f64).round())
}

/// The table `ab` of `rows` rows. The values of a row depend on its number and `seed` only, not on `layout`.
///
/// # Errors
/// [`LoadError::Table`].
pub fn paper_table(
    rows: u64,
    seed: u64,
    layout: &Layout,
    progress: &dyn Progress,
) -> Result<TableData, LoadError> {
    let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int64, false));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let bound = |part: usize, parts: usize| (u128::from(rows) * part as u128 / parts as u128) as u64;
    let open = |part: usize, parts: usize| -> memferry_query::load::PartitionReader {
        let (start, end) = (bound(part, parts), bound(part + 1, parts));
        let batch_schema = Arc::clone(&schema);
        let batches = (start..end).step_by(BATCH_ROWS).map(move |start| {
            let rows = start..end.min(start + BATCH_ROWS as u64);
            let columns = vec![column(seed, 0, rows.clone()), column(seed, 1, rows)];
            RecordBatch::try_new(Arc::clone(&batch_schema), columns)
        });
        Box::new(RecordBatchIterator::new(batches, Arc::clone(&schema)))
    };
    let sources = [PartitionedSource { rows, open: Box::new(open) }];
    Ok(from_readers(&sources, layout, progress)?.remove(0))
}

fn column(seed: u64, index: u64, rows: Range<u64>) -> ArrayRef {
    // Mixed before the row's number is added. Otherwise one column would have the other's values in another order.
    let stream = mix(mix(seed) ^ index);
    // The high half of a product with a uniform number is uniform in the other factor's range.
    let value = |row: u64| ((u128::from(mix(stream ^ row)) * VALUES_COUNT as u128) >> 64) as i64;
    Arc::new(Int64Array::from_iter_values(rows.map(value)))
}

/// A bijection whose outputs look random even for consecutive inputs.
fn mix(value: u64) -> u64 {
    Random(value).next_u64()
}

//! The table of the papers' query: two columns of 64-bit integers, a filter on one and a sum over the other.
//!
//! Source: A. C. Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator", bachelor's
//! thesis, TU Dresden 2024, section 6.1: `SCAN a`, `SCAN b`, `AGGREGATE`.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};

use super::parallel::in_parallel;
use super::{BATCH_ROWS, LoadError, Progress};
use crate::data::{Layout, PartitionWriter, TableData};

/// Values of `a` and `b` are uniform in `0..AB_VALUES`, so `a < x` passes a share of `x / AB_VALUES` of the rows.
pub const AB_VALUES: i64 = 1_000_000;

/// The table `ab` of `rows` rows. A row's values depend on its number and `seed` only, not on `layout`.
///
/// # Errors
/// [`LoadError::Table`].
pub fn ab(rows: u64, seed: u64, layout: &Layout, progress: &dyn Progress) -> Result<TableData, LoadError> {
    progress.total(rows);
    let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int64, false));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let writer = PartitionWriter::new(schema.clone(), layout)?;
    let partitions = in_parallel(&layout.split(rows), |partition| {
        let mut writer = writer.clone();
        for start in partition.clone().step_by(BATCH_ROWS) {
            let rows = start..partition.end.min(start + BATCH_ROWS as u64);
            writer.push(&RecordBatch::try_new(
                schema.clone(),
                vec![column(seed, 0, rows.clone()), column(seed, 1, rows.clone())],
            )?)?;
            progress.advance(rows.end - rows.start);
        }
        writer.finish()
    })?;
    Ok(TableData::new(schema, partitions, layout.home))
}

fn column(seed: u64, index: u64, rows: Range<u64>) -> ArrayRef {
    // Mixed before the row's number comes in, or one column's values would be the other's in another order.
    let stream = mix(mix(seed) ^ index);
    // The high half of a product with a uniform number is uniform in the other factor's range.
    let value = |row: u64| ((u128::from(mix(stream ^ row)) * AB_VALUES as u128) >> 64) as i64;
    Arc::new(Int64Array::from_iter_values(rows.map(value)))
}

/// SplitMix64 as a hash: a bijection whose outputs pass for random even where the inputs count up.
///
/// Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

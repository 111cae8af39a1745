//! The shard of a row: by a hash of a column, or by its range.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array};
use datafusion::arrow::compute::{cast, take_record_batch};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::arrow::error::ArrowError;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Divides the rows of a table into shards.
///
/// The hash is fixed (FNV-1a over the value's bytes, then the finaliser of MurmurHash3), because workers that load at
/// different times, and perhaps with different builds, must agree. Integers of any width with equal values are equal. Null is
/// in shard 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardKey {
    /// The column: integers, dates, decimals or strings; for ranges, integers or dates.
    pub column: String,
    /// The first value of the shards 1, 2, ... in rising order, dates as days since 1970; without it, rows are hashed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Vec<i64>>,
}

impl ShardKey {
    /// Checks that the shards can be made.
    ///
    /// # Errors
    /// [`KeyError`]
    pub fn check(&self, table: &str, data_type: Option<&DataType>, shards: usize) -> Result<(), KeyError> {
        let Some(data_type) = data_type else {
            return Err(KeyError::NoColumn { table: table.to_owned(), column: self.column.clone() });
        };
        let wrong_type = || KeyError::Type { column: self.column.clone(), data_type: data_type.clone() };
        match &self.bounds {
            Some(bounds) => {
                if bounds.len() + 1 != shards || bounds.windows(2).any(|pair| pair[0] >= pair[1]) {
                    return Err(KeyError::Bounds { table: table.to_owned(), shards });
                }
                is_whole(data_type).then_some(()).ok_or_else(wrong_type)
            }
            None => {
                let hashed = is_whole(data_type) || is_decimal(data_type) || is_text(data_type);
                hashed.then_some(()).ok_or_else(wrong_type)
            }
        }
    }

    /// The shard of each value of `column`.
    ///
    /// # Errors
    /// If values cannot be read as the kind that [`check`](ShardKey::check) accepts.
    pub fn shards(&self, column: &ArrayRef, shards: usize) -> Result<Vec<usize>, ArrowError> {
        if let Some(bounds) = &self.bounds {
            let values = whole(column)?;
            return Ok(values
                .iter()
                .map(|value| value.map_or(0, |value| bounds.partition_point(|&bound| bound <= value)))
                .collect());
        }
        let shard = |hash: u64| (hash % shards as u64) as usize;
        if is_whole(column.data_type()) {
            let values = whole(column)?;
            let hashed = |value: i64| shard(hash(&value.to_le_bytes()));
            return Ok(values.iter().map(|value| value.map_or(0, hashed)).collect());
        }
        // Decimals by their text, so that the scale counts as it does for a reader.
        let texts = cast(column, &DataType::LargeUtf8)?;
        let hashed = |text: &str| shard(hash(text.as_bytes()));
        Ok(texts.as_string::<i64>().iter().map(|text| text.map_or(0, hashed)).collect())
    }

    /// The rows of `batch` by shard, for the shards that `wanted` accepts, in order of shards.
    ///
    /// # Errors
    /// As [`shards`](ShardKey::shards).
    ///
    /// # Panics
    /// If the batch does not have the column.
    pub fn divide(
        &self,
        batch: &RecordBatch,
        shards: usize,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<(usize, RecordBatch)>, ArrowError> {
        let column = batch.column_by_name(&self.column).expect("checked when the table was opened");
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); shards];
        for (row, shard) in self.shards(column, shards)?.into_iter().enumerate() {
            if wanted(shard) {
                rows[shard].push(row as u32);
            }
        }
        let taken = |(shard, rows): (usize, Vec<u32>)| {
            Ok((shard, take_record_batch(batch, &UInt32Array::from(rows))?))
        };
        rows.into_iter().enumerate().filter(|(_, rows)| !rows.is_empty()).map(taken).collect()
    }
}

fn whole(column: &ArrayRef) -> Result<Arc<Int64Array>, ArrowError> {
    // Date32 is cast by way of its days.
    let days = if column.data_type() == &DataType::Date32 {
        cast(column, &DataType::Int32)?
    } else {
        column.clone()
    };
    let values = cast(&days, &DataType::Int64)?;
    if values.null_count() > days.null_count() {
        return Err(ArrowError::ComputeError(String::from("a key is above the largest 64-bit integer")));
    }
    Ok(Arc::new(values.as_primitive::<Int64Type>().clone()))
}

fn is_whole(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type == &DataType::Date32
}

fn is_decimal(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal128(..))
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn hash(bytes: &[u8]) -> u64 {
    // FNV-1a, 64 bits: <http://www.isthe.com/chongo/tech/comp/fnv/>.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    // The low bits of FNV follow the low bits of the input: fmix64 of MurmurHash3 spreads them.
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// A key that cannot divide a table.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The table has no such column.
    #[error("the table {table} has no column {column}; name one of its columns as `key`")]
    NoColumn {
        /// The table.
        table: String,
        /// The missing column.
        column: String,
    },
    /// The type cannot be a key.
    #[error(
        "the column {column} of type {data_type} cannot be a key; use a column of integers, dates, decimals or strings (for \
         `bounds`, of integers or dates)"
    )]
    Type {
        /// The column.
        column: String,
        /// Its type.
        data_type: DataType,
    },
    /// Bounds that do not make the shards of the map.
    #[error("the table {table} needs {} bounds in rising order for {shards} shards", .shards.saturating_sub(1))]
    Bounds {
        /// The table.
        table: String,
        /// Shards of the map.
        shards: usize,
    },
}

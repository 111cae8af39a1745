//! The report of a worker: its description of the cluster, and the tables that it has loaded. JSON, in an action of Flight.
//!
//! Each query asks for it. A process that knows the report sends its mark, and an answer without content means that the
//! report is still the same, apart from its statistics.

use std::io::Cursor;
use std::sync::{Arc, OnceLock};

use datafusion::arrow::array::{ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::{cast, max, min};
use datafusion::arrow::datatypes::{DataType, Int64Type, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::reader::StreamReader;
use datafusion::arrow::ipc::writer::StreamWriter;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use serde::{Deserialize, Serialize};

use crate::description::Description;

/// The type of the action.
pub(crate) const ACTION: &str = "memferry.report";

/// A worker, as it describes itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Differs from that of each other report, of another process and from before its tables were loaded.
    pub mark: u64,
    /// The description that it was started with.
    pub description: Description,
    /// Whether its tables are loaded.
    pub is_ready: bool,
    /// The loaded tables.
    pub tables: Vec<TableReport>,
    /// Bytes of batches that it received from other workers since it started, decoded.
    pub received_bytes: u64,
    /// Partitions of scans that it reads ahead, because they are announced and not executed yet.
    pub ahead: u64,
    /// Bytes of columns that its scans have read, not from near copies: of the last minutes, as
    /// [`TieredTable::reads`](memferry_query::TieredTable::reads).
    pub read_bytes: u64,
    /// The tables for plans; decoded once, since a known report serves many queries.
    #[serde(skip)]
    pub(crate) planned: OnceLock<Vec<PlannedTable>>,
}

/// A table, as the planner wants it.
#[derive(Clone, Debug)]
pub(crate) struct PlannedTable {
    pub(crate) schema: SchemaRef,
    pub(crate) statistics: Arc<Statistics>,
}

impl WorkerReport {
    /// The tables for plans, in the order of [`tables`](WorkerReport::tables).
    ///
    /// # Errors
    /// If the bytes of a schema are not one.
    pub(crate) fn planned(&self) -> Result<&[PlannedTable], ArrowError> {
        if let Some(planned) = self.planned.get() {
            return Ok(planned);
        }
        let decoded = self.tables.iter().map(|table| {
            let schema = table.schema()?;
            let statistics = Arc::new(table.statistics(&schema));
            Ok(PlannedTable { schema, statistics })
        });
        let decoded = decoded.collect::<Result<_, ArrowError>>()?;
        Ok(self.planned.get_or_init(|| decoded))
    }

    /// The content of an action of a process that knows the report with this mark.
    pub(crate) fn ask_with(mark: Option<u64>) -> Vec<u8> {
        mark.map(|mark| mark.to_le_bytes().to_vec()).unwrap_or_default()
    }

    /// The mark in the content of an action.
    pub(crate) fn known_mark(body: &[u8]) -> Option<u64> {
        body.try_into().ok().map(u64::from_le_bytes)
    }
}

/// A loaded table: the same on each worker that read the same files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableReport {
    /// Its name in SQL.
    pub name: String,
    /// Its schema as a stream of Arrow IPC without batches.
    schema: Vec<u8>,
    /// A digest of what was loaded: sizes of files, rows, and the ranges of columns.
    pub files: u64,
    /// Rows of all shards.
    pub rows: u64,
    columns: Vec<ColumnReport>,
}

/// Statistics of a column, from all rows of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ColumnReport {
    nulls: u64,
    /// Least and greatest value of integers and dates.
    range: Option<(i64, i64)>,
}

impl ColumnReport {
    /// Adds the values of a column.
    pub(crate) fn add(&mut self, column: &ArrayRef) -> Result<(), ArrowError> {
        self.nulls += column.logical_null_count() as u64;
        let whole = match column.data_type() {
            DataType::Date32 => cast(&cast(column, &DataType::Int32)?, &DataType::Int64)?,
            // Values of UInt64 above the range of i64 would be null.
            data_type if data_type.is_integer() && data_type != &DataType::UInt64 => {
                cast(column, &DataType::Int64)?
            }
            _ => return Ok(()),
        };
        let whole = whole.as_primitive::<Int64Type>();
        if let (Some(least), Some(greatest)) = (min(whole), max(whole)) {
            self.widen((least, greatest));
        }
        Ok(())
    }

    /// Adds what another part of the table has.
    pub(crate) fn merge(&mut self, other: &ColumnReport) {
        self.nulls += other.nulls;
        other.range.into_iter().for_each(|range| self.widen(range));
    }

    fn widen(&mut self, (least, greatest): (i64, i64)) {
        let (known_least, known_greatest) = self.range.unwrap_or((least, greatest));
        self.range = Some((least.min(known_least), greatest.max(known_greatest)));
    }
}

impl TableReport {
    pub(crate) fn new(
        name: &str,
        schema: &SchemaRef,
        files: u64,
        rows: u64,
        columns: Vec<ColumnReport>,
    ) -> Result<TableReport, ArrowError> {
        let mut bytes = Vec::new();
        StreamWriter::try_new(&mut bytes, schema)?.finish()?;
        Ok(TableReport { name: name.to_owned(), schema: bytes, files, rows, columns })
    }

    /// The schema.
    ///
    /// # Errors
    /// If the bytes are not a schema.
    pub fn schema(&self) -> Result<SchemaRef, ArrowError> {
        Ok(StreamReader::try_new(Cursor::new(&self.schema), None)?.schema())
    }

    /// Statistics for the optimizer.
    pub(crate) fn statistics(&self, schema: &SchemaRef) -> Statistics {
        let row_bytes: u64 = schema.fields().iter().map(|field| width_bytes(field.data_type())).sum();
        let of_column = |(index, field): (usize, &Arc<datafusion::arrow::datatypes::Field>)| {
            let mut statistics = ColumnStatistics::new_unknown();
            let Some(column) = self.columns.get(index) else { return statistics };
            statistics.null_count = Precision::Exact(column.nulls as usize);
            let value = |value: i64| match field.data_type() {
                DataType::Date32 => i32::try_from(value).ok().map(|days| ScalarValue::Date32(Some(days))),
                data_type => ScalarValue::Int64(Some(value)).cast_to(data_type).ok(),
            };
            if let Some((least, greatest)) = column.range {
                statistics.min_value = value(least).map_or(Precision::Absent, Precision::Exact);
                statistics.max_value = value(greatest).map_or(Precision::Absent, Precision::Exact);
            }
            statistics
        };
        Statistics {
            num_rows: Precision::Exact(self.rows as usize),
            total_byte_size: Precision::Inexact((self.rows * row_bytes) as usize),
            column_statistics: schema.fields().iter().enumerate().map(of_column).collect(),
        }
    }
}

/// Bytes of a value; 16 for strings, as DataFusion's views.
pub(crate) fn width_bytes(data_type: &DataType) -> u64 {
    data_type.primitive_width().unwrap_or(16) as u64
}

/// Adds the columns of a batch.
pub(crate) fn add_columns(columns: &mut [ColumnReport], batch: &RecordBatch) -> Result<(), ArrowError> {
    columns.iter_mut().zip(batch.columns()).try_for_each(|(report, column)| report.add(column))
}

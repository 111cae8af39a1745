//! Whether filters in the decoder cost time: Q6 of TPC-H, and 40 filters on a wide table, with pushdown `auto`, `on` and `off`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, RecordBatch, RecordBatchIterator, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use memferry_bench::harness::{Pairs, Random, Row, geomean_ratio};
use memferry_bench::telemetry::beside;
use memferry_query::load::{BATCH_ROWS, Progress};

use super::{ColdBenchmark, FileCache, Temperature, extreme};
use crate::tpch_files::{write_parquet, written_once};
use crate::{QueryError, TpchError, tpch, tpch_file};

/// Rows of the table that is measured: 1.8 GB on the disk.
pub const WIDE_ROWS: u64 = 10_000_000;

/// Name of the table and of its file.
const TABLE: &str = "wide";

/// Rows of a row group: as those of `lineitem`, roughly.
const GROUP_ROWS: usize = 131_072;

/// Columns `i0` to `i89` and `t0` to `t5`, beside the four of the filters: 100.
const INTEGERS: usize = 90;
const TEXTS: usize = 6;

/// Distinct values of each of them: dictionaries of 12-bit indices, as in columns of codes and amounts.
const DISTINCT: usize = 4096;

/// Values of the shuffled columns are uniform in `0..SHUFFLED`.
const SHUFFLED: usize = 1_000_000;

const SELECTIVITIES: [f64; 5] = [0.001, 0.01, 0.1, 0.5, 1.0];

/// Late columns of a wide query.
const WIDE_INTEGERS: usize = 30;
const WIDE_TEXTS: usize = 2;

/// The table does not depend on the seed of a run, so that it is written once.
const SEED: u64 = 17;

impl ColdBenchmark {
    /// Q6 and the filters over a table of `rows` rows, by name.
    pub(super) fn pushdown_queries(&self, rows: u64) -> Result<Vec<(String, String)>, QueryError> {
        let q06 = ("q06".to_owned(), tpch::query(6, self.scale));
        self.select([q06].into_iter().chain(filter_queries(rows)).collect(), &[])
    }

    /// The rows of pushdown: the files of TPC-H and those of [`wide_files`] in `wide`, of `rows` rows, each query with
    /// `memferry.pushdown` `auto` and `on` against `off`. `progress` counts queries.
    ///
    /// # Errors
    /// [`QueryError::UnknownQuery`] before anything runs; [`QueryError::Invalid`]: nothing here is cold, or answers
    /// differ. Others as the queries.
    pub fn pushdown_rows(
        &self,
        wide: &Path,
        rows: u64,
        progress: &dyn Progress,
    ) -> Result<Vec<Row>, QueryError> {
        let queries = self.pushdown_queries(rows)?;
        progress.total(queries.len() as u64);
        self.disk_rate()?;
        let tiers = self.tiers()?;
        let ways = |tables: Vec<(String, PathBuf)>| {
            ["auto", "on", "off"].map(|mode| {
                let setting = format!("memferry.pushdown = {mode}");
                self.set_way(&format!("pushdown {mode}"), &tiers, setting, tables.clone())
            })
        };
        let mut tpch_ways = (ways(self.tables()), FileCache::open(&self.files, Temperature::Cold)?);
        let wide_table = vec![(TABLE.to_owned(), tpch_file(wide, TABLE))];
        let mut wide_ways = (ways(wide_table), FileCache::open(wide, Temperature::Cold)?);
        let mut rows = Vec::new();
        let mut highs = Vec::new();
        for (name, sql) in &queries {
            let (ways, files) = if name == "q06" { &mut tpch_ways } else { &mut wide_ways };
            let samples = self.sample(name, sql, ways, files)?;
            let [auto, on] = [0, 1].map(|way| {
                let [ours, peer] =
                    [way, 2].map(|way| samples.ms(way).expect("a session that fails ends the benchmark"));
                Pairs { ours, peer }
            });
            highs.push(geomean_ratio([&auto], self.seed).high);
            let row = |name: String, pairs| Row::over_queries(name, "pushdown off", [pairs], self.seed);
            let both = vec![row(format!("pushdown_{name}"), &auto), row(format!("pushdown_{name}_on"), &on)];
            rows.extend(beside(both, samples.counts));
            progress.advance(1);
        }
        rows.extend(extreme("pushdown_min", highs.into_iter(), f64::min));
        Ok(rows)
    }
}

/// Writes the wide table below `directory`, unless it is there, and returns the directory of its file.
///
/// The file gets its directory when it is complete and on the disk. It depends on `rows` only.
///
/// # Errors
/// [`TpchError::Write`].
pub fn wide_files(rows: u64, directory: &Path, progress: &dyn Progress) -> Result<PathBuf, TpchError> {
    written_once(directory, &format!("{TABLE}{rows}"), |unfinished| {
        progress.total(rows);
        let mut fields = vec![Field::new("sorted_integer", DataType::Int32, false)];
        fields.push(Field::new("sorted_text", DataType::Utf8, false));
        fields.push(Field::new("shuffled_integer", DataType::Int32, false));
        fields.push(Field::new("shuffled_text", DataType::Utf8, false));
        fields.extend((0..INTEGERS).map(|column| Field::new(format!("i{column}"), DataType::Int32, false)));
        fields.extend((0..TEXTS).map(|column| Field::new(format!("t{column}"), DataType::Utf8, false)));
        let schema = Arc::new(Schema::new(fields));
        let vocabulary: Vec<String> =
            (0..DISTINCT).map(|value| format!("one of {DISTINCT}: {value:04}")).collect();
        let mut random = Random(SEED);
        let batch_schema = Arc::clone(&schema);
        let batches = (0..rows).step_by(BATCH_ROWS).map(move |start| {
            let rows = start..rows.min(start + BATCH_ROWS as u64);
            let shuffled: Vec<usize> = rows.clone().map(|_| random.below(SHUFFLED)).collect();
            let mut columns: Vec<ArrayRef> = vec![
                integers(rows.clone().map(|row| row as usize)),
                texts(rows.clone().map(|row| text(row as usize))),
                integers(shuffled.iter().copied()),
                texts(shuffled.iter().copied().map(text)),
            ];
            columns.extend((0..INTEGERS).map(|_| integers(rows.clone().map(|_| random.below(DISTINCT)))));
            columns
                .extend((0..TEXTS).map(|_| texts(rows.clone().map(|_| &vocabulary[random.below(DISTINCT)]))));
            RecordBatch::try_new(Arc::clone(&batch_schema), columns)
        });
        write_parquet(
            &tpch_file(unfinished, TABLE),
            RecordBatchIterator::new(batches, schema),
            GROUP_ROWS,
            progress,
        )
    })
}

fn integers(values: impl Iterator<Item = usize>) -> ArrayRef {
    Arc::new(Int32Array::from_iter_values(values.map(|value| value as i32)))
}

fn texts<T: AsRef<str>>(values: impl Iterator<Item = T>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// Texts in the order of their numbers.
fn text(number: usize) -> String {
    format!("number {number:010}")
}

/// The 40 filter queries over a table of `rows` rows, by name.
fn filter_queries(rows: u64) -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for (kind, narrow) in [("integer", "sum(i0)"), ("text", "sum(length(t0))")] {
        for (order, values) in [("sorted", rows as f64), ("shuffled", SHUFFLED as f64)] {
            for (width, late) in [("narrow", narrow), ("wide", &wide_late())] {
                for selectivity in SELECTIVITIES {
                    let bound = (values * selectivity) as usize;
                    let bound = if kind == "text" { format!("'{}'", text(bound)) } else { bound.to_string() };
                    let sql = format!("select {late} from {TABLE} where {order}_{kind} < {bound}");
                    queries.push((format!("{kind}_{order}_{width}_{selectivity}"), sql));
                }
            }
        }
    }
    queries
}

/// All late columns of a wide query. No minimum or maximum: its dynamic filter would decide what is read.
fn wide_late() -> String {
    let integers = (0..WIDE_INTEGERS).map(|column| format!("sum(i{column})"));
    let texts = (0..WIDE_TEXTS).map(|column| format!("sum(length(t{column}))"));
    integers.chain(texts).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    #[test]
    fn the_wide_table_is_written_once_and_filters_pass_what_their_names_say() {
        let directory = tempfile::tempdir().unwrap();
        let rows = 150_000;
        let files = wide_files(rows, directory.path(), &()).unwrap();
        let path = tpch_file(&files, TABLE);
        let made = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(wide_files(rows, directory.path(), &()).unwrap(), files);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), made);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing unfinished is left");

        let metadata = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(&path).unwrap()).unwrap();
        assert_eq!(metadata.schema().fields().len(), 100);
        assert_eq!(metadata.metadata().num_row_groups(), 2);
        let queries = filter_queries(rows);
        assert_eq!(queries.len(), 40);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let context = memferry_query::session(&Default::default());
            memferry_query::files::register(&context, TABLE, &path.to_string_lossy()).await.unwrap();
            let mut pushed = Vec::new();
            for (name, sql) in queries {
                let plan = context.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
                let plan = datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string();
                assert!(plan.contains("pushdown="), "{plan}");
                if plan.contains("pushdown=on") {
                    pushed.push(name.clone());
                }
                let selectivity: f64 = name.rsplit('_').next().unwrap().parse().unwrap();
                let filter = sql.split_once(" from ").unwrap().1;
                let sql = format!("select count(*) from {filter}");
                let passed = context.sql(&sql).await.unwrap().collect().await.unwrap();
                let passed = datafusion::common::cast::as_int64_array(passed[0].column(0)).unwrap().value(0);
                let share = passed as f64 / rows as f64;
                assert!((share / selectivity - 1.0).abs() < 0.25, "{name}: {share}");
            }
            let orders = ["sorted", "shuffled"].into_iter();
            let expected =
                orders.flat_map(|order| [0.001, 0.01].map(|share| format!("integer_{order}_wide_{share}")));
            assert_eq!(pushed, expected.collect::<Vec<_>>(), "what auto pushes down");
        });
    }
}

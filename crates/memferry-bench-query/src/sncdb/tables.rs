//! The tables of the study (figure 8): a key that ascends, and six columns of random integers, bit-packed.
//!
//! The key's order is its index: a scan searches it (`memferry-query`, `scan::keys`).

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, RecordBatch, RecordBatchIterator};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use memferry_bench::harness::Random;
use memferry_query::load::{BATCH_ROWS, PartitionReader, PartitionedSource, Progress, from_readers};
use memferry_query::{Layout, LoadError, TableData};

use super::workload::{PREDICATES, Statement, scaled};

/// Names of the columns with random integers.
pub(super) const VALUES: [&str; PREDICATES] = ["c1", "c2", "c3", "c4", "c5", "c6"];

/// The content of a table: each value is a function of its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    /// Rows.
    pub(super) rows: u64,
    /// Seed of all columns.
    pub(super) seed: u64,
}

impl Values {
    /// The value of a row, from 0 on, in a column, from 0 for C1 on: 1 to the number of rows.
    pub(super) fn value(self, column: usize, row: u64) -> i32 {
        self.at(self.stream(column), row)
    }

    fn stream(self, column: usize) -> u64 {
        // Mixed before the row's number is added. Otherwise one column would have the other's values in another order.
        mix(mix(self.seed) ^ column as u64)
    }

    fn at(self, stream: u64, row: u64) -> i32 {
        // The high half of a product with a uniform number is uniform in the other factor's range.
        1 + ((u128::from(mix(stream ^ row)) * u128::from(self.rows)) >> 64) as i32
    }

    /// The table. Its values do not depend on `layout`.
    ///
    /// Shapes: at most `i32::MAX` rows.
    ///
    /// # Errors
    /// [`LoadError::Table`].
    pub(super) fn table(self, layout: &Layout, progress: &dyn Progress) -> Result<TableData, LoadError> {
        let names = ["c0"].into_iter().chain(VALUES);
        let fields: Vec<Field> = names.map(|name| Field::new(name, DataType::Int32, false)).collect();
        let schema = Arc::new(Schema::new(fields));
        let bound = |part: usize, parts: usize| (u128::from(self.rows) * part as u128 / parts as u128) as u64;
        let open = |part: usize, parts: usize| -> PartitionReader {
            let (start, end) = (bound(part, parts), bound(part + 1, parts));
            let batch_schema = Arc::clone(&schema);
            let batches = (start..end).step_by(BATCH_ROWS).map(move |start| {
                let rows = start..end.min(start + BATCH_ROWS as u64);
                let key: ArrayRef =
                    Arc::new(Int32Array::from_iter_values(rows.clone().map(|row| row as i32 + 1)));
                let columns = (0..VALUES.len()).map(|column| self.column(column, rows.clone()));
                RecordBatch::try_new(Arc::clone(&batch_schema), [key].into_iter().chain(columns).collect())
            });
            Box::new(RecordBatchIterator::new(batches, Arc::clone(&schema)))
        };
        let sources = [PartitionedSource { rows: self.rows, open: Box::new(open) }];
        Ok(from_readers(&sources, layout, progress)?.remove(0))
    }

    fn column(self, column: usize, rows: Range<u64>) -> ArrayRef {
        let stream = self.stream(column);
        Arc::new(Int32Array::from_iter_values(rows.map(|row| self.at(stream, row))))
    }

    /// The counts that a scan answers with, in ascending order; none for a random access.
    pub(super) fn counts(self, statement: &Statement) -> Vec<i64> {
        let Statement::Scan { range_pred, .. } = *statement else { return Vec::new() };
        let end = i32::try_from(scaled(range_pred, self.rows)).unwrap_or(i32::MAX);
        let count = |columns: Range<usize>| {
            let streams: Vec<u64> = columns.map(|column| self.stream(column)).collect();
            let passes = |row: &u64| streams.iter().any(|&stream| self.at(stream, *row) < end);
            (0..self.rows).filter(passes).count() as i64
        };
        let of_tables = statement.columns().into_iter().filter(|columns| !columns.is_empty());
        let mut counts: Vec<i64> = of_tables.map(count).collect();
        counts.sort_unstable();
        counts
    }
}

/// A bijection whose outputs look random even for consecutive inputs.
fn mix(value: u64) -> u64 {
    Random(value).next_u64()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const VALUES: Values = Values { rows: 20_000, seed: 3 };

    /// Of as many random numbers as there are values, 1 - 1/e occur.
    #[test]
    fn columns_have_random_integers_of_their_own() {
        let column = |values: Values, column| -> Vec<i32> {
            (0..values.rows).map(|row| values.value(column, row)).collect()
        };
        let first = column(VALUES, 0);
        let distinct: HashSet<i32> = first.iter().copied().collect();
        assert!((distinct.len() as f64 / 20_000.0 - 0.632).abs() < 0.01, "{}", distinct.len());
        assert!(first.iter().all(|value| (1..=20_000).contains(value)));
        for other in [column(VALUES, 5), column(Values { seed: 4, ..VALUES }, 0)] {
            let equal = first.iter().zip(&other).filter(|(one, other)| one == other).count();
            assert!(equal < 10, "{equal} rows are equal");
        }
    }

    #[test]
    fn predicates_select_their_share() {
        let scan = |on_first, range_pred| VALUES.counts(&Statement::Scan { on_first, range_pred });
        // 2 % each: of six, 1 - 0.98^6 = 11.4 % of the rows.
        let [all] = scan(PREDICATES, 1_000_000)[..] else { panic!("one table has no predicate") };
        assert!((all as f64 / 20_000.0 - 0.114).abs() < 0.01, "{all}");
        let [few, many] = scan(1, 1_000_000)[..] else { panic!("both tables have predicates") };
        assert!(
            (few as f64 / 400.0 - 1.0).abs() < 0.2 && (many as f64 / 1920.0 - 1.0).abs() < 0.1,
            "{few} {many}"
        );
        assert!(VALUES.counts(&Statement::Random).is_empty());
    }
}

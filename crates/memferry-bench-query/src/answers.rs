//! Comparison of two results of a query.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::{SortColumn, cast, concat_batches, lexsort_to_indices, take_record_batch};
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::array_value_to_string;

/// Relative difference that floating-point sums may have: they depend on the order of the rows, and partitions are
/// summed in any order.
const FLOAT_TOLERANCE: f64 = 1e-9;

/// The first difference between two results.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Difference {
    /// Different numbers of columns.
    #[error("{left} columns on one side, {right} on the other")]
    Columns {
        /// In the first result.
        left: usize,
        /// In the second result.
        right: usize,
    },
    /// A column of different types.
    #[error("column {column} is of type {left} on one side, {right} on the other")]
    Type {
        /// Name in the first result.
        column: String,
        /// In the first result.
        left: Box<DataType>,
        /// In the second result.
        right: Box<DataType>,
    },
    /// Different numbers of rows.
    #[error("{left} rows on one side, {right} on the other")]
    Rows {
        /// In the first result.
        left: usize,
        /// In the second result.
        right: usize,
    },
    /// Different values.
    #[error("row {row}, column {column}: {left} on one side, {right} on the other")]
    Value {
        /// Number of the row, from 0, after sorting if the rows are sorted for comparison.
        row: usize,
        /// Name of the column.
        column: String,
        /// In the first result.
        left: String,
        /// In the second result.
        right: String,
    },
    /// Values that Arrow can neither sort nor print.
    #[error("the results cannot be compared: {0}")]
    Incomparable(#[from] ArrowError),
}

/// Compares two results. The order of rows, the batches and the names of columns do not count. Floating-point numbers may
/// differ by a billionth; other values must be equal.
///
/// Rows are sorted by all columns, floating-point ones last. Among rows that are equal in the other columns, numbers that
/// differ within the tolerance may sort differently on the two sides. Equal rows with several such columns may then be
/// reported as different.
///
/// # Errors
/// [`Difference`]: the first one found.
pub fn answers_equal(left: &[RecordBatch], right: &[RecordBatch]) -> Result<(), Difference> {
    let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum();
    if rows(left) != rows(right) {
        return Err(Difference::Rows { left: rows(left), right: rows(right) });
    }
    // Without a batch there is no schema to compare.
    if left.is_empty() || right.is_empty() {
        return Ok(());
    }
    let (left, right) = (sorted(left)?, sorted(right)?);
    if left.num_columns() != right.num_columns() {
        return Err(Difference::Columns { left: left.num_columns(), right: right.num_columns() });
    }
    for (index, field) in left.schema_ref().fields().iter().enumerate() {
        let (left, right) = (left.column(index), right.column(index));
        if left.data_type() != right.data_type() {
            return Err(Difference::Type {
                column: field.name().clone(),
                left: Box::new(left.data_type().clone()),
                right: Box::new(right.data_type().clone()),
            });
        }
        if let Some(row) = first_difference(left, right)? {
            return Err(Difference::Value {
                row,
                column: field.name().clone(),
                left: array_value_to_string(left, row)?,
                right: array_value_to_string(right, row)?,
            });
        }
    }
    Ok(())
}

/// All rows in one batch, in an order that depends on the values only.
fn sorted(batches: &[RecordBatch]) -> Result<RecordBatch, ArrowError> {
    let batch = concat_batches(batches[0].schema_ref(), batches)?;
    let (last, first): (Vec<_>, Vec<_>) =
        batch.columns().iter().partition(|column| column.data_type().is_floating());
    let columns = first.into_iter().chain(last);
    let columns: Vec<_> =
        columns.map(|values| SortColumn { values: values.clone(), options: None }).collect();
    if columns.is_empty() {
        return Ok(batch);
    }
    take_record_batch(&batch, &lexsort_to_indices(&columns, None)?)
}

fn first_difference(left: &ArrayRef, right: &ArrayRef) -> Result<Option<usize>, ArrowError> {
    if !left.data_type().is_floating() {
        let differs = |left: &ArrayRef, right: &ArrayRef| left.to_data() != right.to_data();
        let row = |row: &usize| differs(&left.slice(*row, 1), &right.slice(*row, 1));
        return Ok(if differs(left, right) { (0..left.len()).find(row) } else { None });
    }
    let (left, right) = (cast(left, &DataType::Float64)?, cast(right, &DataType::Float64)?);
    let (left, right) = (left.as_primitive::<Float64Type>(), right.as_primitive::<Float64Type>());
    Ok(left.iter().zip(right).position(|pair| match pair {
        (Some(left), Some(right)) => !is_close(left, right),
        (left, right) => left.is_some() != right.is_some(),
    }))
}

fn is_close(left: f64, right: f64) -> bool {
    // Infinities are equal though their difference is no number, and far from all others: hence the smaller of the two.
    left == right
        || (left.is_nan() && right.is_nan())
        || (left - right).abs() <= FLOAT_TOLERANCE * left.abs().min(right.abs())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{Decimal128Array, Float64Array, Int64Array, StringViewArray};

    use super::*;

    fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
        RecordBatch::try_from_iter(columns.into_iter().map(|column| ("c", column))).unwrap()
    }

    fn rows(keys: &[i64], values: &[f64]) -> RecordBatch {
        batch(vec![Arc::new(Float64Array::from(values.to_vec())), Arc::new(Int64Array::from(keys.to_vec()))])
    }

    #[test]
    fn order_and_batches_do_not_matter() {
        let left = [rows(&[3, 1], &[0.3, 0.1]), rows(&[2], &[0.2])];
        answers_equal(&left, &[rows(&[1, 2, 3], &[0.1, 0.2, 0.3])]).unwrap();
        // Sorted by the keys, not by floats that come first but differ a little.
        answers_equal(&[rows(&[1, 2], &[1.0, 1.0 + 1e-12])], &[rows(&[1, 2], &[1.0 + 1e-12, 1.0])]).unwrap();
    }

    #[test]
    fn floats_may_differ_a_little() {
        answers_equal(&[rows(&[1], &[1e9])], &[rows(&[1], &[1e9 + 0.5])]).unwrap();
        answers_equal(&[rows(&[1], &[f64::INFINITY])], &[rows(&[1], &[f64::INFINITY])]).unwrap();
        answers_equal(&[rows(&[1], &[f64::NAN])], &[rows(&[1], &[f64::NAN])]).unwrap();
        for (left, right) in [(1e9, 1e9 + 2.0), (0.0, 1e-12), (1.0, f64::NAN), (1.0, f64::INFINITY)] {
            let difference = answers_equal(&[rows(&[1], &[left])], &[rows(&[1], &[right])]).unwrap_err();
            assert!(
                matches!(difference, Difference::Value { row: 0, .. }),
                "{left} and {right}: {difference}"
            );
        }
    }

    #[test]
    fn nothing_else_may_differ() {
        let decimal = |value: i128| -> ArrayRef {
            Arc::new(Decimal128Array::from(vec![Some(value), None]).with_precision_and_scale(20, 2).unwrap())
        };
        let text = |value: &str| -> ArrayRef { Arc::new(StringViewArray::from(vec![Some(value), None])) };
        answers_equal(&[batch(vec![decimal(1), text("a")])], &[batch(vec![decimal(1), text("a")])]).unwrap();
        for (left, right, expected) in [
            (vec![decimal(1)], vec![decimal(2)], "row 1, column c: 0.01 on one side, 0.02 on the other"),
            (vec![text("a")], vec![text("b")], "row 1, column c: a on one side, b on the other"),
            (vec![text("a")], vec![decimal(1)], "column c is of type Utf8View"),
            (vec![text("a")], vec![text("a"), text("a")], "1 columns on one side, 2 on the other"),
        ] {
            let difference = answers_equal(&[batch(left)], &[batch(right)]).unwrap_err().to_string();
            assert!(difference.starts_with(expected), "{difference}");
        }
    }

    #[test]
    fn numbers_of_rows_are_compared() {
        let one = [rows(&[1], &[0.1])];
        let twice = [rows(&[1, 1], &[0.1, 0.1])];
        assert!(matches!(answers_equal(&one, &twice), Err(Difference::Rows { left: 1, right: 2 })));
        assert!(matches!(answers_equal(&one, &[]), Err(Difference::Rows { left: 1, right: 0 })));
        answers_equal(&[], &[rows(&[], &[])]).unwrap();
        answers_equal(&[], &[]).unwrap();
    }
}

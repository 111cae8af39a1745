//! Comparisons of a column with constants, as ranges of keys.
//!
//! ```text
//! a >= 3 AND a < 9        3..=8
//! a <> 5                  ..=4, 6..
//! a IN (1, 2, 7)          1..=2, 7..=7
//! ```
//!
//! Other than [`KeyRanges`](super::keys::KeyRanges), which only exclude rows, these are exact: a row passes if and only if its key is
//! in one of the ranges. A null has no key.

use std::ops::RangeInclusive;
use std::sync::Arc;

use arrow::buffer::BooleanBuffer;
use arrow::datatypes::SchemaRef;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;

use super::filter::ChunkColumns;
use super::keys::{compared, list};
use crate::data::has_exact_keys;

/// Ranges that are worth a pass over the rows for each.
const RANGES_MAX: usize = 4;

/// The keys of a column for which a filter is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Comparison {
    pub(super) column: usize,
    /// In ascending order, none of them empty, and with keys between them.
    ranges: Vec<RangeInclusive<i64>>,
}

impl Comparison {
    /// That of a filter over the table's schema; `None` for other filters, and for lists with many ranges.
    pub(super) fn of(filter: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Option<Comparison> {
        if let Some((column, keys)) = list(filter, schema) {
            let keys = keys.listed().filter(|_| has_exact_keys(schema.field(column).data_type()))?;
            let ranges = joined(keys.iter().map(|&key| key..=key));
            return Some(Comparison { column, ranges }).filter(Comparison::has_few_ranges);
        }
        let (column, data_type, operator, key) = compared(filter, schema)?;
        if !has_exact_keys(data_type) {
            return None;
        }
        let below = key.checked_sub(1).map(|last| i64::MIN..=last);
        let above = key.checked_add(1).map(|first| first..=i64::MAX);
        let ranges = match operator {
            Operator::Eq => vec![key..=key],
            Operator::NotEq => below.into_iter().chain(above).collect(),
            Operator::Lt => below.into_iter().collect(),
            Operator::LtEq => vec![i64::MIN..=key],
            Operator::Gt => above.into_iter().collect(),
            Operator::GtEq => vec![key..=i64::MAX],
            _ => return None,
        };
        Some(Comparison { column, ranges })
    }

    /// Whether a pass for each range is worth it.
    pub(super) fn has_few_ranges(&self) -> bool {
        self.ranges.len() <= RANGES_MAX
    }

    /// Both of two comparisons of a column.
    pub(super) fn and(self, other: Comparison) -> Comparison {
        let both = |a: &RangeInclusive<i64>, b: &RangeInclusive<i64>| {
            *a.start().max(b.start())..=*a.end().min(b.end())
        };
        // In order, because those of each are.
        let ranges = self.ranges.iter().flat_map(|a| other.ranges.iter().map(move |b| both(a, b)));
        Comparison { column: self.column, ranges: ranges.filter(|range| !range.is_empty()).collect() }
    }

    /// The rows of a chunk that pass; `None` if only the values of the column say that.
    pub(super) fn rows(&self, columns: &dyn ChunkColumns) -> Option<BooleanBuffer> {
        // An empty range answers whether the column can be asked, and how many rows there are.
        let nothing = RangeInclusive::new(i64::MAX, i64::MIN);
        let mut ranges = self.ranges.iter();
        let mut passed = columns.within(self.column, ranges.next().unwrap_or(&nothing))?;
        for range in ranges {
            passed = &passed | &columns.within(self.column, range)?;
        }
        Some(passed)
    }
}

/// Ascending keys as ranges, those without keys between them as one.
fn joined(ranges: impl Iterator<Item = RangeInclusive<i64>>) -> Vec<RangeInclusive<i64>> {
    let mut joined: Vec<RangeInclusive<i64>> = vec![];
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end().checked_add(1) == Some(*range.start()) => {
                *last = *last.start()..=*range.end()
            }
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::physical_expr::expressions::{binary, col, in_list, lit};

    use super::*;

    fn schema() -> SchemaRef {
        let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int64, true));
        Arc::new(Schema::new(fields.to_vec()))
    }

    fn compare(operator: Operator, value: i64) -> Arc<dyn PhysicalExpr> {
        binary(col("b", &schema()).unwrap(), operator, lit(value), &schema()).unwrap()
    }

    fn ranges(operator: Operator, value: i64) -> Vec<RangeInclusive<i64>> {
        let found = Comparison::of(&compare(operator, value), &schema()).unwrap();
        assert_eq!(found.column, 1);
        found.ranges
    }

    fn one_of(values: &[i64], is_negated: bool) -> Option<Vec<RangeInclusive<i64>>> {
        let values = values.iter().map(|&value| lit(value)).collect();
        let list = in_list(col("b", &schema()).unwrap(), values, &is_negated, &schema()).unwrap();
        Some(Comparison::of(&list, &schema())?.ranges)
    }

    #[test]
    fn comparisons_at_the_bounds_are_of_all_keys_or_none() {
        use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
        let (least, most) = (i64::MIN, i64::MAX);
        assert_eq!(ranges(Lt, 7), [least..=6]);
        assert_eq!(ranges(LtEq, 7), [least..=7]);
        assert_eq!(ranges(Gt, 7), [8..=most]);
        assert_eq!(ranges(GtEq, 7), [7..=most]);
        assert_eq!(ranges(Eq, 7), [7..=7]);
        assert_eq!(ranges(NotEq, 7), [least..=6, 8..=most]);
        assert_eq!(ranges(LtEq, most), [least..=most]);
        assert_eq!(ranges(GtEq, least), [least..=most]);
        assert_eq!(ranges(Lt, least), []);
        assert_eq!(ranges(Gt, most), []);
        assert_eq!(ranges(NotEq, least), [least + 1..=most]);
        assert_eq!(ranges(NotEq, most), [least..=most - 1]);
        let swapped = binary(lit(7_i64), Lt, col("b", &schema()).unwrap(), &schema()).unwrap();
        assert_eq!(Comparison::of(&swapped, &schema()).unwrap().ranges, [8..=most]);
    }

    #[test]
    fn lists_are_ranges_of_adjacent_keys() {
        assert_eq!(one_of(&[7, 2, 1, 7], false).unwrap(), [1..=2, 7..=7]);
        assert_eq!(one_of(&[i64::MAX, i64::MIN], false).unwrap(), [i64::MIN..=i64::MIN, i64::MAX..=i64::MAX]);
        assert_eq!(one_of(&[1, 3, 5, 7, 9], false), None);
        assert_eq!(one_of(&[7], true), None);
    }

    #[test]
    fn both_of_two_comparisons_are_what_they_share() {
        let of = |operator, value| Comparison::of(&compare(operator, value), &schema()).unwrap();
        let both = |a: Comparison, b: Comparison| a.and(b).ranges;
        assert_eq!(both(of(Operator::GtEq, 3), of(Operator::Lt, 9)), [3..=8]);
        assert_eq!(both(of(Operator::Gt, 9), of(Operator::Lt, 3)), []);
        assert_eq!(both(of(Operator::NotEq, 5), of(Operator::LtEq, 7)), [i64::MIN..=4, 6..=7]);
        let two = both(of(Operator::NotEq, 5), of(Operator::NotEq, 3));
        assert_eq!(two, [i64::MIN..=2, 4..=4, 6..=i64::MAX]);
    }

    #[test]
    fn filters_that_keys_do_not_answer_are_none() {
        let (a, b) = (col("a", &schema()).unwrap(), col("b", &schema()).unwrap());
        let distinct = binary(Arc::clone(&a), Operator::IsDistinctFrom, lit(7_i64), &schema()).unwrap();
        let of_columns = binary(a, Operator::Lt, b, &schema()).unwrap();
        assert!([distinct, of_columns].iter().all(|filter| Comparison::of(filter, &schema()).is_none()));
        let floats: SchemaRef = Arc::new(Schema::new(vec![Field::new("f", DataType::Float64, false)]));
        let of_floats = binary(col("f", &floats).unwrap(), Operator::Lt, lit(0.0_f64), &floats).unwrap();
        assert!(Comparison::of(&of_floats, &floats).is_none(), "both zeros are one key");
    }
}

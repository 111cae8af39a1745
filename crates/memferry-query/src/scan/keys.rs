//! Rows that a filter can reach: without a look at those of row groups and blocks whose values it excludes, or that lie outside
//! of its range in a column that ascends.
//!
//! ```text
//! key = 7, date >= '1996-01-01' AND date < '1997-01-01', part IN (3, 9, 27)      of a query
//! key >= 3 AND key <= 90 AND key IN (3, 90)                                      of a join or TopK, while it runs
//! ```
//!
//! A table whose key ascends from row to row therefore needs no index beside it: `WHERE key = 7` is a comparison for each row
//! group, and two binary searches in the one that has the value. The few keys that a join has found are compared with the least and
//! the largest key of each block of 512 rows.

use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, InListExpr, Literal};

use crate::data::{BLOCK_ROWS, RowGroup, is_integer, key_of};

/// Blocks that no row of is reached are left out if so many follow each other: 4096 rows, half a batch. Fewer cost less than
/// another chunk.
const BLOCKS_LEFT_OUT_MIN: usize = 8;

/// The keys that a filter requires of columns: a row with others fails it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyRanges {
    /// All of these, by column.
    Columns(BTreeMap<usize, Keys>),
    /// No row passes.
    Nothing,
}

impl Default for KeyRanges {
    fn default() -> Self {
        KeyRanges::Columns(BTreeMap::new())
    }
}

/// Keys of a column, as of [`Blocks`](crate::data::Blocks).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keys {
    within: RangeInclusive<i64>,
    /// One of these, which ascend.
    of: Option<Vec<i64>>,
}

impl Keys {
    fn within(within: RangeInclusive<i64>) -> Keys {
        Keys { within, of: None }
    }

    fn is_empty(&self) -> bool {
        self.within.is_empty()
    }

    fn and(mut self, other: Keys) -> Keys {
        let within =
            *self.within.start().max(other.within.start())..=*self.within.end().min(other.within.end());
        let of = match (self.of.take(), other.of) {
            (Some(mut these), Some(those)) => {
                these.retain(|key| those.binary_search(key).is_ok());
                Some(these)
            }
            (these, those) => these.or(those),
        };
        match of {
            Some(mut keys) => {
                keys.retain(|key| within.contains(key));
                Keys::one_of(keys)
            }
            None => Keys::within(within),
        }
    }

    fn or(self, other: Keys) -> Keys {
        if let (Some(mut these), Some(those)) = (self.of.clone(), other.of.clone()) {
            these.extend(those);
            return Keys::one_of(these);
        }
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        Keys::within(
            *self.within.start().min(other.within.start())..=*self.within.end().max(other.within.end()),
        )
    }

    fn one_of(mut keys: Vec<i64>) -> Keys {
        keys.sort_unstable();
        keys.dedup();
        let (first, last) = (keys.first().copied(), keys.last().copied());
        let within = first.unwrap_or(i64::MAX)..=last.unwrap_or(i64::MIN);
        Keys { within, of: Some(keys) }
    }

    /// The list that these are of.
    pub(super) fn listed(&self) -> Option<&[i64]> {
        self.of.as_deref()
    }

    /// Whether a row whose key lies in `range` may have one of these.
    fn may_be_in(&self, range: &RangeInclusive<i64>) -> bool {
        if range.is_empty() || range.end() < self.within.start() || self.within.end() < range.start() {
            return false;
        }
        match &self.of {
            Some(keys) => {
                let next = keys.partition_point(|key| key < range.start());
                keys.get(next).is_some_and(|key| key <= range.end())
            }
            None => true,
        }
    }
}

impl KeyRanges {
    /// Those of a filter over the table's schema, without any for what is not known about it.
    pub(super) fn of(filter: Option<&Arc<dyn PhysicalExpr>>, schema: &SchemaRef) -> KeyRanges {
        let Some(filter) = filter else { return KeyRanges::default() };
        if let Some(binary) = filter.downcast_ref::<BinaryExpr>() {
            let sides =
                || (KeyRanges::of(Some(binary.left()), schema), KeyRanges::of(Some(binary.right()), schema));
            match binary.op() {
                Operator::And => {
                    let (left, right) = sides();
                    return left.and(right);
                }
                Operator::Or => {
                    let (left, right) = sides();
                    return left.or(right);
                }
                _ => {}
            }
        }
        if let Some(literal) = filter.downcast_ref::<Literal>() {
            return match literal.value() {
                // A null is not true.
                ScalarValue::Boolean(Some(false) | None) => KeyRanges::Nothing,
                _ => KeyRanges::default(),
            };
        }
        match comparison(filter, schema).or_else(|| list(filter, schema)) {
            Some((column, keys)) => KeyRanges::Columns(BTreeMap::from([(column, keys)])),
            None => KeyRanges::default(),
        }
    }

    pub(super) fn and(self, other: KeyRanges) -> KeyRanges {
        match (self, other) {
            (KeyRanges::Columns(mut these), KeyRanges::Columns(those)) => {
                for (column, keys) in those {
                    let both = match these.remove(&column) {
                        Some(known) => known.and(keys),
                        None => keys,
                    };
                    these.insert(column, both);
                }
                KeyRanges::Columns(these)
            }
            _ => KeyRanges::Nothing,
        }
    }

    fn or(self, other: KeyRanges) -> KeyRanges {
        match (self, other) {
            (KeyRanges::Nothing, other) | (other, KeyRanges::Nothing) => other,
            (KeyRanges::Columns(these), KeyRanges::Columns(mut those)) => KeyRanges::Columns(
                these
                    .into_iter()
                    .filter_map(|(column, keys)| Some((column, keys.or(those.remove(&column)?))))
                    .collect(),
            ),
        }
    }

    /// The rows of a row group beyond which the filter is false.
    pub(super) fn rows(&self, group: &RowGroup) -> Range<usize> {
        let KeyRanges::Columns(columns) = self else { return 0..0 };
        let mut rows = 0..group.rows();
        for (&column, keys) in columns {
            if keys.is_empty() || group.keys_at_hand(column).is_some_and(|of_group| !keys.may_be_in(of_group))
            {
                return 0..0;
            }
            if let Some(sorted) = group.sorted(column) {
                let within = sorted.rows(&keys.within);
                rows = rows.start.max(within.start)..rows.end.min(within.end);
            }
        }
        rows
    }

    /// The next rows of `rows` that the filter can reach, up to the next blocks that it cannot; empty at the end of `rows` if
    /// there are none.
    pub(super) fn next_rows(&self, group: &RowGroup, rows: Range<usize>) -> Range<usize> {
        let KeyRanges::Columns(columns) = self else { return rows.end..rows.end };
        let known: Vec<_> =
            columns.iter().filter_map(|(&column, keys)| Some((group.blocks(column)?, keys))).collect();
        if known.is_empty() || rows.is_empty() {
            return rows;
        }
        let reached = |block: usize| known.iter().all(|(blocks, keys)| keys.may_be_in(&blocks.keys(block)));
        let blocks = rows.start / BLOCK_ROWS..rows.end.div_ceil(BLOCK_ROWS);
        let Some(first) = blocks.clone().find(|&block| reached(block)) else { return rows.end..rows.end };
        let (mut end, mut left_out) = (blocks.end, 0);
        for block in first..blocks.end {
            left_out = if reached(block) { 0 } else { left_out + 1 };
            if left_out == BLOCKS_LEFT_OUT_MIN {
                end = block + 1 - BLOCKS_LEFT_OUT_MIN;
                break;
            }
        }
        rows.start.max(first * BLOCK_ROWS)..rows.end.min(end * BLOCK_ROWS)
    }
}

/// A column, an operator and the key of a constant.
pub(super) fn compared<'a>(
    filter: &Arc<dyn PhysicalExpr>,
    schema: &'a SchemaRef,
) -> Option<(usize, &'a DataType, Operator, i64)> {
    let comparison = filter.downcast_ref::<BinaryExpr>()?;
    let (left, right) = (comparison.left(), comparison.right());
    let (column, constant, operator) = match left.downcast_ref::<Column>() {
        Some(column) => (column, right, *comparison.op()),
        None => (right.downcast_ref::<Column>()?, left, comparison.op().swap()?),
    };
    let column = column.index();
    let data_type = schema.field(column).data_type();
    let key = key_of(constant.downcast_ref::<Literal>()?.value(), data_type)?;
    Some((column, data_type, operator, key))
}

fn comparison(filter: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Option<(usize, Keys)> {
    let (column, data_type, operator, key) = compared(filter, schema)?;
    // Numbers between two keys do not exist where keys are integers.
    let next = |key: Option<i64>| if is_integer(data_type) { key } else { None };
    let range = match operator {
        // A list, so that a disjunction of keys far apart is one.
        Operator::Eq => return Some((column, Keys::one_of(vec![key]))),
        // No integer is less than the least: the filter says so of each row.
        Operator::Lt => i64::MIN..=next(key.checked_sub(1)).unwrap_or(key),
        Operator::LtEq => i64::MIN..=key,
        Operator::Gt => next(key.checked_add(1)).unwrap_or(key)..=i64::MAX,
        Operator::GtEq => key..=i64::MAX,
        _ => return None,
    };
    Some((column, Keys::within(range)))
}

pub(super) fn list(filter: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Option<(usize, Keys)> {
    let list = filter.downcast_ref::<InListExpr>()?;
    let column = list.expr().downcast_ref::<Column>()?.index();
    if list.negated() {
        return None;
    }
    let data_type = schema.field(column).data_type();
    let mut keys = Vec::with_capacity(list.len());
    for constant in list.list() {
        let value = constant.downcast_ref::<Literal>()?.value();
        // Nothing equals a null.
        if !value.is_null() {
            keys.push(key_of(value, data_type)?);
        }
    }
    Some((column, Keys::one_of(keys)))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use arrow::datatypes::{Field, Schema};
    use datafusion::physical_expr::expressions::{binary, col, in_list, lit};
    use memferry::topology::Machine;

    use super::*;
    use crate::data::{Layout, PartitionWriter};

    fn schema() -> SchemaRef {
        let fields = ["a", "b"].map(|name| Field::new(name, DataType::Int64, true));
        Arc::new(Schema::new(fields.to_vec()))
    }

    fn compare(name: &str, operator: Operator, value: i64) -> Arc<dyn PhysicalExpr> {
        binary(col(name, &schema()).unwrap(), operator, lit(value), &schema()).unwrap()
    }

    fn both(left: Arc<dyn PhysicalExpr>, operator: Operator, right: Arc<dyn PhysicalExpr>) -> KeyRanges {
        KeyRanges::of(Some(&binary(left, operator, right, &schema()).unwrap()), &schema())
    }

    fn of(columns: &[(usize, Keys)]) -> KeyRanges {
        KeyRanges::Columns(columns.iter().cloned().collect())
    }

    fn one_of(name: &str, values: &[i64]) -> Arc<dyn PhysicalExpr> {
        let values = values.iter().map(|&value| lit(value)).collect();
        in_list(col(name, &schema()).unwrap(), values, &false, &schema()).unwrap()
    }

    #[test]
    fn conjunctions_narrow_and_disjunctions_widen() {
        use Operator::{And, Gt, GtEq, Lt, LtEq, Or};
        let within = Keys::within;
        let a = |operator, value| compare("a", operator, value);
        assert_eq!(both(a(Gt, 3), And, a(LtEq, 9)), of(&[(0, within(4..=9))]));
        assert_eq!(both(a(Lt, 3), Or, a(Lt, 9)), of(&[(0, within(i64::MIN..=8))]));
        assert_eq!(
            both(a(GtEq, 3), And, compare("b", Lt, 0)),
            of(&[(0, within(3..=i64::MAX)), (1, within(i64::MIN..=-1))])
        );
        assert_eq!(both(a(GtEq, 3), Or, compare("b", Lt, 0)), of(&[]));
        assert_eq!(both(one_of("a", &[7, 3, 20, 3]), And, a(Lt, 20)), of(&[(0, Keys::one_of(vec![3, 7]))]));
        assert_eq!(both(one_of("a", &[7]), Or, one_of("a", &[3])), of(&[(0, Keys::one_of(vec![3, 7]))]));
        assert_eq!(both(a(Operator::Eq, 7), Or, a(Operator::Eq, 3)), of(&[(0, Keys::one_of(vec![3, 7]))]));
        assert_eq!(both(lit(false), And, a(Lt, 20)), KeyRanges::Nothing);
        assert_eq!(both(lit(false), Or, a(Lt, 20)), of(&[(0, within(i64::MIN..=19))]));
    }

    /// Two blocks of ones with so many blocks of zeros between them.
    fn with_gap(blocks: usize) -> RowGroup {
        let rows = (blocks + 2) * BLOCK_ROWS;
        let is_one = |row: usize| row < BLOCK_ROWS || row >= rows - BLOCK_ROWS;
        let values: ArrayRef =
            Arc::new((0..rows).map(|row| Some(i64::from(is_one(row)))).collect::<Int64Array>());
        let batch = RecordBatch::try_from_iter([("a", values)]).unwrap();
        let machine = Arc::new(Machine::discover().unwrap());
        let home = machine.nodes()[0].id;
        let mut writer = PartitionWriter::new(batch.schema(), &Layout::new(machine, home)).unwrap();
        writer.push(&batch).unwrap();
        writer.finish().unwrap().remove(0)
    }

    #[test]
    fn eight_blocks_in_a_row_are_left_out_and_seven_are_not() {
        let ones = KeyRanges::of(Some(&compare("a", Operator::Eq, 1)), &schema());
        let seven = with_gap(7);
        assert_eq!(ones.next_rows(&seven, 0..seven.rows()), 0..9 * BLOCK_ROWS);
        let eight = with_gap(8);
        assert_eq!(ones.next_rows(&eight, 0..eight.rows()), 0..BLOCK_ROWS);
        assert_eq!(ones.next_rows(&eight, BLOCK_ROWS..eight.rows()), 9 * BLOCK_ROWS..10 * BLOCK_ROWS);
        // Blocks at the beginning are left out however few they are.
        assert_eq!(ones.next_rows(&seven, BLOCK_ROWS..seven.rows()), 8 * BLOCK_ROWS..9 * BLOCK_ROWS);
        let sevens = KeyRanges::of(Some(&compare("a", Operator::Eq, 7)), &schema());
        assert!(sevens.next_rows(&seven, 0..seven.rows()).is_empty());
    }

    #[test]
    fn a_list_reaches_only_ranges_with_one_of_its_keys() {
        let keys = Keys::one_of(vec![30, 10, 20]);
        for (range, expected) in
            [(0..=9, false), (10..=10, true), (11..=19, false), (15..=25, true), (31..=99, false)]
        {
            assert_eq!(keys.may_be_in(&range), expected, "{range:?}");
        }
        assert!(!keys.may_be_in(&RangeInclusive::new(i64::MAX, i64::MIN)), "a block of nulls");
    }
}

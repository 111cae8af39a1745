//! Rows that a predicate can reach: without a look at those of row groups whose values it excludes, or that lie outside of its
//! range in a column that ascends.
//!
//! A table whose key ascends from row to row therefore needs no index beside it: `WHERE key = 7` is a comparison for each row
//! group, and two binary searches in the one that has the value.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};

use crate::data::{RowGroup, is_integer};

/// The ranges of integers that a predicate requires of columns.
#[derive(Debug, Default)]
pub(super) struct KeyRanges(Vec<(usize, RangeInclusive<i64>)>);

impl KeyRanges {
    /// Those of the conjuncts of a predicate over the table's schema that compare a column of integers with a constant.
    pub(super) fn of(predicate: Option<&Arc<dyn PhysicalExpr>>, schema: &SchemaRef) -> KeyRanges {
        let conjuncts = predicate.map(split_conjunction).unwrap_or_default();
        KeyRanges(conjuncts.into_iter().filter_map(|conjunct| range(conjunct, schema)).collect())
    }

    /// The rows of a row group beyond which the predicate is false.
    pub(super) fn rows(&self, group: &RowGroup) -> Range<usize> {
        let mut rows = 0..group.rows();
        for (column, range) in &self.0 {
            let Some(values) = group.values_at_hand(*column) else { continue };
            if values.end() < range.start() || range.end() < values.start() {
                return 0..0;
            }
            if let Some(sorted) = group.sorted(*column) {
                let within = sorted.rows(range);
                rows = rows.start.max(within.start)..rows.end.min(within.end);
            }
        }
        rows
    }
}

fn range(conjunct: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Option<(usize, RangeInclusive<i64>)> {
    let comparison = conjunct.downcast_ref::<BinaryExpr>()?;
    let (left, right) = (comparison.left(), comparison.right());
    let (column, constant, operator) = match left.downcast_ref::<Column>() {
        Some(column) => (column, right, *comparison.op()),
        None => (right.downcast_ref::<Column>()?, left, comparison.op().swap()?),
    };
    let column = column.index();
    if !is_integer(schema.field(column).data_type()) {
        return None;
    }
    let value = integer(constant.downcast_ref::<Literal>()?.value())?;
    let range = match operator {
        Operator::Eq => value..=value,
        // No integer is less than the least: the filter says so of each row.
        Operator::Lt => i64::MIN..=value.checked_sub(1)?,
        Operator::LtEq => i64::MIN..=value,
        Operator::Gt => value.checked_add(1)?..=i64::MAX,
        Operator::GtEq => value..=i64::MAX,
        _ => return None,
    };
    Some((column, range))
}

fn integer(value: &ScalarValue) -> Option<i64> {
    match *value {
        ScalarValue::Int8(value) => value.map(i64::from),
        ScalarValue::Int16(value) => value.map(i64::from),
        ScalarValue::Int32(value) => value.map(i64::from),
        ScalarValue::Int64(value) => value,
        ScalarValue::UInt8(value) => value.map(i64::from),
        ScalarValue::UInt16(value) => value.map(i64::from),
        ScalarValue::UInt32(value) => value.map(i64::from),
        _ => None,
    }
}

//! Columns of points in records, and words in the names of rows.

use serde::Serialize;
use serde_json::{Map, Value};

/// A point with its columns in records: its fields.
pub trait Columns: Serialize {
    /// Names of the columns, in their order.
    const COLUMNS: &'static [&'static str];

    /// The value of each column; null if it has none.
    fn columns(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(columns)) => columns,
            other => unreachable!("a point is a struct of plain values: {other:?}"),
        }
    }
}

/// The value of a column as a word of a row's name; empty if it has none.
pub(super) fn word(column: &str, value: &Value) -> String {
    match (column, value) {
        (_, Value::Null) => String::new(),
        ("size_bytes", Value::Number(bytes)) => size_name(bytes.as_u64().unwrap_or(0)),
        ("working_set_bytes", Value::Number(bytes)) => {
            format!("set{}", size_name(bytes.as_u64().unwrap_or(0)))
        }
        ("priorities", Value::String(word)) => format!("priorities{word}"),
        ("read_buffers", Value::String(word)) => format!("buffers{word}"),
        (_, Value::String(word)) => word.clone(),
        ("source", value) => format!("from{value}"),
        ("target", value) => format!("to{value}"),
        (column, value) => format!("{column}{value}"),
    }
}

/// `65536` as `64KiB`.
pub(super) fn size_name(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.into_iter().find(|(_, shift)| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift));
    whole.map_or_else(|| format!("{bytes}B"), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

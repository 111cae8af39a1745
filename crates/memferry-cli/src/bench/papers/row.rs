//! Rows of the papers' benchmarks: the columns of all records, and the point.

use memferry::bench::{Axis, Figure, Point, Published, Taken, published};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::bench::record::{How, Line};
use crate::bench::stats::median;
use crate::csv::quoted;

/// A row by the names of its columns, as it is in the JSON of a record, and read from there when a run is continued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct PaperRow(Map<String, Value>);

/// The columns that all benchmarks have.
const COMMON: [&str; 12] = [
    "name",
    "value",
    "unit",
    "how",
    "samples",
    "min",
    "max",
    "peer",
    "peer_value",
    "ratio",
    "ratio_low",
    "ratio_high",
];

impl PaperRow {
    /// What a point has yielded.
    pub(super) fn taken(
        benchmark: &str,
        name: impl Fn(Figure) -> String,
        point: &Point,
        how: How,
        taken: &Taken,
    ) -> PaperRow {
        let mut row = PaperRow::of(name(taken.figure), point, taken.figure, how);
        row.set("note", json!(taken.note));
        if taken.values.is_empty() {
            return row;
        }
        let value = median(&taken.values);
        row.set("value", json!(value));
        row.set("samples", json!(taken.values.len()));
        row.set("min", json!(taken.values.iter().copied().fold(f64::INFINITY, f64::min)));
        row.set("max", json!(taken.values.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
        let beside = taken.peer.map(|(name, value)| Published { name: name.to_owned(), value });
        if let Some(Published { name, value: peer_value }) =
            beside.or_else(|| published(benchmark, point, taken.figure))
        {
            let ratio = if taken.figure.is_more_better() { value / peer_value } else { peer_value / value };
            row.set("peer", json!(name));
            row.set("peer_value", json!(peer_value));
            row.set("ratio", json!(ratio));
        }
        row
    }

    /// A point that cannot be run, and why.
    pub(super) fn missing(name: String, point: &Point, figure: Figure, how: How, why: &str) -> PaperRow {
        let mut row = PaperRow::of(name, point, figure, how);
        row.set("note", json!(why));
        row
    }

    fn of(name: String, point: &Point, figure: Figure, how: How) -> PaperRow {
        let mut row = PaperRow(point.columns());
        for (column, value) in [
            ("name", json!(name)),
            ("value", Value::Null),
            ("unit", json!(figure.unit())),
            ("how", json!(how)),
            ("samples", json!(0)),
            ("figure", json!(figure.name())),
        ] {
            row.set(column, value);
        }
        row
    }

    fn set(&mut self, column: &str, value: Value) {
        self.0.insert(column.to_owned(), value);
    }

    pub(super) fn name(&self) -> &str {
        self.text("name")
    }

    pub(super) fn text(&self, column: &str) -> &str {
        self.0.get(column).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn number(&self, column: &str) -> Option<f64> {
        self.0.get(column)?.as_f64()
    }
}

/// All columns in their order.
fn columns() -> impl Iterator<Item = &'static str> {
    let axes = Axis::ALL.into_iter().map(Axis::column);
    COMMON.into_iter().chain(["figure"]).chain(axes).chain(["note"])
}

impl Line for PaperRow {
    fn heading() -> String {
        columns().collect::<Vec<_>>().join(",")
    }

    fn line(&self) -> String {
        let field = |column| match self.0.get(column) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => quoted(text),
            Some(Value::Number(number)) => match number.as_u64() {
                Some(whole) => whole.to_string(),
                None => number.as_f64().map_or(String::new(), |number| number.to_string()),
            },
            Some(other) => quoted(&other.to_string()),
        };
        columns().map(field).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use memferry::bench::{Axes, Way};

    use super::*;

    fn point() -> Point {
        Axes { ways: vec![Way::Shared], sizes_bytes: vec![1 << 30], ..Axes::default() }.points().remove(0)
    }

    #[test]
    fn a_row_with_a_published_peer() {
        let figure = Figure::Throughput;
        let gib = f64::from(1 << 30);
        let taken =
            Taken { figure, values: vec![15.0 * gib, 45.0 * gib, 20.0 * gib], note: None, peer: None };
        let row = PaperRow::taken("submit", |_| "submit_x".to_owned(), &point(), How::Emulated, &taken);
        let expected = "submit_x,21474836480,bytes/s,emulated,3,16106127360,48318382080,\
                        \"published (Fürst 2024, F021)\",32212254720,0.6666666666666666,,,throughput,shared,copy,\
                        1073741824,1,1,1,1,,,,,,touched,,,";
        assert_eq!(row.line(), expected);
        assert_eq!(PaperRow::heading().split(',').count(), 12 + 1 + 15 + 1);
        // What was measured beside it comes first; of a latency less is better.
        let taken = Taken { figure: Figure::Load, values: vec![4.0], note: None, peer: Some(("alone", 2.0)) };
        let row = PaperRow::taken("pollution", |_| "x".to_owned(), &point(), How::Measured, &taken);
        assert_eq!((row.text("peer"), row.number("ratio")), ("alone", Some(0.5)));
    }

    #[test]
    fn a_row_is_read_as_it_was_written() {
        let taken =
            Taken { figure: Figure::Latency, values: vec![0.1], note: Some("a".to_owned()), peer: None };
        let row = PaperRow::taken("latency", |_| "x".to_owned(), &point(), How::Measured, &taken);
        let expected = row.line();
        // As it is read back from JSON.
        let json = serde_json::to_string(&row).unwrap();
        let read: PaperRow = serde_json::from_str(&json).unwrap();
        assert_eq!(read.line(), expected);
    }

    #[test]
    fn a_row_without_a_value_says_why() {
        let row =
            PaperRow::missing("x".to_owned(), &point(), Figure::Latency, How::Measured, "no queue, sorry");
        assert!(row.line().starts_with("x,,ns,measured,0,,,"), "{}", row.line());
        assert!(row.line().ends_with(",\"no queue, sorry\""), "{}", row.line());
        assert_eq!(row.number("value"), None);
    }
}

//! Rows of the papers' benchmarks: the columns of all records, and the point.

use std::marker::PhantomData;

use memferry_bench::harness::{CsvRow, Provenance, Row, median};
use memferry_bench::papers::{Axis, Measurement, Metric, Point, Published, published};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A row as a JSON object, which a continued run reads back. `S` defines the columns of its points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent, bound = "")]
pub(super) struct PaperRow<S = Copies>(Map<String, Value>, #[serde(skip)] PhantomData<S>);

/// The columns of a benchmark's points.
pub(super) trait Space {
    /// The names of a point's columns, in their order.
    fn columns() -> Vec<&'static str>;
}

/// The points of `memferry_bench::papers`: copies and other operations.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Copies;

impl Space for Copies {
    fn columns() -> Vec<&'static str> {
        Axis::ALL.into_iter().map(Axis::column).collect()
    }
}

/// The fields of a row without its values.
pub(super) struct About {
    pub(super) name: String,
    pub(super) metric: &'static str,
    pub(super) unit: &'static str,
    pub(super) provenance: Provenance,
    /// The columns of the point.
    pub(super) point: Map<String, Value>,
}

impl PaperRow {
    /// A row of a measurement.
    pub(super) fn taken(
        benchmark: &str,
        name: impl Fn(Metric) -> String,
        point: &Point,
        provenance: Provenance,
        taken: &Measurement,
    ) -> PaperRow {
        let metric = taken.metric;
        let mut row = PaperRow::new(about(name(metric), point, metric, provenance), taken.note.as_deref());
        row.set("overhead", json!(taken.overhead));
        let beside = taken.peer.map(|(name, value)| Published { name: name.to_owned(), value });
        let peer = beside.or_else(|| published(benchmark, point, metric));
        row.with_values(&taken.values, peer, metric.is_more_better())
    }

    /// A row of a point that cannot run, with the reason.
    pub(super) fn missing(
        name: String,
        point: &Point,
        metric: Metric,
        provenance: Provenance,
        why: &str,
    ) -> PaperRow {
        PaperRow::new(about(name, point, metric, provenance), Some(why))
    }
}

fn about(name: String, point: &Point, metric: Metric, provenance: Provenance) -> About {
    About { name, metric: metric.name(), unit: metric.unit(), provenance, point: point.columns() }
}

impl<S> PaperRow<S> {
    /// A row without a value.
    pub(super) fn new(about: About, note: Option<&str>) -> PaperRow<S> {
        let About { name, metric, unit, provenance, point } = about;
        let mut row = PaperRow(point, PhantomData);
        for (column, value) in [
            ("name", json!(name)),
            ("value", Value::Null),
            ("unit", json!(unit)),
            ("how", json!(provenance)),
            ("samples", json!(0)),
            ("figure", json!(metric)),
            ("note", json!(note)),
        ] {
            row.set(column, value);
        }
        row
    }

    /// Adds values, if there are any, and their peer.
    pub(super) fn with_values(
        mut self,
        values: &[f64],
        peer: Option<Published>,
        is_more_better: bool,
    ) -> PaperRow<S> {
        if values.is_empty() {
            return self;
        }
        let value = median(values);
        self.set("value", json!(value));
        self.set("samples", json!(values.len()));
        self.set("min", json!(values.iter().copied().fold(f64::INFINITY, f64::min)));
        self.set("max", json!(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
        if let Some(Published { name, value: peer_value }) = peer {
            let ratio = if is_more_better { value / peer_value } else { peer_value / value };
            self.set("peer", json!(name));
            self.set("peer_value", json!(peer_value));
            self.set("ratio", json!(ratio));
        }
        self
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

impl<S: Space> CsvRow for PaperRow<S> {
    fn columns() -> Vec<&'static str> {
        let own = ["figure"].into_iter().chain(S::columns()).chain(["overhead", "note"]);
        Row::COLUMNS.into_iter().chain(own).collect()
    }

    fn fields(&self) -> Vec<String> {
        let field = |column| match self.0.get(column) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            // JSON has `1e3` and `2.0` where CSV has `1000` and `2`.
            Some(Value::Number(number)) => match number.as_u64() {
                Some(whole) => whole.to_string(),
                None => number.as_f64().map_or(String::new(), |number| number.to_string()),
            },
            Some(other) => other.to_string(),
        };
        Self::columns().into_iter().map(field).collect()
    }
}

#[cfg(test)]
mod tests {
    use memferry_bench::papers::{Axes, Way};

    use super::*;

    fn point() -> Point {
        Axes { ways: vec![Way::Shared], sizes_bytes: vec![1 << 30], ..Axes::default() }.points().remove(0)
    }

    #[test]
    fn a_row_with_a_published_peer() {
        let metric = Metric::Throughput;
        let gib = f64::from(1 << 30);
        let values = vec![15.0 * gib, 45.0 * gib, 20.0 * gib];
        let taken = Measurement { metric, values, note: None, peer: None, overhead: Some(0.001) };
        let row =
            PaperRow::taken("submit", |_| "submit_x".to_owned(), &point(), Provenance::Emulated, &taken);
        let expected = "submit_x|21474836480|bytes/s|emulated|3|16106127360|48318382080|\
                        published (Fürst 2024, F021)|32212254720|0.6666666666666666|||throughput|shared|copy|\
                        1073741824|1|1|1|1||||||touched||||0.001|";
        assert_eq!(row.fields().join("|"), expected);
        assert_eq!(PaperRow::<Copies>::columns().len(), 12 + 1 + 16 + 2);
        // A measured peer has precedence; for a latency less is better.
        let beside = Some(("alone", 2.0));
        let taken =
            Measurement { metric: Metric::Load, values: vec![4.0], note: None, peer: beside, overhead: None };
        let row = PaperRow::taken("pollution", |_| "x".to_owned(), &point(), Provenance::Measured, &taken);
        assert_eq!((row.text("peer"), row.number("ratio")), ("alone", Some(0.5)));
    }

    #[test]
    fn a_row_survives_json() {
        let note = Some("a".to_owned());
        let taken =
            Measurement { metric: Metric::Latency, values: vec![0.1], note, peer: None, overhead: Some(0.5) };
        let row = PaperRow::taken("latency", |_| "x".to_owned(), &point(), Provenance::Measured, &taken);
        let expected = row.fields();
        let json = serde_json::to_string(&row).unwrap();
        let read: PaperRow = serde_json::from_str(&json).unwrap();
        assert_eq!(read.fields(), expected);
    }

    #[test]
    fn a_row_without_a_value_has_a_reason() {
        let row = PaperRow::missing(
            "x".to_owned(),
            &point(),
            Metric::Latency,
            Provenance::Measured,
            "no queue, sorry",
        );
        let fields = row.fields();
        assert_eq!(fields[..7], ["x", "", "ns", "measured", "0", "", ""]);
        assert_eq!(fields.last().unwrap(), "no queue, sorry");
        assert_eq!(row.number("value"), None);
    }
}

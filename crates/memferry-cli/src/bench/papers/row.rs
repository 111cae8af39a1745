//! Rows of the papers' benchmarks: the columns of all records, and the point.

use std::marker::PhantomData;

use memferry_bench::harness::{CsvRow, Provenance, Row, median};
use memferry_bench::papers::{Columns, Measurement, Metric, Point, Published, published};
use memferry_bench::telemetry::Counts;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A row as a JSON object, which a continued run reads back. `P` is the point, whose columns the row has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent, bound = "")]
pub(super) struct PaperRow<P>(Map<String, Value>, #[serde(skip)] PhantomData<P>);

impl<P: Columns> PaperRow<P> {
    /// A row without a value.
    pub(super) fn new(
        name: String,
        point: &P,
        metric: Metric,
        provenance: Provenance,
        note: Option<&str>,
    ) -> PaperRow<P> {
        let mut row = PaperRow(point.columns(), PhantomData);
        for (column, value) in [
            ("name", json!(name)),
            ("value", Value::Null),
            ("unit", json!(metric.unit)),
            ("how", json!(provenance)),
            ("samples", json!(0)),
            ("figure", json!(metric.name)),
            ("note", json!(note)),
        ] {
            row.set(column, value);
        }
        row
    }

    /// A row of a measurement, with its peer if it has values.
    pub(super) fn taken(
        name: String,
        point: &P,
        provenance: Provenance,
        taken: &Measurement,
        peer: Option<Published>,
    ) -> PaperRow<P> {
        let Measurement { metric, values, note, .. } = taken;
        let mut row = PaperRow::new(name, point, *metric, provenance, note.as_deref());
        if values.is_empty() {
            return row;
        }
        let value = median(values);
        row.set("value", json!(value));
        row.set("samples", json!(values.len()));
        row.set("min", json!(values.iter().copied().fold(f64::INFINITY, f64::min)));
        row.set("max", json!(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
        if let Some(Published { name, value: peer_value, work }) = peer {
            let ratio = if metric.is_more_better { value / peer_value } else { peer_value / value };
            row.set("peer", json!(name));
            row.set("peer_value", json!(peer_value));
            row.set("ratio", json!(ratio));
            if !work.is_empty() {
                // Its name says that it is published.
                row.set("peer_differs", json!(["how"]));
            }
            for (column, value) in work {
                row.set(&format!("peer_{column}"), value);
            }
        }
        row
    }
}

impl PaperRow<Point> {
    /// A row of the benchmark `benchmark`: with its overhead, and beside its own peer or the published number.
    pub(super) fn measured(
        benchmark: &str,
        name: String,
        point: &Point,
        provenance: Provenance,
        taken: &Measurement,
    ) -> PaperRow<Point> {
        let beside =
            taken.peer.map(|(name, value)| Published { name: name.to_owned(), value, work: Vec::new() });
        let peer =
            beside.or_else(|| published(benchmark, point, taken.metric).filter(|_| !taken.is_other_work));
        let mut row = PaperRow::taken(name, point, provenance, taken, peer);
        row.set("overhead", json!(taken.overhead));
        row
    }
}

impl<P> PaperRow<P> {
    /// The rows of a point; those with a value have what the monitors of the machine counted meanwhile.
    pub(super) fn beside(mut rows: Vec<PaperRow<P>>, counts: Option<Counts>) -> Vec<PaperRow<P>> {
        if let Some(counts) = counts {
            let has_value = |row: &PaperRow<P>| row.number("value").is_some();
            let rows_count = rows.iter().filter(|row| has_value(row)).count();
            for row in rows.iter_mut().filter(|row| has_value(row)) {
                row.set("telemetry", json!(Counts { rows_count, ..counts.clone() }));
            }
        }
        rows
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

impl<P: Columns> CsvRow for PaperRow<P> {
    fn columns() -> Vec<&'static str> {
        let own = ["figure"].into_iter().chain(P::COLUMNS.iter().copied()).chain(["overhead", "note"]);
        Row::COLUMNS.into_iter().chain(own).collect()
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
        let metric = Metric::THROUGHPUT;
        let gib = f64::from(1 << 30);
        let values = vec![15.0 * gib, 45.0 * gib, 20.0 * gib];
        let taken = Measurement { overhead: Some(0.001), ..Measurement::new(metric, values) };
        let row = PaperRow::measured("submit", "submit_x".to_owned(), &point(), Provenance::Emulated, &taken);
        let expected = "submit_x|21474836480|bytes/s|emulated|3|16106127360|48318382080|\
                        published (Fürst 2024, F021)|32212254720|0.6666666666666666|||throughput|shared|copy|\
                        1073741824|1|1|1|1||||||touched|||||0.001|";
        assert_eq!(row.fields().join("|"), expected);
        assert_eq!(PaperRow::<Point>::columns().len(), 12 + 1 + 17 + 2);
        let other = PaperRow::measured(
            "submit",
            "submit_x".to_owned(),
            &point(),
            Provenance::Emulated,
            &Measurement { is_other_work: true, ..taken },
        );
        assert_eq!((other.text("peer"), other.number("ratio")), ("", None));
        // A measured peer has precedence; for a latency less is better.
        let beside = Some(("alone", 2.0));
        let taken = Measurement { peer: beside, ..Measurement::new(Metric::LOAD, vec![4.0]) };
        let row = PaperRow::measured("pollution", "x".to_owned(), &point(), Provenance::Measured, &taken);
        assert_eq!((row.text("peer"), row.number("ratio")), ("alone", Some(0.5)));
    }

    #[test]
    fn a_row_survives_json() {
        let note = Some("a".to_owned());
        let taken = Measurement { note, overhead: Some(0.5), ..Measurement::new(Metric::LATENCY, vec![0.1]) };
        let row = PaperRow::measured("latency", "x".to_owned(), &point(), Provenance::Measured, &taken);
        let expected = row.fields();
        let json = serde_json::to_string(&row).unwrap();
        let read: PaperRow<Point> = serde_json::from_str(&json).unwrap();
        assert_eq!(read.fields(), expected);
    }

    #[test]
    fn counts_are_beside_the_values_of_a_point() {
        let row = |values: Vec<f64>| {
            let taken = Measurement::new(Metric::LATENCY, values);
            PaperRow::measured("latency", "x".to_owned(), &point(), Provenance::Measured, &taken)
        };
        let rows = || vec![row(vec![1.0]), row(Vec::new()), row(vec![2.0])];
        assert_eq!(PaperRow::beside(rows(), None), rows(), "a machine without monitors");
        let counts = Counts { seconds: 2.0, rows_count: 1, counts: Vec::new() };
        let watched = PaperRow::beside(rows(), Some(counts));
        let shown: Vec<Value> =
            watched.iter().map(|row| json!(row)["telemetry"]["rows_count"].clone()).collect();
        assert_eq!(shown, [json!(2), Value::Null, json!(2)]);
        assert_eq!(watched[0].fields(), row(vec![1.0]).fields(), "the CSV has no column for it");
    }

    #[test]
    fn a_row_without_a_value_has_a_reason() {
        let row = PaperRow::new(
            "x".to_owned(),
            &point(),
            Metric::LATENCY,
            Provenance::Measured,
            Some("no queue, sorry"),
        );
        let fields = row.fields();
        assert_eq!(fields[..7], ["x", "", "ns", "measured", "0", "", ""]);
        assert_eq!(fields.last().unwrap(), "no queue, sorry");
        assert_eq!(row.number("value"), None);
    }
}

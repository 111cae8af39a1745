//! Predictions of published rows: one file per publication.

mod domains;
mod kuper;
mod thesis;

use std::collections::BTreeMap;

use memferry::model::ModelError;
use serde::Serialize;

use super::{PublishedFigure, figures, held_out};
use crate::harness::Row;

/// A published number and its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Prediction {
    /// Name of the quantity.
    pub name: String,
    /// The published rows; a second one is the upper bound of a range, or a repetition.
    pub rows: Vec<&'static str>,
    /// The prediction.
    pub predicted: f64,
    /// The published range. For words ("close to", "the majority") the range is our reading of them. Statements without a
    /// number are 1 where they hold, in the unit `holds`.
    pub published: (f64, f64),
    /// Unit of both.
    pub unit: &'static str,
    /// Rows that the parameters in use were calibrated on, apart from published constants.
    pub calibrated_on: &'static [&'static str],
    /// Whether the model was calibrated on this row: then it is a fit, not a prediction.
    pub is_fit: bool,
    /// Whether it follows from inputs or other rows by arithmetic, or states what a route is: then it is no prediction.
    pub is_echo: bool,
    /// Whether only the direction of a published change is predicted, and not its size: it counts neither as predicted nor as
    /// close.
    pub is_direction: bool,
    /// Whether it is about a row that was set aside before the calibration.
    pub is_held_out: bool,
    /// The reason of a large error.
    pub unexplained: Option<&'static str>,
}

impl Prediction {
    /// Distance to the nearest published bound, in percent of that bound; positive: too high.
    pub fn error_percent(&self) -> f64 {
        let (low, high) = self.published;
        let nearest = self.predicted.clamp(low, high);
        if nearest == self.predicted { 0.0 } else { 100.0 * (self.predicted - nearest) / nearest.abs() }
    }

    /// The prediction as a row, beside the nearest published bound.
    pub fn row(&self) -> Row {
        let (low, high) = self.published;
        let name = format!("{} [{}]", self.name, self.rows.join(", "));
        Row::modelled(name, self.predicted, self.unit).beside_published(self.predicted.clamp(low, high))
    }
}

/// Rows of the calibration of the Xeon Max: two times of table 6.2 and one of its hit rates.
const THESIS: &[&str] = &["F072", "F073", "F084"];

const GIB: f64 = (1 << 30) as f64;

/// All predictions.
pub(super) fn predictions() -> Result<Vec<Prediction>, ModelError> {
    let mut list = List { values: BTreeMap::new(), predictions: Vec::new(), context: &[] };
    for figure in figures() {
        if let Some(number) = figure.number() {
            list.values.insert(figure.id, number);
        }
    }
    list.table_6_2()?;
    list.thesis_copies()?;
    list.kuper()?;
    list.scans()?;
    list.matrices()?;
    let held_out = held_out();
    let echoes: Vec<String> = figures().into_iter().filter(is_echo).map(|figure| figure.id).collect();
    for prediction in &mut list.predictions {
        let about = |ids: &[String]| prediction.rows.iter().any(|row| ids.iter().any(|id| id == row));
        (prediction.is_echo, prediction.is_held_out) = (about(&echoes), about(&held_out));
    }
    Ok(list.predictions)
}

/// Ranges of rows that say which devices a route has: the model's routes are made by them.
const ROUTES: [(&str, &str); 3] = [("D036", "D038"), ("F039", "F042"), ("F054", "F054")];

/// Ranges of rows that the bandwidth and latency tables in the profiles give by arithmetic.
const TABLES: [(&str, &str); 3] = [("G161", "G161"), ("G191", "G203"), ("G225", "G226")];

fn is_echo(figure: &PublishedFigure) -> bool {
    let mut ranges = ROUTES.into_iter().chain(TABLES);
    figure.kind == "derived"
        || figure.note.contains("checks against raw times")
        || ranges.any(|(first, last)| (first..=last).contains(&figure.id.as_str()))
}

struct List {
    values: BTreeMap<String, f64>,
    predictions: Vec<Prediction>,
    /// Rows of the calibration of the predictions that are being added.
    context: &'static [&'static str],
}

impl List {
    fn published(&self, row: &str) -> f64 {
        self.values.get(row).copied().unwrap_or(f64::NAN)
    }

    fn push(
        &mut self,
        name: &str,
        rows: &[&'static str],
        predicted: f64,
        published: (f64, f64),
        unit: &'static str,
    ) -> &mut Prediction {
        let index = self.predictions.len();
        self.predictions.push(Prediction {
            name: name.to_owned(),
            rows: rows.to_vec(),
            predicted,
            published,
            unit,
            calibrated_on: self.context,
            is_fit: false,
            is_echo: false,
            is_direction: false,
            is_held_out: false,
            unexplained: None,
        });
        &mut self.predictions[index]
    }

    /// Adds a number, or a range of two rows with different numbers.
    fn figure(
        &mut self,
        name: &str,
        rows: &[&'static str],
        predicted: f64,
        unit: &'static str,
    ) -> &mut Prediction {
        let values = rows.iter().map(|row| self.published(row));
        let bounds = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        self.push(name, rows, predicted, bounds, unit)
    }

    /// Adds a statement in words.
    fn statement(&mut self, name: &str, rows: &[&'static str], holds: bool) -> &mut Prediction {
        self.push(name, rows, f64::from(u8::from(holds)), (1.0, 1.0), "holds")
    }
}

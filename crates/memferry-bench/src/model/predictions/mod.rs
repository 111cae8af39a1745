//! What the model says about published rows: a file for each publication.

mod domains;
mod kuper;
mod thesis;

use std::collections::BTreeMap;

use memferry::model::ModelError;
use serde::Serialize;

use super::figures;

/// A published figure and what the model makes of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Prediction {
    /// What it is.
    pub name: String,
    /// The published rows; a second one is the upper bound of a range, or says the same.
    pub rows: Vec<&'static str>,
    /// What the model says.
    pub predicted: f64,
    /// What was published, from and to. Where it is words ("close to", "the majority"), the range is our reading of
    /// them; statements without a number are 1 where they hold, in the unit `holds`.
    pub published: (f64, f64),
    /// Of both.
    pub unit: &'static str,
    /// Rows that the parameters in use were calibrated on, apart from published constants.
    pub calibrated_on: &'static [&'static str],
    /// Whether this very row was calibrated on: then it is no prediction.
    pub is_fit: bool,
    /// Why the model is wrong here, if it is.
    pub unexplained: Option<&'static str>,
}

impl Prediction {
    /// Distance to the nearest bound of what was published, in percent of that; positive: too much.
    pub fn error_percent(&self) -> f64 {
        let (low, high) = self.published;
        let nearest = self.predicted.clamp(low, high);
        if nearest == self.predicted { 0.0 } else { 100.0 * (self.predicted - nearest) / nearest.abs() }
    }
}

/// On these the parameters of the Xeon Max were calibrated: two times of table 6.2 and one of its hit rates.
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
    Ok(list.predictions)
}

struct List {
    values: BTreeMap<String, f64>,
    predictions: Vec<Prediction>,
    /// What the predictions that are being added were calibrated on.
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
            unexplained: None,
        });
        &mut self.predictions[index]
    }

    /// A figure, or a range if there are two rows with different figures.
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

    /// A statement in words.
    fn statement(&mut self, name: &str, rows: &[&'static str], holds: bool) -> &mut Prediction {
        self.push(name, rows, f64::from(u8::from(holds)), (1.0, 1.0), "holds")
    }
}

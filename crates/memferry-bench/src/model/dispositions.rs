//! Published rows without a prediction, and the reasons.

use serde::{Deserialize, Serialize};

use super::PublishedFigure;
use super::published::rows;

/// The kind of reason why a row is not predicted.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Why {
    /// An input: the model was calibrated on it, or a profile holds it.
    Input,
    /// A method of measurement, or prior knowledge.
    Method,
    /// A repetition of another row.
    Repeated,
    /// Superseded by the final thesis.
    Superseded,
    /// Outside of the model.
    Unexplained,
}

/// A row without a prediction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Disposition {
    /// The row.
    pub row: String,
    /// The quantity.
    pub quantity: String,
    /// The kind of reason.
    pub why: Why,
    /// The reason in words.
    pub reason: String,
}

/// A range of rows without a prediction: a line of `published/unpredicted.csv`.
#[derive(Deserialize)]
struct Unpredicted {
    first: String,
    last: String,
    why: Why,
    reason: String,
}

/// Note of the rows whose LaTeX repeats the thesis.
const REPEATS: &str = "same statement as final thesis";

/// The reasons why these rows are not predicted. Rows without a reason are left out.
pub(super) fn dispositions<'a>(figures: impl Iterator<Item = &'a PublishedFigure>) -> Vec<Disposition> {
    let ranges: Vec<Unpredicted> = rows(include_str!("../../published/unpredicted.csv"));
    let disposition = |figure: &PublishedFigure| {
        let id = figure.id.as_str();
        let range = ranges.iter().find(|range| (range.first.as_str()..=range.last.as_str()).contains(&id));
        let (why, reason) = match range {
            Some(range) => (range.why, range.reason.clone()),
            None if figure.note.contains(REPEATS) => (Why::Repeated, "as in the final thesis".to_owned()),
            None => return None,
        };
        Some(Disposition { row: figure.id.clone(), quantity: figure.quantity.clone(), why, reason })
    };
    figures.filter_map(disposition).collect()
}

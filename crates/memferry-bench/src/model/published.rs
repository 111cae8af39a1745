//! The published figures (`published/*.csv`).

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A published number: a row of one of the files. published/README.md describes the columns.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct PublishedFigure {
    /// Letter of the publication and a number.
    pub id: String,
    /// Place in the publication.
    pub location: String,
    /// The measured quantity.
    pub quantity: String,
    /// Conditions of the measurement.
    pub configuration: String,
    /// The value, mostly a number.
    pub value: String,
    /// Unit of the value.
    pub unit: String,
    /// `table`, `text`, `approx-text` or `derived`.
    pub kind: String,
    /// Remarks.
    pub note: String,
}

impl PublishedFigure {
    /// The value, if it is a number.
    pub fn number(&self) -> Option<f64> {
        self.value.parse().ok()
    }
}

const FILES: [&str; 3] = [
    include_str!("../../published/thesis_dsa.csv"),
    include_str!("../../published/kuper_dsa.csv"),
    include_str!("../../published/snc_hana.csv"),
];

/// All rows of all files.
pub fn figures() -> Vec<PublishedFigure> {
    FILES.into_iter().flat_map(rows).collect()
}

/// The rows of a file of `published/`.
///
/// # Panics
/// If a line is no row: the files are part of the program, and a line that is left out would change what validation counts.
pub(super) fn rows<T: DeserializeOwned>(text: &str) -> Vec<T> {
    let lines = csv::Reader::from_reader(text.as_bytes()).into_deserialize().collect::<Result<_, _>>();
    lines.unwrap_or_else(|error| panic!("published/ has a line that is no row: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_figure() {
        let lines: usize = FILES.iter().map(|text| text.lines().count() - 1).sum();
        assert_eq!(figures().len(), lines);
        let baseline = figures().into_iter().find(|figure| figure.id == "F072").expect("table 6.1");
        assert_eq!((baseline.number(), baseline.unit.as_str()), (Some(131.18), "ms"));
    }
}

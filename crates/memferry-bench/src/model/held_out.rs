//! Published rows that no calibration may use: they test the model.
//!
//! A seeded draw, committed before the calibration that it tests (`published/held_out.csv`). Rows that are one statement
//! are drawn together, since each gives the other away. Rows that profiles and calibrations already used at the time of
//! the draw cannot be set aside any more.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::PublishedFigure;
use super::published::rows;
use crate::harness::Random;

/// Seed of the draw: the only one that was tried.
const SEED: u64 = 19;

/// Share of all published rows that is set aside, in percent.
const PERCENT: usize = 30;

/// Ranges of rows that profiles and calibrations used before the draw, and repetitions of these rows.
const IN_USE: [(&str, &str); 18] = [
    ("D008", "D009"),
    ("F021", "F021"),
    ("F030", "F035"),
    ("F037", "F038"),
    ("F049", "F049"),
    ("F064", "F074"),
    ("F076", "F077"),
    ("F079", "F079"),
    ("F084", "F084"),
    ("F086", "F086"),
    ("F090", "F091"),
    ("G001", "G160"),
    ("G206", "G206"),
    ("G210", "G210"),
    ("G248", "G248"),
    ("K029", "K030"),
    ("K032", "K032"),
    ("K071", "K072"),
];

/// The ids of the rows that are set aside.
pub fn held_out() -> Vec<String> {
    #[derive(Deserialize)]
    struct HeldOut {
        id: String,
    }
    let listed: Vec<HeldOut> = rows(include_str!("../../published/held_out.csv"));
    listed.into_iter().map(|row| row.id).collect()
}

/// Draws statements until their rows are the wanted share of all rows; returns the ids in order.
pub fn draw_held_out(figures: &[PublishedFigure]) -> Vec<String> {
    let mut statements: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for figure in figures {
        let PublishedFigure { id, quantity, configuration, value, .. } = figure;
        statements.entry((quantity, configuration, value)).or_default().push(id);
    }
    let is_in_use = |id: &&str| IN_USE.iter().any(|(first, last)| (first..=last).contains(&id));
    let mut statements: Vec<_> = statements.into_values().filter(|ids| !ids.iter().any(is_in_use)).collect();
    let (mut random, mut drawn) = (Random(SEED), Vec::new());
    while drawn.len() * 100 < figures.len() * PERCENT && !statements.is_empty() {
        let index = random.below(statements.len());
        drawn.extend(statements.swap_remove(index).into_iter().map(str::to_owned));
    }
    drawn.sort();
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::figures;

    /// The file is the draw, so that nobody chose its rows.
    #[test]
    fn the_file_is_the_draw() {
        assert_eq!(held_out(), draw_held_out(&figures()), "published/held_out.csv is not the draw");
    }
}

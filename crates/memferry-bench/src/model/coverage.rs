//! The figures and tables of the publications, and which of them memferry shows.

use serde::{Deserialize, Serialize};

use super::dispositions::{Disposition, Why};
use super::predictions::Prediction;
use super::published::{figures, rows};
use crate::papers::benchmark;

/// A figure or table of a publication: a line of `published/coverage.csv`, with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Coverage {
    /// Author and year.
    pub publication: String,
    /// `Figure 3.4`, `Table 6.2`.
    pub figure: String,
    /// The quantity and its axes.
    pub title: String,
    /// The published rows that give its numbers.
    pub rows: Vec<String>,
    /// The benchmark that has its axes, if there is one. It runs on a machine and, but for `memory`, on the emulated device and in
    /// the model; `sncdb` on a machine and in the model.
    pub benchmark: Option<String>,
    /// How far memferry gets.
    pub state: Shown,
    /// The reason if it is not reproduced, or a limit.
    pub remark: String,
}

/// How far memferry shows a figure.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Shown {
    /// A published number stands beside a prediction that is neither a fit nor an input, or beside a benchmark.
    Reproduced,
    /// A benchmark has its axes, and the publication prints no number.
    SeriesOnly,
    /// The model has the numbers because they are its input.
    InputOnly,
    /// Neither.
    Missing,
}

impl Shown {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Shown::Reproduced => "reproduced",
            Shown::SeriesOnly => "a benchmark, no published number",
            Shown::InputOnly => "an input of the model",
            Shown::Missing => "missing",
        }
    }
}

#[derive(Deserialize)]
struct Line {
    publication: String,
    figure: String,
    title: String,
    rows: String,
    benchmark: String,
    remark: String,
}

/// All figures and tables, in the order of the publications. `others` has the rows without a prediction.
///
/// # Panics
/// If a line names a benchmark or a published row that does not exist: the lines are part of the program.
pub(super) fn coverage(predictions: &[Prediction], others: &[Disposition]) -> Vec<Coverage> {
    let published: Vec<String> = figures().into_iter().map(|figure| figure.id).collect();
    let lines: Vec<Line> = rows(include_str!("../../published/coverage.csv"));
    lines.into_iter().map(|line| line.state(&published, predictions, others)).collect()
}

impl Line {
    fn state(self, published: &[String], predictions: &[Prediction], others: &[Disposition]) -> Coverage {
        let Line { publication, figure, title, rows, benchmark: name, remark } = self;
        let rows: Vec<String> =
            rows.split_whitespace().flat_map(|range| expanded(range, published)).collect();
        let has = |row: &str, is_meant: fn(&Prediction) -> bool| {
            predictions.iter().any(|it| it.rows.contains(&row) && is_meant(it))
        };
        let is_predicted = |row: &String| has(row, |it| !it.is_fit && !it.is_echo);
        let is_input = |row: &String| {
            others.iter().any(|it| it.row == *row && it.why == Why::Input) || has(row, |it| it.is_echo)
        };
        let has_benchmark = !name.is_empty();
        let is_known = ["cases", "memory", "qdp", "sncdb"].contains(&&*name) || benchmark(&name).is_some();
        assert!(!has_benchmark || is_known, "no benchmark {name}");
        let state = match (rows.is_empty(), has_benchmark) {
            (true, true) => Shown::SeriesOnly,
            (false, true) => Shown::Reproduced,
            (false, false) if rows.iter().any(is_predicted) => Shown::Reproduced,
            (false, false) if rows.iter().all(is_input) => Shown::InputOnly,
            _ => Shown::Missing,
        };
        let benchmark = has_benchmark.then_some(name);
        Coverage { publication, figure, title, rows, benchmark, state, remark }
    }
}

/// The rows of `F017` or `G001-G012`.
fn expanded(range: &str, published: &[String]) -> Vec<String> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let at = |id: &str| published.iter().position(|it| it == id);
    let (Some(first), Some(last)) = (at(first), at(last)) else { panic!("no published row {range}") };
    published[first..=last].to_vec()
}

/// The page `docs/benchmarks/coverage.md`.
pub fn coverage_page(coverage: &[Coverage]) -> String {
    let count = |state| coverage.iter().filter(|it| it.state == state).count();
    let mut page = format!(
        "# Coverage of the publications\n\n\
         Each figure and table of the publications with measurements, and how memferry shows it. This page is made from\n\
         [coverage.csv](../../crates/memferry-bench/published/coverage.csv) and the model's predictions by\n\
         `cargo run -p memferry-bench --example coverage`; a test compares them. `memferry report` draws all figures of\n\
         Kuper 2024 that are not missing here, in the form of the publication; a test compares its page with this list.\n\n\
         - **{}** ({} of {}): a published number stands beside a prediction that is neither a fit nor an input\n  \
         (`memferry sim validate`), or beside `memferry bench NAME`, which has its axes: on the machine that it runs on\n  \
         (measured) and, but for `memory`, on the emulated device (but for `sncdb`) and in the model.\n\
         - **{}** ({}): `memferry bench NAME` has the axes of the figure. The text prints no number, and nothing was read\n  \
         off a plot.\n\
         - **{}** ({}): the profile of the machine has these numbers, so that the model gives them back.\n\
         - **{}** ({}): the remark says why.\n",
        Shown::Reproduced.words(),
        count(Shown::Reproduced),
        coverage.len(),
        Shown::SeriesOnly.words(),
        count(Shown::SeriesOnly),
        Shown::InputOnly.words(),
        count(Shown::InputOnly),
        Shown::Missing.words(),
        count(Shown::Missing),
    );
    for publication in coverage.chunk_by(|one, other| one.publication == other.publication) {
        page += &format!("\n## {}\n\n", publication[0].publication);
        page += "| figure | shows | state | `memferry bench` | remark |\n|---|---|---|---|---|\n";
        for it in publication {
            let benchmark = it.benchmark.as_ref().map_or(String::new(), |name| format!("`{name}`"));
            let state = it.state.words();
            page += &format!("| {} | {} | {state} | {benchmark} | {} |\n", it.figure, it.title, it.remark);
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Validation, validate};

    fn line(rows: &str, benchmark: &str, remark: &str) -> Line {
        let [publication, figure, title] = [const { String::new() }; 3];
        let [rows, benchmark, remark] = [rows, benchmark, remark].map(str::to_owned);
        Line { publication, figure, title, rows, benchmark, remark }
    }

    #[test]
    fn inputs_of_the_model_do_not_reproduce_a_figure() {
        let Validation { predictions, others, .. } = validate().unwrap();
        let published: Vec<String> = figures().into_iter().map(|figure| figure.id).collect();
        let of = |rows, benchmark, remark| {
            line(rows, benchmark, remark).state(&published, &predictions, &others).state
        };
        // Table 6.1: both times were calibrated on.
        assert_eq!(of("F072 F073", "", ""), Shown::Missing);
        assert_eq!(of("F072 F073", "qdp", ""), Shown::Reproduced);
        assert_eq!(of("F082", "", ""), Shown::Reproduced);
        assert_eq!(of("G001-G012", "", "an input: it is in the profile"), Shown::InputOnly);
        assert_eq!(of("", "engines", ""), Shown::SeriesOnly);
        assert_eq!(of("K105", "", "nothing"), Shown::Missing);
    }

    #[test]
    #[should_panic = "no published row F1-F2"]
    fn rows_exist() {
        expanded("F1-F2", &[]);
    }
}

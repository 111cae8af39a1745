//! The bytes that queries write, and those that the counters of the publication count, both from published rows.

use memferry::model::ModelError;
use memferry::topology::{Machine, NodeId};

use super::{Layout, PREDICATES, RANGE_PREDS, ROWS};
use crate::model::figures;

/// Memory traffic of results: a query writes down which rows it found, and counts them afterwards.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Results {
    /// Bytes read and written for each scanned column, whatever it finds.
    pub bytes_per_column: f64,
    /// Bytes read and written for each row that a `SELECT` finds.
    pub bytes_per_row: f64,
}

/// Gains of scanning the neighbour with the smallest and the middle `range_pred`: the fit has two unknowns.
pub(crate) const FIT: [(&str, u64); 2] = [("G227", RANGE_PREDS[0]), ("G229", RANGE_PREDS[1])];

impl Results {
    /// From two published gains.
    ///
    /// Workers that scan their own memory share it with their results: `B / (S + W)` queries a second, with `B` bytes per
    /// second, `S` scanned bytes and `W` bytes of results. Workers that scan the neighbour's have it for scans alone: `B' / S`.
    /// The gain tells `W / S`. A third gain, of the largest results, is left for prediction.
    ///
    /// # Errors
    /// None in practice: profiles and rows are built in.
    pub fn published() -> Result<Results, ModelError> {
        let machine = Machine::from_profile("skylake-8180-snc-on")?;
        let rate = |memory| machine.link(NodeId(0), NodeId(memory)).read_bytes_per_s.unwrap_or(0) as f64;
        let scanned = PREDICATES as f64 * Layout::VALUE.vector_bytes();
        let result_bytes =
            |gain_percent: f64| scanned * ((1.0 + gain_percent / 100.0) * rate(0) / rate(1) - 1.0);
        let [(few, few_rows), (many, many_rows)] =
            FIT.map(|(row, range_pred)| (result_bytes(published(row)), found(PREDICATES, range_pred)));
        let bytes_per_row = (many - few) / (many_rows - few_rows);
        let bytes_per_column = (few - few_rows * bytes_per_row) / PREDICATES as f64;
        Ok(Results { bytes_per_column, bytes_per_row })
    }

    /// Bytes of a `SELECT` with so many predicates.
    pub fn bytes(&self, predicates: usize, range_pred: u64) -> f64 {
        predicates as f64 * self.bytes_per_column + found(predicates, range_pred) * self.bytes_per_row
    }
}

/// Rows that at least one of so many predicates selects.
fn found(predicates: usize, range_pred: u64) -> f64 {
    let rows = ROWS as f64;
    let missed = 1.0 - range_pred as f64 / rows;
    rows * (1.0 - missed.powi(predicates as i32))
}

/// Bytes that the publication's counters show beyond the traffic, for each byte that a CPU reads from the neighbour.
///
/// With workers on one sub-domain and half of the columns on each, throughput was at most 65.9 % of SNC off (G238) and memory
/// traffic at most 80.7 % (G240). A query has the same bytes in both cases, so that the counters have 22 % too many. The rows
/// do not say which `range_pred` they are from; with the smallest, results matter least.
pub fn counted_again(results: &Results) -> f64 {
    let scanned = PREDICATES as f64 * Layout::VALUE.vector_bytes();
    let bytes = scanned + 2.0 * results.bytes(PREDICATES / 2, RANGE_PREDS[0]);
    (published("G240") / published("G238") - 1.0) * bytes / (scanned / 2.0)
}

/// A published number.
fn published(row: &str) -> f64 {
    let figure = figures().into_iter().find(|figure| figure.id == row);
    figure.and_then(|figure| figure.number()).unwrap_or(f64::NAN)
}

//! Published rows without a prediction, and the reasons.

use serde::Serialize;

use super::PublishedFigure;

/// The kind of reason why a row is not predicted.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
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
    pub reason: &'static str,
}

/// First and last row, kind of reason, reason.
const RANGES: &[(&str, &str, Why, &str)] = &[
    ("F001", "F016", Why::Method, "machine, set-up and how it was measured"),
    ("F019", "F020", Why::Method, "quoted from Kuper et al., where it is K047 and K048"),
    ("F022", "F027", Why::Method, "what was varied"),
    ("F030", "F035", Why::Input, "how the theoretical rate of DDR is computed"),
    ("F037", "F037", Why::Input, "kind of memory"),
    ("F043", "F047", Why::Method, "which copies were measured"),
    (
        "F050",
        "F051",
        Why::Unexplained,
        "nodes 8 and 12 are slower than 11 and 15: nobody knows why, and no number is printed",
    ),
    ("F053", "F053", Why::Unexplained, "the penalty of off-socket devices has no number"),
    (
        "F059",
        "F061",
        Why::Unexplained,
        "what cores of other nodes copy is not printed; node 12 is an anomaly to the author too",
    ),
    ("F063", "F063", Why::Unexplained, "copies by CPUs between nodes: their rates are not printed"),
    ("F064", "F071", Why::Input, "the query of chapter 6"),
    ("F074", "F075", Why::Method, "the baseline against itself, and a dash"),
    ("F078", "F078", Why::Method, "a dash"),
    ("F086", "F086", Why::Input, "the query of chapter 6"),
    ("F094", "F095", Why::Repeated, "arithmetic over F036, F048 and the rate of a device"),
    ("L060", "L061", Why::Method, "about the file"),
    ("D001", "D004", Why::Repeated, "as in the final thesis"),
    ("D005", "D007", Why::Superseded, "final: a difference remains, and equalization comes later"),
    ("D008", "D008", Why::Repeated, "F021"),
    ("D009", "D009", Why::Input, "rate of HBM in the profile"),
    ("D010", "D016", Why::Superseded, "final: 1 GiB is faster than 1 MiB (F029)"),
    ("D017", "D018", Why::Repeated, "as in the final thesis"),
    ("D019", "D024", Why::Superseded, "final: 4400 MT/s, 65.56 GiB/s (F031, F036)"),
    ("D025", "D029", Why::Repeated, "as in the final thesis"),
    ("D030", "D034", Why::Superseded, "final: a peak of 64 GiB/s (F048); 96 is more than one node's DDR has"),
    ("D039", "D045", Why::Superseded, "CPU tests that the final thesis replaced"),
    ("K001", "K028", Why::Method, "hardware, operations, other engines and how it was measured"),
    ("K039", "K039", Why::Method, "what was varied"),
    ("K042", "K046", Why::Unexplained, "rates of remote memory and CXL on that machine are not printed"),
    ("K047", "K048", Why::Unexplained, "the round trip of ENQCMD is not printed"),
    (
        "K050",
        "K050",
        Why::Unexplained,
        "the share of the last-level cache that devices may use is not modelled",
    ),
    ("K057", "K068", Why::Unexplained, "pollution of caches is not modelled"),
    ("K071", "K071", Why::Repeated, "K029"),
    ("K074", "K075", Why::Method, "which flag does what"),
    ("K077", "K115", Why::Unexplained, "applications: their work beside copying is not printed"),
    ("G001", "G160", Why::Input, "latency and bandwidth tables: in the profiles"),
    ("G162", "G190", Why::Method, "other machines, hardware and how it was measured"),
    ("G201", "G201", Why::Method, "an older BIOS"),
    ("G204", "G220", Why::Method, "tables, queries and clients"),
    ("G221", "G222", Why::Unexplained, "random accesses of a database: its work beside them is not printed"),
    ("G228", "G228", Why::Unexplained, "writes of results that do not fit into the cache are not modelled"),
    ("G230", "G230", Why::Unexplained, "writes of results that do not fit into the cache are not modelled"),
    ("G232", "G232", Why::Unexplained, "writes of results that do not fit into the cache are not modelled"),
    ("G243", "G243", Why::Unexplained, "stealing of tasks is not modelled"),
    ("G245", "G246", Why::Method, "sizes of interleaving"),
    ("G248", "G248", Why::Input, "size of a packed column"),
];

/// Note of the rows whose LaTeX repeats the thesis.
const REPEATS: &str = "same statement as final thesis";

/// The reason why a row is not predicted, if it has one.
pub(super) fn disposition(figure: &PublishedFigure) -> Option<Disposition> {
    let found = RANGES.iter().find(|(first, last, ..)| (*first..=*last).contains(&figure.id.as_str()));
    let (why, reason) = match found {
        Some(&(_, _, why, reason)) => (why, reason),
        None if figure.note.contains(REPEATS) => (Why::Repeated, "as in the final thesis"),
        None => return None,
    };
    Some(Disposition { row: figure.id.clone(), quantity: figure.quantity.clone(), why, reason })
}

//! Rows of records, and comparisons that become rows.

use serde::Serialize;

use super::{CsvRow, Estimate, Pairs, Provenance, geomean, geomean_ratio, median};
use crate::telemetry::Counts;

/// Samples of ours beside a peer's, on the way to a [`Row`].
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Name of the row.
    pub name: String,
    /// Unit of the samples: less is better.
    pub unit: &'static str,
    /// Name of the peer.
    pub peer_name: String,
    /// One pair of samples per round.
    pub pairs: Pairs,
}

impl Comparison {
    /// A comparison under a name and with a peer.
    pub fn new(
        name: impl Into<String>,
        unit: &'static str,
        peer_name: impl Into<String>,
        pairs: Pairs,
    ) -> Comparison {
        Comparison { name: name.into(), unit, peer_name: peer_name.into(), pairs }
    }
}

/// One number of a record.
///
/// ```
/// # use memferry_bench::harness::{Provenance, Row};
/// let row = Row::median("copy_4KiB", "ns", Provenance::Measured, &[3.0, 1.0, 2.0]);
/// assert_eq!((row.value, row.min, row.max), (2.0, 1.0, 3.0));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Unique within the record.
    pub name: String,
    /// The median of several samples.
    pub value: f64,
    /// Unit of the value.
    pub unit: &'static str,
    /// How the number was obtained.
    #[serde(rename = "how")]
    pub provenance: Provenance,
    /// Number of samples; the model yields one.
    pub samples: usize,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// The number beside it, if there is one.
    #[serde(flatten)]
    pub peer: Option<Peer>,
    /// What the monitors of the machine counted meanwhile, if it has any. The CSV has no column for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Counts>,
}

/// The number that a row is compared with. Both come from the same run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Peer {
    /// Name of the peer.
    #[serde(rename = "peer")]
    pub name: String,
    /// Its number, in the unit of the row; `None` if it did not run, and `name` then says why.
    #[serde(rename = "peer_value", skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Above 1: memferry is better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Lower end of the ratio's 95 % confidence interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_low: Option<f64>,
    /// Upper end of that interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_high: Option<f64>,
    /// How its number was obtained, if otherwise than the row's.
    #[serde(rename = "peer_how", skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// The columns in which the peer differs on purpose ([`check_equal_work`](super::check_equal_work)).
    #[serde(rename = "peer_differs", skip_serializing_if = "<[_]>::is_empty")]
    pub differs: &'static [&'static str],
}

impl Peer {
    /// A peer and the ratio to it, with its confidence interval.
    pub fn new(name: impl Into<String>, value: f64, ratio: Estimate) -> Peer {
        let Estimate { value: ratio, low, high } = ratio;
        Peer {
            value: Some(value),
            ratio: Some(ratio),
            ratio_low: Some(low),
            ratio_high: Some(high),
            ..Peer::named(name)
        }
    }

    /// A peer that did not run.
    fn named(name: impl Into<String>) -> Peer {
        Peer {
            name: name.into(),
            value: None,
            ratio: None,
            ratio_low: None,
            ratio_high: None,
            provenance: None,
            differs: &[],
        }
    }

    /// Says that its number was obtained otherwise than the row's.
    pub fn obtained(self, provenance: Provenance) -> Peer {
        Peer { provenance: Some(provenance), differs: &["how"], ..self }
    }
}

impl Row {
    /// The median of samples without a peer.
    ///
    /// # Panics
    /// Without samples.
    pub fn median(
        name: impl Into<String>,
        unit: &'static str,
        provenance: Provenance,
        samples: &[f64],
    ) -> Row {
        let (min, max) = (samples.iter().copied())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| (min.min(value), max.max(value)));
        let value = median(samples);
        let (name, samples) = (name.into(), samples.len());
        Row { name, value, unit, provenance, samples, min, max, peer: None, telemetry: None }
    }

    /// The medians of a measured comparison. `seed` is that of the confidence interval.
    pub fn compared(comparison: Comparison, seed: u64) -> Row {
        let Comparison { name, unit, peer_name, pairs } = comparison;
        let peer = Peer::new(peer_name, median(&pairs.peer), geomean_ratio([&pairs], seed));
        Row { peer: Some(peer), ..Row::median(name, unit, Provenance::Measured, &pairs.ours) }
    }

    /// Geometric means over queries of measured milliseconds: of medians, of shortest and of longest times, and of the ratios.
    /// `seed` is that of the confidence interval.
    ///
    /// # Panics
    /// Without queries, and if a query has no pair.
    pub fn over_queries<'a>(
        name: impl Into<String>,
        peer: impl Into<String>,
        queries: impl IntoIterator<Item = &'a Pairs>,
        seed: u64,
    ) -> Row {
        let queries: Vec<&Pairs> = queries.into_iter().collect();
        let over = |figure: fn(&Pairs) -> f64| geomean(queries.iter().map(|query| figure(query)));
        let ratio = geomean_ratio(queries.iter().copied(), seed);
        Row {
            name: name.into(),
            value: over(|query| median(&query.ours)),
            unit: "ms",
            provenance: Provenance::Measured,
            samples: queries.iter().map(|query| query.ours.len()).min().unwrap_or(0),
            min: over(|query| query.ours.iter().copied().fold(f64::INFINITY, f64::min)),
            max: over(|query| query.ours.iter().copied().fold(0.0, f64::max)),
            peer: Some(Peer::new(peer, over(|query| median(&query.peer)), ratio)),
            telemetry: None,
        }
    }

    /// A number of the model without a peer.
    pub fn modelled(name: impl Into<String>, value: f64, unit: &'static str) -> Row {
        Row::median(name, unit, Provenance::Modelled, &[value])
    }

    /// Adds a peer without a ratio.
    pub fn beside(self, name: impl Into<String>, value: f64) -> Row {
        let row = self.without_peer(name);
        Row { peer: row.peer.map(|peer| Peer { value: Some(value), ..peer }), ..row }
    }

    /// Adds a published number without a ratio.
    pub fn beside_published(self, value: f64) -> Row {
        let row = self.beside("published", value);
        Row { peer: row.peer.map(|peer| peer.obtained(Provenance::Published)), ..row }
    }

    /// Says which peer has no number, and why.
    pub fn without_peer(self, name: impl Into<String>) -> Row {
        Row { peer: Some(Peer::named(name)), ..self }
    }

    /// Adds a peer with a ratio without interval; above 1 means better.
    pub fn against(self, name: impl Into<String>, value: f64, ratio: f64) -> Row {
        let row = self.beside(name, value);
        Row { peer: row.peer.map(|peer| Peer { ratio: Some(ratio), ..peer }), ..row }
    }

    /// The columns that every benchmark has.
    pub const COLUMNS: [&'static str; 12] = [
        "name",
        "value",
        "unit",
        "how",
        "samples",
        "min",
        "max",
        "peer",
        "peer_value",
        "ratio",
        "ratio_low",
        "ratio_high",
    ];
}

impl CsvRow for Row {
    fn columns() -> Vec<&'static str> {
        Row::COLUMNS.to_vec()
    }
}

impl AsMut<Row> for Row {
    fn as_mut(&mut self) -> &mut Row {
        self
    }
}

//! What the gain of distributed prefetching comes from: of the copies, or of columns on two nodes alone.
//!
//! ```text
//! gain  =  baseline / distributed  =  baseline / distributed-alone  x  distributed-alone / distributed
//!                                     of the columns' places            of the copies
//! ```
//!
//! The thesis measured a gain of 1.23 (table 6.2) and did not run the query with distributed columns and no copies. The
//! model computes 1.23 for that run: then the copies gained nothing. Only the run itself can tell.

use std::fmt;

use super::{Metric, Qdp, Query, QueryRuns, Skipped, Variant};
use crate::harness::{Comparison, Estimate, Pairs, Provenance, Row, geomean_ratio, median};

/// The causes of the gain, by the 95 % intervals of the ratios.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// There is no gain.
    NoGain,
    /// The columns' places alone: the copies gain nothing that was seen.
    Places,
    /// The copies alone.
    Copies,
    /// Each has a part.
    Both,
    /// The runs differ too much to tell.
    Undecided,
}

/// The parts of the gain, and what they say.
#[derive(Debug)]
pub struct Verdict {
    /// The cause.
    pub cause: Cause,
    /// Ratio of the baseline to distributed prefetching.
    pub gain: Estimate,
    /// Ratio of the baseline to distributed columns without copies.
    pub places: Estimate,
    /// Ratio of distributed columns without copies to distributed prefetching.
    pub copies: Estimate,
    /// These ratios with their times.
    pub rows: Vec<Row>,
}

/// The three runs.
const VARIANTS: [Variant; 3] = [Variant::Baseline, Variant::DistributedAlone, Variant::Distributed];

/// A gain below this is none.
const NO_GAIN: f64 = 1.02;

impl Cause {
    fn of(gain: &Estimate, places: &Estimate, copies: &Estimate) -> Cause {
        match (places.low > 1.0, copies.low > 1.0) {
            _ if gain.high <= NO_GAIN => Cause::NoGain,
            _ if gain.low <= 1.0 => Cause::Undecided,
            (true, true) => Cause::Both,
            (true, false) => Cause::Places,
            (false, true) => Cause::Copies,
            (false, false) => Cause::Undecided,
        }
    }
}

/// Runs the three variants of `query` in turns, as often as `effort` says, and attributes the gain.
///
/// # Errors
/// [`Skipped::Cannot`]: the machine has no faster memory, or no other memory of home's kind.
pub fn decide(
    qdp: &Qdp,
    query: &Query,
    effort: QueryRuns,
    provenance: Provenance,
) -> Result<Verdict, Skipped> {
    // Prefetching to the home node, or columns on one node, would be another question.
    let (near, other) =
        (query.nodes.of_b(Variant::UpperLimit)?, query.nodes.of_b(Variant::DistributedAlone)?);
    let home = query.nodes.home;
    if near == home || other == home {
        return Skipped::cannot(format!("node {home} cannot be home and another node at the same time"));
    }
    let mut times_ms = [const { Vec::new() }; 3];
    for round in 0..effort.runs {
        let once = QueryRuns { warm_ups: if round == 0 { effort.warm_ups } else { 1 }, runs: 1 };
        for step in 0..VARIANTS.len() {
            // Backwards in odd rounds: slow changes of the machine meet all alike.
            let index = if round % 2 == 0 { step } else { VARIANTS.len() - 1 - step };
            let taken = qdp.run(&Query { variant: VARIANTS[index], ..query.clone() }, once)?;
            let total = taken.iter().find(|taken| taken.metric == Metric::TOTAL);
            times_ms[index].extend(total.map(|total| median(&total.values)));
        }
    }
    let mut rows = Vec::new();
    let mut ratio = |name: &str, ours: usize, peer: usize| {
        let pairs = Pairs { ours: times_ms[ours].clone(), peer: times_ms[peer].clone() };
        let estimate = geomean_ratio([&pairs], SEED);
        let comparison = Comparison::new(name, "ms", VARIANTS[peer].to_string(), pairs);
        rows.push(Row { provenance, ..Row::compared(comparison, SEED) });
        estimate
    };
    let (gain, places, copies) =
        (ratio("decide_gain", 2, 0), ratio("decide_places", 1, 0), ratio("decide_copies", 2, 1));
    Ok(Verdict { cause: Cause::of(&gain, &places, &copies), gain, places, copies, rows })
}

/// Seed of the intervals.
const SEED: u64 = 19;

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |it: &Estimate| match it.low == it.high {
            true => format!("{:.2}", it.value),
            false => format!("{:.2} ({:.2} to {:.2})", it.value, it.low, it.high),
        };
        let Verdict { cause, gain, places, copies, .. } = self;
        let (gain, places, copies) = (words(gain), words(places), words(copies));
        match cause {
            Cause::NoGain => write!(
                f,
                "Nothing to attribute: distributed prefetching is not faster than the baseline, {gain}. The thesis's gain \
                 of 1.23 is not reproduced."
            ),
            Cause::Places => write!(
                f,
                "The columns' places: columns on two nodes gain {places} without any copy, and copies gain nothing beyond \
                 that, {copies}. The gain of {gain} is no gain of prefetching."
            ),
            Cause::Copies => write!(
                f,
                "The copies: they gain {copies}, and columns on two nodes alone gain nothing, {places}. The gain of {gain} \
                 is one of prefetching, and the model is wrong about it."
            ),
            Cause::Both => write!(
                f,
                "Both: columns on two nodes gain {places} without any copy, and copies gain {copies} beyond that; \
                 together {gain}."
            ),
            Cause::Undecided => write!(
                f,
                "Undecided: the gain of {gain} has the parts {places} of the columns' places and {copies} of the copies, \
                 and chance explains them. Run it with more --iterations, on an idle machine."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_decide() {
        let at = |low, high| Estimate { value: f64::midpoint(low, high), low, high };
        for (gain, places, copies, cause) in [
            (at(1.20, 1.26), at(1.20, 1.25), at(0.99, 1.02), Cause::Places),
            (at(1.20, 1.26), at(0.98, 1.02), at(1.20, 1.25), Cause::Copies),
            (at(1.28, 1.36), at(1.20, 1.25), at(1.05, 1.09), Cause::Both),
            (at(0.80, 0.90), at(1.20, 1.25), at(0.60, 0.70), Cause::NoGain),
            (at(0.58, 1.87), at(0.90, 1.01), at(0.65, 1.86), Cause::Undecided),
            (at(0.95, 1.20), at(0.90, 1.20), at(0.90, 1.20), Cause::Undecided),
            (at(1.01, 1.05), at(0.99, 1.04), at(0.99, 1.04), Cause::Undecided),
        ] {
            assert_eq!(Cause::of(&gain, &places, &copies), cause, "{gain:?} {places:?} {copies:?}");
        }
    }
}

//! The rows of a workload: summaries over the run, and series over its sections.

use std::collections::HashMap;

use memferry_bench::harness::{Pairs, Provenance, Row, median};
use memferry_query::files::FileReport;

use super::sections::{Run, Way};
use super::{FIFTHS, OURS, PLAIN, STORED, WorkloadBenchmark};
use crate::{QueryError, tpch};

impl WorkloadBenchmark {
    /// The summaries, then the series.
    pub(super) fn summaries(
        &self,
        ways: &[Way],
        budget_bytes: u64,
        working_set_bytes: Option<u64>,
    ) -> Result<Vec<Row>, QueryError> {
        let per_fifth = self.sections_per_fifth.max(1);
        let ours = &ways[OURS];
        let reference = reference(&ways[PLAIN]);
        let speeds = |way: &Way, sections: std::ops::Range<usize>| {
            let runs = way.runs.iter().filter(move |run| sections.contains(&run.section));
            runs.filter_map(|run| Some(reference.get(&run.query)? / run.ms)).collect::<Vec<f64>>()
        };
        let (first, last) = (0..per_fifth, (FIFTHS - 1) * per_fifth..FIFTHS * per_fifth);
        let (early, late) = (speeds(ours, first.clone()), speeds(ours, last.clone()));
        if early.is_empty() || late.is_empty() {
            return Err(QueryError::Invalid(
                "a fifth of the run has no query that DataFusion ran too; give more --seconds".to_owned(),
            ));
        }
        let measured =
            |name: &str, unit, values: &[f64]| Row::median(name, unit, Provenance::Measured, values);
        let mut rows = vec![
            measured("workload_warming", "ratio", &late).against(
                "the first fifth",
                median(&early),
                median(&late) / median(&early),
            ),
            measured("workload_warming_by_query", "ratio", &warming_by_query(ours, last.clone())),
            self.against(ours, &ways[PLAIN], "workload_vs_datafusion")?,
            self.against(ours, &ways[STORED], "workload_vs_stored")?,
        ];
        let peak = ours.tiers.iter().flat_map(|tiers| tiers.cache().stats().nodes);
        let peak: usize = peak.map(|usage| usage.peak_bytes).sum();
        rows.push(
            measured("workload_peak_bytes", "bytes", &[peak as f64])
                .beside("the budget", budget_bytes as f64),
        );
        if let Some(bytes) = working_set_bytes {
            rows.push(measured("workload_working_set_bytes", "bytes", &[bytes as f64]));
        }
        let rss = |sections: std::ops::Range<usize>| {
            let runs = ours.runs.iter().filter(move |run| sections.contains(&run.section));
            runs.map(|run| run.rss_bytes as f64).collect::<Vec<f64>>()
        };
        let (early, late) = (rss(first), rss(last));
        rows.push(measured("workload_rss_bytes", "bytes", &late).against(
            "the first fifth",
            median(&early),
            median(&early) / median(&late),
        ));
        rows.push(measured("workload_queries", "queries", &[ours.runs.len() as f64]));
        for section in 0..FIFTHS * per_fifth {
            let number = section + 1;
            let (own, plain) =
                (speeds(ours, section..section + 1), speeds(&ways[PLAIN], section..section + 1));
            if !own.is_empty() && !plain.is_empty() {
                let row = measured(&format!("workload_speed_{number:02}"), "ratio", &own);
                let plain_speed = median(&plain);
                rows.push(row.against(ways[PLAIN].name, plain_speed, median(&own) / plain_speed));
            }
            let reports = ours.runs.iter().filter(|run| run.section == section).map(|run| &run.report);
            let shares = Shares::of(reports);
            let shares = [("decoded", shares.decoded()), ("near", shares.near())];
            for (name, share) in shares {
                if let Some(share) = share {
                    rows.push(measured(&format!("workload_{name}_share_{number:02}"), "ratio", &[share]));
                }
            }
        }
        Ok(rows)
    }

    /// Times of the runs that both ways made at the same place of the same sequence, over the queries.
    fn against(&self, ours: &Way, peer: &Way, name: &str) -> Result<Row, QueryError> {
        let peers: HashMap<(usize, usize), &Run> = peer.runs.iter().map(|run| (run.place, run)).collect();
        let mut pairs = vec![Pairs::default(); tpch::QUERIES.count()];
        for run in &ours.runs {
            if let Some(peer) = peers.get(&run.place) {
                pairs[run.query].ours.push(run.ms);
                pairs[run.query].peer.push(peer.ms);
            }
        }
        pairs.retain(|pairs| !pairs.ours.is_empty());
        if pairs.is_empty() {
            return Err(QueryError::Invalid(format!(
                "memferry and {} have no query in common; give more --seconds",
                peer.name
            )));
        }
        Ok(Row::over_queries(name, peer.name, &pairs, self.seed))
    }
}

/// Of each query that `sections` have: the time of its first run by the median of its times there.
fn warming_by_query(way: &Way, sections: std::ops::Range<usize>) -> Vec<f64> {
    let ratio = |query| {
        let runs = || way.runs.iter().filter(move |run| run.query == query);
        let first = runs().min_by_key(|run| run.started)?;
        let late: Vec<f64> = runs().filter(|run| sections.contains(&run.section)).map(|run| run.ms).collect();
        (!late.is_empty()).then(|| first.ms / median(&late))
    };
    (0..tpch::QUERIES.count()).filter_map(ratio).collect()
}

/// The median time of each query.
fn reference(plain: &Way) -> HashMap<usize, f64> {
    let mut times: HashMap<usize, Vec<f64>> = HashMap::new();
    for run in &plain.runs {
        times.entry(run.query).or_default().push(run.ms);
    }
    times.into_iter().map(|(query, times)| (query, median(&times))).collect()
}

/// What the queries of a section found in memory.
#[derive(Default)]
struct Shares {
    groups: u64,
    groups_decoded: u64,
    bytes: u64,
    bytes_read: u64,
}

impl Shares {
    fn of<'a>(reports: impl Iterator<Item = &'a FileReport>) -> Shares {
        let mut shares = Shares::default();
        for report in reports {
            shares.groups += report.decoded_row_groups + report.decoded_row_groups_missed;
            shares.groups_decoded += report.decoded_row_groups;
            shares.bytes += report.bytes_requested;
            shares.bytes_read += report.bytes_read.min(report.bytes_requested);
        }
        shares
    }

    /// The share of row groups that came decoded.
    fn decoded(&self) -> Option<f64> {
        (self.groups > 0).then(|| self.groups_decoded as f64 / self.groups as f64)
    }

    /// Of the bytes that decoders asked for, the share that was not read of a file.
    fn near(&self) -> Option<f64> {
        (self.bytes > 0).then(|| 1.0 - self.bytes_read as f64 / self.bytes as f64)
    }
}

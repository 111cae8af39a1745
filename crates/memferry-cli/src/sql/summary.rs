//! What prefetching did for one statement, as a sentence and as JSON.

use std::collections::BTreeSet;
use std::time::Duration;

use memferry::internals::Origin;
use memferry::topology::{Machine, NodeId};
use memferry_bench_query::CarriedBytes;
use memferry_query::files::FileReport;
use memferry_query::{Prefetch, ScanReport, Tiers};
use serde_json::{Value, json};

use crate::output::{count, size};
use crate::query;

/// The effect of prefetching on a query.
pub(super) struct Summary<'a> {
    pub(super) mode: Prefetch,
    pub(super) report: ScanReport,
    pub(super) files: FileReport,
    pub(super) carried: CarriedBytes,
    pub(super) tiers: &'a Tiers,
}

impl Summary<'_> {
    /// What was read of files, and what prefetching did, each only if there was something to do.
    pub(super) fn sentences(&self) -> impl Iterator<Item = String> {
        let files = (self.files.scans > 0).then(|| self.files_sentence());
        let has_scans = !self.report.decisions.is_empty() || self.carried.shares().next().is_some();
        files.into_iter().chain(has_scans.then(|| self.sentence()))
    }

    fn files_sentence(&self) -> String {
        let FileReport { requests, bytes_read, bytes_read_ahead, time_waiting, .. } = self.files;
        let near = self.files.bytes_requested.saturating_sub(bytes_read);
        let decoded = match self.files.decoded_row_groups {
            0 => String::new(),
            groups => format!("; {} decoded already", count(groups as usize, "row group")),
        };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let predicted = match (self.files.time_predicted, self.files.decisions_again) {
            (Duration::ZERO, _) => String::new(),
            (time, again) => format!(
                "; scans took {:.1} ms, predicted {:.1} ms{}",
                ms(self.files.time_actual),
                ms(time),
                if again > 0 { format!(", decided again {again}x") } else { String::new() }
            ),
        };
        format!(
            "files: {} in {}, {} of it ahead of need; {} were near{decoded}; waited {:.1} ms{predicted}",
            size(bytes_read),
            count(requests as usize, "request"),
            size(bytes_read_ahead),
            size(near),
            ms(time_waiting)
        )
    }

    fn sentence(&self) -> String {
        let report = &self.report;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let predicted = |other: Duration, what: &str| match report.time_predicted {
            Duration::ZERO => String::new(),
            time => format!(
                "; scans worked {:.1} ms, predicted {:.1} ms, and {:.1} ms {what}",
                ms(report.time_working),
                ms(time),
                ms(other)
            ),
        };
        if self.carried.shares().next().is_none() {
            let predicted = predicted(report.time_predicted_with, "with copies");
            let decisions = match self.report.decisions.as_slice() {
                [] => "no table was scanned".to_owned(),
                decisions => decisions.join("; "),
            };
            return format!("prefetch {}: nothing was copied: {decisions}{predicted}", self.mode);
        }
        let hits = match report.hit_ratio() {
            Some(ratio) => format!("{:.0} % of what was read late was near", 100.0 * ratio),
            None => "no late column was read".to_owned(),
        };
        let predicted = predicted(report.time_predicted_without, "without");
        format!(
            "prefetch {}: {} to {}{}; {hits}; waited {:.1} ms{predicted}",
            self.mode,
            query::carried_text(&self.carried),
            near_nodes(self.tiers),
            where_nodes_are(self.tiers.machine()),
            ms(report.time_waiting),
        )
    }

    pub(super) fn json(&self) -> Value {
        let report = &self.report;
        let engines: Vec<Value> = self
            .carried
            .shares()
            .map(|share| json!({ "engine": share.kind, "bytes": share.bytes, "how": share.provenance }))
            .collect();
        json!({
            "mode": self.mode.to_string(),
            "home_node": self.tiers.home(),
            "near_node": self.tiers.near(),
            "machine": self.tiers.machine().name(),
            "machine_origin": self.tiers.machine().origin(),
            "decisions": report.decisions,
            "columns": report.columns_prefetched,
            "bytes": report.bytes_prefetched,
            "bytes_by_engine": engines,
            "late_bytes": report.late_bytes,
            "late_bytes_near": report.late_bytes_near,
            "hit_ratio": report.hit_ratio(),
            "file_bytes_read": self.files.bytes_read,
            "file_bytes_read_ahead": self.files.bytes_read_ahead,
            "file_bytes_requested": self.files.bytes_requested,
            "file_requests": self.files.requests,
            "file_hit_ratio": self.files.hit_ratio(),
            "file_predicted_seconds": self.files.time_predicted.as_secs_f64(),
            "file_actual_seconds": self.files.time_actual.as_secs_f64(),
            "file_decisions_again": self.files.decisions_again,
            "decoded_row_groups": self.files.decoded_row_groups,
            "decoded_row_groups_missed": self.files.decoded_row_groups_missed,
            "decoded_bytes_kept": self.files.decoded_bytes_kept,
            "decoded_bytes_refused": self.files.decoded_bytes_refused,
            "decoded_columns_evicted": self.files.decoded_columns_evicted,
            "waiting_seconds": report.time_waiting.as_secs_f64(),
            "working_seconds": report.time_working.as_secs_f64(),
            "predicted_seconds": report.time_predicted.as_secs_f64(),
            "predicted_with_seconds": report.time_predicted_with.as_secs_f64(),
            "predicted_without_seconds": report.time_predicted_without.as_secs_f64(),
        })
    }
}

/// `node 8`, or `nodes 8, 9` if each domain has near memory of its own.
fn near_nodes(tiers: &Tiers) -> String {
    let of_domains = tiers.machine().domains().into_iter().map(|domain| tiers.near_of(domain.cpu_node));
    let nodes: BTreeSet<NodeId> = of_domains.chain([tiers.near()]).collect();
    let text = nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if nodes.len() == 1 { format!("node {text}") } else { format!("nodes {text}") }
}

/// A remark for machines that are not this machine.
fn where_nodes_are(machine: &Machine) -> String {
    match machine.origin() {
        Origin::Discovered => String::new(),
        _ => format!(" of {} (a profile: the bytes lie in this machine's memory)", machine.name()),
    }
}

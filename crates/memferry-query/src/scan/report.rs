//! Metrics of a scan for `EXPLAIN ANALYZE`, and their sum over a plan.

use std::time::Duration;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, RatioMetrics, Time};
use memferry::mover::EngineKind;
use memferry_schedule::Distance;

use super::TieredScanExec;
use super::admission::Predicted;
use crate::near::NearColumn;

const ROW_GROUPS_SKIPPED: &str = "row_groups_skipped";
const ROWS_SKIPPED: &str = "rows_skipped";
const COLUMNS_PREFETCHED: &str = "columns_prefetched";
const BYTES_PREFETCHED: &str = "bytes_prefetched";
const BYTES_BY_CPU: &str = "bytes_by_cpu";
const BYTES_BY_DSA: &str = "bytes_by_dsa";
const LATE_BYTES: &str = "late_bytes";
const LATE_BYTES_NEAR: &str = "late_bytes_near";
const HIT_RATIO: &str = "hit_ratio";
/// Row groups of each distance, and the bytes of them that were read at home.
const BY_DISTANCE: [(Distance, &str, &str); 3] = [
    (Distance::Own, "row_groups_local", "bytes_local"),
    (Distance::SameSocket, "row_groups_same_socket", "bytes_same_socket"),
    (Distance::OtherSocket, "row_groups_remote", "bytes_remote"),
];
const TIME_WAITING: &str = "time_waiting";
const TIME_PREDICTED: &str = "time_predicted";
const TIME_PREDICTED_WITH: &str = "time_predicted_with";
const TIME_PREDICTED_WITHOUT: &str = "time_predicted_without";

/// The metrics of one partition of a scan.
///
/// A *column* here is one column of one row group, the unit that is copied.
#[derive(Debug)]
pub(super) struct ScanMetrics {
    /// Row groups that have no row that the predicate and the dynamic filters can reach.
    pub(super) row_groups_skipped: Count,
    /// Rows of other row groups, in blocks without such a row.
    pub(super) rows_skipped: Count,
    /// Requested late columns.
    columns_prefetched: Count,
    /// Bytes of copies that this scan started; ready copies and copies in flight start none.
    bytes_prefetched: Count,
    bytes_by_cpu: Count,
    bytes_by_dsa: Count,
    late_bytes: Count,
    late_bytes_near: Count,
    /// `late_bytes_near` of `late_bytes`.
    hit_ratio: RatioMetrics,
    pub(super) time_waiting: Time,
    /// Row groups and bytes of [`BY_DISTANCE`]; `None` for a scan that is not on domains.
    by_distance: Option<[(Count, Count); 3]>,
}

impl ScanMetrics {
    pub(super) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize, domain: Option<usize>) -> Self {
        let counter = |name| MetricBuilder::new(metrics).counter(name, partition);
        let of_domain = |domain: usize, name| {
            MetricBuilder::new(metrics).with_new_label("domain", domain.to_string()).counter(name, partition)
        };
        Self {
            row_groups_skipped: counter(ROW_GROUPS_SKIPPED),
            rows_skipped: counter(ROWS_SKIPPED),
            columns_prefetched: counter(COLUMNS_PREFETCHED),
            bytes_prefetched: counter(BYTES_PREFETCHED),
            bytes_by_cpu: counter(BYTES_BY_CPU),
            bytes_by_dsa: counter(BYTES_BY_DSA),
            late_bytes: counter(LATE_BYTES),
            late_bytes_near: counter(LATE_BYTES_NEAR),
            hit_ratio: MetricBuilder::new(metrics).ratio_metrics(HIT_RATIO, partition),
            time_waiting: MetricBuilder::new(metrics).subset_time(TIME_WAITING, partition),
            by_distance: domain.map(|domain| {
                BY_DISTANCE.map(|(_, groups, bytes)| (of_domain(domain, groups), of_domain(domain, bytes)))
            }),
        }
    }

    /// Counts a row group that this partition begins to read.
    pub(super) fn opened(&self, distance: Option<Distance>) {
        if let Some((groups, _)) = self.at(distance) {
            groups.add(1);
        }
    }

    /// Counts bytes of a row group that are read at home, not from a copy.
    pub(super) fn home_read(&self, distance: Option<Distance>, bytes: u64) {
        if let Some((_, sum)) = self.at(distance) {
            sum.add(bytes as usize);
        }
    }

    fn at(&self, distance: Option<Distance>) -> Option<&(Count, Count)> {
        let index = BY_DISTANCE.iter().position(|(it, ..)| Some(*it) == distance)?;
        self.by_distance.as_ref().map(|counts| &counts[index])
    }

    /// Predictions of this partition's `elapsed_compute`: as decided, with copies and without. Absent for scans without a
    /// prediction.
    pub(super) fn predicted(metrics: &ExecutionPlanMetricsSet, partition: usize, predicted: Predicted) {
        let Predicted { time, with, without } = predicted;
        let times = [(TIME_PREDICTED, time), (TIME_PREDICTED_WITH, with), (TIME_PREDICTED_WITHOUT, without)];
        for (name, time) in times {
            MetricBuilder::new(metrics).subset_time(name, partition).add_duration(time);
        }
    }

    /// Counts read rows of a late column: their share of the column's bytes, and its near part.
    pub(super) fn late_read(&self, near_bytes: u64, bytes: u64) {
        self.late_bytes.add(bytes as usize);
        self.late_bytes_near.add(near_bytes as usize);
        self.hit_ratio.add_total(bytes as usize);
        self.hit_ratio.add_part(near_bytes as usize);
    }

    /// Counts a requested late column that is no longer needed. Bytes still in flight count as prefetched, but for no engine.
    pub(super) fn prefetched(&self, column: &NearColumn) {
        self.columns_prefetched.add(1);
        for entry in column.entries().filter(|entry| entry.started_copy()) {
            self.bytes_prefetched.add(entry.len());
            if let Some(report) = entry.copied_by() {
                self.bytes_by_cpu.add(report.cpu_bytes as usize);
                self.bytes_by_dsa.add(report.dsa_bytes as usize);
            }
        }
    }
}

/// Sums over the scans of an executed plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScanReport {
    /// The decisions of the scans to prefetch or not, as EXPLAIN shows them: `none (REASON)` copies nothing. Equal ones are
    /// listed once.
    pub decisions: Vec<String>,
    /// Requested late columns, of one row group each.
    pub columns_prefetched: u64,
    /// Bytes of copies that the scans started.
    pub bytes_prefetched: u64,
    /// Bytes of these that were ready when their row group was done, by engine.
    pub bytes_by_engine: Vec<(EngineKind, u64)>,
    /// Bytes of late columns that were read.
    pub late_bytes: u64,
    /// Bytes of these that were read from near copies.
    pub late_bytes_near: u64,
    /// Time that scans waited for copies, over all partitions.
    pub time_waiting: Duration,
    /// Time that scans worked, over all partitions.
    pub time_working: Duration,
    /// Prediction of `time_working` of the scans that follow the model's advice, to prefetch or not; 0 without any.
    pub time_predicted: Duration,
    /// Its prediction of them with the copies that gain most, or lose least.
    pub time_predicted_with: Duration,
    /// Its prediction of them without copies.
    pub time_predicted_without: Duration,
}

impl ScanReport {
    /// The sums over all tiered scans of an executed plan.
    pub fn of(plan: &dyn ExecutionPlan) -> Self {
        let mut report = Self::default();
        report.add(plan);
        report
    }

    /// Share of the late bytes that were read from near copies; `None` if no late column was read.
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.late_bytes > 0).then(|| self.late_bytes_near as f64 / self.late_bytes as f64)
    }

    fn add(&mut self, plan: &dyn ExecutionPlan) {
        if let Some(scan) = plan.downcast_ref::<TieredScanExec>()
            && let Some(metrics) = plan.metrics()
        {
            let decision = scan.admission();
            if !self.decisions.contains(&decision) {
                self.decisions.push(decision);
            }
            let sum = |name| metrics.sum_by_name(name).map_or(0, |value| value.as_usize()) as u64;
            self.columns_prefetched += sum(COLUMNS_PREFETCHED);
            self.bytes_prefetched += sum(BYTES_PREFETCHED);
            self.late_bytes += sum(LATE_BYTES);
            self.late_bytes_near += sum(LATE_BYTES_NEAR);
            self.time_waiting += Duration::from_nanos(sum(TIME_WAITING));
            self.time_working += Duration::from_nanos(metrics.elapsed_compute().unwrap_or(0) as u64);
            self.time_predicted += Duration::from_nanos(sum(TIME_PREDICTED));
            self.time_predicted_with += Duration::from_nanos(sum(TIME_PREDICTED_WITH));
            self.time_predicted_without += Duration::from_nanos(sum(TIME_PREDICTED_WITHOUT));
            self.add_engine(EngineKind::Cpu, sum(BYTES_BY_CPU));
            self.add_engine(EngineKind::Dsa, sum(BYTES_BY_DSA));
        }
        for child in plan.children() {
            self.add(child.as_ref());
        }
    }

    fn add_engine(&mut self, kind: EngineKind, bytes: u64) {
        match self.bytes_by_engine.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, sum)) => *sum += bytes,
            None if bytes > 0 => self.bytes_by_engine.push((kind, bytes)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_counted_by_distance() {
        let metrics = ExecutionPlanMetricsSet::new();
        let scan = ScanMetrics::new(&metrics, 0, Some(1));
        for (distance, bytes) in
            [(Distance::Own, 1), (Distance::SameSocket, 20), (Distance::OtherSocket, 300)]
        {
            scan.opened(Some(distance));
            scan.home_read(Some(distance), bytes);
        }
        scan.opened(None);
        let metrics = metrics.clone_inner();
        let sum = |name: &str| metrics.sum_by_name(name).unwrap().as_usize();
        for (name, bytes) in [("local", 1), ("same_socket", 20), ("remote", 300)] {
            let found = (sum(&format!("row_groups_{name}")), sum(&format!("bytes_{name}")));
            assert_eq!(found, (1, bytes), "{name}");
        }
    }
}

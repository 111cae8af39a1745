//! Metrics of reading files, for `EXPLAIN ANALYZE` and for sums over a plan.

use std::sync::OnceLock;
use std::time::Duration;

use datafusion::datasource::physical_plan::{FileScanConfig, FileSource, ParquetFileMetrics, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, RatioMetrics, Time,
};

use super::forecast::Outcome;
use super::keeping::KeepingSource;
use super::source::{From, Read};

const REQUESTS: &str = "file_requests";
const BYTES_READ: &str = "file_bytes_read";
const BYTES_AHEAD: &str = "file_bytes_read_ahead";
const BYTES_BEFORE_OPEN: &str = "file_bytes_read_before_open";
const BYTES_IN_VAIN: &str = "file_bytes_in_vain";
const BYTES_UNCACHED: &str = "file_bytes_uncached";
const BYTES_REQUESTED: &str = "file_bytes_requested";
const BYTES_HIT: &str = "file_bytes_hit";
const HIT_RATIO: &str = "file_hit_ratio";
const TIME_WAITING: &str = "file_time_waiting";
const TIME_PREDICTED: &str = "file_time_predicted";
const TIME_ACTUAL: &str = "file_time_actual";
const DECISIONS: &str = "file_decisions_again";
const DECODED_GROUPS: &str = "decoded_row_groups";
const DECODED_GROUPS_MISSED: &str = "decoded_row_groups_missed";
const DECODED_KEPT: &str = "decoded_bytes_kept";
const DECODED_REFUSED: &str = "decoded_bytes_refused";
const DECODED_EVICTED: &str = "decoded_columns_evicted";

/// The reads of one reader, with those of the file that it began.
#[derive(Clone)]
pub(super) struct ReadMetrics {
    requests: Count,
    bytes_read: Count,
    bytes_ahead: Count,
    bytes_before_open: Count,
    bytes_in_vain: Gauge,
    bytes_uncached: Count,
}

impl ReadMetrics {
    pub(super) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let counter = |name| MetricBuilder::new(metrics).counter(name, partition);
        Self {
            requests: counter(REQUESTS),
            bytes_read: counter(BYTES_READ),
            bytes_ahead: counter(BYTES_AHEAD),
            bytes_before_open: counter(BYTES_BEFORE_OPEN),
            bytes_in_vain: MetricBuilder::new(metrics).gauge(BYTES_IN_VAIN, partition),
            bytes_uncached: counter(BYTES_UNCACHED),
        }
    }

    /// Counts a read when it is started.
    pub(super) fn started(&self, read: &Read, ahead: bool) {
        if read.from == From::Near {
            return;
        }
        self.requests.add(1);
        self.bytes_read.add(read.len() as usize);
        if ahead {
            self.bytes_ahead.add(read.len() as usize);
        }
        if read.from == From::FileUncached {
            self.bytes_uncached.add(read.len() as usize);
        }
    }

    /// Counts a read of a scan that is not open, in addition.
    pub(super) fn started_before_open(&self, read: &Read) {
        if read.from != From::Near {
            self.bytes_before_open.add(read.len() as usize);
        }
    }

    /// Counts bytes that were read ahead and that the decoder did not request.
    pub(super) fn in_vain(&self, bytes: u64) {
        self.bytes_in_vain.add(bytes as usize);
    }

    /// Takes back what was counted as in vain: the file is opened.
    pub(super) fn not_in_vain(&self, bytes: u64) {
        self.bytes_in_vain.sub(bytes as usize);
    }
}

/// The times of row groups, as predicted and as they were.
struct Outcomes {
    time_predicted: Time,
    time_actual: Time,
    decisions_again: Count,
}

/// The metrics of one reader: a file, or the part of it that one partition scans.
pub(super) struct ReaderMetrics {
    pub(super) reads: ReadMetrics,
    bytes_requested: Count,
    bytes_hit: Count,
    hit_ratio: RatioMetrics,
    pub(super) time_waiting: Time,
    /// Registered with the first one: a sum of DataFusion's times is not 0 if each of them is.
    outcomes: OnceLock<Outcomes>,
    metrics: ExecutionPlanMetricsSet,
    partition: usize,
    /// DataFusion's own, kept in step.
    file: ParquetFileMetrics,
    file_size_bytes: u64,
}

impl ReaderMetrics {
    pub(super) fn new(
        metrics: &ExecutionPlanMetricsSet,
        partition: usize,
        file: &str,
        file_size_bytes: u64,
    ) -> Self {
        let counter = |name| MetricBuilder::new(metrics).counter(name, partition);
        Self {
            reads: ReadMetrics::new(metrics, partition),
            bytes_requested: counter(BYTES_REQUESTED),
            bytes_hit: counter(BYTES_HIT),
            hit_ratio: MetricBuilder::new(metrics).ratio_metrics(HIT_RATIO, partition),
            time_waiting: MetricBuilder::new(metrics).subset_time(TIME_WAITING, partition),
            outcomes: OnceLock::new(),
            metrics: metrics.clone(),
            partition,
            file: ParquetFileMetrics::new(partition, file, metrics),
            file_size_bytes,
        }
    }

    /// Adds the times of a row group, or of a part of it.
    pub(super) fn outcome(&self, outcome: Outcome) {
        let outcomes = self.outcomes.get_or_init(|| {
            let builder = || MetricBuilder::new(&self.metrics);
            Outcomes {
                time_predicted: builder().subset_time(TIME_PREDICTED, self.partition),
                time_actual: builder().subset_time(TIME_ACTUAL, self.partition),
                decisions_again: builder().counter(DECISIONS, self.partition),
            }
        });
        outcomes.time_predicted.add_duration(outcome.predicted);
        outcomes.time_actual.add_duration(outcome.actual);
        outcomes.decisions_again.add(usize::from(outcome.is_new_decision));
    }

    /// Counts a request of the decoder, of which `hit_bytes` were ready or in flight.
    pub(super) fn requested(&self, bytes: u64, hit_bytes: u64) {
        let (bytes, hit_bytes) = (bytes as usize, (hit_bytes as usize).min(bytes as usize));
        self.bytes_requested.add(bytes);
        self.bytes_hit.add(hit_bytes);
        self.hit_ratio.add_total(bytes);
        self.hit_ratio.add_part(hit_bytes);
        self.file.bytes_scanned.add(bytes);
    }
}

impl Drop for ReaderMetrics {
    fn drop(&mut self) {
        self.file.scan_efficiency_ratio.add_part(self.file.bytes_scanned.value());
        self.file.scan_efficiency_ratio.set_total(self.file_size_bytes as usize);
    }
}

/// The kept columns of one partition.
#[derive(Debug, Clone)]
pub(super) struct DecodedMetrics {
    /// Row groups that were served from kept columns.
    pub(super) groups: Count,
    pub(super) groups_missed: Count,
    pub(super) bytes_kept: Count,
    pub(super) bytes_refused: Count,
    pub(super) columns_evicted: Count,
}

impl DecodedMetrics {
    pub(super) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let counter = |name| MetricBuilder::new(metrics).counter(name, partition);
        Self {
            groups: counter(DECODED_GROUPS),
            groups_missed: counter(DECODED_GROUPS_MISSED),
            bytes_kept: counter(DECODED_KEPT),
            bytes_refused: counter(DECODED_REFUSED),
            columns_evicted: counter(DECODED_EVICTED),
        }
    }
}

/// Sums over the file scans of an executed plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileReport {
    /// Scans of Parquet files that memferry read.
    pub scans: usize,
    /// Requests to the disk or the store, without those of metadata.
    pub requests: u64,
    /// Bytes of these requests.
    pub bytes_read: u64,
    /// Bytes of `bytes_read` that were requested before the decoder asked for them.
    pub bytes_read_ahead: u64,
    /// Bytes of `bytes_read_ahead` that were requested before DataFusion opened their scan.
    pub bytes_read_before_open: u64,
    /// Bytes that were read ahead, and that the decoder did not ask for.
    pub bytes_in_vain: u64,
    /// Bytes of `bytes_read` that were not kept: from a store, or because the budget had no room.
    pub bytes_uncached: u64,
    /// Bytes that the decoder asked for.
    pub bytes_requested: u64,
    /// Bytes of these that were ready or in flight at that moment.
    pub bytes_hit: u64,
    /// Time that partitions waited for bytes, summed over the partitions.
    pub time_waiting: Duration,
    /// Time that partitions of local files take for what they read, decode and pass on, as the model predicted it when the scan
    /// began, summed over the partitions.
    pub time_predicted: Duration,
    /// Time that they took.
    pub time_actual: Duration,
    /// How often scans decided again how far to read ahead, because the times differed by more than 30 %.
    pub decisions_again: u64,
    /// Row groups that were neither read nor decoded: all of their columns were kept decoded.
    pub decoded_row_groups: u64,
    /// Row groups of the same scans that were decoded: some of their columns were not kept.
    pub decoded_row_groups_missed: u64,
    /// Bytes of decoded columns that the scans kept.
    pub decoded_bytes_kept: u64,
    /// Bytes of decoded columns that were not kept, because the budget had no room.
    pub decoded_bytes_refused: u64,
    /// Decoded columns that had been evicted when a scan needed them.
    pub decoded_columns_evicted: u64,
}

impl FileReport {
    /// The sums of `plan`, which has run.
    pub fn of(plan: &dyn ExecutionPlan) -> Self {
        let mut report = Self::default();
        report.add(plan);
        report
    }

    /// Share of the requested bytes that were ready or in flight; `None` if nothing was requested.
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.bytes_requested > 0).then(|| self.bytes_hit as f64 / self.bytes_requested as f64)
    }

    fn add(&mut self, plan: &dyn ExecutionPlan) {
        if let Some((_, source)) = parquet_scan(plan) {
            let metrics = source.metrics().clone_inner();
            let sum = |name| metrics.sum_by_name(name).map(|value| value.as_usize() as u64);
            // A scan that is served from kept columns alone has no reader.
            if sum(REQUESTS).or(sum(DECODED_GROUPS)).is_some() {
                self.scans += 1;
                let sum = |name| sum(name).unwrap_or(0);
                self.requests += sum(REQUESTS);
                self.bytes_read += sum(BYTES_READ);
                self.bytes_read_ahead += sum(BYTES_AHEAD);
                self.bytes_read_before_open += sum(BYTES_BEFORE_OPEN);
                self.bytes_in_vain += sum(BYTES_IN_VAIN);
                self.bytes_uncached += sum(BYTES_UNCACHED);
                self.bytes_requested += sum(BYTES_REQUESTED);
                self.bytes_hit += sum(BYTES_HIT);
                self.time_waiting += Duration::from_nanos(sum(TIME_WAITING));
                self.time_predicted += Duration::from_nanos(sum(TIME_PREDICTED));
                self.time_actual += Duration::from_nanos(sum(TIME_ACTUAL));
                self.decisions_again += sum(DECISIONS);
                self.decoded_row_groups += sum(DECODED_GROUPS);
                self.decoded_row_groups_missed += sum(DECODED_GROUPS_MISSED);
                self.decoded_bytes_kept += sum(DECODED_KEPT);
                self.decoded_bytes_refused += sum(DECODED_REFUSED);
                self.decoded_columns_evicted += sum(DECODED_EVICTED);
            }
        }
        for child in plan.children() {
            self.add(child.as_ref());
        }
    }
}

/// The scan of Parquet files that a node of a plan is, if it is one.
pub(crate) fn parquet_scan(plan: &dyn ExecutionPlan) -> Option<(&FileScanConfig, &ParquetSource)> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    scan.downcast_to_file_source::<ParquetSource>().or_else(|| {
        let (config, keeping) = scan.downcast_to_file_source::<KeepingSource>()?;
        Some((config, keeping.parquet()))
    })
}

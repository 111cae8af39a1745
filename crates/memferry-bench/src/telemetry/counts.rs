//! What monitors counted: the data beside the rows of a record.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::harness::display_by_serde;

/// A kind of monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MonitorKind {
    /// Performance monitors of DSA devices, by perf.
    Dsa,
    /// Occupancy of the last-level caches and their traffic, by resctrl.
    Cache,
    /// Memory controllers, by perf.
    Memory,
    /// Energy, by RAPL.
    Energy,
}

display_by_serde!(MonitorKind);

impl MonitorKind {
    /// All kinds, in the order of records.
    pub const ALL: [MonitorKind; 4] =
        [MonitorKind::Dsa, MonitorKind::Cache, MonitorKind::Memory, MonitorKind::Energy];
}

/// What the monitors of a machine counted in a window: while the rows that have it were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Length of the window.
    pub seconds: f64,
    /// Number of rows that were measured in this window; each has these counts.
    pub rows_count: usize,
    /// The counted quantities.
    pub counts: Vec<Count>,
}

/// One quantity in a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Count {
    /// The monitor.
    pub monitor: MonitorKind,
    /// Name of the quantity, that of the kernel if it has one.
    pub name: String,
    /// The device, socket, cache or zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// Unit of the value.
    pub unit: String,
    /// The increase during the window; of a quantity with a `series`, the mean.
    pub value: f64,
    /// The smallest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The largest sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The share of the window in which the counter counted, if several events had to take turns. The value is the counted
    /// one divided by it, an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_share: Option<f64>,
    /// Samples over time: seconds since the start of the window, and the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<(f64, f64)>,
}

impl Count {
    /// An increase.
    pub(super) fn new(
        monitor: MonitorKind,
        name: &str,
        place: Option<String>,
        unit: &str,
        value: f64,
    ) -> Count {
        Count {
            monitor,
            name: name.to_owned(),
            place,
            unit: unit.to_owned(),
            value,
            min: None,
            max: None,
            counted_share: None,
            series: Vec::new(),
        }
    }
}

/// Points that a series keeps, so that a window of hours is no larger than one of seconds.
const POINTS_MAX: usize = 128;

/// Samples of one quantity over time. Mean and extremes are of all samples; when there are too many points, every second one
/// is dropped.
#[derive(Debug, Default)]
pub(super) struct Series {
    points: Vec<(f64, f64)>,
    /// Every sample whose number is divisible by 2 to this power is a point.
    halvings: u32,
    samples_count: u64,
    sum: f64,
    extremes: Option<(f64, f64)>,
}

impl Series {
    pub(super) fn push(&mut self, at: Duration, value: f64) {
        if self.samples_count.is_multiple_of(1 << self.halvings) {
            self.points.push((at.as_secs_f64(), value));
        }
        if self.points.len() > POINTS_MAX {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.halvings += 1;
        }
        self.samples_count += 1;
        self.sum += value;
        let (min, max) = self.extremes.unwrap_or((value, value));
        self.extremes = Some((min.min(value), max.max(value)));
    }

    /// The samples as a count; `None` without a sample.
    pub(super) fn count(
        self,
        monitor: MonitorKind,
        name: &str,
        place: Option<String>,
        unit: &str,
    ) -> Option<Count> {
        let (min, max) = self.extremes?;
        let mean = self.sum / self.samples_count as f64;
        let count = Count::new(monitor, name, place, unit, mean);
        Some(Count { min: Some(min), max: Some(max), series: self.points, ..count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(samples_count: u64) -> Count {
        let mut series = Series::default();
        for number in 0..samples_count {
            series.push(Duration::from_secs(number), number as f64);
        }
        series.count(MonitorKind::Cache, "llc_occupancy", None, "bytes").unwrap()
    }

    #[test]
    fn a_series_keeps_its_extremes_and_few_points() {
        assert_eq!(Series::default().count(MonitorKind::Cache, "llc_occupancy", None, "bytes"), None);
        let short = series(3);
        assert_eq!(short.series, [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)]);
        assert_eq!((short.value, short.min, short.max), (1.0, Some(0.0), Some(2.0)));
        let long = series(10_001);
        assert_eq!((long.value, long.min, long.max), (5000.0, Some(0.0), Some(10_000.0)));
        assert!((POINTS_MAX / 2..=POINTS_MAX).contains(&long.series.len()), "{}", long.series.len());
        let steps: Vec<f64> = long.series.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(steps.iter().all(|step| *step == steps[0]), "{steps:?}");
    }
}

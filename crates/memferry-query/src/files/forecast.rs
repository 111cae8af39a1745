//! The times of a scan of files: predicted by the model, seen by its readers, and decided again where they differ.
//!
//! The first reader of a scan describes it; the model says how far to read ahead and how long it takes. All readers report the
//! times of their row groups, and take the window that holds now. The metrics compare with the first decision.
//!
//! Without a calibration of the storage nothing is predicted, and scans read ahead as far as they may.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memferry::model::{Forecast, Observed};

/// The forecast of one scan, shared by its readers.
#[derive(Debug, Default)]
pub(super) struct ScanForecast {
    partitions_count: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// That of the first decision, and the one that holds now. `None` before the first reader, and if the storage is not
    /// calibrated.
    forecasts: Option<(Forecast, Forecast)>,
    seen: Seen,
}

/// The part of a file that a partition reads.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Volume {
    pub(crate) groups_count: u64,
    pub(crate) bytes: u64,
    pub(crate) reads_count: u64,
}

/// Times of the partitions of a scan, in sum.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Seen {
    predicted_s: f64,
    actual_s: f64,
    groups_count: u64,
}

/// Row groups before columns are decoded for later queries: the scan has compared its times by then, and one of fewer row
/// groups saves later queries little. Chosen.
const EARLY_GROUPS_MIN: u64 = 8;

/// The times of a row group, or of a part of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    pub(super) predicted: Duration,
    pub(super) actual: Duration,
    /// Whether the scan decided again.
    pub(super) is_new_decision: bool,
}

impl ScanForecast {
    /// For a scan of so many partitions.
    pub(super) fn new(partitions_count: usize) -> Self {
        Self {
            partitions_count: u32::try_from(partitions_count).unwrap_or(u32::MAX),
            state: Mutex::default(),
        }
    }

    pub(super) fn partitions_count(&self) -> u32 {
        self.partitions_count.max(1)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides, unless the scan has: takes the forecast, if there is one.
    pub(super) fn begin(&self, forecast: impl FnOnce() -> Option<Forecast>) {
        let mut state = self.lock();
        if state.forecasts.is_none() {
            state.forecasts = forecast().map(|forecast| (forecast.clone(), forecast));
        }
    }

    /// Bytes that a partition reads ahead now; `None` if the model has not decided it.
    pub(super) fn window_bytes(&self) -> Option<u64> {
        self.lock().forecasts.as_ref().map(|(_, now)| now.advice().window_bytes)
    }

    /// Whether columns are to be decoded for later queries at their first use.
    pub(super) fn decodes_early(&self) -> bool {
        let state = self.lock();
        let is_advised = state.forecasts.as_ref().is_some_and(|(_, now)| now.advice().decodes_early);
        is_advised && state.seen.groups_count >= EARLY_GROUPS_MIN
    }

    /// Whether readers have reported times.
    pub(super) fn has_run(&self) -> bool {
        self.lock().seen != Seen::default()
    }

    /// Notes times of a reader. Those of its first row group are not compared: nothing was read ahead of it.
    pub(super) fn observe(&self, seen: Observed, is_first: bool) -> Option<Outcome> {
        let mut state = self.lock();
        let (first, now) = state.forecasts.as_mut()?;
        let (predicted_s, is_new_decision) = match is_first {
            true => (first.predicted_first_s(seen.bytes, seen.read_bytes), false),
            false => (first.predicted_s(seen.bytes, seen.read_bytes), now.observe(seen)),
        };
        let actual_s = seen.waited_s + seen.worked_s;
        state.seen.predicted_s += predicted_s;
        state.seen.actual_s += actual_s;
        state.seen.groups_count += seen.groups_count;
        let duration = |time_s: f64| Duration::try_from_secs_f64(time_s).unwrap_or(Duration::MAX);
        Some(Outcome { predicted: duration(predicted_s), actual: duration(actual_s), is_new_decision })
    }
}

/// What the scan predicted, and how long it took, after it has run; nothing before.
impl fmt::Display for ScanForecast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let Some((first, now)) = state.forecasts.as_ref().filter(|_| state.seen != Seen::default()) else {
            return Ok(());
        };
        let ms = |time_s: f64| time_s * 1e3 / f64::from(self.partitions_count());
        let Seen { predicted_s, actual_s, .. } = state.seen;
        write!(f, "; predicted {:.1} ms, took {:.1} ms a partition", ms(predicted_s), ms(actual_s))?;
        let kib = |forecast: &Forecast| forecast.advice().window_bytes >> 10;
        match now.decisions_count() {
            1 => write!(f, ", reading {} KiB ahead", kib(now)),
            count => {
                write!(f, ", decided {count} times: reading {} KiB ahead, then {}", kib(first), kib(now))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memferry::model::{FileScan, ReadRates};
    use memferry::topology::{ReadRate, Storage};

    use super::*;

    const GROUP_BYTES: u64 = 1 << 20;

    /// A scan of 100 row groups of 1 MiB, at 1 GB/s.
    fn forecast(partitions_count: u32, work_ns_per_byte: f64) -> Forecast {
        let rate = ReadRate { size_bytes: 4096, depth: 1, mb_per_s: 1000.0 };
        let storage = Storage::new("/".into(), 1e4, vec![rate], "a test".to_owned()).unwrap();
        let scan = FileScan {
            groups_count: 100,
            group_bytes: GROUP_BYTES,
            read_bytes: GROUP_BYTES / 4,
            partitions_count,
            work_s_per_byte: work_ns_per_byte / 1e9,
            window_bytes_max: 32 << 20,
        };
        Forecast::new(scan, ReadRates::from(&storage))
    }

    fn seen(waited_s: f64, worked_s: f64) -> Observed {
        let (bytes, read_bytes) = (GROUP_BYTES, GROUP_BYTES);
        Observed { groups_count: 1, bytes, read_bytes, waited_s, worked_s }
    }

    #[test]
    fn readers_share_a_decision_and_correct_it() {
        let shared = ScanForecast::new(2);
        shared.begin(|| None);
        assert_eq!(shared.window_bytes(), None, "nothing is known of the storage");
        assert!(shared.observe(seen(0.0, 1.0), false).is_none());
        let first = forecast(shared.partitions_count(), 1.0);
        let window_bytes = first.advice().window_bytes;
        shared.begin(|| Some(first));
        shared.begin(|| panic!("it is decided"));
        assert_eq!(shared.window_bytes(), Some(window_bytes));
        assert_eq!(shared.to_string(), "", "nothing has run");
        // The first row groups of readers have no say.
        for _ in 0..4 {
            assert!(!shared.observe(seen(0.0, 50.0), true).unwrap().is_new_decision);
        }
        let outcomes: Vec<_> = (0..4).map(|_| shared.observe(seen(0.0, 0.5), false).unwrap()).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_new_decision).count(), 1);
        assert!(outcomes.iter().all(|outcome| outcome.actual == Duration::from_millis(500)));
        assert!(outcomes.iter().all(|outcome| outcome.predicted < Duration::from_millis(10)));
        assert_eq!(shared.window_bytes(), Some(2 * GROUP_BYTES), "{shared:?}");
        let words = shared.to_string();
        assert!(words.contains("took 101000.0 ms a partition, decided 2 times: reading "), "{words}");
        assert!(words.ends_with("ahead, then 2048"), "{words}");
    }

    #[test]
    fn columns_are_decoded_early_while_cores_wait() {
        let shared = ScanForecast::new(1);
        shared.begin(|| Some(forecast(1, 0.1)));
        assert!(!shared.decodes_early(), "nothing has run");
        let mut early_from = None;
        for group in 0..20 {
            shared.observe(seen(0.9e-3, 1e-4), false);
            early_from = early_from.or(shared.decodes_early().then_some(group));
        }
        assert_eq!(early_from, Some(EARLY_GROUPS_MIN - 1));
        for _ in 0..20 {
            shared.observe(seen(1e-3, 0.1), false);
        }
        assert!(!shared.decodes_early(), "cores are busy: {shared:?}");
    }
}

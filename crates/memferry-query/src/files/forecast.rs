//! The times of a scan of files: predicted by the model, seen by its readers, and decided again where they differ.
//!
//! The first reader of a scan describes it; the model says how far to read ahead and how long it takes. All readers tell the
//! times of their row groups, and take the window that holds now. The metrics compare with the first decision.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memferry::model::{FileScan, Forecast, Limit, Observed, ReadRates};

/// The forecast of one scan, shared by its readers.
#[derive(Debug)]
pub(super) struct ScanForecast {
    partitions_count: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// That of the first decision, and the one that holds now. `None` before the first reader, and where nothing is known of
    /// the storage.
    forecasts: Option<(Forecast, Forecast)>,
    seen: Seen,
}

/// Times of the partitions of a scan, in sum.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) predicted_s: f64,
    pub(super) actual_s: f64,
    /// Of `actual_s`.
    pub(super) waited_s: f64,
    pub(super) groups_count: u64,
}

/// Row groups before columns are decoded for later queries. Chosen: a scan of fewer saves them little.
const EARLY_GROUPS_MIN: u64 = 8;

/// What is known of a row group, or of a part of it.
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
        let partitions_count = u32::try_from(partitions_count).unwrap_or(u32::MAX).max(1);
        Self { partitions_count, state: Mutex::default() }
    }

    pub(super) fn partitions_count(&self) -> u32 {
        self.partitions_count
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides for the scan that `describe` returns, unless it is decided. Returns the bytes to read ahead.
    pub(super) fn begin(&self, rates: &ReadRates, describe: impl FnOnce() -> FileScan) -> u64 {
        let mut state = self.lock();
        let (_, now) = state.forecasts.get_or_insert_with(|| {
            let forecast = Forecast::new(describe(), rates.clone());
            (forecast.clone(), forecast)
        });
        now.advice().window_bytes
    }

    /// Bytes that a partition reads ahead now; `None` if the model has not decided it.
    pub(super) fn window_bytes(&self) -> Option<u64> {
        self.lock().forecasts.as_ref().map(|(_, now)| now.advice().window_bytes)
    }

    /// Whether cores wait for the storage for most of the time, by the forecast and in fact, so that they may decode for later
    /// queries.
    pub(super) fn decodes_early(&self) -> bool {
        let state = self.lock();
        let seen = state.seen;
        let is_predicted =
            state.forecasts.as_ref().is_some_and(|(_, now)| now.advice().limit == Limit::Storage);
        is_predicted && seen.groups_count >= EARLY_GROUPS_MIN && seen.waited_s > seen.actual_s / 2.0
    }

    /// Whether readers have told times.
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
        state.seen.waited_s += seen.waited_s;
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
        let ms = |time_s: f64| time_s * 1e3 / f64::from(self.partitions_count);
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
    use super::*;

    #[test]
    fn readers_share_a_decision_and_correct_it() {
        let forecast = ScanForecast::new(2);
        let group_bytes = 1 << 20;
        let seen = |worked_s| Observed {
            groups_count: 1,
            bytes: group_bytes,
            read_bytes: group_bytes,
            waited_s: 0.0,
            worked_s,
        };
        assert_eq!(forecast.window_bytes(), None);
        assert!(forecast.observe(seen(1.0), false).is_none(), "nothing is predicted");
        let scan = FileScan {
            groups_count: 100,
            group_bytes,
            read_bytes: group_bytes / 4,
            partitions_count: forecast.partitions_count(),
            work_s_per_byte: 1e-3 / group_bytes as f64,
            window_bytes_max: 32 << 20,
        };
        let window_bytes = forecast.begin(&ReadRates::default(), || scan);
        let again = forecast.begin(&ReadRates::default(), || panic!("it is decided"));
        assert_eq!((again, forecast.window_bytes()), (window_bytes, Some(window_bytes)));
        assert!(!forecast.decodes_early(), "nothing has waited");
        assert_eq!(forecast.to_string(), "");
        // The first row group has no say.
        assert!(!forecast.observe(seen(50.0), true).unwrap().is_new_decision);
        let outcomes: Vec<_> = (0..4).map(|_| forecast.observe(seen(0.5), false).unwrap()).collect();
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_new_decision).count(), 1);
        assert!(outcomes.iter().all(|outcome| outcome.actual == Duration::from_millis(500)));
        assert!(outcomes.iter().all(|outcome| outcome.predicted < Duration::from_millis(10)));
        assert!(forecast.window_bytes() == Some(2 << 20), "{forecast:?}");
        let words = forecast.to_string();
        assert!(words.contains("took 26000.0 ms a partition, decided 2 times: reading "), "{words}");
        assert!(words.ends_with("ahead, then 2048"), "{words}");
    }

    #[test]
    fn columns_are_decoded_early_while_cores_wait() {
        let bytes = 1 << 20;
        let forecast = ScanForecast::new(1);
        let scan = FileScan {
            groups_count: 100,
            group_bytes: bytes,
            read_bytes: bytes,
            partitions_count: 1,
            work_s_per_byte: 0.0,
            window_bytes_max: 32 << 20,
        };
        forecast.begin(&ReadRates::default(), || scan);
        let seen =
            |waited_s, worked_s| Observed { groups_count: 1, bytes, read_bytes: bytes, waited_s, worked_s };
        let mut early_from = None;
        for group in 0..20 {
            forecast.observe(seen(1e-3, 1e-4), false);
            early_from = early_from.or(forecast.decodes_early().then_some(group));
        }
        assert_eq!(early_from, Some(EARLY_GROUPS_MIN - 1));
        (0..20).for_each(|_| drop(forecast.observe(seen(1e-3, 0.1), false)));
        assert!(!forecast.decodes_early(), "{forecast:?}");
    }
}

//! Advice for scans of files: how far to read ahead, and how long it takes; and a decision that is made again when the scan
//! sees other times.
//!
//! A partition reads the columns of a row group, decodes them, and hands them to the operators above. Reading takes the
//! storage, the rest takes a core:
//!
//! ```text
//! on demand    read  work  read  work  read  work       n (read + work)
//! ahead        read  read  read                         read + n max(read, work), about
//!                    work  work  work
//! ```
//!
//! Reading farther ahead gains as long as more reads in flight make the storage faster, and no time beyond.

use super::storage::ReadRates;
use crate::storage::PIECE_BYTES;

/// A scan of files before it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct FileScan {
    /// Row groups of each partition.
    pub groups_count: u64,
    /// Stored bytes that a partition reads of a row group; the mean.
    pub group_bytes: u64,
    /// Bytes of one read; the mean.
    pub read_bytes: u64,
    /// Partitions that read at the same time.
    pub partitions_count: u32,
    /// Time that decoding a stored byte and the operators above take, in seconds of a partition.
    pub work_s_per_byte: f64,
    /// Limit of the bytes that a partition may read ahead. 0 reads on demand.
    pub window_bytes_max: u64,
}

/// Advice for a [`FileScan`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FileScanAdvice {
    /// Bytes that a partition reads ahead of its decoder; at most [`FileScan::window_bytes_max`].
    pub window_bytes: u64,
    /// Row groups of each partition in flight that suffice, without a reserve.
    pub groups_ahead: u64,
    /// Time that the storage takes for all reads, in seconds.
    pub storage_s: f64,
    /// Time that each partition works, in seconds.
    pub work_s: f64,
    /// Time until the first row group is there, in seconds.
    pub first_s: f64,
    /// Time of the scan with this window, in seconds.
    pub predicted_s: f64,
    /// Time of the scan without reading ahead, in seconds.
    pub on_demand_s: f64,
    /// Whether cores are idle for most of the time, so that they may decode columns as a whole for later queries.
    pub decodes_early: bool,
}

/// A farther window must gain this part of the time: the model is no more accurate.
const GAIN_MIN: f64 = 0.02;

/// Row groups in flight are this multiple of those that suffice if all were alike: some take longer to decode than others.
const RESERVE_GROUPS: u64 = 2;

/// The window lasts at least so long, in seconds. Chosen: other programs may make a disk pause for some hundredths of a
/// second, and the bytes of such a time are few.
const RESERVE_S: f64 = 0.05;

/// Columns are decoded early if the storage takes this multiple of the time of the cores. Chosen: decoding whole columns may
/// double the work.
const EARLY_MIN: f64 = 2.0;

/// Windows that are computed, in row groups.
const GROUPS_AHEAD_MAX: u64 = 64;

impl FileScan {
    /// How far to read ahead of a storage of these rates.
    ///
    /// Cost: some microseconds.
    pub fn advise(&self, rates: &ReadRates) -> FileScanAdvice {
        let group_bytes = self.group_bytes.max(1);
        let groups_count = self.groups_count.max(1);
        let work_group_s = group_bytes as f64 * self.work_s_per_byte;
        let rest_count = (groups_count - 1) as f64;
        let on_demand_s = groups_count as f64 * (self.group_s(rates, 1) + work_group_s);
        // While the first row group is read, nothing is decoded, and the last one is decoded when all is read.
        let first_s = self.group_s(rates, 1);
        let ahead_s = |groups_ahead: u64| {
            first_s + rest_count * self.group_s(rates, groups_ahead).max(work_group_s) + work_group_s
        };
        let fitting = (self.window_bytes_max / group_bytes).min(groups_count).min(GROUPS_AHEAD_MAX);
        let best_s = (1..=fitting).map(ahead_s).fold(on_demand_s, f64::min);
        let is_as_good = |&groups_ahead: &u64| ahead_s(groups_ahead) <= best_s * (1.0 + GAIN_MIN);
        // One also where the model sees no gain: a read in flight costs nothing.
        let groups_ahead = (1..=fitting).find(is_as_good).unwrap_or(1);
        let group_time_s = self.group_s(rates, groups_ahead).max(work_group_s);
        let reserve_bytes = (RESERVE_S / group_time_s * group_bytes as f64) as u64;
        let window_bytes = (groups_ahead * RESERVE_GROUPS).saturating_mul(group_bytes).max(reserve_bytes);
        let storage_s = groups_count as f64 * self.group_s(rates, groups_ahead);
        let work_s = groups_count as f64 * work_group_s;
        FileScanAdvice {
            window_bytes: window_bytes.min(self.window_bytes_max),
            groups_ahead,
            storage_s,
            work_s,
            first_s,
            predicted_s: if self.window_bytes_max == 0 { on_demand_s } else { ahead_s(groups_ahead) },
            on_demand_s,
            decodes_early: storage_s > EARLY_MIN * work_s,
        }
    }

    /// Time in which each partition reads one row group, with `groups_ahead` of each in flight.
    fn group_s(&self, rates: &ReadRates, groups_ahead: u64) -> f64 {
        let group_bytes = self.group_bytes.max(1) as f64;
        let read_bytes = (self.read_bytes.clamp(1, PIECE_BYTES as u64) as f64).min(group_bytes);
        let partitions_count = f64::from(self.partitions_count.max(1));
        let depth = partitions_count * groups_ahead as f64 * group_bytes / read_bytes;
        partitions_count * group_bytes / rates.bytes_per_s(read_bytes, depth)
    }
}

/// Times of partitions of a scan, in sum.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Row groups that were decoded.
    pub groups_count: u64,
    /// Stored bytes of them.
    pub bytes: u64,
    /// Bytes of these that the storage was read for: others were in memory before.
    pub read_bytes: u64,
    /// Time that the partitions waited for bytes, in seconds.
    pub waited_s: f64,
    /// Time that they took for decoding and the operators above, in seconds.
    pub worked_s: f64,
}

impl Observed {
    fn time_s(&self) -> f64 {
        self.waited_s + self.worked_s
    }
}

/// The times of a scan as predicted, beside those that it takes; decides again where they differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    scan: FileScan,
    rates: ReadRates,
    advice: FileScanAdvice,
    /// Since the last decision.
    seen: Observed,
    decisions_count: u32,
}

/// The scan decides again if the actual time differs from the predicted one by more than this part of it.
const DIFFERENCE_MAX: f64 = 0.3;

/// Decisions of a scan, with the first one. Chosen: each halves a difference at least, and a machine whose speed changes all
/// the time has no right window.
const DECISIONS_MAX: u32 = 4;

/// Row groups of each partition before a decision: the first ones wait for a storage that has begun to read just then.
const GROUPS_MIN: u64 = 2;

/// Part of the time that partitions wait if the storage is the limit.
const WAITING_MIN: f64 = 0.1;

impl Forecast {
    /// The forecast for a scan of a storage with these rates.
    pub fn new(scan: FileScan, rates: ReadRates) -> Forecast {
        let advice = scan.advise(&rates);
        Forecast { scan, rates, advice, seen: Observed::default(), decisions_count: 1 }
    }

    /// The advice that holds now.
    pub fn advice(&self) -> &FileScanAdvice {
        &self.advice
    }

    /// Number of decisions, from 1 to 4.
    pub fn decisions_count(&self) -> u32 {
        self.decisions_count
    }

    /// The predicted time of a partition for `bytes`, of which the storage is read for `read_bytes`, in seconds: after its
    /// first row group.
    pub fn predicted_s(&self, bytes: u64, read_bytes: u64) -> f64 {
        let storage_s = self.storage_s_per_byte() * read_bytes as f64;
        let work_s = self.scan.work_s_per_byte * bytes as f64;
        if self.scan.window_bytes_max == 0 { storage_s + work_s } else { storage_s.max(work_s) }
    }

    /// The same for the first row group of a partition, which nothing was read ahead of.
    pub fn predicted_first_s(&self, bytes: u64, read_bytes: u64) -> f64 {
        let first_s = self.advice.first_s * read_bytes as f64 / self.scan.group_bytes.max(1) as f64;
        first_s + self.scan.work_s_per_byte * bytes as f64
    }

    /// Time of a stored byte of each partition, while the window is full.
    fn storage_s_per_byte(&self) -> f64 {
        self.scan.group_s(&self.rates, self.advice.groups_ahead) / self.scan.group_bytes.max(1) as f64
    }

    /// Notes times that were seen, and decides again if they differ from the predicted ones. Returns whether it did.
    pub fn observe(&mut self, more: Observed) -> bool {
        self.seen.groups_count += more.groups_count;
        self.seen.bytes += more.bytes;
        self.seen.read_bytes += more.read_bytes;
        self.seen.waited_s += more.waited_s;
        self.seen.worked_s += more.worked_s;
        let groups_min = GROUPS_MIN * u64::from(self.scan.partitions_count.max(1));
        if self.decisions_count >= DECISIONS_MAX
            || self.seen.groups_count < groups_min
            || self.seen.bytes == 0
        {
            return false;
        }
        let actual_s = self.seen.time_s();
        let predicted_s = self.predicted_s(self.seen.bytes, self.seen.read_bytes);
        if (actual_s - predicted_s).abs() <= DIFFERENCE_MAX * predicted_s {
            return false;
        }
        self.decide_again();
        true
    }

    /// Takes the times that were seen for those to come.
    fn decide_again(&mut self) {
        let Observed { bytes, read_bytes, waited_s, worked_s, .. } = self.seen;
        let per_byte_s = |time_s: f64| time_s / read_bytes.max(1) as f64;
        let read_s = self.storage_s_per_byte();
        self.scan.work_s_per_byte = worked_s / bytes as f64;
        let is_on_demand = self.scan.window_bytes_max == 0;
        let has_waited = waited_s > WAITING_MIN * self.seen.time_s();
        let storage_s = match has_waited {
            true if is_on_demand => per_byte_s(waited_s),
            true => per_byte_s(self.seen.time_s()),
            // It was fast enough: how much faster is not seen.
            false => read_s.min(per_byte_s(self.seen.time_s())),
        };
        // A time of 0 is that of a clock that is too coarse.
        if read_bytes > 0 && storage_s > 0.0 {
            self.rates = self.rates.slowed(storage_s / read_s);
        }
        let before_bytes = self.advice.window_bytes;
        self.advice = self.scan.advise(&self.rates);
        if has_waited {
            // More latency and less bandwidth look alike. A longer window helps against the first, and a shorter one against
            // neither.
            let window_bytes = self.advice.window_bytes.max(before_bytes.saturating_mul(2));
            self.advice.window_bytes = window_bytes.min(self.scan.window_bytes_max);
        }
        self.seen = Observed::default();
        self.decisions_count += 1;
    }
}

#[cfg(test)]
mod tests;

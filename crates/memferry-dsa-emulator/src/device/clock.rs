//! The clock of a device with a timing, and the time at which its bandwidth is free.
//!
//! The rules are those of [`device_time`], which the cost model shares. Data moves when an engine executes a part of a
//! descriptor; only completions wait for the clock, and come no earlier than modelled. A measurement of such a device is
//! marked `emulated`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memferry_dsa::internals::device_time;

use crate::arc_ref::ArcRef;
use crate::config::DeviceCosts;

/// The time by which an engine may move data ahead of the real clock, so that its thread sleeps seldom and long.
/// Completion records are never written ahead.
const LEAD: Duration = Duration::from_micros(500);

/// The last part of a wait for the clock, which a thread spins: Linux wakes a sleeper up to 50 us late (prctl(2),
/// PR_SET_TIMERSLACK).
pub(crate) const SPIN_NS_MAX: u64 = 60_000;

/// The clock of a device with a timing, and the time at which its bandwidth is free.
pub(crate) struct Clock {
    timing: Option<DeviceCosts>,
    now_ns: u64,
    bandwidth: Bandwidth,
    buffers: Vec<(device_time::Bandwidth, u64)>, // of each group with its own limit, and its rate
    lead_ns: u64,
}

/// The time at which a device's bandwidth is free.
enum Bandwidth {
    /// For the engines of one process.
    Own(device_time::Bandwidth),
    /// In units of 1 / `FRACTIONS` nanoseconds, for the engines of several processes.
    Shared(ArcRef<AtomicU64>),
}

/// The largest distance of a shared time from now. Engines and bandwidth are used for pieces of work, of which none
/// takes a millisecond on any measured device. A later time was forged and counts as now.
pub(crate) const AHEAD_MAX_NS: u64 = 2_000_000_000;

/// Fractions of a nanosecond: 52 days fit into a word, and the rounding of a page is below 1 in 100 000.
const FRACTIONS: u64 = 1 << 12;

impl Clock {
    /// A clock that begins at 0. `read_buffers` are those that each group may use; empty: all.
    pub(crate) fn new(timing: Option<DeviceCosts>, read_buffers: &[u32]) -> Clock {
        let limit = |timing: DeviceCosts| {
            let rates =
                read_buffers.iter().map(move |buffers| device_time::rate_of_buffers(&timing, *buffers));
            rates.map(|rate| (device_time::Bandwidth::default(), rate)).collect()
        };
        Clock {
            timing,
            now_ns: 0,
            bandwidth: Bandwidth::Own(device_time::Bandwidth::default()),
            buffers: timing.map(limit).unwrap_or_default(),
            lead_ns: 0,
        }
    }

    /// Shares the bandwidth with other clients from now on.
    pub(crate) fn share(&mut self, bandwidth: ArcRef<AtomicU64>) {
        self.bandwidth = Bandwidth::Shared(bandwidth);
    }

    /// The timing, if there is one.
    pub(crate) fn timing(&self) -> Option<&DeviceCosts> {
        self.timing.as_ref()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Advances the clock to `ns`, unless it is later already.
    pub(crate) fn advance_to(&mut self, ns: u64) {
        self.now_ns = self.now_ns.max(ns);
    }

    /// Follows a real clock from now on.
    pub(crate) fn follow(&mut self, ns: u64) {
        self.advance_to(ns);
        self.lead_ns = LEAD.as_nanos() as u64;
    }

    /// Whether the time is `ns` or later; without a timing all times are 0.
    pub(crate) fn is_due(&self, ns: u64) -> bool {
        ns <= self.now_ns
    }

    /// Whether an engine that is busy until `ns` may continue.
    pub(crate) fn may_work(&self, ns: u64) -> bool {
        ns <= self.now_ns + self.lead_ns
    }

    /// The time at which an engine that is busy until `ns` may continue.
    pub(crate) fn works_at(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.lead_ns)
    }

    /// The time at which an engine of a group that is free at `free_ns` has moved `bytes` and waited for `requests` of pages.
    pub(crate) fn work(&mut self, group: usize, free_ns: u64, bytes: u64, requests: u64) -> u64 {
        let Some(timing) = &self.timing else { return free_ns };
        let free_ns = free_ns.max(self.now_ns) + requests * timing.page_request_ns;
        match bytes {
            0 => free_ns,
            _ => {
                let end_ns = self.bandwidth.pass(free_ns, bytes, timing.bytes_per_second);
                let limit = self.buffers.get_mut(group);
                limit.map_or(0, |(own, rate)| own.pass(free_ns, bytes, *rate)).max(end_ns)
            }
        }
    }
}

impl Bandwidth {
    /// The time at which `bytes` have passed that can start at `from_ns`.
    fn pass(&mut self, from_ns: u64, bytes: u64, bytes_per_second: u64) -> u64 {
        match self {
            Bandwidth::Own(own) => own.pass(from_ns, bytes, bytes_per_second),
            Bandwidth::Shared(free) => {
                let work = u128::from(bytes) * 1_000_000_000 * u128::from(FRACTIONS);
                let fractions = work.div_ceil(u128::from(bytes_per_second));
                let fractions = u64::try_from(fractions).unwrap_or(u64::MAX / 4);
                let from = from_ns.saturating_mul(FRACTIONS);
                let latest = from.saturating_add(AHEAD_MAX_NS * FRACTIONS);
                let start = |free: u64| if free > latest { from } else { free.max(from) };
                let end = |free: u64| start(free).saturating_add(fractions);
                // ORDERING: Relaxed, since the word publishes no other memory.
                let before = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(end(free)));
                end(before.unwrap_or(0)).div_ceil(FRACTIONS)
            }
        }
    }
}

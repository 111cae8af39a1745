//! How long a device takes: a model with a virtual clock.
//!
//! ```text
//! submit ──▶ queue ──▶ engine: occupancy, bytes at the device's bandwidth ──▶ record
//!  cost     dispatch   (batch: list fetch; page request: answer of the system)  latency
//! ```
//!
//! The engine is free for the next descriptor when its bytes have passed; the latency overlaps with that. All engines
//! of a device share its bandwidth. Data moves when an engine works on it; only completions wait for the clock, and
//! come no earlier than modelled. Whatever is measured with it is emulated, not measured on silicon.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use memferry_dsa::costs::DeviceCosts as Timing;

use crate::held::Held;

/// How far an engine may be ahead of the real clock with the data, so that its thread sleeps seldom and long. The
/// records are not ahead.
const LEAD: Duration = Duration::from_micros(500);

/// The clock of a device with a timing, and when its bandwidth is free.
pub(super) struct Clock {
    timing: Option<Timing>,
    now_ns: u64,
    bandwidth: Bandwidth,
    lead_ns: u64,
}

/// When a device's bandwidth is free.
enum Bandwidth {
    /// And what of the next nanosecond is used of it, in units of 1 / bytes_per_second.
    Own(u64, u128),
    /// In units of 1 / `FRACTIONS` nanoseconds, for the engines of several processes.
    Shared(Held<AtomicU64>),
}

/// No time that processes share is later than this from now: engines and the bandwidth are asked for pieces of work, of which
/// none takes a millisecond on any device that somebody has measured. A later one was not written by a device, and is taken
/// for now.
pub(super) const AHEAD_MAX_NS: u64 = 2_000_000_000;

/// Parts of a nanosecond: 52 days fit into a word, and pieces of a page are rounded by less than 1 in 100 000.
const FRACTIONS: u64 = 1 << 12;

impl Clock {
    pub(super) fn new(timing: Option<Timing>) -> Clock {
        Clock { timing, now_ns: 0, bandwidth: Bandwidth::Own(0, 0), lead_ns: 0 }
    }

    /// Shares the bandwidth with others from now on.
    pub(super) fn share(&mut self, bandwidth: Held<AtomicU64>) {
        self.bandwidth = Bandwidth::Shared(bandwidth);
    }

    /// The timing, if there is one.
    pub(super) fn timing(&self) -> Option<&Timing> {
        self.timing.as_ref()
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Time goes on.
    pub(super) fn advance_to(&mut self, ns: u64) {
        self.now_ns = self.now_ns.max(ns);
    }

    /// Follows a real clock from now on.
    pub(super) fn follow(&mut self, ns: u64) {
        self.advance_to(ns);
        self.lead_ns = LEAD.as_nanos() as u64;
    }

    /// Whether it is `ns` or later. Always without a timing, where nothing has a time.
    pub(super) fn is_due(&self, ns: u64) -> bool {
        ns <= self.now_ns
    }

    /// Whether an engine that is busy until `ns` may go on.
    pub(super) fn may_work(&self, ns: u64) -> bool {
        ns <= self.now_ns + self.lead_ns
    }

    /// When an engine that is busy until `ns` may go on.
    pub(super) fn works_at(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.lead_ns)
    }

    /// When an engine that is free at `free_ns` is done with `bytes` and `requests` of pages.
    pub(super) fn work(&mut self, free_ns: u64, bytes: u64, requests: u64) -> u64 {
        let Some(timing) = &self.timing else { return free_ns };
        let free_ns = free_ns.max(self.now_ns) + requests * timing.page_request_ns;
        match bytes {
            0 => free_ns,
            _ => self.bandwidth.pass(free_ns, bytes, timing.bytes_per_second),
        }
    }
}

impl Bandwidth {
    /// When `bytes` have passed that can begin at `from_ns`.
    fn pass(&mut self, from_ns: u64, bytes: u64, bytes_per_second: u64) -> u64 {
        let work = u128::from(bytes) * 1_000_000_000;
        let rate = u128::from(bytes_per_second);
        match self {
            Bandwidth::Own(free_ns, rest) => {
                if from_ns > *free_ns + u64::from(*rest > 0) {
                    (*free_ns, *rest) = (from_ns, 0);
                }
                // Pieces are shorter than whole nanoseconds; rounding each of them would add up.
                let work = work + *rest;
                *rest = work % rate;
                *free_ns += u64::try_from(work / rate).unwrap_or(u64::MAX / 2);
                *free_ns + u64::from(*rest > 0)
            }
            Bandwidth::Shared(free) => {
                let fractions = (work * u128::from(FRACTIONS)).div_ceil(rate);
                let fractions = u64::try_from(fractions).unwrap_or(u64::MAX / 4);
                let from = from_ns.saturating_mul(FRACTIONS);
                let latest = from.saturating_add(AHEAD_MAX_NS * FRACTIONS);
                let start = |free: u64| if free > latest { from } else { free.max(from) };
                let end = |free: u64| start(free).saturating_add(fractions);
                // ORDERING: Relaxed: the time is all there is to it.
                let before = free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(end(free)));
                end(before.unwrap_or(0)).div_ceil(FRACTIONS)
            }
        }
    }
}

//! The modelled durations of a device.
//!
//! ```text
//! submit ──▶ queue ──▶ engine: occupancy, bytes at the device's bandwidth ──▶ record
//!  cost     dispatch   (batch: list fetch; page request: response of the OS)   latency
//! ```
//!
//! The engine is free for the next descriptor when its bytes have passed; the latency overlaps with that. All engines
//! of a device share its bandwidth. Data moves when an engine executes a piece; only completions wait for the clock,
//! and come no earlier than modelled. A measurement of such a device is marked `emulated`.

use std::fmt;

/// The parameters of the timing model, in nanoseconds and bytes per second.
///
/// | field | default | source |
/// |---|---|---|
/// | `submit_shared_ns` | 400 | assumed: four cores saturate a device with single 4 KiB copies, one does not (1) |
/// | `submit_dedicated_ns` | 40 | assumed: one core saturates a device with 4 KiB copies (1) |
/// | `dispatch_ns` | 150 | assumed: one hop over the fabric |
/// | `occupancy_ns` | 20 | assumed: asynchronous copies pay from 256 bytes on (Kuper et al.) |
/// | `latency_ns` | 500 | assumed: a read, a write and a record through the fabric |
/// | `batch_fetch_ns`, `batch_member_ns` | 150, 5 | assumed: one read of the list |
/// | `bytes_per_second` | 30e9 | Kuper et al., section 4.2: about 30 GB/s for each device, one engine reaches it |
/// | `page_request_ns` | 20 000 | assumed: interrupt, fault handler and response of the operating system |
///
/// (1) The documentation of dsa-perf-micros; at 30 GB/s a copy of 4 KiB takes 137 ns.
///
/// The assumed figures agree with the published break-even of about 4 KiB for synchronous copies (Kuper et al.).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Time that the submitting core waits for a shared queue's answer (ENQCMD).
    pub submit_shared_ns: u64,
    /// Time that a write to a dedicated queue costs the submitting core (MOVDIR64B).
    pub submit_dedicated_ns: u64,
    /// From the queue to an engine that is free.
    pub dispatch_ns: u64,
    /// An engine's time for one descriptor without data.
    pub occupancy_ns: u64,
    /// From the end of an engine's work to the completion record.
    pub latency_ns: u64,
    /// Reading a batch's list: fixed part.
    pub batch_fetch_ns: u64,
    /// Reading a batch's list: part of each member.
    pub batch_member_ns: u64,
    /// Bandwidth of all engines of the device together, in bytes of transfers.
    pub bytes_per_second: u64,
    /// A page request to the operating system while the engine waits.
    pub page_request_ns: u64,
}

impl Timing {
    /// A device of Sapphire Rapids; most figures are assumed, see the table of the type.
    pub const fn sapphire_rapids() -> Timing {
        Timing {
            submit_shared_ns: 400,
            submit_dedicated_ns: 40,
            dispatch_ns: 150,
            occupancy_ns: 20,
            latency_ns: 500,
            batch_fetch_ns: 150,
            batch_member_ns: 5,
            bytes_per_second: 30_000_000_000,
            page_request_ns: 20_000,
        }
    }

    /// The duration of a transfer of `bytes` at the full bandwidth, rounded up.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 1_000_000_000;
        ns.div_ceil(u128::from(self.bytes_per_second.max(1))).try_into().unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Timing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.bytes_per_second as f64 / 1e9;
        write!(
            f,
            "emulated: {rate} GB/s, {} ns latency",
            self.dispatch_ns + self.occupancy_ns + self.latency_ns
        )
    }
}

//! The rates and costs of a device: plain numbers with their sources, for models and the emulator.

/// The rates and costs of one device, in bytes per second and nanoseconds.
///
/// | field | Sapphire Rapids | source |
/// |---|---|---|
/// | `submit_shared_ns` | 400 | assumed: four cores saturate a device with single 4 KiB copies, one does not (1) |
/// | `submit_dedicated_ns` | 40 | assumed: one core saturates a device with 4 KiB copies (1) |
/// | `dispatch_ns` | 150 | assumed: one hop over the fabric |
/// | `occupancy_ns` | 126 | calibrated: asynchronous copies pay from 256 bytes on (Kuper et al., K030) |
/// | `latency_ns` | 363 | calibrated: copies that are waited for pay from 4 KiB on (Kuper et al., K029) |
/// | `batch_fetch_ns`, `batch_member_ns` | 150, 5 | assumed: one read of the list |
/// | `bytes_per_second` | 30e9 | Kuper et al., section 4.2: about 30 GB/s for each device, one engine reaches it |
/// | `page_request_ns` | 20 000 | assumed: interrupt, fault handler and response of the operating system |
///
/// (1) The documentation of dsa-perf-micros; at 30 GB/s a copy of 4 KiB takes 137 ns.
///
/// The calibrated figures are those of the profile `spr-56c`, whose recipe is in `memferry-bench`.
///
/// ```
/// use memferry_dsa::DeviceCosts;
///
/// assert_eq!(DeviceCosts::sapphire_rapids().transfer_ns(3 << 20), 104_858);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCosts {
    /// The submitting core's wait for a shared queue's answer (ENQCMD).
    pub submit_shared_ns: u64,
    /// The submitting core's time for a write to a dedicated queue (MOVDIR64B).
    pub submit_dedicated_ns: u64,
    /// The time from the queue to a free engine.
    pub dispatch_ns: u64,
    /// An engine's time for preparing one descriptor, while the bytes of the one before move.
    pub occupancy_ns: u64,
    /// The time from the end of an engine's work to the completion record.
    pub latency_ns: u64,
    /// The time for reading the list of a batch.
    pub batch_fetch_ns: u64,
    /// The additional time for each member of a batch.
    pub batch_member_ns: u64,
    /// The rate of all engines together; each byte of a transfer counts once.
    pub bytes_per_second: u64,
    /// The operating system's time for a page while the engine waits.
    pub page_request_ns: u64,
}

impl DeviceCosts {
    /// The costs of a device of Sapphire Rapids. Most are assumed; see the table of the type.
    pub const fn sapphire_rapids() -> DeviceCosts {
        DeviceCosts {
            submit_shared_ns: 400,
            submit_dedicated_ns: 40,
            dispatch_ns: 150,
            occupancy_ns: 126,
            latency_ns: 363,
            batch_fetch_ns: 150,
            batch_member_ns: 5,
            bytes_per_second: 30_000_000_000,
            page_request_ns: 20_000,
        }
    }

    /// The time for `bytes` at the full rate, rounded up.
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        let ns = u128::from(bytes) * 1_000_000_000;
        ns.div_ceil(u128::from(self.bytes_per_second.max(1))).try_into().unwrap_or(u64::MAX)
    }
}

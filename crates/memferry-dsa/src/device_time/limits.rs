//! Limits of the rate below that of the device: read buffers of a group, and the part of the cache that devices write to.

use crate::DeviceCosts;

/// Read buffers of a device: each holds a cache line on its way from memory.
///
/// Source: `max_read_buffers` of Sapphire Rapids.
pub const READ_BUFFERS: u32 = 96;

/// What a submission by write(2) takes of the submitting core: the system call, the checks of the driver, and its ENQCMD.
/// Assumed: [`submit_shared_ns`](DeviceCosts::submit_shared_ns) and 200 ns.
pub const SUBMIT_WRITE_NS: u64 = 600;

/// The rate of the engines of a group that may use so many read buffers.
///
/// By Little's law a rate is the bytes on their way, divided by the time of a read. Assumed: all buffers together are just
/// enough for the rate of the device, which one engine reaches (Kuper et al. 2024, section 4.2).
pub fn rate_of_buffers(costs: &DeviceCosts, buffers: u32) -> u64 {
    (costs.bytes_per_second / u64::from(READ_BUFFERS) * u64::from(buffers.clamp(1, READ_BUFFERS))).max(1)
}

/// The part of the last-level cache that devices write to if a descriptor has the flag Cache Control (Data Direct I/O).
///
/// Writes that fit into it stay there. If the targets in use are larger, each write evicts an older one to memory ("leaky
/// DMA"). A device has a fixed number of writes in flight, and these take longer then, so that its rate falls to a constant.
///
/// | field | Sapphire Rapids | source |
/// |---|---|---|
/// | `bytes` | 14e6 | two of 15 ways (Farshin et al. 2020) of 105 MB (Kuper et al. 2024, K019) |
/// | `leaking_bytes_per_second` | 22.5e9 | calibrated: four devices have 90 GB/s (K052) |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachePart {
    /// Its size.
    pub bytes: u64,
    /// The rate of a device whose writes evict each other.
    pub leaking_bytes_per_second: u64,
}

impl CachePart {
    /// The part of the cache of a socket of Sapphire Rapids.
    pub const fn sapphire_rapids() -> CachePart {
        CachePart { bytes: 14_000_000, leaking_bytes_per_second: 22_500_000_000 }
    }

    /// The costs of a device that writes to the cache, where all devices of the socket together write to
    /// `footprint_bytes` again and again.
    pub fn apply(&self, costs: DeviceCosts, footprint_bytes: u64) -> DeviceCosts {
        let is_leaking = footprint_bytes > self.bytes;
        let most = if is_leaking { self.leaking_bytes_per_second } else { u64::MAX };
        DeviceCosts { bytes_per_second: costs.bytes_per_second.min(most), ..costs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: DeviceCosts = DeviceCosts::sapphire_rapids();

    #[test]
    fn a_group_has_the_rate_of_its_buffers() {
        let rates = [0, 1, 16, 96, 200].map(|buffers| rate_of_buffers(&COSTS, buffers));
        assert_eq!(rates, [312_500_000, 312_500_000, 5_000_000_000, 30_000_000_000, 30_000_000_000]);
    }

    #[test]
    fn writes_leak_beyond_the_part_of_the_cache() {
        let part = CachePart::sapphire_rapids();
        assert_eq!(part.apply(COSTS, part.bytes), COSTS);
        assert_eq!(part.apply(COSTS, part.bytes + 1).bytes_per_second, 22_500_000_000);
        let slow = DeviceCosts { bytes_per_second: 1_000_000_000, ..COSTS };
        assert_eq!(part.apply(slow, u64::MAX), slow, "a slower device does not gain");
    }
}

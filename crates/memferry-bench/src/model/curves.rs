//! The curves that predictions about Kuper et al. 2024 are points of; `memferry report` draws them in full.

use memferry::internals::{Endpoints, Hardware, Offload};
use memferry::model::ModelError;

use crate::cases::cores_with_device;
use crate::mover::DESCRIPTOR_NS;

/// Figure 10: bytes per second of the first `count` devices that write to the last-level cache, each with `in_flight` copies of
/// `bytes` in flight. Memories limit it where their rate is known.
///
/// # Errors
/// [`ModelError::Unknown`]: the part of the cache that devices write to.
pub fn devices_rate(
    hardware: &Hardware,
    offload: &Offload,
    count: usize,
    bytes: f64,
    in_flight: usize,
) -> Result<f64, ModelError> {
    let devices: Vec<usize> = (0..count).collect();
    let memories = hardware.copy_rate(&devices, Endpoints::default()).unwrap_or(f64::INFINITY);
    Ok(offload.batch_rate_into_cache(bytes, 1, in_flight, count)?.min(memories))
}

/// Figures 2b and 17: the speed-up of copies by a busy device over those by a core. A program that does little but copy gains at
/// most this.
pub fn copies_gain(offload: &Offload, bytes: f64) -> f64 {
    offload.pipelined_rate(bytes) * offload.core_s(bytes) / bytes
}

/// Figure 16, section 6.4: the time of a core for a packet, as a multiple of the part that is the same for all sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacketTime {
    /// Time of copying a byte.
    byte: f64,
}

impl PacketTime {
    /// From the share of copying in the time of a packet of 512 bytes (row K077), from 0 to 1.
    pub fn of(copied_share: f64) -> PacketTime {
        PacketTime { byte: copied_share / (1.0 - copied_share) / 512.0 }
    }

    /// Of a packet that the core copies. Without the copy it is 1, so that this is the most that a device can gain.
    pub fn whole(self, packet_bytes: f64) -> f64 {
        1.0 + self.byte * packet_bytes
    }

    /// The share of copying, from 0 to 1.
    pub fn copied_share(self, packet_bytes: f64) -> f64 {
        self.byte * packet_bytes / self.whole(packet_bytes)
    }
}

/// Figure 21: the cores at which a storage target is saturated if a device computes the digests of its reads. `none` cores are
/// enough without digests, `with_core` if the cores compute them.
pub fn storage_target_cores(offload: &Offload, read_bytes: f64, (none, with_core): (f64, f64)) -> f64 {
    // Assumed: a digest passes each byte once, a copy passes it twice.
    let digest_ns = offload.core_s(read_bytes / 2.0) * 1e9;
    let request_ns = DESCRIPTOR_NS + offload.submit_s() * 1e9;
    cores_with_device((none, with_core), digest_ns, request_ns)
}

//! A switch that forwards packets to a guest: DPDK's vhost.
//!
//! For each packet of a burst the core exchanges the addresses in the header (DPDK's `macfwd`), the packet is copied to the
//! guest's buffer, and the core writes a used descriptor. On this machine the core or a device executes the copies of a
//! burst. In virtual time the copies go through the mover's ordered pipeline, as in the publication: the device copies one
//! burst while the core prepares the next.
//!
//! Source: Kuper et al. (2024), section 6.4 and figure 16.

use super::host::{check, pieces};
use super::{CaseError, Host, Samples};

/// Packets of a burst: "typical burst size is 32".
const BURST: usize = 32;
/// Addresses of Ethernet: target and source of 6 bytes.
const ADDRESSES_BYTES: usize = 12;

/// A used descriptor of a virtqueue.
///
/// Source: virtio 1.2, `struct virtq_used_elem`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Used {
    id: u32,
    len: u32,
}

/// Forwards so many bursts of packets of a size. `other_ns`: the work for a packet beside its copy, in virtual time.
///
/// # Errors
/// [`CaseError`], also if a packet is lost or has other bytes.
pub fn forwarded(
    host: &Host,
    packet_bytes: usize,
    bursts_count: usize,
    other_ns: f64,
) -> Result<Samples, CaseError> {
    let mut samples = Samples::default();
    let mut received = vec![0; BURST * packet_bytes];
    let mut guest = vec![0; BURST * packet_bytes];
    let mut used = [Used::default(); BURST];
    for burst in 0..bursts_count {
        fill(&mut received, packet_bytes, burst);
        host.sample(&mut samples, BURST, || -> Result<(), CaseError> {
            host.work(other_ns * BURST as f64, || {
                for packet in received.chunks_mut(packet_bytes) {
                    let (target, source) = packet[..ADDRESSES_BYTES].split_at_mut(ADDRESSES_BYTES / 2);
                    target.swap_with_slice(source);
                }
            });
            host.mover().copy(pieces(&received, &mut guest, packet_bytes))?;
            for (id, used) in used.iter_mut().enumerate() {
                *used = Used { id: id as u32, len: packet_bytes as u32 };
            }
            Ok(())
        })?;
        let mut expected = vec![0; BURST * packet_bytes];
        fill(&mut expected, packet_bytes, burst);
        for packet in expected.chunks_mut(packet_bytes) {
            packet[..ADDRESSES_BYTES].rotate_left(ADDRESSES_BYTES / 2);
        }
        let has_all =
            used.iter().enumerate().all(|(id, used)| (used.id, used.len) == (id as u32, packet_bytes as u32));
        check("packets", guest == expected && has_all, || {
            format!("burst {burst} has other bytes than were sent")
        })?;
    }
    Ok(samples)
}

/// Packets that say which ones they are.
fn fill(packets: &mut [u8], packet_bytes: usize, burst: usize) {
    for (number, packet) in packets.chunks_mut(packet_bytes).enumerate() {
        let bytes = (burst * BURST + number).to_le_bytes();
        packet
            .iter_mut()
            .enumerate()
            .for_each(|(index, byte)| *byte = bytes[index % bytes.len()] ^ index as u8);
    }
}

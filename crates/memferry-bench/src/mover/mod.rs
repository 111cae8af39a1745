//! Benchmarks of the mover: `memferry bench mover`.

mod copies;
mod ordered;
mod small;
#[allow(unsafe_code)]
mod virtual_device;
#[allow(unsafe_code)]
mod workers;

pub use copies::{Copies, copies, last_level_cache_bytes};
pub(crate) use ordered::{DESCRIPTOR_NS, forwarding};
pub use ordered::{ordered_measured, ordered_modelled};
pub use small::{hand_overs, small_copies};
pub use workers::two_workers;

/// The amount of work of a benchmark of the mover.
#[derive(Copy, Clone, Debug)]
pub struct Size {
    /// Length of source and target. Larger copies are left out.
    pub buffer_bytes: usize,
    /// Bytes copied in a round, so that small copies outweigh the clock; at least one copy.
    pub round_bytes: usize,
    /// Rounds of ours and the peer.
    pub rounds_count: usize,
}

impl Size {
    /// For tests: every line runs.
    pub const QUICK: Size = Size { buffer_bytes: 4 << 20, round_bytes: 1 << 16, rounds_count: 3 };

    /// For records. The buffers hold the largest copy, and are more than four times the last-level cache.
    pub fn full() -> Size {
        let buffer_bytes =
            (256 << 20).max((4 * last_level_cache_bytes()).next_multiple_of(1 << 20) + (1 << 20));
        Size { buffer_bytes, round_bytes: 16 << 20, rounds_count: 101 }
    }
}

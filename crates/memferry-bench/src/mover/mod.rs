//! What `memferry bench mover` runs. For the project's own benchmarks and tests; it may change with any version.

mod copies;
mod ordered;
mod small;
#[allow(unsafe_code)]
mod virtual_device;
#[allow(unsafe_code)]
mod workers;

pub use copies::{Copies, copies, last_level_cache_bytes};
pub use ordered::{ordered_measured, ordered_modelled};
pub use small::small_copies;
pub use workers::two_workers;

/// How much is measured.
#[derive(Copy, Clone, Debug)]
pub struct Size {
    /// Length of source and target. Copies that are larger are left out.
    pub buffer_bytes: usize,
    /// Bytes copied in a round, so that small copies outweigh the clock; one copy at least.
    pub round_bytes: usize,
    /// Rounds, in which ours and the peer take turns.
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

/// Both in turns, which begin with the one and with the other alternately.
fn take_turns(
    rounds_count: usize,
    mut ours: impl FnMut() -> f64,
    mut peer: impl FnMut() -> f64,
) -> (Vec<f64>, Vec<f64>) {
    let (mut ours_times, mut peer_times) = (Vec::new(), Vec::new());
    for round in 0..rounds_count {
        if round % 2 == 0 {
            ours_times.push(ours());
        }
        peer_times.push(peer());
        if round % 2 == 1 {
            ours_times.push(ours());
        }
    }
    (ours_times, peer_times)
}

//! What `memferry bench cache` and `memferry bench soak` run. For the project's own benchmarks and tests; it may change
//! with any version.
//!
//! Peers that are other people's crates are the caller's: this crate does not depend on them. They come as
//! [`HitPeer`]s.

mod churn;
mod evictions;
mod first_access;
mod hits;
mod random;
mod soak;
mod thesis;
mod trace;

pub use churn::churn;
pub use evictions::evictions;
pub use first_access::{FirstAccess, first_access};
pub use hits::{HitPeer, Ours, Size, hits, hits_allocations};
pub use random::{Random, Zipf};
pub use soak::{Soak, SoakReport, soak};
pub use thesis::{ThesisCache, ThesisEntry};
pub use trace::{HitRatios, Trace, hit_ratios, traces};

/// Times of ours and of a peer; `ours[i]` and `peer[i]` were taken next to each other.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Of the row.
    pub name: String,
    /// Of the values: less is better.
    pub unit: &'static str,
    /// One value for each round.
    pub ours: Vec<f64>,
    /// Whom it is compared with.
    pub peer_name: String,
    /// One value for each round.
    pub peer: Vec<f64>,
}

impl Comparison {
    /// The peer's median over ours: above 1, ours is better.
    pub fn ratio(&self) -> f64 {
        median(&self.peer) / median(&self.ours)
    }
}

/// The middle value, or the mean of the two middle ones. Panics without values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

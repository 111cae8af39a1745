//! Benchmarks of the cache: `memferry bench cache` and `memferry bench soak`.
//!
//! The caller supplies the caches of other projects as [`HitPeer`]s, so that this crate does not depend on them.

mod churn;
mod evictions;
mod first_access;
mod hits;
mod soak;
mod thesis;
mod trace;
mod zipf;

pub use churn::churn;
pub use evictions::evictions;
pub use first_access::{FirstAccess, first_access};
pub use hits::{HitPeer, Ours, Size, hits, hits_allocations};
pub use soak::{Soak, SoakReport, soak};
pub use thesis::{ThesisCache, ThesisEntry};
pub use trace::{HitRatios, Trace, hit_ratios, traces};

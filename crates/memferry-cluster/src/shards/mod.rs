//! Shards: which rows belong to one, which workers hold one, and which worker reads one. Plain data and pure functions.
//!
//! [`Members`] decides whether a query that failed is planned again.
//!
//! ```text
//! row ── ShardKey ──▶ shard ── ShardMap ──▶ two workers ── ShardMap::assign(alive, tasks) ──▶ the task that reads it
//! ```

mod key;
mod map;
mod members;

pub use key::{KeyError, ShardKey};
pub use map::{Assignment, MapError, ShardMap, ShardsLost};
pub use members::{Failure, Members, Next, QueryFailure};

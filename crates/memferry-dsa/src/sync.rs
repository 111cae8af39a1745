//! The only place that chooses between std's atomics and loom's.

#[cfg(memferry_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(memferry_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

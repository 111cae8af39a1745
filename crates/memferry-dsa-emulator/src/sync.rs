//! The only place that chooses between atomics of std and of loom.

#[cfg(not(memferry_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(memferry_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

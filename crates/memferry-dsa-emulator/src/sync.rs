//! The atomics of std, or of loom in model tests. No other module makes this choice.

#[cfg(not(memferry_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(memferry_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

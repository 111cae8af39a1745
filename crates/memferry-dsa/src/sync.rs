//! The atomics of this crate: those of std, or of loom under `--cfg memferry_loom`.

#[cfg(all(test, memferry_loom))]
pub(crate) use loom::sync::atomic::AtomicPtr;
#[cfg(memferry_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
/// Loom's only in this crate's own models: those of other crates have statics with an `AtomicPtr`.
#[cfg(not(all(test, memferry_loom)))]
pub(crate) use std::sync::atomic::AtomicPtr;

#[cfg(not(memferry_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

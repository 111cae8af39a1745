//! The only place that chooses between std's atomics, locks and threads and loom's.

#[cfg(all(test, memferry_loom))]
pub(crate) use loom::sync::atomic::AtomicPtr;
#[cfg(memferry_loom)]
pub(crate) use loom::{
    sync::Mutex,
    sync::atomic::{AtomicU64, Ordering},
    thread::Thread,
};
/// Loom's in the models of this crate alone: those of other crates have statics of what it is used for.
#[cfg(not(all(test, memferry_loom)))]
pub(crate) use std::sync::atomic::AtomicPtr;

#[cfg(not(memferry_loom))]
pub(crate) use std::{
    sync::Mutex,
    sync::atomic::{AtomicU64, Ordering},
    thread::Thread,
};

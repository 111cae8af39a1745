//! The only place that chooses between std's atomics, locks and threads and loom's.

#[cfg(memferry_loom)]
pub(crate) use loom::{
    sync::Mutex,
    sync::atomic::{AtomicU64, Ordering},
    thread::Thread,
};
#[cfg(not(memferry_loom))]
pub(crate) use std::{
    sync::Mutex,
    sync::atomic::{AtomicU64, Ordering},
    thread::Thread,
};

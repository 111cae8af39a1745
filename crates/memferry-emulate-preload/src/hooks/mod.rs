//! Hooks: functions that replace libc's. Programs call them, and all libraries except libc itself.
//!
//! Each hook calls the next function of its name in the order of loading, which may belong to another preloaded
//! library. Without an emulation it does nothing else.

mod environment;
mod exec;
mod map;
mod mask;
mod next;
mod sigaction;

/// Looks up the next functions of all hooks, before threads can look them up at the same time.
pub(crate) fn prepare() {
    exec::prepare();
    map::prepare();
    mask::prepare();
    sigaction::prepare();
}

//! What this library puts in the place of libc's functions. Programs, and libraries other than libc itself, call these.
//!
//! The next one in the order of loading does the work, which may be another preloaded library's; where nothing is
//! emulated it does so unseen.

mod map;
mod mask;
mod next;
mod sigaction;

/// To be called once, before the program has threads.
pub(crate) fn prepare() {
    map::prepare();
    mask::prepare();
    sigaction::prepare();
}

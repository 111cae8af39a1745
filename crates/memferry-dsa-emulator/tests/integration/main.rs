//! The tests of the emulator that may share a process: linking one program takes less time than linking many.

mod batch;
mod checks;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod drain;
#[path = "../fuzzed/mod.rs"]
mod fuzzed;
mod lifecycle;
mod memmove;
mod operations;
#[path = "../../src/conformance/oracle.rs"]
mod oracle;
mod ordering;
mod portals;
mod queues;
mod random;
mod timing;
mod waits;

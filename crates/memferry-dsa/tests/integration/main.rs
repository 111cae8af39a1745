//! The tests of the crate: linking one program takes less time than linking many.

mod client;
mod driver;
mod faults;
mod fork;
mod fork_support;
#[path = "../fuzzed/mod.rs"]
mod fuzzed;
mod gone;
mod layout;
mod patience;
mod slow;
mod system_accel_config;
mod system_apply;
mod system_config;
mod system_discovery;

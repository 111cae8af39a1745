//! memferry moves data between memory tiers while the program computes.
//!
//! Calls go down only: `cache` asks `mover`, `mover` asks its engines; `topology` is plain data that everybody reads,
//! `model` computes from it what a copy or a query will cost, and `memory` is the only module that talks to the kernel
//! about pages.
#![deny(unsafe_code)]

pub mod cache;
#[allow(unsafe_code)]
mod copy_method;
#[cfg(feature = "internals")]
pub mod internals;
pub mod memory;
pub mod model;
mod moment;
pub mod mover;
mod route;
mod sync;
pub mod topology;

//! memferry moves data between memory tiers while the program computes.
//!
//! Calls go down only: `cache` asks `mover`, `mover` asks its engines; `topology` is plain data that everybody reads,
//! `model` computes from it what a copy or a query will cost, `calibrate` measures what a model has to know, and
//! `memory` is the only module that talks to the kernel about pages. `bench` stands above all of them and repeats the
//! papers' benchmarks.
#![deny(unsafe_code)]

#[cfg(not(memferry_loom))]
pub mod bench;
pub mod cache;
#[cfg(not(memferry_loom))]
pub mod calibrate;
pub mod memory;
pub mod model;
pub mod mover;
mod sync;
pub mod topology;

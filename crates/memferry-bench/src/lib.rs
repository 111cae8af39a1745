//! Measures memferry: its parts, the papers' benchmarks, machines, and the model against published numbers.
//!
//! ```text
//! dsa  mover  cache      the parts of the libraries, beside their peers
//! papers                 the papers' benchmarks: measured, emulated, modelled
//! calibrate              this machine, as a profile that the model takes
//! model                  the model against published numbers; scenarios
//! ```
#![deny(unsafe_code)]

pub mod cache;
pub mod calibrate;
pub mod dsa;
pub mod model;
pub mod mover;
pub mod papers;

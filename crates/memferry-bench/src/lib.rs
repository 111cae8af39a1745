//! Benchmarks of memferry: its parts, the papers' benchmarks, calibration, and the model against published numbers.
//!
//! ```text
//! harness                      samples in pairs, statistics, rows, records
//! bindings                     the C library beside Rust
//! memory                       latency and bandwidth by domain and node, idle and under load
//! dsa  mover  cache  domains   the parts of the libraries, beside their peers
//! offload                      the preload library of `memferry offload`
//! papers                       the papers' benchmarks: measured, emulated, modelled
//! processes                    processes that copy at the same time
//! cases                        case studies of programs whose movement a DSA takes over
//! sncdb                        clients that scan tables on sub-domains of a socket, modelled
//! calibrate                    this machine as a profile for the model
//! model                        the model against published numbers; scenarios
//! telemetry                    what monitors of the machine count meanwhile
//! ```
#![deny(unsafe_code)]

pub mod bindings;
pub mod cache;
pub mod calibrate;
pub mod cases;
pub mod domains;
pub mod dsa;
pub mod harness;
pub mod memory;
pub mod model;
pub mod mover;
#[allow(unsafe_code)]
pub mod offload;
pub mod papers;
pub mod processes;
pub mod sncdb;
pub mod telemetry;

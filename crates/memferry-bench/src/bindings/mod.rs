//! Benchmarks of the C library and of the Python package: what a hit costs there beside one in Rust.
//!
//! The C side is a program: compiled here against an installed library (`cargo xtask install-c`), and run beside this
//! process, so that both sides alternate.

mod program;

use std::path::Path;
use std::time::Instant;

use program::{Link, Program};

use crate::cache::{HitPeer, Ours, Size};
use crate::harness::Random;

/// Times of hits in nanoseconds, one value for each round.
#[derive(Debug, Default)]
pub struct BindingHits {
    /// In Rust.
    pub rust_ns: Vec<f64>,
    /// In C, with the shared library.
    pub shared_ns: Vec<f64>,
    /// In C, with the static library.
    pub static_ns: Vec<f64>,
}

impl BindingHits {
    /// The differences of `c_ns` to Rust.
    pub fn overhead_ns(&self, c_ns: &[f64]) -> Vec<f64> {
        c_ns.iter().zip(&self.rust_ns).map(|(c, rust)| c - rust).collect()
    }
}

/// Measures hits with the library that is installed below `prefix`.
///
/// # Errors
/// The C program cannot be compiled or started, or a call of it fails.
pub fn hits(size: Size, seed: u64, prefix: &Path) -> Result<BindingHits, Box<dyn std::error::Error>> {
    let mut shared = Program::start(prefix, Link::Shared, size, seed)?;
    let mut archive = Program::start(prefix, Link::Static, size, seed)?;
    let rust = Ours::new(size.keys_count, size.block_bytes)?;
    let mut random = Random(seed);
    let keys: Vec<u32> = (0..size.hits_count).map(|_| random.below(size.keys_count) as u32).collect();
    let mut times = BindingHits::default();
    for round in 0..size.rounds_count {
        // Rotated, so that nobody is always the first.
        for turn in 0..3 {
            match (round + turn) % 3 {
                0 => {
                    let start = Instant::now();
                    rust.hits(&keys);
                    times.rust_ns.push(start.elapsed().as_nanos() as f64 / size.hits_count as f64);
                }
                1 => times.shared_ns.push(shared.hit_ns()?),
                _ => times.static_ns.push(archive.hit_ns()?),
            }
        }
    }
    Ok(times)
}

/// The Python package, in a process of its own.
pub struct Python(Program);

impl Python {
    /// Starts `python`, with the package `memferry`.
    ///
    /// # Errors
    /// It cannot be started, or has no such package.
    pub fn start(python: &Path, size: Size, seed: u64) -> Result<Python, Box<dyn std::error::Error>> {
        Ok(Python(Program::start_python(python, size, seed)?))
    }

    /// Time of a hit, from a round of them.
    ///
    /// # Errors
    /// The process fails.
    pub fn hit_ns(&mut self) -> Result<f64, Box<dyn std::error::Error>> {
        Ok(self.0.hit_ns()?)
    }

    /// Time of `memferry.sql(query)`, in one line.
    ///
    /// # Errors
    /// The process fails.
    pub fn query_us(&mut self, query: &str) -> Result<f64, Box<dyn std::error::Error>> {
        Ok(self.0.query_ns(query)? / 1e3)
    }
}

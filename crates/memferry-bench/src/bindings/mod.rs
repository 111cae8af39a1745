//! Benchmarks of the C library: what a hit costs in C beside one in Rust.
//!
//! The C side is a program's: compiled here against an installed library (`cargo xtask install-c`), and loaded into this
//! process, so that both sides alternate.

#[allow(unsafe_code, reason = "calls the C program")]
mod program;

use std::path::Path;
use std::time::Instant;

use program::Program;

use crate::cache::{HitPeer, Ours, Size};
use crate::harness::Random;

/// Times of hits, one value for each round.
#[derive(Debug, Default)]
pub struct BindingHits {
    /// Nanoseconds of a hit in C.
    pub c_ns: Vec<f64>,
    /// Nanoseconds of a hit in Rust.
    pub rust_ns: Vec<f64>,
    /// Their differences.
    pub overhead_ns: Vec<f64>,
}

/// Measures hits with the library that is installed below `prefix`.
///
/// # Errors
/// The C program cannot be compiled or loaded, or a call of it fails.
pub fn hits(size: Size, seed: u64, prefix: &Path) -> Result<BindingHits, Box<dyn std::error::Error>> {
    let Size { keys_count, block_bytes, hits_count, rounds_count } = size;
    let c = Program::load(prefix, keys_count, block_bytes)?;
    let rust = Ours::new(keys_count, block_bytes)?;
    let mut random = Random(seed);
    let keys: Vec<u32> = (0..hits_count).map(|_| random.below(keys_count) as u32).collect();
    let timed = |run: &dyn Fn() -> Result<(), String>| {
        let start = Instant::now();
        run().map(|()| start.elapsed().as_nanos() as f64 / hits_count as f64)
    };
    let c_ns = || timed(&|| c.hits(&keys));
    let rust_ns = || {
        timed(&|| {
            rust.hits(&keys);
            Ok(())
        })
    };
    let mut times = BindingHits::default();
    for round in 0..rounds_count {
        // In turn the first one: neither always follows the other.
        let (c, rust) = if round % 2 == 0 {
            let c = c_ns()?;
            (c, rust_ns()?)
        } else {
            let rust = rust_ns()?;
            (c_ns()?, rust)
        };
        times.c_ns.push(c);
        times.rust_ns.push(rust);
        times.overhead_ns.push(c - rust);
    }
    Ok(times)
}

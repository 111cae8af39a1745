//! The cost of the preload library of `memferry offload` to calls that stay on the CPU.
//!
//! Runs in a process with the library. The process finds the program's function (the library's) and libc's own, and calls
//! both in turns with the same arguments, so that a disturbance of the machine affects both.

use std::ffi::{CStr, c_void};
use std::hint::black_box;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::harness::{Effort, Pairs};

/// The sizes of small calls, in bytes.
pub const SIZES: [usize; 5] = [16, 64, 256, 1024, 4096];

/// The functions that are measured.
const FUNCTIONS: [&CStr; 3] = [c"memcpy", c"memset", c"memcmp"];

/// Calls between two readings of the clock.
const BURST: usize = 20_000;

/// Samples of one function with one size, in nanoseconds for each call. Samples with the same index were taken one after
/// the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SmallCalls {
    /// The function.
    pub function: String,
    /// The size in bytes.
    pub size_bytes: usize,
    /// With the library.
    pub ours_ns: Vec<f64>,
    /// Libc's own function.
    pub libc_ns: Vec<f64>,
}

impl SmallCalls {
    /// The overhead of each pair of samples.
    pub fn overhead_ns(&self) -> Vec<f64> {
        self.ours_ns.iter().zip(&self.libc_ns).map(|(ours, libc)| ours - libc).collect()
    }
}

/// Functions that cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// The library is not loaded.
    #[error(
        "{0} is libc's own in this process; run it with the preload library: memferry offload -- PROGRAM"
    )]
    NotLoaded(String),
    /// There is no GNU C library.
    #[error("{0} is missing: the benchmark needs the GNU C library")]
    NoFunction(String),
}

/// Memcpy, memset and memcmp have this form on x86-64; memset ignores all but the low byte of its second argument.
type Function = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// Measures small calls in this process.
///
/// # Errors
/// [`OffloadError`]
pub fn small_calls(effort: Effort) -> Result<Vec<SmallCalls>, OffloadError> {
    let rounds = effort.of(201, 3);
    let mut measured = Vec::new();
    for name in FUNCTIONS {
        let (ours, libc) = functions(name)?;
        for size_bytes in SIZES {
            // Equal regions: a comparison reads all of them.
            let (mut target, source) = (vec![0u8; size_bytes], vec![0u8; size_bytes]);
            let mut sample = |function: Function| {
                let (to, from) = (target.as_mut_ptr().cast(), source.as_ptr().cast());
                // Memset gets zero, so that the regions stay equal.
                let from = if name == c"memset" { std::ptr::null() } else { from };
                let start = Instant::now();
                for _ in 0..BURST {
                    // SAFETY: both regions have the size, and memset does not use its second argument as an address.
                    black_box(unsafe { function(black_box(to), from, size_bytes) });
                }
                start.elapsed().as_nanos() as f64 / BURST as f64
            };
            sample(ours);
            let mut pairs = Pairs::default();
            for round in 0..rounds {
                let first = if round % 2 == 0 { ours } else { libc };
                let one = sample(first);
                let other = sample(if round % 2 == 0 { libc } else { ours });
                let (ours, libc) = if round % 2 == 0 { (one, other) } else { (other, one) };
                pairs.ours.push(ours);
                pairs.peer.push(libc);
            }
            let function = name.to_string_lossy().into_owned();
            measured.push(SmallCalls { function, size_bytes, ours_ns: pairs.ours, libc_ns: pairs.peer });
        }
    }
    Ok(measured)
}

/// The function that the program calls, and libc's own.
fn functions(name: &CStr) -> Result<(Function, Function), OffloadError> {
    let shown = || name.to_string_lossy().into_owned();
    // SAFETY: the names end with a zero; libc is loaded and stays so.
    let (ours, libc) = unsafe {
        let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return Err(OffloadError::NoFunction(shown()));
        }
        (libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()), libc::dlsym(library, name.as_ptr()))
    };
    if ours.is_null() || libc.is_null() {
        return Err(OffloadError::NoFunction(shown()));
    }
    if ours == libc {
        return Err(OffloadError::NotLoaded(shown()));
    }
    // SAFETY: functions of these names have this form.
    Ok(unsafe {
        (
            std::mem::transmute::<*mut c_void, Function>(ours),
            std::mem::transmute::<*mut c_void, Function>(libc),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_the_library_is_refused() {
        let error = small_calls(Effort::Quick).unwrap_err();
        assert!(matches!(error, OffloadError::NotLoaded(_)), "{error}");
    }
}

//! Allocations that grow, in processes with the library: this program, started again.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs, ptr};

const CASE: &str = "MEMFERRY_TEST_CASE";
const BYTES: usize = 64 << 20;

/// Once each `realloc` of a large allocation copied it, also where nothing was placed. glibc has the kernel move it.
#[test]
fn only_interleaved_allocations_are_copied() {
    let has_policies = fs::exists("/proc/self/numa_maps").unwrap();
    for pattern in ["stripes", "even"] {
        for (heap, case, is_copied) in [
            ("leave", "", false),
            ("first-touch", "", false),
            ("interleave", "own policy", false),
            ("interleave", "", has_policies),
        ] {
            let output = Command::new(env::current_exe().unwrap())
                .args(["--exact", "child", "--nocapture"])
                .env("LD_PRELOAD", library())
                .env("MEMFERRY_PLACE_WEIGHTS", "0=1")
                .env("MEMFERRY_PLACE_PATTERN", pattern)
                .env("MEMFERRY_PLACE_HEAP", heap)
                .env("MEMFERRY_PLACE_ANONYMOUS", "interleave")
                .env(CASE, case)
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&output.stdout);
            let wanted = if is_copied { "it was copied" } else { "it was moved" };
            assert!(
                output.status.success() && told.contains(wanted),
                "{pattern}, {heap}, {case}: {output:?}"
            );
        }
    }
}

/// A process of the test above.
#[test]
fn child() {
    let Ok(case) = env::var(CASE) else { return };
    if case == "own policy" {
        // SAFETY: it takes numbers. Without NUMA it does nothing.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_LOCAL, ptr::null::<u8>(), 0) };
    }
    // SAFETY: any size may be requested, and the byte is inside of both allocations.
    unsafe {
        let memory = libc::malloc(BYTES);
        assert!(!memory.is_null());
        memory.cast::<u8>().write(7);
        let before = resident_bytes();
        let grown = libc::realloc(memory, 2 * BYTES);
        assert!(!grown.is_null() && grown.cast::<u8>().read() == 7);
        // A copy has all pages, also those that nobody has written.
        let is_copied = resident_bytes() > before + BYTES / 2;
        println!("it was {}", if is_copied { "copied" } else { "moved" });
        libc::free(grown);
    }
}

fn resident_bytes() -> usize {
    let sizes = fs::read_to_string("/proc/self/statm").unwrap();
    sizes.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The library, which Cargo builds beside the tests.
fn library() -> PathBuf {
    let path = env::current_exe().unwrap().with_file_name("libmemferry_place_preload.so");
    assert!(path.is_file(), "{} is missing: cargo builds it with its tests", path.display());
    path
}

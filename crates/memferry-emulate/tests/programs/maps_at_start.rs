//! A library for LD_PRELOAD that maps a queue in its constructor, and again when its program sets a process group.
//!
//! It prints the name of each process in which it does so, and the outcome.

#![allow(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;

const QUEUE: &str = "/dev/dsa/wq0.0";

fn map(place: &str) {
    // Without devices there is nothing to do.
    let Ok(queue) = OpenOptions::new().read(true).write(true).open(QUEUE) else { return };
    // SAFETY: a new mapping at an address that the kernel chooses.
    let page = unsafe {
        libc::mmap(ptr::null_mut(), 4096, libc::PROT_WRITE, libc::MAP_SHARED, queue.as_raw_fd(), 0)
    };
    let outcome = match page == libc::MAP_FAILED {
        true => io::Error::last_os_error().to_string(),
        false => "mapped".to_owned(),
    };
    let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    eprintln!("maps_at_start: {place} of {}: {outcome}", name.trim_end());
}

extern "C" fn construct() {
    map("constructor");
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

/// setpgid(2), which the emulation calls in its own processes.
#[unsafe(no_mangle)]
pub extern "C" fn setpgid(process: libc::pid_t, group: libc::pid_t) -> libc::c_int {
    map("setpgid");
    // SAFETY: it takes numbers.
    unsafe { libc::syscall(libc::SYS_setpgid, process, group) as libc::c_int }
}

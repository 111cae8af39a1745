//! A process that competes for a device: `contends QUEUE COUNT DEPTH BYTES`.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::Path;

use memferry_bench::dsa::sharing;

fn main() -> Result<(), sharing::SharingError> {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments[at].parse::<usize>().expect("a number");
    sharing::contend(Path::new(&arguments[1]), number(2), number(3), number(4) as u32)
}

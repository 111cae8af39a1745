//! What a submission costs under emulation: `submit_cost THREADS full|quick`, in a directory with the file of a shared
//! queue. It prints the samples as JSON.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::Path;

use memferry_dsa::measure::{Effort, submission};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().and_then(|threads| threads.parse().ok()).expect("a number of threads");
    let effort = if arguments.next().as_deref() == Some("full") { Effort::Full } else { Effort::Quick };
    let costs = submission::costs(Path::new("wq0.0"), threads, effort).expect("a queue that can be mapped");
    println!("{}", serde_json::to_string(&costs).expect("numbers"));
}

//! A process among others that want the same device: `contends QUEUE COUNT DEPTH BYTES`. It says that it is ready,
//! waits for a line, and prints what it got as JSON.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::Path;

use memferry_dsa::measure::sharing;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let number = |at: usize| arguments[at].parse::<usize>().expect("a number");
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("a line");
    let load = sharing::load(Path::new(&arguments[1]), number(2), number(3), number(4) as u32);
    println!("{}", serde_json::to_string(&load.expect("a queue that works")).expect("numbers"));
}

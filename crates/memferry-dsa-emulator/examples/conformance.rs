//! Runs the conformance suite on the devices of this machine:
//! `cargo run --release -p memferry-dsa-emulator --example conformance [seeds]`.
//!
//! The CPU does not help: operations that a device lacks are listed. The exit status is 1 if a check fails.

#[path = "../../memferry-dsa/examples/common/mod.rs"]
mod common;

use std::process::ExitCode;

use memferry_dsa::{Client, ClientOptions};
use memferry_dsa_emulator::conformance::{self, Thoroughness};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let seeds: u64 = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let options = ClientOptions { may_use_cpu: false, faults_max: 10_000, ..ClientOptions::default() };
    // Each queue alone, so that no queue hides the failures of another.
    let portals: Vec<_> = common::client()?.portals().cloned().collect();
    let mut passed = true;
    for portal in portals {
        println!("{} by {:?}", portal.work_queue().name, portal.kind());
        let client = Client::new(vec![portal], options.clone());
        for seed in 0..seeds {
            let report = conformance::run(&client, Thoroughness::Full, seed);
            print!("{report}");
            passed &= report.passed();
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

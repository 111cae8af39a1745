//! `memferry offload` without its command line. `--emulated SEED` first starts emulated devices, and the example again on
//! them.
//!
//!     cargo run -p memferry-offload --example offload -- --emulated 1 --threshold 65536 -- sort big.txt

use std::ffi::OsString;
use std::process::ExitCode;

use memferry_dsa_emulator::FaultPlan;
use memferry_emulate::exit_as;
use memferry_offload::{Options, Summary, execute};

const USAGE: &str = "usage: offload [--emulated SEED] [--threshold BYTES] [--share PERCENT] [--summary FILE | --no-summary] \
    -- PROGRAM [ARGUMENT]...";

fn options() -> Option<(Option<u64>, Options)> {
    let (mut seed, mut options) = (None, Options::new(""));
    let mut arguments = std::env::args_os().skip(1);
    loop {
        match arguments.next()?.to_str()? {
            "--emulated" => seed = Some(arguments.next()?.to_str()?.parse().ok()?),
            "--threshold" => options.threshold_bytes = Some(arguments.next()?.to_str()?.parse().ok()?),
            "--share" => options.share_percent = Some(arguments.next()?.to_str()?.parse().ok()?),
            "--summary" => options.summary = Summary::File(arguments.next()?.into()),
            "--no-summary" => options.summary = Summary::None,
            "--" => break,
            _ => return None,
        }
    }
    options.program = arguments.next()?;
    options.arguments = arguments.collect();
    Some((seed, options))
}

/// Runs this program again on two emulated devices.
fn emulated(seed: u64) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut outer = memferry_emulate::Options::new(std::env::current_exe()?);
    outer.devices = Some(2);
    // A lost record ends the process, as it should.
    outer.fault_plan = FaultPlan { lost_records_per_mille: 0, ..FaultPlan::from_seed(seed) };
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--emulated") {
        arguments.drain(at..at + 2);
    }
    outer.arguments = arguments;
    exit_as(memferry_emulate::run(outer)?)
}

fn main() -> ExitCode {
    let Some((seed, options)) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(seed) = seed {
        return emulated(seed).unwrap_or_else(|error| {
            eprintln!("memferry: {error}");
            ExitCode::from(125)
        });
    }
    let error = execute(&options);
    eprintln!("memferry: {error}");
    ExitCode::from(error.exit_code())
}

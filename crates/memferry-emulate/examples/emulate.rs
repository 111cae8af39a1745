//! `memferry emulate` without its command line. The preload library is loaded on request only: without it, programs can
//! configure devices and submit with `write(2)`.
//!
//!     cargo run -p memferry-emulate --example emulate -- --devices 2 -- accel-config list

use std::ffi::OsString;
use std::process::ExitCode;

use memferry_dsa_emulator::{DeviceCosts, FaultPlan};
use memferry_emulate::{Leftovers, Options, Setup, exit_as, run};

const USAGE: &str = "usage: emulate [--devices N] [--config FILE | --disabled] [--seed N [--no-retries] [--no-faults]] \
    [--timing] [--keep-user] [--wait] [--stats] [--trace FILE] [--preload] [--no-patch] -- PROGRAM [ARGUMENT]...";

fn options() -> Option<Options> {
    let mut options = Options { preload: false, ..Options::new("") };
    let mut setup = None;
    let mut arguments = std::env::args_os().skip(1);
    loop {
        let argument = arguments.next()?;
        match argument.to_str()? {
            "--devices" => options.devices = Some(arguments.next()?.to_str()?.parse().ok()?),
            "--config" => setup = Some(Setup::File(arguments.next()?.into())),
            "--disabled" => setup = Some(Setup::Disabled),
            "--seed" => options.fault_plan = FaultPlan::from_seed(arguments.next()?.to_str()?.parse().ok()?),
            "--no-faults" => options.fault_plan.page_faults_per_mille = 0,
            "--no-retries" => options.fault_plan.retries_per_mille = 0,
            "--keep-user" => options.keep_user = true,
            "--wait" => options.leftovers = Leftovers::Wait,
            "--stats" => options.stats = true,
            "--no-patch" => options.patch = false,
            "--timing" => options.timing = Some(DeviceCosts::sapphire_rapids()),
            "--trace" => options.trace = Some(arguments.next()?.into()),
            "--preload" => options.preload = true,
            "--" => break,
            _ => return None,
        }
    }
    options.program = arguments.next()?;
    options.arguments = arguments.collect::<Vec<OsString>>();
    options.setup = setup.unwrap_or_else(|| Setup::for_program(&options.program, &options.arguments));
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(options) {
        Ok(status) => exit_as(status),
        Err(error) => {
            eprintln!("memferry: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

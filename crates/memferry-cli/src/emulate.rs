//! The command line of `memferry emulate`. The crate `memferry-emulate` runs the program.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use memferry_dsa_emulator::{DeviceCosts, FaultPlan};
use memferry_emulate::{Leftovers, Options, Setup, exit_as};

const AFTER_HELP: &str = "\
The program finds the driver idxd and its devices in /sys and /dev/dsa, in a private view of these directories. Without
--config each device is ready: a shared queue of 64 entries, wqN.0, a dedicated one, wqN.1, and four engines, all enabled.
With `none` they are as after boot. That is also the default for `accel-config load-config`, which skips enabled devices.
ENQCMD needs the shared queue and MOVDIR64B the dedicated one; a client that takes every queue for a shared one needs a
configuration without dedicated queues, such as that of the guide \"Emulate a DSA\".

The seed makes devices late, out of order, full and faulting. --faults sets how often something goes wrong, in thousandths:
  pages=N    a page faults although it is present; without block-on-fault the operation stops there
  retries=N  a shared queue that has room answers Retry; seeds include this, and retries=0 switches it off
  errors=N   a page ends its operation with a hardware error
  records=N  a completion record is never written, and the error register says so

Examples:
  memferry emulate --devices 2 -- accel-config list
  memferry emulate -- accel-config load-config -c FILE -e
  memferry emulate --seed 7 --faults records=0 --trace trace.jsonl --stats -- PROGRAM

Exit status: that of the program, or its signal; 127 if the program does not exist, 126 if it cannot be run, 125 if it
cannot be given devices.";

/// Runs a program on emulated DSA devices, unmodified and without privileges.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Number of devices, 1 to 8 [default: those of the configuration, or one].
    #[arg(long, value_name = "N", value_parser = devices, allow_negative_numbers = true)]
    devices: Option<u32>,
    /// Configuration of the devices: a file in accel-config's format, or `none`.
    #[arg(long, value_name = "FILE|none")]
    config: Option<PathBuf>,
    /// Makes the devices late, out of order, full and faulting, always in the same way for the same S.
    #[arg(long, value_name = "S", value_parser = seed, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// How often something goes wrong; overrides the seed.
    #[arg(long, value_name = "KIND=N,...", value_delimiter = ',', value_parser = fault)]
    faults: Vec<Fault>,
    /// Delays completions to the published times of Sapphire Rapids.
    #[arg(long)]
    timing: bool,
    /// Leaves the program's code as it is: each submission costs a signal.
    #[arg(long)]
    no_patch: bool,
    /// Keeps your user: the program can submit with write(2), and neither map nor configure queues. Otherwise it is
    /// root in its view.
    #[arg(long)]
    keep_user: bool,
    /// Waits for processes that outlive the program, instead of killing them.
    #[arg(long)]
    wait: bool,
    /// Writes each descriptor and its completion to a file, as JSON lines.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Prints a summary of the devices' work on standard error at the end.
    #[arg(long)]
    stats: bool,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program, and exits with its status.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    exit_as(memferry_emulate::run(arguments.options()?)?)
}

impl Arguments {
    fn options(&self) -> Result<Options> {
        let (program, rest) = self.program.split_first().context("name a program after --")?;
        let setup = match &self.config {
            Some(none) if none.as_os_str() == "none" => Setup::Disabled,
            Some(file) => Setup::File(file.clone()),
            None => Setup::for_program(program, rest),
        };
        Ok(Options {
            arguments: rest.to_vec(),
            devices: self.devices,
            setup,
            fault_plan: fault_plan(self.seed, &self.faults),
            timing: self.timing.then(DeviceCosts::sapphire_rapids),
            keep_user: self.keep_user,
            patch: !self.no_patch,
            trace: self.trace.clone(),
            stats: self.stats,
            leftovers: if self.wait { Leftovers::Wait } else { Leftovers::Terminate },
            ..Options::new(program)
        })
    }
}

fn devices(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| (1..=Options::DEVICES_MAX).contains(count));
    count.ok_or_else(|| format!("there can be 1 to {} devices", Options::DEVICES_MAX))
}

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a seed is a number from 0 to 18446744073709551615".to_owned())
}

/// A kind of fault and its thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fault {
    kind: FaultKind,
    per_mille: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FaultKind {
    Pages,
    Retries,
    Errors,
    Records,
}

fn fault(text: &str) -> Result<Fault, String> {
    let (kind, number) = text.split_once('=').unwrap_or((text, ""));
    let kind = match kind {
        "pages" => FaultKind::Pages,
        "retries" => FaultKind::Retries,
        "errors" => FaultKind::Errors,
        "records" => FaultKind::Records,
        _ => return Err("the kinds of faults are pages, retries, errors and records".to_owned()),
    };
    match number.parse() {
        Ok(per_mille @ 0..=1000) => Ok(Fault { kind, per_mille }),
        _ => Err("give the frequency in thousandths, from 0 to 1000, such as pages=50".to_owned()),
    }
}

fn fault_plan(seed: Option<u64>, faults: &[Fault]) -> FaultPlan {
    let mut plan = seed.map_or_else(FaultPlan::none, FaultPlan::from_seed);
    for fault in faults {
        *match fault.kind {
            FaultKind::Pages => &mut plan.page_faults_per_mille,
            FaultKind::Retries => &mut plan.retries_per_mille,
            FaultKind::Errors => &mut plan.hardware_errors_per_mille,
            FaultKind::Records => &mut plan.lost_records_per_mille,
        } = fault.per_mille;
    }
    plan
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn options(line: &str) -> Options {
        let words = ["emulate"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().arguments.options().unwrap()
    }

    #[test]
    fn options_reach_the_emulation() {
        let plain = options("-- true -x --stats");
        assert_eq!((plain.program, plain.arguments), ("true".into(), vec!["-x".into(), "--stats".into()]));
        assert_eq!((plain.setup, plain.devices, plain.fault_plan), (Setup::Ready, None, FaultPlan::none()));
        assert!(plain.timing.is_none() && plain.patch && !plain.keep_user && !plain.stats);
        let all = options(
            "--devices 3 --config none --seed 9 --faults records=7,pages=1000 --timing --no-patch --keep-user --wait \
            --trace t --stats -- true",
        );
        let expected =
            FaultPlan { lost_records_per_mille: 7, page_faults_per_mille: 1000, ..FaultPlan::from_seed(9) };
        assert_eq!((all.fault_plan, all.devices, all.setup), (expected, Some(3), Setup::Disabled));
        assert!(all.timing.is_some() && !all.patch && all.keep_user && all.stats);
        assert_eq!((all.trace, all.leftovers), (Some("t".into()), Leftovers::Wait));
        let faults = options("--faults retries=1 --faults errors=2 -- true").fault_plan;
        assert_eq!(
            faults,
            FaultPlan { retries_per_mille: 1, hardware_errors_per_mille: 2, ..FaultPlan::none() }
        );
        assert_eq!(options("--config a.conf -- true").setup, Setup::File("a.conf".into()));
        assert_eq!(options("-- accel-config load-config -e").setup, Setup::Disabled);
    }

    #[test]
    fn invalid_numbers_are_refused() {
        for wrong in ["0", "9", "x", "-1", "", "1.5"] {
            assert!(devices(wrong).unwrap_err().contains("1 to 8"), "{wrong}");
        }
        for wrong in ["x", "-1", "18446744073709551616"] {
            assert!(seed(wrong).unwrap_err().contains("from 0"), "{wrong}");
        }
        assert_eq!((devices("8"), seed("18446744073709551615")), (Ok(8), Ok(u64::MAX)));
    }

    #[test]
    fn invalid_faults_are_refused() {
        for wrong in ["", "pages", "pages=", "pages=1001", "pages=-1", "pages=0.5", "page=1", "=1"] {
            assert!(fault(wrong).is_err(), "{wrong}");
        }
    }
}

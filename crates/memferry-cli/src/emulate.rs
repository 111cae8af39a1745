//! `memferry emulate`: a program on emulated DSA devices. What runs it is the crate `memferry-emulate`; here is the command line.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use memferry_dsa_emulator::{FaultPlan, Timing};
use memferry_emulate::{Error, Leftovers, Options, Setup, exit_as};

const AFTER_HELP: &str = "\
The program finds the driver idxd and its devices in /sys and /dev/dsa, in a view of these directories that nobody else
has. Without --config each device is ready: a shared queue of 64 entries, wqN.0, a dedicated one, wqN.1, and four engines,
all enabled. With `none` they are as after boot, and so they are for `accel-config load-config`, which leaves out
devices that are enabled.

The seed makes devices late, out of order, full and faulting. --faults says what goes wrong how often, in thousandths:
  pages=N    a page faults although it is there; without block-on-fault the operation ends there
  retries=N  a shared queue that has room answers Retry
  errors=N   a page ends its operation with a hardware error
  records=N  a completion record is never written, and the error register says so

Examples:
  memferry emulate --devices 2 -- accel-config list
  memferry emulate -- accel-config load-config -c FILE -e
  memferry emulate --seed 7 --faults records=0 --trace trace.jsonl --stats -- PROGRAM

Exit status: the program's, or its signal; 127 if there is no such program, 126 if it cannot be run, 125 if it cannot be
given devices.";

/// Runs a program on emulated DSA devices, unmodified and without privileges.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Number of devices, 1 to 8 [default: those of the configuration, or one].
    #[arg(long, value_name = "N", value_parser = devices, allow_negative_numbers = true)]
    devices: Option<u32>,
    /// How they are configured: a file in accel-config's format, or `none`.
    #[arg(long, value_name = "FILE|none")]
    config: Option<PathBuf>,
    /// Makes the devices behave badly, within the specification, always in the way that S stands for.
    #[arg(long, value_name = "S", value_parser = seed, allow_negative_numbers = true)]
    seed: Option<u64>,
    /// What goes wrong, and how often; in place of what the seed says of it.
    #[arg(long, value_name = "KIND=N,...", value_delimiter = ',', value_parser = fault)]
    faults: Vec<Fault>,
    /// Lets everything take as long as on Sapphire Rapids, by published figures; or as it takes here.
    #[arg(long)]
    timing: bool,
    /// Leaves the program's code as it is: each submission costs a signal.
    #[arg(long)]
    no_patch: bool,
    /// Stays the user who runs it, who can submit with write(2), and neither map queues nor configure them; without it he is
    /// root in the program's view.
    #[arg(long)]
    keep_user: bool,
    /// Waits for processes that the program leaves behind, rather than ending them with it.
    #[arg(long)]
    wait: bool,
    /// Writes each descriptor and its completion to a file, as JSON lines.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Tells in the end, on standard error, what the devices have done.
    #[arg(long)]
    stats: bool,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Ends this process as the program has ended.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    exit_as(memferry_emulate::run(arguments.options()?)?)
}

impl Arguments {
    fn options(&self) -> Result<Options> {
        let (program, rest) = self.program.split_first().context("name a program behind --")?;
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
            timing: self.timing.then(Timing::sapphire_rapids),
            keep_user: self.keep_user,
            preload: Some(library()?),
            patch: !self.no_patch,
            trace: self.trace.clone(),
            stats: self.stats,
            leftovers: if self.wait { Leftovers::WaitFor } else { Leftovers::End },
            ..Options::new(program)
        })
    }
}

/// The library that is preloaded. Cargo builds it with the command, as a dependency, into `deps/`; installed it lies
/// beside the command.
pub(crate) fn library() -> Result<PathBuf> {
    const NAME: &str = "libmemferry_emulate_preload.so";
    let command =
        std::env::current_exe().context("cannot find the command's own file, and so its library")?;
    let beside = command.with_file_name(NAME);
    let built = command.with_file_name("deps").join(NAME);
    match (built.is_file(), beside.is_file()) {
        (true, _) => Ok(built),
        (false, true) => Ok(beside),
        (false, false) => Err(Error::NoLibrary { path: beside }.into()),
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
        _ => return Err("faults are of the kinds pages, retries, errors and records".to_owned()),
    };
    match number.parse() {
        Ok(per_mille @ 0..=1000) => Ok(Fault { kind, per_mille }),
        _ => Err("how often is said in thousandths, from 0 to 1000, such as pages=50".to_owned()),
    }
}

fn fault_plan(seed: Option<u64>, faults: &[Fault]) -> FaultPlan {
    let mut fault_plan = seed.map_or_else(FaultPlan::none, FaultPlan::from_seed);
    for fault in faults {
        *match fault.kind {
            FaultKind::Pages => &mut fault_plan.page_faults_per_mille,
            FaultKind::Retries => &mut fault_plan.retries_per_mille,
            FaultKind::Errors => &mut fault_plan.hardware_errors_per_mille,
            FaultKind::Records => &mut fault_plan.lost_records_per_mille,
        } = fault.per_mille;
    }
    fault_plan
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
        let fault_plan =
            FaultPlan { lost_records_per_mille: 7, page_faults_per_mille: 1000, ..FaultPlan::from_seed(9) };
        assert_eq!((all.fault_plan, all.devices, all.setup), (fault_plan, Some(3), Setup::Disabled));
        assert!(all.timing.is_some() && !all.patch && all.keep_user && all.stats);
        assert_eq!((all.trace, all.leftovers), (Some("t".into()), Leftovers::WaitFor));
        let faults = options("--faults retries=1 --faults errors=2 -- true").fault_plan;
        assert_eq!(
            faults,
            FaultPlan { retries_per_mille: 1, hardware_errors_per_mille: 2, ..FaultPlan::none() }
        );
        assert_eq!(options("--config a.conf -- true").setup, Setup::File("a.conf".into()));
        assert_eq!(options("-- accel-config load-config -e").setup, Setup::Disabled);
    }

    #[test]
    fn numbers_that_make_no_sense() {
        for wrong in ["0", "9", "x", "-1", "", "1.5"] {
            assert!(devices(wrong).unwrap_err().contains("1 to 8"), "{wrong}");
        }
        for wrong in ["x", "-1", "18446744073709551616"] {
            assert!(seed(wrong).unwrap_err().contains("from 0"), "{wrong}");
        }
        assert_eq!((devices("8"), seed("18446744073709551615")), (Ok(8), Ok(u64::MAX)));
    }

    #[test]
    fn faults_that_make_no_sense() {
        for wrong in ["", "pages", "pages=", "pages=1001", "pages=-1", "pages=0.5", "page=1", "=1"] {
            assert!(fault(wrong).is_err(), "{wrong}");
        }
    }
}

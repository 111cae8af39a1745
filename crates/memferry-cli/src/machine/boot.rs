//! The command line of `memferry machine boot`. The crate `memferry-guest` boots the guest.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use memferry::topology::{Machine, TopologyError};
use memferry_emulate::{Program, exit_as};
use memferry_guest::{BootOptions, Share};

use super::page_map;
use crate::error::usage;
use crate::options::size_bytes;

const AFTER_HELP: &str = "\
The guest has the nodes, distances, rates and latencies of the profile, and less memory and CPUs. It runs under QEMU, by
KVM where that works, else in software. Nothing in a guest is a measurement: its memory is as fast as that of the host.

The program finds the files of this machine, read-only, and its own /tmp and /run. --share gives it folders of this machine
at their own paths, to write to or below /tmp. It is root in the guest, with your rights on files. It has no network, and
its standard input is empty unless it has the terminal. Without PROGRAM, your shell runs on the terminal.

Persistent memory of the profile is at /run/pmem0: ext4 with DAX, as on a machine with NVDIMMs in fsdax mode.

At the end, standard error shows on which node the memory of the program lay, as the guest's kernel counted its pages.
Ctrl-C ends the guest; with the terminal it goes to the program, and Ctrl-] three times ends the guest.

Examples:
  memferry machine boot xeon-max-9468-2s-flat
  memferry machine boot xeon-max-9468-2s-flat -- numactl --membind 8 sort big.txt
  memferry machine boot made-up-cxl-node --share results -- ./my-benchmark --out results
  memferry machine boot xeon-max-9468-2s-flat --full 8 -- ./my-program-that-wants-hbm
  memferry machine boot made-up-fsdax-node --persistent images -- ./my-database --log /run/pmem0/log
  memferry machine boot epyc-7742-2s-nps4 --memory 16GiB -- memferry topology

Exit status: that of the program, or its signal; 127 if the program does not exist, 126 if it cannot be run, 125 if the guest
cannot be booted.";

/// Boots a guest with the NUMA nodes of a profile, and runs a program or a shell in it.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// The machine: the name of a built-in profile, or a JSON file.
    profile: String,
    /// A folder that the program may write to, or only read with `:ro`. May be repeated.
    #[arg(long, value_name = "DIR[:ro]")]
    share: Vec<OsString>,
    /// Memory of the guest, such as 8GiB; nodes keep the proportions of the profile and a minimum [default: 4GiB].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    memory: Option<u64>,
    /// Keeps the persistent memory of the machine in files of this folder, for later guests [default: it begins empty].
    #[arg(long, value_name = "DIR")]
    persistent: Option<PathBuf>,
    /// A node without free memory. May be repeated. Its memory is reserved as huge pages.
    #[arg(long, value_name = "NODE")]
    full: Vec<u32>,
    /// Gives the program the terminal, as a shell has it.
    #[arg(long)]
    interactive: bool,
    /// Ends the guest after this time.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// The program and its arguments [default: your shell].
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Boots the guest, and exits with the status of the program.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let machine = Machine::from_profile(&arguments.profile).map_err(|error| match error {
        TopologyError::UnknownProfile { .. } => usage(error),
        _ => memferry_guest::Error::from(error).into(),
    })?;
    let options = arguments.options(io::stdin().is_terminal())?;
    let booted = memferry_guest::boot(&options, &mut |note: &str| eprintln!("memferry: {note}"))?;
    if let Some(pages) = &booted.pages {
        let program = options.program.file_name().unwrap_or(options.program.as_os_str()).to_string_lossy();
        eprint!("{}", page_map::text(&program, pages, &booted.layout, &machine));
    }
    exit_as(booted.status)
}

impl Arguments {
    fn options(&self, has_terminal: bool) -> Result<BootOptions> {
        let (program, arguments, is_interactive) = match self.program.split_first() {
            Some((program, arguments)) => (program.clone(), arguments.to_vec(), self.interactive),
            None => (shell(), Vec::new(), true),
        };
        if is_interactive && !has_terminal {
            return Err(usage(
                "standard input is no terminal; name a program after --, without --interactive",
            ));
        }
        Ok(BootOptions {
            arguments,
            shares: self.share.iter().map(|text| share(text)).collect(),
            memory_bytes: self.memory,
            persistent: self.persistent.clone(),
            full: self.full.clone(),
            is_interactive,
            timeout: self.timeout.map(Duration::from_secs),
            ..BootOptions::new(&self.profile, Program::find(&program)?.path)
        })
    }
}

fn shell() -> OsString {
    std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())
}

fn share(text: &OsStr) -> Share {
    let (path, is_read_only) = match text.as_bytes().strip_suffix(b":ro") {
        Some(path) => (path, true),
        None => (text.as_bytes(), false),
    };
    Share { directory: PathBuf::from(OsStr::from_bytes(path)), is_read_only }
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

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = ["boot"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn options_reach_the_guest() {
        let line = "skylake-8180-snc-on --share a --share /b:ro --memory 2GiB --persistent p --full 2 --full 3 --timeout 9 -- cat -n x";
        let options = parse(line).unwrap().options(false).unwrap();
        assert_eq!(options.profile, "skylake-8180-snc-on");
        assert!(options.program.ends_with("cat") && options.program.is_absolute(), "{:?}", options.program);
        assert_eq!(options.arguments, ["-n", "x"]);
        let share = |directory: &str, is_read_only| Share { directory: directory.into(), is_read_only };
        assert_eq!(options.shares, [share("a", false), share("/b", true)]);
        assert_eq!((options.memory_bytes, options.timeout), (Some(2 << 30), Some(Duration::from_secs(9))));
        assert_eq!((options.full, options.persistent), (vec![2, 3], Some("p".into())));
        assert!(!options.is_interactive);
    }

    #[test]
    fn a_shell_and_interactive_programs_need_a_terminal() {
        assert!(parse("skylake-8180-snc-on").unwrap().options(true).unwrap().is_interactive);
        assert!(
            parse("skylake-8180-snc-on --interactive -- cat").unwrap().options(true).unwrap().is_interactive
        );
        for line in ["skylake-8180-snc-on", "skylake-8180-snc-on --interactive -- cat"] {
            let error = parse(line).unwrap().options(false).unwrap_err();
            assert!(error.to_string().contains("name a program after --"), "{error}");
        }
    }

    #[test]
    fn invalid_lines_are_refused() {
        for wrong in ["", "-- true", "x --memory big -- true", "x --timeout 0 -- true", "x true"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}

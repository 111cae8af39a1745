//! The command line of `memferry offload`. The crate `memferry-offload` executes the program.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use memferry_offload::{Options, Summary, execute, install};

use crate::options::size_bytes;

const AFTER_HELP: &str = "\
The program takes the place of this command. Calls of memcpy, memmove, mempcpy, memset, memcmp and bcmp with 16 KiB or
more are counted; a DSA executes a share of those that are faster with it, which the program's own calls measure. Without
a usable device, or with MEMFERRY_OFFLOAD=off, libc's functions execute all calls.

Static and 32-bit programs, programs of another C library and setuid programs get a note and run without offloading.

Examples:
  memferry offload -- sort big.txt
  memferry offload --summary calls.jsonl -- make
  memferry emulate -- memferry offload --threshold 64KiB -- sort big.txt
  LD_PRELOAD=$(memferry offload --library) sort big.txt

Exit status: that of the program, or its signal; 127 if the program does not exist, 126 if it cannot be run, 125 if the
library cannot be written.";

/// Runs a program whose large memory copies, fills and comparisons a DSA shares with the CPU.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Shares every call of this size and more, such as 64KiB [default: measured while the program runs].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    threshold: Option<u64>,
    /// Percent of a shared call that the device executes [default: adapted to device and CPU].
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    share: Option<u32>,
    /// Summary at exit: a file to which each process appends a line of JSON, `none`, or `stderr`, of the first process.
    #[arg(long, value_name = "FILE|stderr|none", default_value = "stderr")]
    summary: PathBuf,
    /// Prints the path of the library, for LD_PRELOAD, and runs nothing.
    #[arg(long, conflicts_with_all = ["threshold", "share", "summary", "program"])]
    library: bool,
    /// The program and its arguments.
    #[arg(required_unless_present = "library", last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Executes the program in place of this process, or prints the path of the library.
pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if arguments.library {
        return Ok(writeln!(out, "{}", install()?.display())?);
    }
    Err(execute(&arguments.options()?).into())
}

impl Arguments {
    fn options(&self) -> Result<Options> {
        let (program, rest) = self.program.split_first().context("name a program after --")?;
        Ok(Options {
            arguments: rest.to_vec(),
            threshold_bytes: self.threshold.map(usize::try_from).transpose()?,
            share_percent: self.share,
            summary: match self.summary.to_str() {
                Some("none") => Summary::None,
                Some("stderr") => Summary::Stderr,
                _ => Summary::File(self.summary.clone()),
            },
            ..Options::new(program)
        })
    }
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
        let words = ["offload"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn options_reach_the_library() {
        let options = |line: &str| parse(line).unwrap().options().unwrap();
        assert_eq!(options("-- true"), Options::new("true"));
        let all = options("--threshold 64KiB --share 50 --summary x.jsonl -- sort -r");
        let expected = Options {
            arguments: vec!["-r".into()],
            threshold_bytes: Some(65536),
            share_percent: Some(50),
            summary: Summary::File("x.jsonl".into()),
            ..Options::new("sort")
        };
        assert_eq!(all, expected);
        assert_eq!(options("--summary none -- true").summary, Summary::None);
    }

    #[test]
    fn invalid_lines_are_refused() {
        for wrong in [
            "",
            "true",
            "--share 0 -- true",
            "--share 101 -- true",
            "--threshold x -- true",
            "--threshold 0 -- true",
            "--library -- true",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("--library").unwrap().library);
    }
}

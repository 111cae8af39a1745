//! The option `--isa`: a benchmark as on a CPU without AVX-512.
//!
//! The C library chooses its copies, to which ours are compared, when the process starts. So the process starts again
//! with a setting for the library.
//!
//! Source: the GNU C Library manual, "Hardware Capability Tunables".

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use memferry_dsa::internals::software::Isa;

const VARIABLE: &str = "GLIBC_TUNABLES";
const WITHOUT_AVX512: &str =
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ,-AVX512ER,-AVX512PF";

/// The end of the name of a limited run's record.
pub(crate) const LIMITED: &str = "-avx2";

/// The instructions that a benchmark uses.
#[derive(Debug, clap::Args)]
pub(super) struct Limit {
    /// Vectors of this width at most, also in the C library beside which memferry is measured [default: the CPU's].
    #[arg(long, value_enum, value_name = "ISA")]
    isa: Option<Width>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Width {
    /// No AVX-512.
    Avx2,
}

impl Limit {
    /// Applies the limit to this process. Returns the name of the instructions that run.
    pub(super) fn apply(&self) -> Result<&'static str> {
        if self.isa == Some(Width::Avx2) {
            if Isa::used() < Isa::Avx2 {
                bail!("this CPU has no AVX2; run the benchmark without --isa");
            }
            limit_libc()?;
            Isa::limit_to_avx2();
        }
        Ok(Isa::used().name())
    }

    /// The name of the record's file: a limited run does not replace the record of an unlimited one.
    pub(super) fn file_name(&self, bench: &str) -> String {
        match self.isa {
            Some(Width::Avx2) => format!("{bench}{LIMITED}"),
            None => bench.to_owned(),
        }
    }
}

/// Starts this process again with a C library that does not use AVX-512, unless it is such a process.
fn limit_libc() -> Result<()> {
    let before = env::var_os(VARIABLE).unwrap_or_default();
    if before.to_string_lossy().contains(WITHOUT_AVX512) {
        return Ok(());
    }
    let mut setting = before;
    if !setting.is_empty() {
        setting.push(":");
    }
    setting.push(WITHOUT_AVX512);
    let this = env::current_exe().context("cannot find the executable of this command")?;
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let error = Command::new(this).args(arguments).env(VARIABLE, setting).exec();
    Err(error).context("cannot start this command again without AVX-512 in the C library")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_run_has_a_file_of_its_own() {
        assert_eq!(Limit { isa: None }.file_name("dsa"), "dsa");
        assert_eq!(Limit { isa: Some(Width::Avx2) }.file_name("dsa"), "dsa-avx2");
    }
}

//! Options that several subcommands share, and parsers of their values.

use std::sync::Arc;

use anyhow::Result;
use memferry::cache::BuildError;
use memferry::topology::NodeId;
use memferry_bench_query::{Dsa, QueryError, QueryTiers};
use memferry_query::{SessionOptions, Tiers, TiersError};

use crate::error::usage;
use crate::topology;

/// The placement of tables, the target of copies, and the DSA that copies.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct TierOptions {
    /// Node of the tables [default: the first node with CPUs].
    #[arg(long, value_name = "NODE", value_parser = node)]
    home: Option<NodeId>,
    /// Node of the copies [default: the nearest faster node, or else the home node].
    #[arg(long, value_name = "NODE", value_parser = node)]
    near: Option<NodeId>,
    /// Memory for copies, such as 512MiB [default: half of the free memory of the near node, at most 4 GiB].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    budget: Option<u64>,
    /// The DSA that copies; with `none` the CPU copies.
    #[arg(long, value_name = "DSA", default_value = "none")]
    dsa: DsaChoice,
    /// Makes the emulated DSA late, out of order, full and faulting, reproducibly for each N.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Use the nodes of this machine: the name of a profile (see `memferry topology`), or a JSON file.
    #[arg(long, value_name = "PROFILE")]
    machine: Option<String>,
    /// Rates of this machine: a file of `memferry calibrate --out FILE`, or a published profile of such a machine [env:
    /// MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
}

/// The DSA that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DsaChoice {
    /// An emulated device in this process: exact, but slow.
    Emulated,
    /// The devices of this machine, through all usable work queues.
    System,
    /// No DSA.
    None,
}

impl TierOptions {
    /// Opens them; with near memory for each domain if queries are to run on domains.
    pub(crate) fn open(&self, is_near_of_domains: bool) -> Result<QueryTiers> {
        let dsa = match (self.dsa, self.seed) {
            (DsaChoice::Emulated, seed) => Dsa::Emulated { seed },
            (DsaChoice::System, None) => Dsa::System,
            (DsaChoice::None, None) => Dsa::None,
            (DsaChoice::System | DsaChoice::None, Some(_)) => {
                return Err(usage("--seed needs the emulated DSA; add --dsa emulated, or leave --seed out"));
            }
        };
        let machine = topology::open_calibrated(self.machine.as_deref(), self.calibration.as_deref())?;
        let mut tiers = Tiers::builder(Arc::new(machine)).near(self.near).budget_bytes(self.budget);
        // A machine that is only described has no domains here.
        tiers = tiers.near_of_domains(is_near_of_domains && self.machine.is_none());
        if let Some(home) = self.home {
            tiers = tiers.home(home);
        }
        QueryTiers::build(tiers, dsa).map_err(|error| match error {
            QueryError::Tiers(
                TiersError::Topology(_)
                | TiersError::NoCpuNode
                | TiersError::Cache(BuildError::BudgetTooSmall { .. }),
            ) => usage(error),
            _ => error.into(),
        })
    }
}

/// Session options for tables with this number of partitions.
pub(crate) fn session_options(partitions: Option<usize>) -> SessionOptions {
    let defaults = SessionOptions::default();
    SessionOptions { partitions: partitions.unwrap_or(defaults.partitions), ..defaults }
}

fn node(text: &str) -> Result<NodeId, String> {
    text.parse().map(NodeId).map_err(|_| "a node is a number, see `memferry topology`".to_owned())
}

/// Largest scale that TPC-H defines.
const SCALE_MAX: f64 = 100_000.0;

/// Parses a TPC-H scale factor.
pub(crate) fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= SCALE_MAX => Ok(scale),
        _ => Err("a scale is a number above 0, such as 0.1 or 1 (1 takes about 1.7 GiB)".to_owned()),
    }
}

/// Parses a number of partitions; each is scanned by one thread.
pub(crate) fn partitions(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if (1..=4096).contains(&count) => Ok(count),
        _ => Err("a number of partitions is from 1 to 4096".to_owned()),
    }
}

/// Parses a size: `4096`, `64KiB`, `1.5 GiB`. K, M, G and T are KiB, MiB, GiB and TiB.
pub(crate) fn size_bytes(text: &str) -> Result<u64, String> {
    let wrong = || "a size is a number of bytes, or one with a unit, such as 512MiB or 2GiB".to_owned();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err(wrong()),
    };
    // Integers first, because floating point rounds large ones.
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(factor).ok_or_else(wrong)?,
        Err(_) => {
            let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
            if bytes < u64::MAX as f64 { bytes as u64 } else { return Err(wrong()) }
        }
    };
    if bytes == 0 { Err("the size must be above 0, such as 512MiB".to_owned()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size_bytes("4096"), Ok(4096));
        assert_eq!(size_bytes("64KiB"), Ok(65_536));
        assert_eq!(size_bytes("64 k"), Ok(65_536));
        assert_eq!(size_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(size_bytes("18446744073709551615"), Ok(u64::MAX));
        for wrong in
            ["", "0", "-1", "KiB", "1.2.3M", "12 parsecs", "18446744073709551616", "99999999999T", "0.1"]
        {
            assert!(size_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn scales() {
        assert_eq!(scale("0.01"), Ok(0.01));
        for wrong in ["0", "-1", "abc", "nan", "inf", "1e9", ""] {
            assert!(scale(wrong).is_err(), "{wrong}");
        }
    }
}

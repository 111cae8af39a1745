//! Options that several subcommands share, and how their values are read.

use std::sync::Arc;

use anyhow::Result;
use memferry::cache::BuildError;
use memferry::topology::NodeId;
use memferry_bench::query::{Dsa, QueryError, QueryTiers};
use memferry_query::{SessionOptions, Tiers, TiersError};

use crate::error::usage;
use crate::topology;

/// Where tables lie, where their columns are copied to, and by what.
#[derive(Debug, clap::Args)]
pub(crate) struct TierOptions {
    /// Node on which tables lie [default: the first node with CPUs].
    #[arg(long, value_name = "NODE", value_parser = node)]
    home: Option<NodeId>,
    /// Node to which columns are copied [default: the nearest faster one, or else the home node].
    #[arg(long, value_name = "NODE", value_parser = node)]
    near: Option<NodeId>,
    /// Memory that near copies may take, such as 512MiB [default: half of what is free there, at most 4 GiB].
    #[arg(long, value_name = "SIZE", value_parser = size_bytes)]
    budget: Option<u64>,
    /// The DSA that copies; without one the CPU does.
    #[arg(long, value_name = "DSA", default_value = "none")]
    dsa: DsaChoice,
    /// Makes the emulated DSA late, out of order, full and faulting, always in the way that N stands for.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Pretend to be this machine: the name of a profile (see `memferry topology`), or a JSON file.
    #[arg(long, value_name = "PROFILE")]
    machine: Option<String>,
    /// What this machine can do: a file that `memferry calibrate --out FILE` wrote here, or a published profile of such a
    /// machine [env: MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
}

/// Which DSA copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DsaChoice {
    /// An emulated device in this process: exact, not fast.
    Emulated,
    /// The devices of this machine, by all work queues that one may use.
    System,
    /// None.
    None,
}

impl TierOptions {
    pub(crate) fn open(&self) -> Result<QueryTiers> {
        let dsa = match (self.dsa, self.seed) {
            (DsaChoice::Emulated, seed) => Dsa::Emulated { seed },
            (DsaChoice::System, None) => Dsa::System,
            (DsaChoice::None, None) => Dsa::None,
            (DsaChoice::System | DsaChoice::None, Some(_)) => {
                return Err(usage("--seed is for the emulated DSA only; add --dsa emulated or leave it out"));
            }
        };
        let machine = topology::open_calibrated(self.machine.as_deref(), self.calibration.as_deref())?;
        let mut tiers = Tiers::builder(Arc::new(machine)).near(self.near).budget_bytes(self.budget);
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

/// Sessions over tables in `partitions` parts.
pub(crate) fn session_options(partitions: Option<usize>) -> SessionOptions {
    let defaults = SessionOptions::default();
    SessionOptions { partitions: partitions.unwrap_or(defaults.partitions), ..defaults }
}

fn node(text: &str) -> Result<NodeId, String> {
    text.parse().map(NodeId).map_err(|_| "a node is a number as shown by `memferry topology`".to_owned())
}

/// The largest scale for which sizes in TPC-H are defined.
const SCALE_MAX: f64 = 100_000.0;

/// A TPC-H scale factor.
pub(crate) fn scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= SCALE_MAX => Ok(scale),
        _ => Err("a scale is a number above 0, such as 0.1 or 1 (1 takes about 1.7 GiB)".to_owned()),
    }
}

/// How many parts a table is cut into, one for each thread of a query.
pub(crate) fn partitions(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(count) if (1..=4096).contains(&count) => Ok(count),
        _ => Err("a number of partitions is from 1 to 4096".to_owned()),
    }
}

/// `4096`, `64KiB`, `1.5 GiB`; K, M, G, T mean the same as KiB, MiB, GiB, TiB.
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
    // Whole numbers without a detour through floating point, which would round large ones.
    let bytes = match number.parse::<u64>() {
        Ok(number) => number.checked_mul(factor).ok_or_else(wrong)?,
        Err(_) => {
            let bytes = number.parse::<f64>().map_err(|_| wrong())? * factor as f64;
            if bytes < u64::MAX as f64 { bytes as u64 } else { return Err(wrong()) }
        }
    };
    if bytes == 0 { Err("a size of 0 holds nothing; use one such as 512MiB".to_owned()) } else { Ok(bytes) }
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

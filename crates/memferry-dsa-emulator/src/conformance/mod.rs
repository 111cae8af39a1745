//! A conformance suite: all operations in many sizes, alignments and options, through a [`Client`], compared with a
//! naive oracle. The client may use a real device, an emulated one, or the CPU alone.
//!
//! ```
//! use memferry_dsa_emulator::conformance::{self, Thoroughness};
//! use memferry_dsa::{Client, ClientOptions};
//!
//! let client = Client::new(Vec::new(), ClientOptions::default()); // the CPU alone
//! let report = conformance::run(&client, Thoroughness::Quick, 1);
//! assert!(report.passed(), "{report}");
//! ```
//!
//! By default the CPU executes the requests that a device cannot, and the report counts them
//! ([`ClientStats::on_cpu`]). Without
//! [`ClientOptions::may_use_cpu`](memferry_dsa::ClientOptions::may_use_cpu), [`Report::lacking`] lists them.
//!
//! The suite is no cargo feature, since other crates run it as well, and a feature that only tests enable would build
//! this crate twice.

mod batches;
mod compares;
mod deltas;
mod difs;
mod moves;
mod oracle;
mod rules;
mod suite;

use std::collections::BTreeSet;
use std::fmt;

use memferry_dsa::{Client, ClientStats};
use suite::Suite;

/// The number of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thoroughness {
    /// Some hundred small requests: for runs with many seeds.
    Quick,
    /// Some thousand requests, up to 1 MiB and above the usual limit of a queue.
    Full,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed of sizes, places and data; the same seed gives the same requests.
    pub seed: u64,
    /// Requests and batches that were tried.
    pub requests: u64,
    /// Descriptions of the first failures.
    pub failures: Vec<String>,
    /// The number of all failures.
    pub failures_count: u64,
    /// Operations that no device of the client supports, if the client may not use the CPU.
    pub lacking: BTreeSet<String>,
    /// The client's counters since its creation.
    pub stats: ClientStats,
}

impl Report {
    /// Whether there are no failures.
    pub fn passed(&self) -> bool {
        self.failures_count == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClientStats { submitted, partial, retries, .. } = self.stats;
        let on_cpu = self.stats.on_cpu_total();
        writeln!(
            f,
            "seed {:#x}: {} requests, {} wrong; {submitted} descriptors, {partial} stopped by page faults, {retries} \
             retries; {on_cpu} requests done or finished by the CPU",
            self.seed, self.requests, self.failures_count
        )?;
        for lacking in &self.lacking {
            writeln!(f, "  lacking: {lacking}")?;
        }
        for failure in &self.failures {
            writeln!(f, "  wrong: {failure}")?;
        }
        Ok(())
    }
}

/// Runs all checks.
///
/// The seed determines data and places and, where there are too many combinations, a selection of them.
pub fn run(client: &Client, thoroughness: Thoroughness, seed: u64) -> Report {
    let mut suite = Suite::new(client, thoroughness, seed);
    rules::run(&mut suite);
    moves::run(&mut suite);
    compares::run(&mut suite);
    deltas::run(&mut suite);
    difs::run(&mut suite);
    batches::run(&mut suite);
    suite.report()
}

//! Whether a device, real, emulated or none, does what the specification says: all operations, in many sizes,
//! alignments and options, through a [`Client`], against a naive [`oracle`].
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
//! A client hides what a device cannot do: the CPU does it, and the report says how often
//! ([`ClientStats::on_cpu`](crate::ClientStats::on_cpu)). With
//! [`ClientOptions::may_use_cpu`](crate::ClientOptions::may_use_cpu) off, what the device lacks is listed as
//! [`Report::lacking`] instead.
//!
//! It is a part of the library, without a feature, since other crates run it as well, and a feature that only tests ask
//! for would build this crate twice.

mod batches;
mod compares;
mod deltas;
mod difs;
mod moves;
pub mod oracle;
mod rules;
mod suite;

use std::collections::BTreeSet;
use std::fmt;

use memferry_dsa::client::{Client, ClientStats};
use suite::Suite;

/// How much is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Thoroughness {
    /// Some hundred requests, small ones: for one of many seeds.
    Quick,
    /// Some thousand, up to 1 MiB and above the usual limit of a queue.
    Full,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Where sizes, places and data come from; the same seed asks the same.
    pub seed: u64,
    /// Requests and batches that were tried.
    pub requests: u64,
    /// What was wrong, the first few in full.
    pub failures: Vec<String>,
    /// What was wrong, in all.
    pub failures_count: u64,
    /// What no device of the client does, if the CPU was not allowed to.
    pub lacking: BTreeSet<String>,
    /// What the client counted, from its beginning.
    pub stats: ClientStats,
}

impl Report {
    /// Whether nothing was wrong.
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

/// Tries everything.
///
/// The seed decides about data, places and, where there are too many combinations, which are tried.
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

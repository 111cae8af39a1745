//! Random access by a primary key: the time that a query waits for memory.

use memferry::model::ModelError;
use memferry::topology::Machine;

use super::{Layout, Study};

/// What one query of figure 9 waits for.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Lookup {
    /// Reads that no cache answers.
    pub misses: f64,
    /// Mean latency of one, over the workers of all domains.
    pub latency_ns: f64,
}

/// Bytes of a line of the caches.
const LINE_BYTES: f64 = 64.0;

/// Reads beside the binary search: the row in the index, its position in the vector of C1, and the value in C1's dictionary.
const READS_BESIDE: f64 = 3.0;

/// The fact of a profile that has the last-level cache of a socket, in MiB.
const CACHE: &str = "l3_per_socket";

impl Lookup {
    /// Nanoseconds of waiting.
    pub fn wait_ns(&self) -> f64 {
        self.misses * self.latency_ns
    }
}

/// The time that a query that looks up one row waits for memory, with the table on the first domain and workers on all of them.
///
/// The query searches the sorted dictionary of C0 in halves. The caches hold the upper steps, which every query takes; the
/// others, and what follows, are misses. With sub-domains, a table of one domain is cached in that domain's part of the cache.
///
/// # Errors
/// [`ModelError::Unknown`] if latencies or the size of the cache are not known; as [`Study::of`].
pub fn lookups(machine: &Machine) -> Result<Lookup, ModelError> {
    let study = Study::of(machine)?;
    let domains: Vec<_> = study.domains().collect();
    let unknown = |what: String| ModelError::Unknown { what };
    let cache = machine.facts().iter().find(|fact| fact.name == CACHE);
    let cache_mib =
        cache.map(|fact| fact.value).ok_or_else(|| unknown(format!("the fact {CACHE} in MiB")))?;
    let latency = |from: &_| {
        let link = machine.link(*from, domains[0]);
        link.read_latency_ns.ok_or_else(|| unknown(format!("the latency of node {}", domains[0])))
    };
    let latencies = domains.iter().map(latency).collect::<Result<Vec<f64>, _>>()?;
    let part = cache_mib * f64::from(1 << 20) / domains.len() as f64;
    let lines = Layout::KEY.dictionary_bytes() / LINE_BYTES;
    let search = (lines / (part / LINE_BYTES)).log2().max(0.0);
    Ok(Lookup {
        misses: search + READS_BESIDE,
        latency_ns: latencies.iter().sum::<f64>() / latencies.len() as f64,
    })
}

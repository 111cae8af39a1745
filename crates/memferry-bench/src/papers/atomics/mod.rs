//! The cost of sharing by the distance of the threads: a hit in the cache, and the counters that other designs use for
//! one.
//!
//! ```text
//! work     hit       Cache::view of a near block and its release: writes cache lines of the thread only
//!          entry     Cache::access of it and its release: writes a count that all holders share
//!          shared    increment and decrement of a counter that all threads share: a reference count per access
//!          own       the same with a counter per thread
//! distance threads that are siblings of one core, cores of one node, nodes of one socket, sockets
//! churn    another thread accesses other blocks meanwhile, which evict each other
//! ```
//!
//! The thesis's cache counts references, one operation per access and per release. Its draft expects a cost that
//! grows with the distance of the threads and leaves the measurement to future work.
//!
//! Source: Fürst, draft of "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (23 January
//! 2024), 5.1.2, 5.1.3 and 7.2, which cites Schweizer, Besta and Hoefler, "Evaluating the Cost of Atomic Operations on
//! Modern Architectures", PACT 2015, figure 4.

mod cpus;
mod machine;
mod modelled;

pub use cpus::Places;
use memferry::topology::Machine;
use serde::{Deserialize, Serialize};

use super::point::each;
use super::{Columns, Measurement, Metric, Skipped};
use crate::harness::display_by_serde;

/// The repeated operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedWork {
    /// A hit that a view borrows.
    Hit,
    /// A hit that an entry holds.
    Entry,
    /// Increment and decrement of a counter of all threads.
    Shared,
    /// Increment and decrement of a counter of the thread.
    Own,
}

/// The distance between the threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// Hardware threads of one core.
    Sibling,
    /// Cores of one node.
    Node,
    /// Nodes of one socket.
    Nodes,
    /// Sockets.
    Sockets,
}

impl SharedWork {
    /// All operations.
    pub const ALL: [SharedWork; 4] =
        [SharedWork::Hit, SharedWork::Entry, SharedWork::Shared, SharedWork::Own];

    /// Whether it uses the cache, so that churn can disturb it.
    fn is_of_cache(self) -> bool {
        matches!(self, SharedWork::Hit | SharedWork::Entry)
    }
}

impl Distance {
    /// All distances, the nearest first.
    pub const ALL: [Distance; 4] = [Distance::Sibling, Distance::Node, Distance::Nodes, Distance::Sockets];
}

display_by_serde!(SharedWork, Distance);

/// A complete description of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Point {
    /// The operation of each thread.
    pub work: SharedWork,
    /// Number of threads.
    pub threads: usize,
    /// Their distance; `None` for one thread.
    pub distance: Option<Distance>,
    /// Whether another thread causes evictions meanwhile.
    #[serde(rename = "churn")]
    pub is_churned: bool,
}

impl Columns for Point {
    const COLUMNS: &'static [&'static str] = &["work", "threads", "distance", "churn"];
}

impl Point {
    /// Name of its row: the metric unless it is the latency, and all columns.
    pub fn row_name(&self, metric: Metric) -> String {
        let metric = (metric != Metric::LATENCY).then(|| metric.name.to_owned());
        let mut words: Vec<String> = ["atomics".to_owned()].into_iter().chain(metric).collect();
        words.extend([self.work.to_string(), format!("threads{}", self.threads)]);
        words.extend(self.distance.map(|distance| distance.to_string()));
        words.extend(self.is_churned.then(|| "churn".to_owned()));
        words.join("_")
    }
}

/// A number of threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// This number.
    Count(usize),
    /// One per CPU at the distance, at least two.
    All,
}

/// The values of all axes; points are their combinations.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct Axes {
    pub works: Vec<SharedWork>,
    pub threads: Vec<Threads>,
    pub distances: Vec<Distance>,
    pub churns: Vec<bool>,
}

impl Default for Axes {
    /// All operations, distances and churns, with one thread, two and all.
    fn default() -> Axes {
        Axes {
            works: SharedWork::ALL.to_vec(),
            threads: vec![Threads::Count(1), Threads::Count(2), Threads::All],
            distances: Distance::ALL.to_vec(),
            churns: vec![false, true],
        }
    }
}

impl Axes {
    /// All sensible combinations, each once: one thread has no distance, and counters have no churn.
    pub fn points(&self, places: &Places) -> Vec<Point> {
        let first = Point { work: SharedWork::Hit, threads: 0, distance: None, is_churned: false };
        let mut points = vec![first];
        each(&mut points, &self.churns, |point, &is_churned| point.is_churned = is_churned);
        each(&mut points, &self.distances, |point, &distance| point.distance = Some(distance));
        let mut counted: Vec<(Point, Threads)> =
            points.into_iter().map(|point| (point, Threads::All)).collect();
        each(&mut counted, &self.threads, |(_, threads), &wanted| *threads = wanted);
        each(&mut counted, &self.works, |(point, _), &work| point.work = work);
        let mut points: Vec<Point> = Vec::with_capacity(counted.len());
        for (point, threads) in counted {
            let threads = match threads {
                Threads::Count(count) => count,
                Threads::All => point.distance.map_or(1, |distance| places.cpus(distance).len()).max(2),
            };
            let distance = point.distance.filter(|_| threads > 1);
            let point = Point { threads, distance, ..point };
            if (point.work.is_of_cache() || !point.is_churned) && !points.contains(&point) {
                points.push(point);
            }
        }
        points
    }
}

/// The length of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicsRuns {
    /// Values of each metric.
    pub iterations: usize,
    /// Accesses of each thread in an iteration; a few milliseconds outweigh the start of the threads.
    pub accesses_count: usize,
}

impl AtomicsRuns {
    /// For records.
    pub const FULL: AtomicsRuns = AtomicsRuns { iterations: 10, accesses_count: 1 << 18 };
    /// As short as possible: checks that it works.
    pub const QUICK: AtomicsRuns = AtomicsRuns { iterations: 2, accesses_count: 1 << 8 };
}

/// Runs points on this machine or in the model.
#[derive(Debug)]
pub struct Atomics {
    machine: Machine,
    places: Places,
    on: On,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum On {
    Machine,
    Emulated,
    Model,
}

impl Atomics {
    /// The CPUs of this machine.
    pub fn on_machine(machine: Machine) -> Atomics {
        Atomics { places: Places::of(&machine), machine, on: On::Machine }
    }

    /// The emulated device: it has no atomics and refuses every point.
    pub fn on_emulated(machine: Machine) -> Atomics {
        Atomics { places: Places::of(&machine), machine, on: On::Emulated }
    }

    /// The model by the latencies of a machine.
    pub fn on_model(machine: Machine) -> Atomics {
        Atomics { places: Places::of(&machine), machine, on: On::Model }
    }

    /// The machine that is measured, emulated or modelled.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Its CPUs by distance.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Runs a point.
    ///
    /// # Errors
    /// [`Skipped::Cannot`] is recorded, [`Skipped::Failed`] ends the run.
    pub fn run(&self, point: &Point, effort: AtomicsRuns) -> Result<Vec<Measurement>, Skipped> {
        if point.threads == 0 || point.distance.is_some() != (point.threads > 1) {
            return Skipped::cannot("one thread has no distance, several threads need one");
        }
        if point.is_churned && !point.work.is_of_cache() {
            return Skipped::cannot("a counter has no blocks to evict, hence no churn");
        }
        match self.on {
            On::Emulated => {
                Skipped::cannot("the emulated device has no cores, which could share a cache line")
            }
            On::Machine => machine::run(&self.machine, self.cpus(point)?, point, effort),
            On::Model => modelled::run(&self.machine, &self.cpus(point)?, point).map(|taken| vec![taken]),
        }
    }

    /// The CPUs of the threads.
    fn cpus(&self, point: &Point) -> Result<Vec<u32>, Skipped> {
        let Some(distance) = point.distance else { return Ok(self.places.first().into_iter().collect()) };
        let cpus = self.places.cpus(distance);
        match cpus.get(..point.threads) {
            Some(cpus) => Ok(cpus.to_vec()),
            None => Skipped::cannot(format!(
                "of {}, {} has only {}, not {}",
                distance.what(),
                self.machine.name(),
                cpus.len(),
                point.threads
            )),
        }
    }
}

impl Distance {
    fn what(self) -> &'static str {
        match self {
            Distance::Sibling => "hardware threads in one core",
            Distance::Node => "cores in one node",
            Distance::Nodes => "CPUs in several nodes of one socket",
            Distance::Sockets => "CPUs in several sockets",
        }
    }
}

#[cfg(test)]
mod tests;

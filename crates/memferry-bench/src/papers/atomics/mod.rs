//! What sharing costs, by the distance of those who share: a hit in the cache, and the counters that other designs
//! pay for one.
//!
//! ```text
//! work     hit       Cache::view of a near block, and letting go of it: writes lines that are the thread's own
//!          entry     Cache::access of it, and letting go: writes a count that all holders share
//!          shared    one added to and taken off a counter that all threads share: a reference count for each access
//!          own       the same with a counter for each thread
//! distance threads that are siblings of one core, cores of one node, nodes of one socket, sockets
//! churn    another thread has other blocks cached meanwhile, for which there is no room unless some leave
//! ```
//!
//! The thesis's cache counts references, one operation for each access and each release, and its draft expects that to
//! cost more the farther the threads are from each other; measuring it is left to future work.
//!
//! Source: Fürst, draft of "Data Movement in Heterogeneous Memories with Intel Data Streaming Accelerator" (23 January
//! 2024), 5.1.2, 5.1.3 and 7.2, which cites Schweizer, Besta and Hoefler, "Evaluating the Cost of Atomic Operations on
//! Modern Architectures", PACT 2015, figure 4.

mod cpus;
mod machine;
mod modelled;

pub use cpus::Places;
use memferry::topology::Machine;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::Skipped;
use super::point::each;

/// What is done again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A hit that is borrowed.
    Hit,
    /// A hit that is held by an entry.
    Entry,
    /// A counter of all threads, up and down.
    Shared,
    /// A counter of the thread alone, up and down.
    Own,
}

/// How far the threads are from each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
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

impl Work {
    /// All of them.
    pub const ALL: [Work; 4] = [Work::Hit, Work::Entry, Work::Shared, Work::Own];

    /// Its name in records and options.
    pub fn name(self) -> &'static str {
        match self {
            Work::Hit => "hit",
            Work::Entry => "entry",
            Work::Shared => "shared",
            Work::Own => "own",
        }
    }

    /// Whether it is the cache that works, so that it can be disturbed.
    fn is_of_cache(self) -> bool {
        matches!(self, Work::Hit | Work::Entry)
    }
}

impl Distance {
    /// All of them, the nearest first.
    pub const ALL: [Distance; 4] = [Distance::Sibling, Distance::Node, Distance::Nodes, Distance::Sockets];

    /// Its name in records and options.
    pub fn name(self) -> &'static str {
        match self {
            Distance::Sibling => "sibling",
            Distance::Node => "node",
            Distance::Nodes => "nodes",
            Distance::Sockets => "sockets",
        }
    }
}

/// Something that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Time of an access and its release, for each thread.
    Latency,
    /// Share of the accesses that found their block near.
    HitRate,
}

impl Figure {
    /// Its name in records.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Latency => "latency",
            Figure::HitRate => "hit_rate",
        }
    }

    /// Its unit in records.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Latency => "ns",
            Figure::HitRate => "1",
        }
    }

    /// Whether more of it is better.
    pub fn is_more_better(self) -> bool {
        self == Figure::HitRate
    }
}

/// One thing that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// What each thread does.
    pub work: Work,
    /// How many threads.
    pub threads: usize,
    /// How far they are from each other; `None` for one alone.
    pub distance: Option<Distance>,
    /// Whether somebody has blocks leave and come meanwhile.
    pub is_churned: bool,
}

impl Point {
    /// Names of [`columns`](Point::columns), in their order in records.
    pub const COLUMNS: [&str; 4] = ["work", "threads", "distance", "churn"];

    /// The columns of a record.
    pub fn columns(&self) -> Map<String, Value> {
        let values = [
            self.work.name().into(),
            self.threads.into(),
            self.distance.map_or(Value::Null, |distance| distance.name().into()),
            self.is_churned.into(),
        ];
        Point::COLUMNS.into_iter().map(str::to_owned).zip(values).collect()
    }

    /// Name of its row: the figure unless it is the latency, and everything else.
    pub fn row_name(&self, figure: Figure) -> String {
        let mut words = vec!["atomics".to_owned()];
        words.extend((figure != Figure::Latency).then(|| figure.name().to_owned()));
        words.push(self.work.name().to_owned());
        words.push(format!("threads{}", self.threads));
        words.extend(self.distance.map(|distance| distance.name().to_owned()));
        words.extend(self.is_churned.then(|| "churn".to_owned()));
        words.join("_")
    }
}

/// How many threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// So many.
    Count(usize),
    /// As many as there are CPUs at the distance, two at least.
    All,
}

/// The values of all axes; points are their combinations.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct Axes {
    pub works: Vec<Work>,
    pub threads: Vec<Threads>,
    pub distances: Vec<Distance>,
    pub churns: Vec<bool>,
}

impl Default for Axes {
    /// Everything, with one thread, two and all.
    fn default() -> Axes {
        Axes {
            works: Work::ALL.to_vec(),
            threads: vec![Threads::Count(1), Threads::Count(2), Threads::All],
            distances: Distance::ALL.to_vec(),
            churns: vec![false, true],
        }
    }
}

impl Axes {
    /// All combinations that make sense, each once: one thread has no distance, and counters no churn.
    pub fn points(&self, places: &Places) -> Vec<Point> {
        let first = Point { work: Work::Hit, threads: 0, distance: None, is_churned: false };
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

/// What a point yields of one figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// Which one.
    pub figure: Figure,
    /// Of each iteration, in the figure's unit.
    pub values: Vec<f64>,
    /// What to know of it, if anything.
    pub note: Option<String>,
}

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Values of each figure.
    pub iterations: usize,
    /// Accesses of each thread in an iteration: a few milliseconds of them outweigh the start of the threads.
    pub accesses_count: usize,
}

impl Effort {
    /// For the record.
    pub const FULL: Effort = Effort { iterations: 10, accesses_count: 1 << 18 };
    /// To see that it works.
    pub const QUICK: Effort = Effort { iterations: 2, accesses_count: 1 << 8 };
}

/// Whoever runs points.
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

    /// The emulated device: it has no atomics, and says so of every point.
    pub fn on_emulated(machine: Machine) -> Atomics {
        Atomics { places: Places::of(&machine), machine, on: On::Emulated }
    }

    /// What the latencies of a machine say.
    pub fn on_model(machine: Machine) -> Atomics {
        Atomics { places: Places::of(&machine), machine, on: On::Model }
    }

    /// The machine that it is, has devices like, or computes.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Which CPUs are how far from each other there.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Runs a point.
    ///
    /// # Errors
    /// [`Skipped::Cannot`] is a result too, and [`Skipped::Failed`] the end of the run.
    pub fn run(&self, point: &Point, effort: Effort) -> Result<Vec<Taken>, Skipped> {
        if point.threads == 0 || point.distance.is_some() != (point.threads > 1) {
            return Skipped::cannot("threads are one alone, or several at a distance");
        }
        if point.is_churned && !point.work.is_of_cache() {
            return Skipped::cannot("a counter has nothing that could leave");
        }
        match self.on {
            On::Emulated => Skipped::cannot("the emulated device has no cores that could share a cache line"),
            On::Machine => machine::run(&self.machine, self.cpus(point)?, point, effort),
            On::Model => modelled::run(&self.machine, &self.cpus(point)?, point).map(|taken| vec![taken]),
        }
    }

    /// Where the threads run.
    fn cpus(&self, point: &Point) -> Result<Vec<u32>, Skipped> {
        let Some(distance) = point.distance else { return Ok(self.places.first().into_iter().collect()) };
        let cpus = self.places.cpus(distance);
        match cpus.get(..point.threads) {
            Some(cpus) => Ok(cpus.to_vec()),
            None => Skipped::cannot(format!(
                "of {}, {} has {}, and not {}",
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

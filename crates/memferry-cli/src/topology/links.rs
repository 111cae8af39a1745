//! The links from CPUs to memories, and their classes.
//!
//! A machine with 16 nodes has 256 links of few kinds: to the domain's own memory, to another domain of the socket, to
//! another socket, for each tier. If the links of a class agree, the class is shown instead of each link.

use memferry::topology::{Link, Machine, Node};

use super::overview::{tier_of_memory, tier_rank};

/// The links from all nodes with CPUs to all nodes with memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    pub(super) from: Vec<Node>,
    pub(super) to: Vec<Node>,
    /// `rows[i][j]`: from the CPUs of `from[i]` to the memory of `to[j]`.
    pub(super) rows: Vec<Vec<Link>>,
}

/// A property of a link.
pub(super) struct Metric {
    pub(super) title: &'static str,
    /// A shorter title with the unit.
    pub(super) heading: &'static str,
    pub(super) more_is_better: bool,
    decimals: usize,
    of: Of,
}

pub(super) const METRICS: [Metric; 5] = [
    less("Distance (10 is local)", "distance", |link| link.distance.map(f64::from)),
    more("Read bandwidth in GB/s", "read GB/s", |link| link.read_bytes_per_s.map(|rate| rate as f64 / 1e9)),
    more("Write bandwidth in GB/s", "write GB/s", |link| {
        link.write_bytes_per_s.map(|rate| rate as f64 / 1e9)
    }),
    less("Read latency in ns", "read ns", |link| link.read_latency_ns),
    less("Write latency in ns", "write ns", |link| link.write_latency_ns),
];

type Of = fn(&Link) -> Option<f64>;

const fn less(title: &'static str, heading: &'static str, of: Of) -> Metric {
    Metric { title, heading, more_is_better: false, decimals: 0, of }
}

const fn more(title: &'static str, heading: &'static str, of: Of) -> Metric {
    Metric { title, heading, more_is_better: true, decimals: 1, of }
}

impl Metric {
    pub(super) fn of(&self, link: &Link) -> Option<f64> {
        (self.of)(link).filter(|value| value.is_finite())
    }

    /// The value with a few digits; a small value is not rounded to 0.
    pub(super) fn text(&self, value: f64) -> String {
        if value >= 1e6 || (value > 0.0 && value < 1e-3) {
            return format!("{value:.1e}");
        }
        let decimals = if value > 0.0 && value < 1.0 { 3 } else { self.decimals };
        format!("{value:.decimals$}")
    }
}

/// The place of a memory relative to CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Own,
    SameSocket,
    OtherSocket,
    /// The socket of the CPUs or of the memory is unknown.
    Elsewhere,
}

/// The links to memory of one tier in one place.
pub(super) struct Class {
    pub(super) name: String,
    /// For each of [`METRICS`].
    pub(super) ranges: [Range; METRICS.len()],
}

/// The range of a metric in a class.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Range {
    /// Smallest and largest.
    known: Option<(f64, f64)>,
    some_unknown: bool,
}

/// Values with a smaller ratio count as equal. Greinsmark 2020, table 8, has 0.3 % between equal domains.
const ALIKE_RATIO: f64 = 1.01;

impl Links {
    pub(super) fn of(machine: &Machine) -> Links {
        let from: Vec<Node> = machine.nodes().iter().filter(|node| !node.cpus.is_empty()).cloned().collect();
        let to: Vec<Node> = machine.nodes().iter().filter(|node| node.has_memory()).cloned().collect();
        let row = |from: &Node| to.iter().map(|to| machine.link(from.id, to.id)).collect();
        Links { rows: from.iter().map(row).collect(), from, to }
    }

    /// Whether a metric is known for any link. The distance of a single node to itself does not count.
    pub(super) fn are_known(&self, metric: &Metric) -> bool {
        let trivial = metric.heading == "distance" && self.from.len() == 1 && self.to.len() == 1;
        !trivial && self.rows.iter().flatten().any(|link| metric.of(link).is_some())
    }

    pub(super) fn known_metrics(&self) -> Vec<(usize, &'static Metric)> {
        METRICS.iter().enumerate().filter(|(_, metric)| self.are_known(metric)).collect()
    }

    /// The classes, nearest first, without classes of unknown links.
    pub(super) fn classes(&self) -> Vec<Class> {
        let mut keys: Vec<(Place, usize)> = Vec::new();
        let mut classes: Vec<Class> = Vec::new();
        for (from, row) in self.from.iter().zip(&self.rows) {
            for (to, link) in self.to.iter().zip(row) {
                let key = (place(from, to), tier_rank(to.tier));
                let index = keys.binary_search(&key).unwrap_or_else(|index| {
                    keys.insert(index, key);
                    classes.insert(index, Class { name: name(key.0, to), ranges: Default::default() });
                    index
                });
                for (range, metric) in classes[index].ranges.iter_mut().zip(&METRICS) {
                    range.add(metric.of(link));
                }
            }
        }
        classes.retain(|class| class.ranges.iter().any(|range| range.known.is_some()));
        classes
    }

    /// Whether a metric has one value in each class.
    pub(super) fn are_alike(classes: &[Class], metric: usize) -> bool {
        classes.iter().all(|class| class.ranges[metric].is_alike())
    }
}

impl Range {
    fn add(&mut self, value: Option<f64>) {
        match (value, &mut self.known) {
            (None, _) => self.some_unknown = true,
            (Some(value), None) => self.known = Some((value, value)),
            (Some(value), Some((min, max))) => (*min, *max) = (min.min(value), max.max(value)),
        }
    }

    fn is_alike(&self) -> bool {
        match self.known {
            Some((min, max)) => !self.some_unknown && max <= min * ALIKE_RATIO,
            None => true,
        }
    }

    /// `58.1`, `15.3-18.8`, `?`.
    pub(super) fn text(&self, metric: &Metric) -> String {
        let Some((min, max)) = self.known else { return "?".to_owned() };
        let (min, max) = (metric.text(min), metric.text(max));
        let mut text = if min == max { min } else { format!("{min}-{max}") };
        if self.some_unknown {
            text += " or ?";
        }
        text
    }
}

fn place(from: &Node, to: &Node) -> Place {
    match (from.socket, to.socket) {
        _ if to.cpu_node == from.id => Place::Own,
        (Some(from), Some(to)) if from == to => Place::SameSocket,
        (Some(_), Some(_)) => Place::OtherSocket,
        _ => Place::Elsewhere,
    }
}

fn name(place: Place, to: &Node) -> String {
    let tier = tier_of_memory(to.tier);
    match place {
        Place::Own => format!("own {tier}"),
        Place::SameSocket => format!("{tier}, same socket"),
        Place::OtherSocket => format!("{tier}, other socket"),
        Place::Elsewhere => format!("{tier} elsewhere"),
    }
}

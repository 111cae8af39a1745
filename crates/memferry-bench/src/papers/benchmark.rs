//! What a benchmark is: axes, and figures of their combinations.

use memferry::topology::{Machine, NodeId, Tier};

use super::axis::Axis;
use super::figure::Figure;
use super::papers::BENCHMARKS;
use super::point::{Axes, Point};

/// A benchmark of the papers.
#[derive(Debug)]
pub struct Benchmark {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows, and where that was published.
    pub about: &'static str,
    /// What it looks at, first of all the first.
    pub figures: &'static [Figure],
    /// What it varies, and names rows by.
    pub varied: &'static [Axis],
    /// The values of the axes; few and small ones if the run is to be quick.
    pub axes: fn(is_quick: bool) -> Axes,
    /// Which of the combinations are meant.
    pub is_meant: fn(&Point) -> bool,
    /// Kinds of memory that it is about: their nodes are sources and targets as well.
    pub tiers: &'static [Tier],
}

impl Benchmark {
    /// The values of the axes on a machine: where it does not have the papers' nodes, all of its own.
    pub fn axes_on(&self, machine: &Machine, is_quick: bool) -> Axes {
        let mut axes = (self.axes)(is_quick);
        let is_there = |node: &Option<NodeId>| node.is_none_or(|node| machine.node(node).is_ok());
        if !axes.sources.iter().chain(&axes.targets).all(is_there) {
            let with_cpus = machine.nodes().iter().filter(|node| !node.cpus.is_empty());
            let with_memory = machine.nodes().iter().filter(|node| node.has_memory());
            axes.sources = with_cpus.map(|node| Some(node.id)).take(axes.sources.len()).collect();
            axes.targets = with_memory.map(|node| Some(node.id)).collect();
        }
        for node in self.own_nodes(machine) {
            for nodes in [&mut axes.sources, &mut axes.targets] {
                if !nodes.contains(&Some(node)) {
                    nodes.push(Some(node));
                }
            }
        }
        axes
    }

    fn own_nodes(&self, machine: &Machine) -> impl Iterator<Item = NodeId> {
        machine.nodes().iter().filter(|node| self.tiers.contains(&node.tier)).map(|node| node.id)
    }

    /// Kinds of memory that it is about and `machine` has not.
    pub fn lacks(&self, machine: &Machine) -> Vec<Tier> {
        let has = |tier: &Tier| machine.nodes().iter().any(|node| node.tier == *tier);
        self.tiers.iter().copied().filter(|tier| !has(tier)).collect()
    }

    /// The points of these axes.
    pub fn points(&self, axes: &Axes) -> Vec<Point> {
        axes.points().into_iter().filter(self.is_meant).collect()
    }

    /// Name of a point's row: the figure, unless it is the benchmark's first, what the benchmark varies, and what these
    /// axes do.
    pub fn row_name(&self, axes: &Axes, point: &Point, figure: Figure) -> String {
        let varied = axes.varied();
        let is_named = |axis: &Axis| self.varied.contains(axis) || varied.contains(axis);
        let named: Vec<Axis> = Axis::ALL.into_iter().filter(is_named).collect();
        let figure = if figure == self.figures[0] { "" } else { figure.name() };
        let words = [self.name.to_owned(), figure.to_owned(), point.name(&named)];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
    }
}

/// The benchmark with this name.
pub fn benchmark(name: &str) -> Option<&'static Benchmark> {
    BENCHMARKS.iter().find(|benchmark| benchmark.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_of_the_machine() {
        let routes = benchmark("routes").unwrap();
        let axes = |name| routes.axes_on(&Machine::from_profile(name).unwrap(), false);
        assert_eq!(axes("xeon-max-9468-2s-flat"), (routes.axes)(false));
        let other = axes("skylake-8180-snc-off");
        assert_eq!((other.sources, other.targets.len()), (vec![Some(NodeId(0))], 2));
    }

    /// What a machine does not have is said, and what it has is measured.
    #[test]
    fn memory_behind_cxl() {
        let remote = benchmark("remote").unwrap();
        let without = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        assert_eq!(remote.lacks(&without), [Tier::Cxl]);
        assert!(benchmark("routes").unwrap().lacks(&without).is_empty());
        let text = include_str!("../../../memferry/machines/made-up-two-tiers.json");
        let with = Machine::from_profile_text("with CXL", &text.replace("\"hbm\"", "\"cxl\"")).unwrap();
        let cxl = with.nodes().iter().find(|node| node.tier == Tier::Cxl).unwrap().id;
        let axes = remote.axes_on(&with, true);
        assert!(remote.lacks(&with).is_empty());
        assert!(axes.sources.contains(&Some(cxl)) && axes.targets.contains(&Some(cxl)), "{axes:?}");
        assert_eq!(axes.targets.iter().filter(|node| **node == Some(cxl)).count(), 1);
    }
}

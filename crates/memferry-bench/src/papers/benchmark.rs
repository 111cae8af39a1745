//! A benchmark: axes, and metrics of their combinations.

use memferry::topology::{Machine, NodeId, Tier};

use super::benchmarks::BENCHMARKS;
use super::columns::Columns;
use super::metric::Metric;
use super::point::{Axes, Point};

/// A benchmark of the papers.
#[derive(Debug)]
pub struct Benchmark {
    /// Its name on the command line.
    pub name: &'static str,
    /// Description and source.
    pub about: &'static str,
    /// Metrics; the first is the main one.
    pub metrics: &'static [Metric],
    /// The columns of the axes that it varies, which name its rows.
    pub varied: &'static [&'static str],
    /// Values of the axes; few and small ones for a quick run.
    pub axes: fn(is_quick: bool) -> Axes,
    /// Selects the sensible combinations.
    pub is_meant: fn(&Point) -> bool,
    /// Kinds of memory under test: their nodes become sources and targets as well.
    pub tiers: &'static [Tier],
}

impl Benchmark {
    /// Values of the axes on a machine: its own nodes if it lacks those of the papers.
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

    /// Kinds of memory under test that `machine` lacks.
    pub fn lacks(&self, machine: &Machine) -> Vec<Tier> {
        let has = |tier: &Tier| machine.nodes().iter().any(|node| node.tier == *tier);
        self.tiers.iter().copied().filter(|tier| !has(tier)).collect()
    }

    /// The points of these axes.
    pub fn points(&self, axes: &Axes) -> Vec<Point> {
        axes.points().into_iter().filter(self.is_meant).collect()
    }

    /// Name of a point's row: the metric unless it is the main one, and the axes that the benchmark or `axes` vary.
    pub fn row_name(&self, axes: &Axes, point: &Point, metric: Metric) -> String {
        let varied = axes.varied();
        let is_named = |column: &&str| self.varied.contains(column) || varied.contains(column);
        let named: Vec<&str> = Point::COLUMNS.iter().copied().filter(is_named).collect();
        let metric = if metric == self.metrics[0] { "" } else { metric.name };
        let words = [self.name.to_owned(), metric.to_owned(), point.name(&named)];
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
    fn nodes_exist_on_the_machine() {
        let routes = benchmark("routes").unwrap();
        let axes = |name| routes.axes_on(&Machine::from_profile(name).unwrap(), false);
        assert_eq!(axes("xeon-max-9468-2s-flat"), (routes.axes)(false));
        let other = axes("skylake-8180-snc-off");
        assert_eq!((other.sources, other.targets.len()), (vec![Some(NodeId(0))], 2));
    }

    /// Missing kinds of memory are listed, present ones are measured.
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

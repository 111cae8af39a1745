//! Figures of sub-domains of sockets, and of links between nodes.

use anyhow::Result;
use memferry::topology::{Link, Machine, NodeId};

use super::super::figure::{Axis, Figure, Kind, Point, Scale};
use super::Papers;
use memferry_bench::harness::Provenance;

impl Papers {
    /// Figures of sub-domains: the study's scans, and published rates and latencies.
    pub(in crate::report) fn domain_figures(&self) -> Result<Vec<Figure>> {
        let machines = [
            ("skylake-8180-snc-off", "Xeon 8180"),
            ("skylake-8180-snc-on", "Xeon 8180, SNC"),
            ("broadwell-2699v4-cod-off", "Xeon E5-2699 v4"),
            ("broadwell-2699v4-cod-on", "Xeon E5-2699 v4, COD"),
        ];
        let matrices = [
            ("latency-by-domain", LATENCY, "tables 1, 2, 5 and 6"),
            ("bandwidth-by-domain", BANDWIDTH, "tables 3, 4, 7 and 8"),
        ];
        let mut figures = self.study_figures()?;
        for (name, matrix, tables) in matrices {
            let about = format!("Greinsmark 2020, {tables}, with sub-domains (SNC, COD) off and on.");
            let mut figure = matrix.figure(name, &about);
            for (profile, title) in machines {
                let machine = Machine::from_profile(profile)?;
                figure.points.extend(matrix.points(&machine, Provenance::Published, title));
            }
            figures.push(figure);
        }
        Ok(figures)
    }
}

/// A figure of the links between nodes, as a heat map.
pub(in crate::report) struct Matrix {
    kind: Kind,
    title: &'static str,
    unit: &'static str,
    of: fn(&Link) -> Option<f64>,
}

pub(in crate::report) const LATENCY: Matrix =
    Matrix { kind: Kind::HeatLess, title: "Latency of reads", unit: "ns", of: |link| link.read_latency_ns };

pub(in crate::report) const BANDWIDTH: Matrix = Matrix {
    kind: Kind::HeatMore,
    title: "Bandwidth of reads",
    unit: "GB/s",
    of: |link| link.read_bytes_per_s.map(|rate| rate as f64 / 1e9),
};

impl Matrix {
    pub(in crate::report) fn figure(&self, name: &str, about: &str) -> Figure {
        let mut figure = Figure::new(name, self.kind, self.title);
        figure.about = about.to_owned();
        figure.x = Axis::new("row: CPUs of node, column: memory of node", Scale::Linear);
        figure.y = Axis::new(self.unit, Scale::Linear);
        figure
    }

    /// The known values from CPUs to memories of a machine.
    pub(in crate::report) fn points(&self, machine: &Machine, how: Provenance, panel: &str) -> Vec<Point> {
        let from = machine.nodes().iter().filter(|node| !node.cpus.is_empty());
        let ways = from.flat_map(|from| {
            machine.nodes().iter().filter(|node| node.has_memory()).map(move |to| (from.id, to.id))
        });
        let point = |(from, to): (NodeId, NodeId)| {
            let value = (self.of)(&machine.link(from, to))?;
            Some(Point::new(from.to_string(), how, to.to_string(), value).in_panel(panel))
        };
        ways.filter_map(point).collect()
    }
}

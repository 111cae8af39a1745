//! Figures 6, 10 and 15: copies between memories and caches.

use anyhow::Result;
use memferry::mover::Route;
use memferry::topology::{Machine, Node, NodeId, Tier};
use memferry_bench::model::devices_rate;
use memferry_bench::papers::{Axes, Backend, Data, Metric, OnModel, Way};

use super::super::XEON_MAX;
use super::{
    Axis, Figure, GB, GB_PER_S, IN_FLIGHT, KB, Kuper, MIB, Place, Point, Provenance, Row, Scale, is_by_core,
    is_by_device, over_sizes, powers, size_of,
};

impl Kuper<'_> {
    pub(super) fn memories(&self) -> Result<Figure> {
        let mut figure = over_sizes("6", "copies between memories, waited for", "");
        figure.y = Axis::new("", Scale::Log);
        figure.about = "Local (L) and remote (R) DRAM, as source and target. The text prints where latencies \
                        break even, over all memories; it calls remote memory similar to local. Modelled on two \
                        sockets of a Xeon Max, since the profile of the publication's machine has one. Part b, \
                        CXL, appears where a record has such memory: its rates are not printed."
            .to_owned();
        let two_sockets = OnModel::new(Machine::from_profile(XEON_MAX)?)?;
        let ends = [0, 4].map(|node| Some(NodeId(node))).to_vec();
        let points = |way, route| {
            let sizes_bytes = powers(8, 20).collect();
            let (sources, targets) = (ends.clone(), ends.clone());
            Axes { ways: vec![way], routes: vec![route], sizes_bytes, sources, targets, ..Axes::default() }
                .points()
        };
        let mut points = [points(Way::Any, Some(Route::Single)), points(Way::Core, None)].concat();
        points.retain(|point| point.way != Way::Core || point.source != point.target);
        points.retain(|point| point.way != Way::Core || point.source == Some(NodeId(0)));
        let copies = self.points_of(("remote", Metric::THROUGHPUT, 1.0), (&two_sockets, &points), |row| {
            let is_modelled = row.how == Some(Provenance::Modelled);
            let machine = if is_modelled { two_sockets.machine() } else { self.machine };
            let ends = [row.number("source")?, row.number("target")?].map(|node| NodeId(node as u32));
            let [source, target] = ends.map(|node| memory(machine, node));
            let (source, target) = (source?, target?);
            let who = match (is_by_device(row), is_by_core(row)) {
                (true, _) => "DSA",
                // The publication has one of a core.
                (_, true) if source == 'L' && target != 'L' => "CPU",
                _ => return None,
            };
            let part = if source == 'C' || target == 'C' { "b" } else { "a" };
            Some(Place::new(part, format!("{who}: {source},{target}"), size_of(row)?))
        })?;
        for (part, panels) in [
            ("a", ["a: throughput in GB/s", "a: latency in µs"]),
            ("b", ["b: throughput in GB/s", "b: latency in µs"]),
        ] {
            let own = copies.iter().filter(|point| point.panel == part).cloned().collect();
            rates_and_latencies(&mut figure, own, panels);
        }
        self.upright_rule(&mut figure, "a: latency in µs", "break-even, from", ("K040", KB));
        self.upright_rule(&mut figure, "a: latency in µs", "break-even, to", ("K041", KB));
        Ok(figure)
    }

    pub(super) fn devices(&self) -> Result<Figure> {
        let mut figure = over_sizes("10", "copies by the number of devices", GB_PER_S);
        figure.about = "32 in flight for each device, targets in the last-level cache. Published: the size \
                        beyond which three and four devices slow down, and to what; the rate of four was \
                        calibrated on. Until there the text says \"linear\"."
            .to_owned();
        let name = |count: usize| if count == 1 { "1 DSA".to_owned() } else { format!("{count} DSAs") };
        for count in 1..=4 {
            for bytes in powers(10, 20) {
                let rate = devices_rate(&self.hardware, &self.offload, count, bytes as f64, IN_FLIGHT)?;
                figure.points.push(Place::new("", name(count), bytes).modelled(rate * GB));
            }
        }
        self.dot(&mut figure, &Place::new("", name(3), MIB), "K051");
        self.dot(&mut figure, &Place::new("", name(4), MIB), "K052");
        self.upright_rule(&mut figure, "", "3 and 4 slow down beyond", ("K050", KB));
        Ok(figure)
    }

    pub(super) fn caches(&self) -> Result<Figure> {
        let mut figure = over_sizes("15", "copies from and to the cache", "");
        figure.y = Axis::new("", Scale::Log);
        figure.about = "Source and target in the last-level cache (L) or in local DRAM (D), batch size 1. \
                        Published are the sizes from which a device pays, from and to all of them. In the model \
                        a device reads caches as fast as memory, and is slower only where its targets exceed its \
                        part of the cache, so that lines lie on each other. The model has no caches of cores."
            .to_owned();
        let data = vec![Data::Memory, Data::CachedSource, Data::CachedTarget, Data::Cached];
        let points = |depth| {
            let (ways, depths, data) = (vec![Way::Any], vec![depth], data.clone());
            Axes { ways, depths, data, sizes_bytes: powers(7, 20).collect(), ..Axes::default() }.points()
        };
        let core = |panel: &str, factor: f64| {
            let point = |bytes: u64| {
                let rate = bytes as f64 / self.offload.core_s(bytes as f64);
                Place::new(panel, "CPU: D,D", bytes).modelled(rate * factor)
            };
            powers(7, 20).map(point).collect::<Vec<_>>()
        };
        let place = |panel: &str, row: &Row| {
            let ends = match row.text("data").as_deref()? {
                "memory" => "D,D",
                "cached-source" => "L,D",
                "cached-target" => "D,L",
                "cached" => "L,L",
                _ => return None,
            };
            let who = match is_by_core(row) {
                // More would be too many to tell apart.
                true if ends == "L,D" || ends == "D,L" => return None,
                true => "CPU",
                false if is_by_device(row) => "DSA",
                false => return None,
            };
            Some(Place::new(panel, format!("{who}: {ends}"), size_of(row)?))
        };
        let of = ("target", Metric::THROUGHPUT, 1.0);
        let mut copies = self.points_of(of, (&self.model, &points(1)), |row| place("", row))?;
        copies.extend(core("", 1.0));
        rates_and_latencies(&mut figure, copies, [SYNC_RATE, SYNC_LATENCY]);
        // The benchmark waits for its copies, so that only the model has these.
        let of = ("target", Metric::THROUGHPUT, GB);
        figure.points.extend(self.points_of(of, (&self.model, &points(IN_FLIGHT)), |row| {
            place(ASYNC_RATE, row).filter(|_| row.how == Some(Provenance::Modelled))
        })?);
        figure.points.extend(core(ASYNC_RATE, GB));
        self.upright_rule(&mut figure, SYNC_RATE, "pays from", ("K072", KB));
        self.upright_rule(&mut figure, ASYNC_RATE, "pays from", ("K073", 1.0));
        self.upright_rule(&mut figure, SYNC_LATENCY, "pays from", ("K072", KB));
        Ok(figure)
    }
}

const SYNC_RATE: &str = "Sync: throughput in GB/s";
const SYNC_LATENCY: &str = "Sync: latency in µs";
const ASYNC_RATE: &str = "Async: throughput in GB/s";

/// Adds copies that are waited for one by one, from their rates in bytes per second: a panel with these, and one with
/// their latencies.
fn rates_and_latencies(figure: &mut Figure, copies: Vec<Point>, [rates, latencies]: [&str; 2]) {
    for it in &copies {
        let gb = |rate| rate * GB;
        let range = it.range.map(|(low, high)| (gb(low), gb(high)));
        figure.points.push(Point { y: it.y.map(gb), range, ..it.clone() }.in_panel(rates));
    }
    for it in copies {
        let Ok(bytes) = it.x.parse::<f64>() else { continue };
        let us = |rate| bytes / rate * 1e6;
        let range = it.range.map(|(low, high)| (us(high), us(low)));
        figure.points.push(Point { y: it.y.map(us), range, ..it }.in_panel(latencies));
    }
}

/// L: the memory of the machine's first CPUs; R: the first DRAM of another socket; C: the first memory behind CXL.
fn memory(machine: &Machine, node: NodeId) -> Option<char> {
    let nodes = || machine.nodes().iter();
    let home = nodes().find(|node| !node.cpus.is_empty())?;
    let is_remote = |node: &&Node| {
        matches!(node.tier, Tier::Dram | Tier::Unknown) && node.has_memory() && node.socket != home.socket
    };
    let places = [
        ('L', Some(home)),
        ('R', nodes().find(is_remote)),
        ('C', nodes().find(|node| node.tier == Tier::Cxl)),
    ];
    let (name, _) = places.into_iter().find(|(_, place)| place.is_some_and(|it| it.id == node))?;
    Some(name)
}

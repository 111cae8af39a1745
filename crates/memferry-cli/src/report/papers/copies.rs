//! Copies by devices: the figures of chapter 3 of Fürst 2024, over sizes, batches, threads, devices and nodes.

use anyhow::Result;
use memferry::internals::{Endpoints, Hardware, Offload, copy_s};
use memferry::model::ModelError;
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};

use super::super::figure::{Axis, Figure, Kind, Point, Scale};
use super::{Papers, XEON_MAX};
use memferry_bench::harness::Provenance;

const GIB: f64 = (1 << 30) as f64;
const ROUTES: [(Route, &str); 5] = [
    (Route::Single, "one"),
    (Route::PushPull, "push-pull"),
    (Route::Socket, "socket"),
    (Route::Smart, "smart"),
    (Route::All, "all"),
];

impl Papers {
    /// Figures 3.4 to 3.7 of Fürst 2024.
    pub(in crate::report) fn thesis_copy_figures(&self) -> Result<Vec<Figure>> {
        let figures =
            [self.thesis_submit()?, self.thesis_threads()?, self.thesis_routes()?, self.thesis_scaling()?];
        Ok(figures.into())
    }

    fn thesis_submit(&self) -> Result<Figure> {
        let costs = Offload::of(&Hardware::of(&Machine::from_profile(XEON_MAX)?)?)?;
        let mut figure = throughput("figure-3.4", "Single submissions and batches by size", "GiB/s");
        figure.about = "As figure 3.4 of Fürst 2024: one device copies within node 0, one submission at a time. \
                        Published are the limit of a device, and the size from which single submissions cost \
                        little; the library that was measured adds delays to each submission that are not printed, \
                        and not modelled."
            .to_owned();
        for (batch, name) in [(1, "single"), (10, "batches of 10"), (50, "batches of 50")] {
            for power in 10..=30 {
                let bytes = f64::from(1 << power);
                let rate = costs.batch_rate(bytes, batch, 1)? / GIB;
                figure.points.push(Point::new(name, Provenance::Modelled, bytes.to_string(), rate));
            }
        }
        figure.published_rule("limit of a device", self.published.get("F021"));
        let enough = self.published.get("F017").map(|mib| mib * (1 << 20) as f64);
        figure.published_upright_rule("recommended least size", enough);
        Ok(figure)
    }

    fn thesis_threads(&self) -> Result<Figure> {
        let costs = Offload::of(&Hardware::of(&Machine::from_profile(XEON_MAX)?)?)?;
        let mut figure = throughput("figure-3.5", "Threads that share a queue", "GiB/s");
        figure.about =
            "As figure 3.5 of Fürst 2024, measured with 1, 2 and 12 threads: each waits for its copy. \
             Published are the limit, that 1 MiB gains from threads, and that 1 GiB is faster."
                .to_owned();
        figure.x = Axis::new("threads", Scale::Log);
        for (bytes, name) in [(1 << 12, "4 KiB"), (1 << 16, "64 KiB"), (1 << 20, "1 MiB"), (1 << 30, "1 GiB")]
        {
            for threads in [1, 2, 4, 8, 12] {
                let rate = costs.rate(f64::from(bytes), threads) / GIB;
                figure.points.push(Point::new(name, Provenance::Modelled, threads.to_string(), rate));
            }
        }
        figure.published_rule("limit of a device", self.published.get("F021"));
        Ok(figure)
    }

    fn thesis_routes(&self) -> Result<Figure> {
        let machine = Machine::from_profile(XEON_MAX)?;
        let mut figure =
            Figure::new("figure-3.6", Kind::Bars, "1 GiB from node 0 to HBM, by the devices that share it");
        figure.about = "As figure 3.6 of Fürst 2024: node 8 is beside node 0, 11 on the same socket, 12 and 15 on \
                        the other. Published are the limit of one device, the peak of several, and that eight to \
                        node 15 come close to what DDR can do in theory; other bars are printed as images only."
            .to_owned();
        figure.x = Axis::new("HBM of node", Scale::Linear);
        figure.y = Axis::new("throughput in GiB/s", Scale::Linear);
        for target in TARGETS {
            let x = target.to_string();
            for (route, name) in ROUTES {
                let rate = copy_rate(&machine, route, NodeId(0), NodeId(target))? / GIB;
                figure.points.push(Point::new(name, Provenance::Modelled, &x, rate));
            }
            figure.points.extend(self.published.dot("F049", "one", &x));
        }
        let (peak, theory) = (self.published.get("F048"), self.published.get("F036"));
        if let (Some(peak), Some(theory)) = (peak, theory) {
            figure.points.push(Point::new("all", Provenance::Published, "15", peak).between(peak, theory));
            figure.published_rule("DDR in theory", Some(theory));
        }
        Ok(figure)
    }

    fn thesis_scaling(&self) -> Result<Figure> {
        let machine = Machine::from_profile(XEON_MAX)?;
        let mut figure = throughput("figure-3.7", "More devices for one copy", "GiB/s");
        figure.about = "As figure 3.7 of Fürst 2024: mean over nodes 8, 11, 12 and 15 by the devices of one, \
                        push-pull, socket and all. Published: four are best on average, more than two gain little, \
                        and eight lose to two; what makes them lose, devices of the other socket, has no number \
                        and is not modelled."
            .to_owned();
        figure.x = Axis::new("devices", Scale::Log);
        for (devices, route) in
            [(1, Route::Single), (2, Route::PushPull), (4, Route::Socket), (8, Route::All)]
        {
            let mut sum = 0.0;
            for target in TARGETS {
                sum += copy_rate(&machine, route, NodeId(0), NodeId(target))? / GIB;
            }
            let mean = sum / TARGETS.len() as f64;
            figure.points.push(Point::new(
                "mean of four nodes",
                Provenance::Modelled,
                devices.to_string(),
                mean,
            ));
        }
        figure.points.extend(self.published.dot("F038", "mean of four nodes", "1"));
        figure.published_rule("peak to a node", self.published.get("F048"));
        Ok(figure)
    }
}

/// Nodes of HBM: next to node 0, on its socket, and two on the other socket.
const TARGETS: [u32; 4] = [8, 11, 12, 15];

fn throughput(name: &str, title: &str, unit: &str) -> Figure {
    let mut figure = Figure::new(name, Kind::Lines, title);
    figure.x = Axis::new("size of a copy", Scale::Bytes);
    figure.y = Axis::new(format!("throughput in {unit}"), Scale::Linear);
    figure
}

/// The modelled rates of a device and of a core on a machine, by size.
pub(in crate::report) fn device_and_core(name: &str, machine: &Machine) -> Result<Figure, ModelError> {
    let costs = Offload::of(&Hardware::of(machine)?)?;
    let mut figure = throughput(name, "A device and a core, by size", "GB/s");
    for power in 8..=20 {
        let bytes = f64::from(1 << power);
        let rates = [
            ("a core", Some(bytes / costs.core_s(bytes))),
            ("DSA, waited for", Some(costs.rate(bytes, 1))),
            // A calibration does not measure batches.
            ("DSA, batches of 16", costs.batch_rate(bytes, 16, 1).ok()),
            ("DSA, kept busy", Some(costs.pipelined_rate(bytes))),
        ];
        let point =
            |(name, rate)| Some(Point::new(name, Provenance::Modelled, bytes.to_string(), rate? / 1e9));
        figure.points.extend(rates.into_iter().filter_map(point));
    }
    Ok(figure)
}

/// The modelled rate of a copy of 1 GiB, in bytes per second.
pub(in crate::report) fn copy_rate(
    machine: &Machine,
    route: Route,
    source: NodeId,
    target: NodeId,
) -> Result<f64, ModelError> {
    let size_bytes = 1 << 30;
    let endpoints = Endpoints { source_node: Some(source), target_node: Some(target), size_bytes, turn: 0 };
    Ok(GIB / copy_s(machine, &Hardware::of(machine)?, route, endpoints)?)
}

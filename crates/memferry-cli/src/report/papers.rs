//! The figures of the publications in their form: what was printed, and what the model says, side by side.

use anyhow::Result;
use memferry::model::{self, Hardware, Offload, Pipeline, Prediction, Run, Validation};
use memferry::mover::{Journey, Route};
use memferry::topology::{Link, Machine, NodeId};

use super::figure::{Axis, Figure, How, Kind, Point, Scale};

const XEON_MAX: &str = "xeon-max-9468-2s-flat";
const SAPPHIRE_RAPIDS: &str = "spr-56c";
const GIB: f64 = (1 << 30) as f64;
const ROUTES: [(Route, &str); 5] = [
    (Route::Single, "one"),
    (Route::PushPull, "push-pull"),
    (Route::Socket, "socket"),
    (Route::Smart, "smart"),
    (Route::All, "all"),
];

/// The published rows by their ids.
struct Published(Vec<model::Figure>);

impl Published {
    fn get(&self, row: &str) -> Option<f64> {
        self.0.iter().find(|figure| figure.id == row)?.number()
    }

    /// A dot, if the row is a number.
    fn dot(&self, row: &str, series: &str, x: &str) -> Option<Point> {
        Some(Point::new(series, How::Published, x, self.get(row)?))
    }
}

/// A run of table 6.2.
pub(super) struct QueryRun {
    pub(super) name: String,
    pub(super) modelled_ms: f64,
    pub(super) published_ms: Option<f64>,
    /// In percent.
    pub(super) hit_rate: Option<f64>,
    pub(super) published_hit_rate: Option<f64>,
    pipeline: Pipeline,
    run: Run,
}

/// All that is said about publications.
pub(super) struct Papers {
    pub(super) query: Vec<QueryRun>,
    pub(super) validation: Validation,
    published: Published,
}

impl Papers {
    pub(super) fn read() -> Result<Papers> {
        let published = Published(model::figures());
        let machine = Machine::from_profile(XEON_MAX)?;
        let hardware = Hardware::of(&machine)?;
        // Time and hit rate of each run of the scenario, in its order.
        let rows = [("F072", ""), ("F073", ""), ("F082", "F081"), ("F085", "F084")];
        let mut query = Vec::new();
        for ((name, pipeline), (time, hits)) in
            model::scenario("table-6.2")?.pipelines()?.into_iter().zip(rows)
        {
            let run = pipeline.run(&machine, &hardware)?;
            query.push(QueryRun {
                name,
                modelled_ms: run.total_s * 1e3,
                published_ms: published.get(time),
                hit_rate: run.hit_rate().map(|rate| rate * 100.0),
                published_hit_rate: published.get(hits),
                pipeline,
                run,
            });
        }
        Ok(Papers { query, validation: model::validate()?, published })
    }

    /// The thesis's query: its times, and what it does in them.
    pub(super) fn query_figures(&self) -> Vec<Figure> {
        let mut times = Figure::new(
            "table-6.2",
            Kind::Rows,
            "A query whose second column is in DDR, in HBM, or on its way",
        );
        times.about = "Fürst 2024, table 6.2: SELECT sum(b) WHERE a < x over two columns of 4 GiB on a Xeon Max; \
                       column b in DDR, in HBM, copied to HBM while a is scanned, and the same with a and b on \
                       different nodes. The first two times and the last hit rate were calibrated on."
            .to_owned();
        times.y = Axis::new("time in ms; in brackets the error of the model", Scale::Linear);
        let mut parts = Figure::new("figure-6.1-6.2", Kind::HalfCircles, "Where the query's time goes");
        parts.about = "As figures 6.1 and 6.2 of Fürst 2024, which print no numbers: mean time of a group of \
                       threads in each stage. The longest fills its half circle; waiting for the slowest group is \
                       not shown, and so the total is more than the sum."
            .to_owned();
        parts.y = Axis::new("ms", Scale::Linear);
        for it in &self.query {
            times.points.push(Point::new("time", How::Modelled, &it.name, it.modelled_ms));
            times.points.extend(it.published_ms.map(|ms| Point::new("time", How::Published, &it.name, ms)));
            for (stage, seconds) in it.pipeline.stages.iter().zip(&it.run.stages_s) {
                let point = Point::new(&stage.name, How::Modelled, "", seconds * 1e3);
                parts.points.push(point.in_panel(&it.name));
            }
            let total = |how, ms| Point::new("total", how, "", ms).in_panel(&it.name);
            parts.points.push(total(How::Modelled, it.modelled_ms));
            parts.points.extend(it.published_ms.map(|ms| total(How::Published, ms)));
        }
        vec![times, parts]
    }

    /// Throughput over sizes, batches, threads, devices and nodes.
    pub(super) fn copy_figures(&self) -> Result<Vec<Figure>> {
        let figures = [
            self.thesis_submit()?,
            self.thesis_threads()?,
            self.thesis_routes()?,
            self.thesis_scaling()?,
            self.kuper_sizes()?,
            self.kuper_batches()?,
        ];
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
                let rate = costs.rate(bytes, batch, 1) / GIB;
                figure.points.push(Point::new(name, How::Modelled, bytes.to_string(), rate));
            }
        }
        let limit = self.published.get("F021");
        figure.points.extend(limit.map(|rate| Point::rule("limit of a device", How::Published, rate)));
        let enough = self.published.get("F017").map(|mib| mib * (1 << 20) as f64);
        figure
            .points
            .extend(enough.map(|bytes| Point::upright_rule("recommended least size", How::Published, bytes)));
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
                let rate = costs.rate(f64::from(bytes), 1, threads) / GIB;
                figure.points.push(Point::new(name, How::Modelled, threads.to_string(), rate));
            }
        }
        let limit = self.published.get("F021");
        figure.points.extend(limit.map(|rate| Point::rule("limit of a device", How::Published, rate)));
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
                figure.points.push(Point::new(name, How::Modelled, &x, rate));
            }
            figure.points.extend(self.published.dot("F049", "one", &x));
        }
        let (peak, theory) = (self.published.get("F048"), self.published.get("F036"));
        if let (Some(peak), Some(theory)) = (peak, theory) {
            figure.points.push(Point::new("all", How::Published, "15", peak).between(peak, theory));
            figure.points.push(Point::rule("DDR in theory", How::Published, theory));
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
            figure.points.push(Point::new("mean of four nodes", How::Modelled, devices.to_string(), mean));
        }
        figure.points.extend(self.published.dot("F038", "mean of four nodes", "1"));
        let peak = self.published.get("F048");
        figure.points.extend(peak.map(|rate| Point::rule("peak to a node", How::Published, rate)));
        Ok(figure)
    }

    fn kuper_sizes(&self) -> Result<Figure> {
        let mut figure = by_size("kuper-figure-2", SAPPHIRE_RAPIDS)?;
        figure.title = "A device and a core, by size".to_owned();
        figure.about = "As figures 2 and 4 of Kuper et al. 2024, Sapphire Rapids. Published are the sizes from \
                        which the device is faster, waited for and kept busy, which were calibrated on, and its \
                        limit."
            .to_owned();
        let even = |row, name: &str, unit| {
            let size = self.published.get(row)?;
            Some(Point::upright_rule(name, How::Published, size * unit))
        };
        figure.points.extend(even("K030", "break-even, kept busy", 1.0));
        figure.points.extend(even("K029", "break-even, waited for", 1024.0));
        figure
            .points
            .extend(self.published.get("K032").map(|rate| Point::rule("limit", How::Published, rate)));
        Ok(figure)
    }

    fn kuper_batches(&self) -> Result<Figure> {
        let costs = Offload::of(&Hardware::of(&Machine::from_profile(SAPPHIRE_RAPIDS)?)?)?;
        let mut figure = throughput("kuper-figure-3", "Batches that are waited for, by size", "GB/s");
        figure.about =
            "As figure 3 of Kuper et al. 2024: one batch at a time; sizes are those of one descriptor. \
             Published: 256 KB reach the limit in any batch."
                .to_owned();
        for batch in [1, 4, 16, 64] {
            for power in 8..=20 {
                let bytes = f64::from(1 << power);
                let name = if batch == 1 { "no batch".to_owned() } else { format!("batches of {batch}") };
                let rate = costs.rate(bytes, batch, 1) / 1e9;
                figure.points.push(Point::new(name, How::Modelled, bytes.to_string(), rate));
            }
        }
        figure
            .points
            .extend(self.published.get("K032").map(|rate| Point::rule("limit", How::Published, rate)));
        Ok(figure)
    }

    /// Sub-domains of sockets: what is published of their memories, and what follows for scans.
    pub(super) fn domain_figures(&self) -> Result<Vec<Figure>> {
        let mut scans =
            Figure::new("scans-by-domain", Kind::Rows, "Scans on one sub-domain, on both, and skewed");
        scans.about = "Greinsmark 2020, 5.4: 56 clients scan six columns on a Xeon 8180; SNC off is 100 %. \
                       Published are ranges over tests; skewed is what is left of the balanced case."
            .to_owned();
        scans.y = Axis::new("throughput in %; in brackets the error of the model", Scale::Linear);
        for (row, name) in [
            ("G223", "one sub-domain"),
            ("G233", "both, 3/3"),
            ("G237", "both, workers on one"),
            ("G241", "skewed, 2/4"),
        ] {
            let found = self.validation.predictions.iter().rfind(|prediction| prediction.rows.contains(&row));
            let Some(Prediction { predicted, published: (low, high), .. }) = found else { continue };
            scans.points.push(Point::new("throughput", How::Modelled, name, *predicted));
            let middle = (low + high) / 2.0;
            scans.points.push(Point::new("throughput", How::Published, name, middle).between(*low, *high));
        }
        let machines = [
            ("skylake-8180-snc-off", "Xeon 8180"),
            ("skylake-8180-snc-on", "Xeon 8180, SNC"),
            ("broadwell-2699v4-cod-off", "Xeon E5-2699 v4"),
            ("broadwell-2699v4-cod-on", "Xeon E5-2699 v4, COD"),
        ];
        let heat = |name, kind, title: &str, table, unit, of: fn(&Link) -> Option<f64>| -> Result<Figure> {
            let mut figure = Figure::new(name, kind, title);
            figure.about = format!("Greinsmark 2020, {table}, with sub-domains (SNC, COD) off and on.");
            figure.x = Axis::new("row: CPUs of node, column: memory of node", Scale::Linear);
            figure.y = Axis::new(unit, Scale::Linear);
            for (profile, title) in machines {
                figure.points.extend(links(&Machine::from_profile(profile)?, How::Published, title, of));
            }
            Ok(figure)
        };
        Ok(vec![
            scans,
            heat(
                "latency-by-domain",
                Kind::HeatLess,
                "Latency of reads",
                "tables 1, 2, 5 and 6",
                "ns",
                latency_ns,
            )?,
            heat(
                "bandwidth-by-domain",
                Kind::HeatMore,
                "Bandwidth of reads",
                "tables 3, 4, 7 and 8",
                "GB/s",
                read_gb_per_s,
            )?,
        ])
    }

    /// How far the model is off, a figure for each publication.
    pub(super) fn error_figures(&self) -> Vec<Figure> {
        let of = [
            ("errors-thesis", "Fürst 2024", &["F", "D", "L"][..]),
            ("errors-kuper", "Kuper et al. 2024", &["K"]),
            ("errors-greinsmark", "Greinsmark 2020", &["G"]),
        ];
        of.map(|(name, title, letters)| {
            let mut figure = Figure::new(name, Kind::Rows, format!("How far the model is off: {title}"));
            figure.about =
                "Predictions of published numbers that nothing was calibrated on; where a range was \
                 published, its nearest end counts."
                    .to_owned();
            figure.y = Axis::new("error in %", Scale::Linear);
            let is_own = |it: &&Prediction| {
                it.rows.iter().any(|row| letters.iter().any(|letter| row.starts_with(letter)))
            };
            let told = self.validation.predictions.iter().filter(|it| !it.is_fit && it.unit != "holds");
            let (mut off, met): (Vec<&Prediction>, Vec<&Prediction>) =
                told.filter(is_own).partition(|it| it.error_percent().abs() >= MET_PERCENT);
            off.sort_by(|one, other| other.error_percent().abs().total_cmp(&one.error_percent().abs()));
            let name = |it: &Prediction| match off.iter().filter(|other| other.name == it.name).count() {
                1 => it.name.clone(),
                _ => format!("{} [{}]", it.name, it.rows.join(", ")),
            };
            let point = |it: &&Prediction| Point::new("error", How::Modelled, name(it), it.error_percent());
            figure.points = off.iter().map(point).collect();
            figure.about += &format!(" {} more are met.", met.len());
            figure
        })
        .into()
    }
}

/// A prediction that is off by less is met: it would print as 0.
const MET_PERCENT: f64 = 0.05;

/// HBM beside node 0, on its socket, and on the other one.
const TARGETS: [u32; 4] = [8, 11, 12, 15];

fn throughput(name: &str, title: &str, unit: &str) -> Figure {
    let mut figure = Figure::new(name, Kind::Lines, title);
    figure.x = Axis::new("size of a copy", Scale::Bytes);
    figure.y = Axis::new(format!("throughput in {unit}"), Scale::Linear);
    figure
}

/// A device in different ways, and a core, as the model has them on a machine.
pub(super) fn by_size(name: &str, profile: &str) -> Result<Figure> {
    Ok(device_and_core(name, &Machine::from_profile(profile)?)?)
}

pub(super) fn device_and_core(name: &str, machine: &Machine) -> Result<Figure, model::ModelError> {
    let costs = Offload::of(&Hardware::of(machine)?)?;
    let mut figure = throughput(name, "A device and a core, by size", "GB/s");
    for power in 8..=20 {
        let bytes = f64::from(1 << power);
        let rates = [
            ("a core", bytes / costs.core_s(bytes)),
            ("DSA, waited for", costs.rate(bytes, 1, 1)),
            ("DSA, batches of 16", costs.rate(bytes, 16, 1)),
            ("DSA, kept busy", costs.pipelined_rate(bytes)),
        ];
        let point = |(name, rate)| Point::new(name, How::Modelled, bytes.to_string(), rate / 1e9);
        figure.points.extend(rates.map(point));
    }
    Ok(figure)
}

/// Bytes per second of a copy of 1 GiB.
pub(super) fn copy_rate(
    machine: &Machine,
    route: Route,
    source: NodeId,
    target: NodeId,
) -> Result<f64, model::ModelError> {
    let size_bytes = 1 << 30;
    let journey = Journey { source_node: Some(source), target_node: Some(target), size_bytes, turn: 0 };
    Ok(GIB / model::copy_s(machine, &Hardware::of(machine)?, route, journey)?)
}

pub(super) fn latency_ns(link: &Link) -> Option<f64> {
    link.read_latency_ns
}

pub(super) fn read_gb_per_s(link: &Link) -> Option<f64> {
    link.read_bytes_per_s.map(|rate| rate as f64 / 1e9)
}

/// A figure of all ways from CPUs to memories; those that are not known are left out.
pub(super) fn links(machine: &Machine, how: How, panel: &str, of: fn(&Link) -> Option<f64>) -> Vec<Point> {
    let from = machine.nodes().iter().filter(|node| !node.cpus.is_empty());
    let ways = from.flat_map(|from| {
        machine.nodes().iter().filter(|node| node.has_memory()).map(move |to| (from.id, to.id))
    });
    let point = |(from, to): (NodeId, NodeId)| {
        let value = of(&machine.link(from, to))?;
        Some(Point::new(from.to_string(), how, to.to_string(), value).in_panel(panel))
    };
    ways.filter_map(point).collect()
}

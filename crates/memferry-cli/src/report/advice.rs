//! Recommended settings of a machine, with the numbers behind them.

use memferry::internals::{Basis, Hardware, Offload, Parameter};
use memferry::model::{Alternative, Column, ModelError, Plan, Stage};
use memferry::mover::Route;
use memferry::topology::{Machine, Node, NodeId};

use super::figure::{Axis, Figure, Kind, Point, Scale};
use super::papers::copy_rate;
use super::records::{Record, Row};
use crate::output::size;
use memferry_bench::harness::Provenance;

/// A recommended setting.
pub(super) struct Advice {
    pub(super) topic: &'static str,
    /// The recommendation and its reasons.
    pub(super) sentences: Vec<String>,
    /// The provenance of the numbers; none if there are no numbers.
    pub(super) how: Option<Provenance>,
}

/// Share of the device's rate that counts as full.
const ENOUGH: f64 = 0.9;
/// Share of the best rate for which fewer devices are preferred, as in `Route::Adaptive`.
const ALIKE: f64 = 0.95;

pub(super) fn advice(machine: &Machine, records: &[Record]) -> Vec<Advice> {
    let mut all = Vec::new();
    if machine.accelerators().is_empty() {
        let sentences = vec!["The CPU does all copies: this machine has no DSA.".to_owned()];
        all.push(Advice { topic: "Who copies", sentences, how: None });
    } else {
        all.push(by_model("Who copies", offload_sizes(machine)));
        all.push(by_model("Batches", batches(machine)));
        all.push(by_model("Route", routes(machine)));
    }
    all.extend(measured(records));
    all.push(prefetching(machine));
    all.extend(queries(records));
    all
}

fn by_model(topic: &'static str, sentences: Result<Vec<String>, ModelError>) -> Advice {
    match sentences {
        Ok(sentences) => Advice { topic, sentences, how: Some(Provenance::Modelled) },
        Err(error) => Advice { topic, sentences: vec![format!("Nothing can be said: {error}.")], how: None },
    }
}

/// The sizes from which a device is faster than a core.
fn offload_sizes(machine: &Machine) -> Result<Vec<String>, ModelError> {
    let costs = Offload::of(&Hardware::of(machine)?)?;
    let from = |bytes: f64| match bytes.is_finite() {
        true => format!("from {} on", size(bytes.ceil() as u64)),
        false => "never".to_owned(),
    };
    let waited = from(costs.break_even_waited_bytes());
    let busy = from(costs.break_even_pipelined_bytes());
    let mut sentences = vec![
        format!(
            "One copy at a time, waited for: the DSA is faster than a core {waited}; below, use the CPU."
        ),
        format!("Many copies under way at the same time: the DSA is faster {busy}."),
        format!("One device does at most {:.1} GB/s.", costs.device_rate() / 1e9),
    ];
    let is_emulated = |it: &Parameter| it.name == "device_offload_ns" && it.basis == Basis::Emulated;
    if machine.parameters().iter().any(is_emulated) {
        sentences.push("The devices were emulated ones: this says nothing about hardware.".to_owned());
    }
    Ok(sentences)
}

/// The number of copies to submit at a time.
fn batches(machine: &Machine) -> Result<Vec<String>, ModelError> {
    let costs = Offload::of(&Hardware::of(machine)?)?;
    let enough = |rate: f64| rate >= ENOUGH * costs.device_rate();
    let percent = 100.0 * ENOUGH;
    let single = (8..31).map(|power| 1_u64 << power).find(|&bytes| enough(costs.rate(bytes as f64, 1)));
    let mut sentences = Vec::new();
    sentences.extend(single.map(|bytes| {
        format!(
            "Single submissions that are waited for reach {percent:.0} % of the device from {} on.",
            size(bytes)
        )
    }));
    for bytes in [4_u64 << 10, 16 << 10] {
        let powers = || (0..11).map(|power| 1_usize << power);
        // A calibration does not measure what batches cost.
        let batch = powers().find(|&batch| costs.batch_rate(bytes as f64, batch, 1).is_ok_and(enough));
        let Some(depth) = powers().find(|&depth| enough(costs.rate(bytes as f64, depth))) else { continue };
        if depth > 1 {
            let batch = batch.map_or(String::new(), |batch| format!("batches of {batch}, or "));
            sentences.push(format!("Copies of {} need {batch}{depth} under way.", size(bytes)));
        }
    }
    Ok(sentences)
}

/// The routes, fewest devices first.
const ROUTES: [(Route, &str); 4] = [
    (Route::Single, "one device"),
    (Route::PushPull, "push-pull"),
    (Route::Socket, "devices of the socket"),
    (Route::All, "all devices"),
];

/// Rates of each route for large copies to a node, in bytes per second.
struct Routes {
    source: NodeId,
    target: NodeId,
    rates: [f64; ROUTES.len()],
}

/// Rates from the first node to its faster memory, or else to another node, and to another socket.
fn routes_of(machine: &Machine) -> Result<Vec<Routes>, ModelError> {
    let Some(home) = home(machine) else { return Ok(Vec::new()) };
    let near = machine.nearest_faster(home.id);
    let other = || machine.nodes().iter().find(|node| node.has_memory() && node.id != home.id);
    let far = machine.nodes().iter().filter(|node| node.has_memory() && node.socket != home.socket);
    let far = far.max_by_key(|node| (near.is_some_and(|near| near.tier == node.tier), node.id));
    let mut targets: Vec<&Node> = near.or_else(other).into_iter().chain(far).collect();
    targets.dedup_by_key(|node| node.id);
    if targets.is_empty() {
        targets.push(home);
    }
    let routes = |target: &Node| {
        let mut rates = [0.0; ROUTES.len()];
        for (rate, (route, _)) in rates.iter_mut().zip(ROUTES) {
            *rate = copy_rate(machine, route, home.id, target.id)?;
        }
        Ok(Routes { source: home.id, target: target.id, rates })
    };
    targets.into_iter().map(routes).collect()
}

/// The rates of the routes as a figure; none if there is no target.
pub(super) fn route_figure(machine: &Machine) -> Result<Option<Figure>, ModelError> {
    let mut figure =
        Figure::new("machine-routes", Kind::Bars, "Copies of 1 GiB, by the devices that share them");
    figure.about = "The fewest devices that are within 5 % of the best are recommended.".to_owned();
    figure.y = Axis::new("throughput in GB/s", Scale::Linear);
    for Routes { source, target, rates } in routes_of(machine)? {
        let way = format!("node {source} to {target}");
        let point = |((_, name), rate): (&(Route, &str), f64)| {
            Point::new(*name, Provenance::Modelled, &way, rate / 1e9)
        };
        figure.points.extend(ROUTES.iter().zip(rates).map(point));
    }
    Ok((!figure.points.is_empty()).then_some(figure))
}

/// The route with the fewest devices and about the best rate.
fn routes(machine: &Machine) -> Result<Vec<String>, ModelError> {
    let mut sentences = Vec::new();
    for Routes { source, target, rates } in routes_of(machine)? {
        let best = rates.iter().copied().fold(0.0, f64::max);
        let Some((index, rate)) = rates.iter().enumerate().find(|(_, rate)| **rate >= ALIKE * best) else {
            continue;
        };
        let [one, .., all] = rates;
        sentences.push(format!(
            "Large copies from node {source} to node {target}: {} with {:.1} GB/s; one alone does {:.1}, all {} do \
             {:.1}.",
            ROUTES[index].1,
            rate / 1e9,
            one / 1e9,
            machine.accelerators().len(),
            all / 1e9
        ));
    }
    if sentences.is_empty() {
        sentences.push("No node has both CPUs and memory.".to_owned());
    }
    Ok(sentences)
}

/// Whether to prefetch the second column of the papers' query.
fn prefetching(machine: &Machine) -> Advice {
    let topic = "Prefetching";
    let faster = home(machine).filter(|home| machine.nearest_faster(home.id).is_some());
    let Some(home) = faster else {
        let sentence =
            "Leave it to `--prefetch auto`, which copies nothing here: no memory is known to be faster \
             than the CPUs' own."
                .to_owned();
        return Advice { topic, sentences: vec![sentence], how: None };
    };
    // Rounded as printed.
    let speed_up = |alternative: &Alternative| (alternative.speed_up * 100.0).round();
    let of = |second: &Node, what: &str| -> Result<String, ModelError> {
        let advice = papers_query(home, second.id, COLUMN_BYTES).advise(machine)?;
        // The chosen alternative, or else the first with the smallest loss.
        let better = |best, other| if speed_up(other) > speed_up(best) { other } else { best };
        let best = match advice.chosen {
            Some(chosen) => advice.alternatives.get(chosen),
            None => advice.alternatives.iter().reduce(better),
        };
        let verdict = if advice.chosen.is_some() { "yes" } else { "no" };
        Ok(match best {
            None => format!("{what}: no, there is nothing to bring near."),
            Some(best) => format!("{what}: {verdict}. {}.", best.words),
        })
    };
    let is_other = |node: &&Node| node.id != home.id && node.tier == home.tier && node.has_memory();
    let other = machine.nodes().iter().find(is_other);
    let same = [(home, "A scan of a, then a sum over b, both on one node")];
    let cases = same.into_iter().chain(other.map(|other| (other, "The same with a and b on two nodes")));
    by_model(topic, cases.map(|(node, what)| of(node, what)).collect())
}

/// The papers' query: a scan of column a on `home`, then a sum over b on `second`, each by all CPUs of `home`.
pub(crate) fn papers_query(home: &Node, second: NodeId, size_bytes: u64) -> Plan {
    let column = |name: &str, node| Column { name: name.to_owned(), size_bytes, node };
    let stage = |name: &str, column| Stage {
        name: name.to_owned(),
        reads: vec![column],
        threads_count: home.cpus.len(),
        thread_rate_max: f64::INFINITY,
    };
    Plan {
        columns: vec![column("a", home.id), column("b", second)],
        stages: vec![stage("the scan of a", 0), stage("the sum", 1)],
        cpus: home.id,
        // 8 MiB for the thesis's columns.
        chunk_bytes: (size_bytes / 512).max(1 << 20),
        near: None,
        reads_to_come: 0,
    }
}

/// The size of the thesis's columns.
const COLUMN_BYTES: u64 = 4 << 30;

/// The sizes from which a queue was faster than a core on this machine.
fn measured(records: &[Record]) -> Option<Advice> {
    let rows = || records.iter().filter(|record| record.bench == "submit").flat_map(|record| &record.rows);
    let is_meant = |row: &&Row| {
        row.how == Some(Provenance::Measured)
            && row.figure.as_deref() == Some("throughput")
            && row.number("batch") == Some(1.0)
    };
    let of = |way: &str| -> Vec<(f64, f64)> {
        let own = rows().filter(is_meant).filter(|row| row.text("way").as_deref() == Some(way));
        own.filter_map(|row| Some((row.number("size_bytes")?, row.value?))).collect()
    };
    let core = of("core");
    let sentence = |way: &str| {
        let mut both: Vec<(f64, bool)> = (of(way).into_iter())
            .filter_map(|(size, rate)| {
                let (_, core) = core.iter().find(|(core_size, _)| *core_size == size)?;
                Some((size, rate > *core))
            })
            .collect();
        both.sort_by(|one, other| one.0.total_cmp(&other.0));
        // The queue must be faster at all larger sizes too.
        let slower = both.iter().rposition(|(_, is_faster)| !is_faster);
        let from = both.get(slower.map_or(0, |at| at + 1));
        let verdict = match from {
            _ if both.is_empty() => return None,
            Some((size_bytes, _)) => format!("is faster than a core from {} on", size(*size_bytes as u64)),
            None => "is not faster than a core at any size".to_owned(),
        };
        Some(format!("One thread that waits for each copy: a {way} queue {verdict}."))
    };
    let sentences: Vec<String> = ["shared", "dedicated"].into_iter().filter_map(sentence).collect();
    (!sentences.is_empty()).then_some(Advice { topic: "Queues", sentences, how: Some(Provenance::Measured) })
}

/// Gains and losses of queries on this machine.
fn queries(records: &[Record]) -> Option<Advice> {
    let record = records.iter().find(|record| record.bench == "query")?;
    let ratio_of = |name: &str| {
        let row = record.row(name)?;
        Some(format!("{:.2} ({:.2} to {:.2})", row.ratio?, row.ratio_low?, row.ratio_high?))
    };
    let mut sentences = Vec::new();
    if let Some(ratio) = ratio_of("tpch_sf1_auto_geomean") {
        sentences.push(format!("With `auto`, TPC-H is {ratio} times as fast as with plain DataFusion."));
    }
    if let Some(ratio) = ratio_of("tpch_sf1_always_geomean") {
        sentences.push(format!(
            "With `always`, it is {ratio} times as fast: what copying costs, or gains, on this machine."
        ));
    }
    if let Some(ratio) = ratio_of("selective_geomean") {
        sentences.push(format!("The selective queries are {ratio} times as fast, with `auto`."));
    }
    (!sentences.is_empty()).then_some(Advice { topic: "Queries", sentences, how: Some(Provenance::Measured) })
}

/// The first node with CPUs and memory.
fn home(machine: &Machine) -> Option<&Node> {
    machine.nodes().iter().find(|node| !node.cpus.is_empty() && node.has_memory())
}

//! What to set on a machine, in words, each with the numbers that it follows from.

use memferry::model::{self, Column, Hardware, ModelError, Offload, Plan, Stage};
use memferry::mover::Route;
use memferry::topology::{Machine, Node, NodeId};

use super::figure::How;
use super::papers::copy_rate;
use super::records::Record;
use crate::output::size;

/// A setting.
pub(super) struct Advice {
    /// What it is about.
    pub(super) topic: &'static str,
    /// What to do, and why.
    pub(super) sentences: Vec<String>,
    /// How the numbers in it came about; none where it follows from what the machine has.
    pub(super) how: Option<How>,
}

/// What counts as reaching a rate.
const ENOUGH: f64 = 0.9;
/// Fewer devices are preferred to a gain that is less, as in `Route::Adaptive`.
const ALIKE: f64 = 0.95;

pub(super) fn advice(machine: &Machine, records: &[Record]) -> Vec<Advice> {
    let mut all = Vec::new();
    if machine.accelerators().is_empty() {
        let sentences = vec!["The CPU does all copies: this machine has no DSA.".to_owned()];
        all.push(Advice { topic: "Who copies", sentences, how: None });
    } else {
        all.push(by_model("Who copies", who(machine)));
        all.push(by_model("Batches", batches(machine)));
        all.push(by_model("Route", routes(machine)));
    }
    all.push(prefetching(machine));
    all.extend(queries(records));
    all
}

fn by_model(topic: &'static str, sentences: Result<Vec<String>, ModelError>) -> Advice {
    match sentences {
        Ok(sentences) => Advice { topic, sentences, how: Some(How::Modelled) },
        Err(error) => Advice { topic, sentences: vec![format!("Nothing can be said: {error}.")], how: None },
    }
}

/// From which size a device is faster than a core.
fn who(machine: &Machine) -> Result<Vec<String>, ModelError> {
    let costs = Offload::of(&Hardware::of(machine)?)?;
    let from = |bytes: f64| match bytes.is_finite() {
        true => format!("from {} on", size(bytes.ceil() as u64)),
        false => "never".to_owned(),
    };
    let waited = from(costs.break_even_waited_bytes());
    let busy = from(costs.break_even_pipelined_bytes());
    Ok(vec![
        format!(
            "One copy at a time, waited for: the DSA is faster than a core {waited}; below, use the CPU."
        ),
        format!("Many copies under way at the same time: the DSA is faster {busy}."),
        format!("One device does at most {:.1} GB/s.", costs.device_rate() / 1e9),
    ])
}

/// How many copies to submit at a time.
fn batches(machine: &Machine) -> Result<Vec<String>, ModelError> {
    let costs = Offload::of(&Hardware::of(machine)?)?;
    let enough =
        |bytes: f64, batch, under_way| costs.rate(bytes, batch, under_way) >= ENOUGH * costs.device_rate();
    let percent = 100.0 * ENOUGH;
    let single = (8..31).map(|power| 1_u64 << power).find(|&bytes| enough(bytes as f64, 1, 1));
    let mut sentences = Vec::new();
    sentences.extend(single.map(|bytes| {
        format!(
            "Single submissions that are waited for reach {percent:.0} % of the device from {} on.",
            size(bytes)
        )
    }));
    for bytes in [4_u64 << 10, 16 << 10] {
        let powers = || (0..11).map(|power| 1_usize << power);
        let batch = powers().find(|&batch| enough(bytes as f64, batch, 1));
        let depth = powers().find(|&depth| enough(bytes as f64, 1, depth));
        if let (Some(batch), Some(depth)) = (batch, depth)
            && batch > 1
        {
            sentences
                .push(format!("Copies of {} need batches of {batch}, or {depth} under way.", size(bytes)));
        }
    }
    Ok(sentences)
}

/// The fewest devices that do about as much as the best.
fn routes(machine: &Machine) -> Result<Vec<String>, ModelError> {
    let Some(home) = home(machine) else { return Ok(vec!["No node has both CPUs and memory.".to_owned()]) };
    let near = machine.nearest_faster(home.id);
    let far = machine.nodes().iter().filter(|node| node.has_memory() && node.socket != home.socket);
    let far = far.max_by_key(|node| (near.is_some_and(|near| near.tier == node.tier), node.id));
    let other = machine.nodes().iter().find(|node| node.has_memory() && node.id != home.id);
    let mut targets: Vec<&Node> = near.or(other).into_iter().chain(far).collect();
    targets.dedup_by_key(|node| node.id);
    if targets.is_empty() {
        targets.push(home);
    }
    let routes = [
        (Route::Single, "one device"),
        (Route::PushPull, "push-pull, the devices at both ends,"),
        (Route::Socket, "all devices of the socket"),
        (Route::All, "all devices"),
    ];
    let mut sentences = Vec::new();
    for target in targets {
        let rate = |route| copy_rate(machine, route, home.id, target.id);
        let mut rates = Vec::new();
        for (route, name) in routes {
            rates.push((name, rate(route)?));
        }
        let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let Some((name, rate)) = rates.iter().find(|(_, rate)| *rate >= ALIKE * best) else { continue };
        let (one, all) = (rates[0].1, rates[rates.len() - 1].1);
        sentences.push(format!(
            "Large copies from node {} to node {}: {name} with {:.1} GB/s; one does {:.1}, all {} {:.1}.",
            home.id,
            target.id,
            rate / 1e9,
            one / 1e9,
            machine.accelerators().len(),
            all / 1e9
        ));
    }
    Ok(sentences)
}

/// Whether to bring the second column of the papers' query near.
fn prefetching(machine: &Machine) -> Advice {
    let topic = "Prefetching";
    let faster = home(machine).filter(|home| machine.nearest_faster(home.id).is_some());
    let Some(home) = faster else {
        let sentence = "Leave it to `--prefetch auto`, which copies nothing here: no memory is known to be faster than the \
                        CPUs' own."
            .to_owned();
        return Advice { topic, sentences: vec![sentence], how: None };
    };
    let of = |second: &Node, what: &str| -> Result<String, ModelError> {
        let advice = model::advise(machine, &papers_query(home, second.id))?;
        let words = match advice.words().as_slice() {
            [] => "there is nothing to bring near".to_owned(),
            words => words.join("; "),
        };
        Ok(format!("A scan of a, then a sum over b, {what}: {words}."))
    };
    let is_other = |node: &&Node| node.id != home.id && node.tier == home.tier && node.has_memory();
    let other = machine.nodes().iter().find(is_other);
    let same = [(home, "both on one node")];
    let cases = same.into_iter().chain(other.map(|other| (other, "on two nodes")));
    by_model(topic, cases.map(|(node, what)| of(node, what)).collect())
}

/// The thesis's query, with as many threads as the node has CPUs for each stage.
fn papers_query(home: &Node, second: NodeId) -> Plan {
    let column = |name: &str, node| Column { name: name.to_owned(), size_bytes: 4 << 30, node };
    let threads_count = home.cpus.len();
    let stage = |name: &str, column| Stage { name: name.to_owned(), reads: vec![column], threads_count };
    Plan {
        columns: vec![column("a", home.id), column("b", second)],
        stages: vec![stage("the scan of a", 0), stage("the sum", 1)],
        cpus: home.id,
        chunk_bytes: 8 << 20,
        near: None,
        is_by_devices: true,
        reads_to_come: 0,
    }
}

/// What queries gained and lost here.
fn queries(records: &[Record]) -> Option<Advice> {
    let record = records.iter().find(|record| record.bench == "query")?;
    let told = |name: &str| {
        let row = record.row(name)?;
        Some(format!("{:.2} ({:.2} to {:.2})", row.ratio?, row.ratio_low?, row.ratio_high?))
    };
    let mut sentences = Vec::new();
    if let Some(ratio) = told("tpch_sf1_auto_geomean") {
        sentences.push(format!("With `auto`, TPC-H is {ratio} times as fast as with plain DataFusion."));
    }
    if let Some(ratio) = told("tpch_sf1_always_geomean") {
        sentences.push(format!(
            "With `always`, it is {ratio} times as fast: what copying costs, or gains, on this machine."
        ));
    }
    if let Some(ratio) = told("selective_geomean") {
        sentences.push(format!("The selective queries are {ratio} times as fast, with `auto`."));
    }
    (!sentences.is_empty()).then_some(Advice { topic: "Queries", sentences, how: Some(How::Measured) })
}

/// The first node that computes on memory of its own.
fn home(machine: &Machine) -> Option<&Node> {
    machine.nodes().iter().find(|node| !node.cpus.is_empty() && node.has_memory())
}

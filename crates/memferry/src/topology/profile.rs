//! Machine profiles: `machines/*.json`.
//!
//! A profile holds figures, each with the place it was taken from ([`Figure`]), which begins with one of the
//! profile's `references`; what nobody has published is null. Rates are in 10^6 bytes per second, as the
//! papers print them, and matrices have a row per initiator and a column per target, in the order of `nodes`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::machine::{Accelerator, Fact, Link, Machine, Node, NodeId, Origin, Tier};
use super::{NodeSet, TopologyError, list};

macro_rules! built_in {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../machines/", $name, ".json")))
    };
}

const BUILT_IN: &[(&str, &str)] = &[
    built_in!("broadwell-2699v4-cod-off"),
    built_in!("broadwell-2699v4-cod-on"),
    built_in!("made-up-two-tiers"),
    built_in!("skylake-8180-snc-off"),
    built_in!("skylake-8180-snc-on"),
    built_in!("spr-56c"),
    built_in!("xeon-max-9468-2s-flat"),
];

pub(super) fn names() -> Vec<&'static str> {
    BUILT_IN.iter().map(|&(name, _)| name).collect()
}

pub(super) fn open(name_or_path: &str) -> Result<Machine, TopologyError> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
        return parse(name, text);
    }
    let path = Path::new(name_or_path);
    if path.components().count() < 2 && path.extension().is_none() {
        return Err(TopologyError::UnknownProfile { name: name_or_path.to_owned(), known: names() });
    }
    let text = fs::read_to_string(path).map_err(|source| TopologyError::Read {
        path: path.to_owned(),
        source,
        advice: "give the path of a JSON file like those in machines/",
    })?;
    parse(name_or_path, &text)
}

/// `file` is what errors call it.
pub(super) fn parse(file: &str, text: &str) -> Result<Machine, TopologyError> {
    let profile: Profile = serde_json::from_str(text)
        .map_err(|source| TopologyError::Profile { name: file.to_owned(), source })?;
    profile.into_machine(file)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    name: String,
    placeholder: Option<String>,
    /// Short name of a publication, as sources use it, and its full name.
    references: BTreeMap<String, String>,
    cpu: Figure<String>,
    nodes: Figure<Vec<ProfileNode>>,
    distances: Option<Figure<Matrix<u32>>>,
    read_mb_per_s: Option<Figure<Matrix<f64>>>,
    write_mb_per_s: Option<Figure<Matrix<f64>>>,
    read_latency_ns: Option<Figure<Matrix<f64>>>,
    write_latency_ns: Option<Figure<Matrix<f64>>>,
    accelerators: Option<Figure<Vec<ProfileAccelerator>>>,
    facts: Vec<Fact>,
}

/// A value and where it was taken from.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure<T> {
    value: T,
    source: String,
}

type Matrix<T> = Vec<Vec<Option<T>>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileNode {
    id: NodeId,
    socket: Option<u32>,
    /// In the kernel's list format.
    cpus: String,
    memory_mib: Option<u64>,
    tier: Tier,
    cpu_node: NodeId,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileAccelerator {
    name: String,
    node: Option<NodeId>,
    work_queues: Option<u32>,
    engines: Option<u32>,
    mb_per_s_max: Option<f64>,
}

impl Profile {
    /// `file` is what errors call it.
    fn into_machine(self, file: &str) -> Result<Machine, TopologyError> {
        let wrong = |what: String| TopologyError::Contradiction { machine: file.to_owned(), what };
        self.check_sources().map_err(wrong)?;
        let mut nodes = Vec::with_capacity(self.nodes.value.len());
        for node in self.nodes.value {
            let cpus = list::parse(&node.cpus).ok_or_else(|| {
                wrong(format!("cpus of node {} are {:?}, expected a list such as 0-3,8", node.id, node.cpus))
            })?;
            nodes.push(Node {
                id: node.id,
                socket: node.socket,
                allowed_cpus: cpus.clone(),
                cpus,
                is_allowed: true,
                memory_bytes: node.memory_mib.map(|mib| mib.saturating_mul(1 << 20)),
                free_bytes: None,
                side_cache_bytes: None,
                tier: node.tier,
                kernel_tier: None,
                cpu_node: node.cpu_node,
            });
        }
        let mut links = vec![vec![Link::default(); nodes.len()]; nodes.len()];
        fill(&mut links, "distances", self.distances, |link, n| link.distance = Some(n)).map_err(wrong)?;
        type Set = fn(&mut Link, f64);
        let matrices: [(_, _, Set); 4] = [
            ("read_mb_per_s", self.read_mb_per_s, |link, mb| link.read_bytes_per_s = Some(bytes_per_s(mb))),
            ("write_mb_per_s", self.write_mb_per_s, |link, mb| {
                link.write_bytes_per_s = Some(bytes_per_s(mb))
            }),
            ("read_latency_ns", self.read_latency_ns, |link, ns| link.read_latency_ns = Some(ns)),
            ("write_latency_ns", self.write_latency_ns, |link, ns| link.write_latency_ns = Some(ns)),
        ];
        for (name, matrix, set) in matrices {
            let mut figures = matrix.iter().flat_map(|figure| figure.value.iter().flatten().flatten());
            if let Some(figure) = figures.find(|&&figure| figure <= 0.0) {
                return Err(wrong(format!(
                    "{name} has the figure {figure}; where it is unknown, write null"
                )));
            }
            fill(&mut links, name, matrix, set).map_err(wrong)?;
        }
        let accelerators = self.accelerators.map_or(Vec::new(), |figure| figure.value);
        let machine = Machine {
            name: self.name,
            cpu: Some(self.cpu.value),
            kernel: None,
            origin: Origin::Profile,
            placeholder: self.placeholder,
            nodes,
            links,
            offline: NodeSet::default(),
            offline_cpus: Vec::new(),
            numa_balancing: None,
            is_demotion_enabled: None,
            accelerators: accelerators.into_iter().map(Accelerator::from).collect(),
            facts: self.facts,
        };
        match machine.contradiction() {
            Some(what) => Err(wrong(what)),
            None => Ok(machine),
        }
    }

    fn check_sources(&self) -> Result<(), String> {
        fn source<T>(figure: &Option<Figure<T>>) -> Option<&str> {
            figure.as_ref().map(|figure| figure.source.as_str())
        }
        let figures = [
            ("cpu", Some(self.cpu.source.as_str())),
            ("nodes", Some(self.nodes.source.as_str())),
            ("distances", source(&self.distances)),
            ("read_mb_per_s", source(&self.read_mb_per_s)),
            ("write_mb_per_s", source(&self.write_mb_per_s)),
            ("read_latency_ns", source(&self.read_latency_ns)),
            ("write_latency_ns", source(&self.write_latency_ns)),
            ("accelerators", source(&self.accelerators)),
        ];
        let facts = self.facts.iter().map(|fact| (fact.name.as_str(), Some(fact.source.as_str())));
        for (name, source) in figures.into_iter().chain(facts) {
            let Some(source) = source else { continue };
            if !self.references.keys().any(|name| !name.is_empty() && source.starts_with(name)) {
                return Err(format!(
                    "the source of {name}, {source:?}, does not begin with one of the references"
                ));
            }
        }
        Ok(())
    }
}

impl From<ProfileAccelerator> for Accelerator {
    fn from(accelerator: ProfileAccelerator) -> Accelerator {
        Accelerator {
            name: accelerator.name,
            node: accelerator.node,
            work_queues_count: accelerator.work_queues,
            engines_count: accelerator.engines,
            bytes_per_s_max: accelerator.mb_per_s_max.map(bytes_per_s),
        }
    }
}

/// Writes a matrix into the links. `name` is what errors call it.
fn fill<T>(
    links: &mut [Vec<Link>],
    name: &str,
    matrix: Option<Figure<Matrix<T>>>,
    set: impl Fn(&mut Link, T),
) -> Result<(), String> {
    let Some(Figure { value: rows, .. }) = matrix else { return Ok(()) };
    let nodes = links.len();
    if rows.len() != nodes || rows.iter().any(|row| row.len() != nodes) {
        return Err(format!("{name} must have {nodes} rows of {nodes} figures, as there are {nodes} nodes"));
    }
    for (link, figure) in links.iter_mut().flatten().zip(rows.into_iter().flatten()) {
        if let Some(figure) = figure {
            set(link, figure);
        }
    }
    Ok(())
}

/// From 10^6 bytes per second.
fn bytes_per_s(mb_per_s: f64) -> u64 {
    (mb_per_s * 1e6).round() as u64
}

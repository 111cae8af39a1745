//! Machine profiles: `machines/*.json`.
//!
//! A profile has figures, each with its source ([`Figure`]), which begins with one of the profile's `references`. An
//! unpublished figure is null. Rates are in 10^6 bytes per second, like in the papers. Matrices have a row per initiator
//! and a column per target, in the order of `nodes`. `parameters` are further figures for models, each published,
//! measured, calibrated or assumed ([`Parameter`]).
//!
//! An emulated machine needs every figure. The section `placeholders` has values of ours for unpublished ones. Only
//! `Machine::from_profile_with_placeholders` reads them; planning does not.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::machine::{Accelerator, Link, Machine, Node, NodeId, Origin, PersistentMemory, Tier};
use super::parameter::{Basis, Fact, Parameter};
use super::storage::Storage;
use super::sysfs::NODES_MAX;
use super::{TopologyError, list};
use crate::copy_method::CopyMethods;

macro_rules! built_in {
    ($name:literal) => {
        ($name, include_str!(concat!("../../machines/", $name, ".json")))
    };
}

const BUILT_IN: &[(&str, &str)] = &[
    built_in!("broadwell-2699v4-cod-off"),
    built_in!("broadwell-2699v4-cod-on"),
    built_in!("epyc-7742-2s-nps4"),
    built_in!("made-up-cxl-node"),
    built_in!("made-up-fsdax-node"),
    built_in!("made-up-odd-nodes"),
    built_in!("made-up-two-tiers"),
    built_in!("skylake-8180-snc-off"),
    built_in!("skylake-8180-snc-on"),
    built_in!("spr-56c"),
    built_in!("xeon-max-9468-2s-flat"),
];

pub(super) fn names() -> Vec<&'static str> {
    BUILT_IN.iter().map(|&(name, _)| name).collect()
}

/// Whether placeholders replace unpublished figures.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Placeholders {
    Ignored,
    Used,
}

pub(super) fn open(name_or_path: &str, placeholders: Placeholders) -> Result<Machine, TopologyError> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
        return parse(name, text, placeholders);
    }
    let path = Path::new(name_or_path);
    if path.components().count() < 2 && path.extension().is_none() {
        return Err(TopologyError::UnknownProfile { name: name_or_path.to_owned(), known: names() });
    }
    let text = read(path).map_err(|source| TopologyError::Read {
        path: path.to_owned(),
        source,
        advice: "give the path of a JSON file like those in crates/memferry/machines",
    })?;
    parse(name_or_path, &text, placeholders)
}

/// Limit of a file. A machine with the most nodes that Linux supports takes less.
const PROFILE_BYTES_MAX: u64 = 64 << 20;

fn read(path: &Path) -> io::Result<String> {
    // Opening a pipe would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is no file"));
    }
    let mut text = String::new();
    File::open(path)?.take(PROFILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > PROFILE_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::FileTooLarge, "it is longer than 64 MiB"));
    }
    Ok(text)
}

/// Parses a profile. `file` is its name in errors.
pub(super) fn parse(file: &str, text: &str, placeholders: Placeholders) -> Result<Machine, TopologyError> {
    let profile: Profile = serde_json::from_str(text)
        .map_err(|source| TopologyError::Profile { name: file.to_owned(), source })?;
    profile.into_machine(file, placeholders)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Profile {
    pub(super) name: String,
    pub(super) placeholder: Option<String>,
    /// Short name of a publication, as sources use it, and its full name.
    pub(super) references: BTreeMap<String, String>,
    pub(super) cpu: Figure<String>,
    pub(super) nodes: Figure<Vec<ProfileNode>>,
    pub(super) distances: Option<Figure<Matrix<u32>>>,
    pub(super) read_mb_per_s: Option<Figure<Matrix<f64>>>,
    pub(super) write_mb_per_s: Option<Figure<Matrix<f64>>>,
    pub(super) read_latency_ns: Option<Figure<Matrix<f64>>>,
    pub(super) write_latency_ns: Option<Figure<Matrix<f64>>>,
    pub(super) accelerators: Option<Figure<Vec<ProfileAccelerator>>>,
    pub(super) facts: Vec<Fact>,
    /// Figures for models, beyond nodes and links.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) parameters: Vec<Parameter>,
    /// The fastest copy methods of its cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) copy_methods: Option<Figure<CopyMethods>>,
    /// The storages that a calibration measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) storage: Vec<Storage>,
    /// Persistent memory that programs use as files. A node of memory with the tier `pmem` is another thing: persistent
    /// memory that is used as volatile memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) persistent_memory: Option<Figure<Vec<ProfilePersistentMemory>>>,
    /// Possible nodes that are not online.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) offline: Vec<NodeId>,
    /// Only in files written by hand.
    #[serde(skip_serializing)]
    pub(super) placeholders: Option<ProfilePlaceholders>,
}

/// Values of ours for unpublished figures, in the shapes of the published ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfilePlaceholders {
    why: String,
    /// One per node.
    memory_mib: Option<Vec<Option<u64>>>,
    distances: Option<Matrix<u32>>,
    read_mb_per_s: Option<Matrix<f64>>,
    write_mb_per_s: Option<Matrix<f64>>,
    read_latency_ns: Option<Matrix<f64>>,
    write_latency_ns: Option<Matrix<f64>>,
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Figure<T> {
    pub(super) value: T,
    pub(super) source: String,
}

pub(super) type Matrix<T> = Vec<Vec<Option<T>>>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileNode {
    pub(super) id: NodeId,
    pub(super) socket: Option<u32>,
    /// In the kernel's list format.
    pub(super) cpus: String,
    pub(super) memory_mib: Option<u64>,
    pub(super) tier: Tier,
    pub(super) cpu_node: NodeId,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfileAccelerator {
    pub(super) name: String,
    pub(super) node: Option<NodeId>,
    pub(super) work_queues: Option<u32>,
    pub(super) engines: Option<u32>,
    pub(super) mb_per_s_max: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProfilePersistentMemory {
    pub(super) node: NodeId,
    pub(super) size_mib: u64,
}

impl Profile {
    /// Parses a profile. `file` is its name in errors.
    fn into_machine(self, file: &str, placeholders: Placeholders) -> Result<Machine, TopologyError> {
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
                memory_bytes: node.memory_mib.map(mib),
                free_bytes: None,
                side_cache_bytes: None,
                tier: node.tier,
                kernel_tier: None,
                cpu_node: node.cpu_node,
            });
        }
        if nodes.len() > NODES_MAX {
            return Err(wrong(format!("it has {} nodes; Linux has at most {NODES_MAX}", nodes.len())));
        }
        let mut links = vec![vec![Link::default(); nodes.len()]; nodes.len()];
        let published = Matrices {
            distances: self.distances.map(|figure| figure.value),
            read_mb_per_s: self.read_mb_per_s.map(|figure| figure.value),
            write_mb_per_s: self.write_mb_per_s.map(|figure| figure.value),
            read_latency_ns: self.read_latency_ns.map(|figure| figure.value),
            write_latency_ns: self.write_latency_ns.map(|figure| figure.value),
        };
        published.fill(&mut links, "").map_err(wrong)?;
        let mut placeholder = self.placeholder;
        if let Some(ours) = self.placeholders {
            // Into copies first: errors in placeholders are reported even if they are not used.
            let (mut ours_nodes, mut ours_links) = (nodes.clone(), links.clone());
            let why = ours.apply(&mut ours_nodes, &mut ours_links).map_err(wrong)?;
            if placeholders == Placeholders::Used {
                (nodes, links) = (ours_nodes, ours_links);
                let why = format!("figures of ours stand in for what is not published: {why}");
                placeholder = Some(match placeholder {
                    Some(before) => format!("{before}; {why}"),
                    None => why,
                });
            }
        }
        let accelerators = self.accelerators.map_or(Vec::new(), |figure| figure.value);
        let persistent_memory = self.persistent_memory.map_or(Vec::new(), |figure| figure.value);
        let machine = Machine {
            name: self.name,
            cpu: Some(self.cpu.value),
            cpu_family_and_model: None,
            kernel: None,
            origin: Origin::Profile,
            placeholder,
            nodes,
            links,
            offline: self.offline.into_iter().collect(),
            offline_cpus: Vec::new(),
            numa_balancing: None,
            is_demotion_enabled: None,
            accelerators: accelerators.into_iter().map(Accelerator::from).collect(),
            persistent_memory: (persistent_memory.into_iter())
                .map(|memory| PersistentMemory { node: memory.node, size_bytes: mib(memory.size_mib) })
                .collect(),
            facts: self.facts,
            parameters: self.parameters,
            copy_methods: self.copy_methods,
            storage: self.storage,
            references: self.references,
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
            ("copy_methods", source(&self.copy_methods)),
            ("persistent_memory", source(&self.persistent_memory)),
        ];
        let facts = self.facts.iter().map(|fact| (fact.name.as_str(), Some(fact.source.as_str())));
        let storage = self.storage.iter().map(|it| ("storage", Some(it.source.as_str())));
        // An assumed parameter has no publication; its source gives the reason.
        let parameters = (self.parameters.iter())
            .filter(|parameter| matches!(parameter.basis, Basis::Published | Basis::Calibrated))
            .map(|parameter| (parameter.name.as_str(), Some(parameter.source.as_str())));
        for (name, source) in figures.into_iter().chain(facts).chain(storage).chain(parameters) {
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

impl ProfilePlaceholders {
    /// Fills missing figures. Returns the reason for the values.
    fn apply(self, nodes: &mut [Node], links: &mut [Vec<Link>]) -> Result<String, String> {
        if self.why.trim().is_empty() {
            return Err("its placeholders do not say why they are what they are".into());
        }
        if let Some(sizes) = self.memory_mib {
            if sizes.len() != nodes.len() {
                return Err(format!(
                    "placeholders: memory_mib must have {} figures, one a node",
                    nodes.len()
                ));
            }
            for (node, size) in nodes.iter_mut().zip(sizes) {
                node.memory_bytes = node.memory_bytes.or(size.map(mib));
            }
        }
        let matrices = Matrices {
            distances: self.distances,
            read_mb_per_s: self.read_mb_per_s,
            write_mb_per_s: self.write_mb_per_s,
            read_latency_ns: self.read_latency_ns,
            write_latency_ns: self.write_latency_ns,
        };
        matrices.fill(links, "placeholders: ")?;
        Ok(self.why)
    }
}

struct Matrices {
    distances: Option<Matrix<u32>>,
    read_mb_per_s: Option<Matrix<f64>>,
    write_mb_per_s: Option<Matrix<f64>>,
    read_latency_ns: Option<Matrix<f64>>,
    write_latency_ns: Option<Matrix<f64>>,
}

impl Matrices {
    /// Writes figures into links that have none. Errors begin with `whose`.
    fn fill(self, links: &mut [Vec<Link>], whose: &str) -> Result<(), String> {
        let distance = |link: &mut Link, distance| link.distance = link.distance.or(Some(distance));
        fill(links, &format!("{whose}distances"), self.distances, distance)?;
        type Place = fn(&mut Link, f64);
        let matrices: [(_, _, Place); 4] = [
            ("read_mb_per_s", self.read_mb_per_s, |link, mb| {
                link.read_bytes_per_s = link.read_bytes_per_s.or(Some(bytes_per_s(mb)))
            }),
            ("write_mb_per_s", self.write_mb_per_s, |link, mb| {
                link.write_bytes_per_s = link.write_bytes_per_s.or(Some(bytes_per_s(mb)))
            }),
            ("read_latency_ns", self.read_latency_ns, |link, ns| {
                link.read_latency_ns = link.read_latency_ns.or(Some(ns))
            }),
            ("write_latency_ns", self.write_latency_ns, |link, ns| {
                link.write_latency_ns = link.write_latency_ns.or(Some(ns))
            }),
        ];
        for (name, matrix, place) in matrices {
            let mut figures = matrix.iter().flatten().flatten().flatten();
            if let Some(figure) = figures.find(|&&figure| figure <= 0.0) {
                return Err(format!(
                    "{whose}{name} has the figure {figure}; where it is unknown, write null"
                ));
            }
            fill(links, &format!("{whose}{name}"), matrix, place)?;
        }
        Ok(())
    }
}

/// Writes a matrix into the links. `name` is its name in errors.
fn fill<T>(
    links: &mut [Vec<Link>],
    name: &str,
    matrix: Option<Matrix<T>>,
    set: impl Fn(&mut Link, T),
) -> Result<(), String> {
    let Some(rows) = matrix else { return Ok(()) };
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

fn mib(mib: u64) -> u64 {
    mib.saturating_mul(1 << 20)
}

/// From 10^6 bytes per second.
fn bytes_per_s(mb_per_s: f64) -> u64 {
    (mb_per_s * 1e6).round() as u64
}

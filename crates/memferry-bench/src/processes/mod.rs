//! Processes that copy at the same time: what each of them is left. `memferry bench processes`.
//!
//! ```text
//! Mix  "device:0:8+4*core:0:8"     processes of one kind or several
//!   │  measured    processes of this machine, by cores and DSA queues
//!   │  emulated    submitters of one shared queue in virtual time; the device is shared, memory is not
//!   │  modelled    the machine of a profile
//!   ▼
//! rows: for each kind of process, the rate of one beside all others; its peer is the same process alone
//! ```
//!
//! Source of the question: the task sheet of Fürst, "Data Movement in Heterogeneous Memories with Intel Data Streaming
//! Accelerator" (2024).

mod mix;
mod process;

use memferry::internals::{Copier, Executor, Hardware, Offload, copier_rates};
use memferry::model::ModelError;
use memferry::topology::{Machine, NodeId};
use memferry_dsa::WorkQueueInfo;
use memferry_dsa_emulator::{DeviceConfig, GroupConfig, TRANSFER_BYTES_MAX, shared_queue};
pub use mix::{By, Kind, Mix, Processes};
pub use process::{Place, measured, serve};

use crate::dsa::load::{Load, LoadError, LoadOperation, PageState, emulated as run_emulated};
use crate::harness::{Provenance, Row};

/// The peer of all rows.
const ALONE: &str = "alone";

/// A mix that cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopierError {
    /// This way cannot run the mix, or this machine cannot.
    #[error("{0}")]
    Cannot(String),
    /// The machine lacks a rate, or does not have the nodes.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The emulated device refuses the copies.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A copying process failed.
    #[error("a copying process failed: {0}")]
    Process(#[from] std::io::Error),
}

fn cannot<T>(why: impl Into<String>) -> Result<T, CopierError> {
    Err(CopierError::Cannot(why.into()))
}

/// The row of one kind of process in a mix, without its peer. `way` tells rows of real processes under an emulation from those
/// in virtual time.
fn row(way: &str, how: Provenance, mix: &Mix, kind: &Processes, rates: &[f64]) -> Row {
    Row::median(format!("{way}_{}", mix.name_of(kind)), "bytes/s", how, rates)
}

/// Rates of the model on a machine: for each kind of process, that of one beside all others, and that of one alone.
///
/// # Errors
/// [`CopierError::Cannot`]: there is no device near the source. [`CopierError::Model`].
pub fn modelled(mix: &Mix, machine: &Machine) -> Result<Vec<Row>, CopierError> {
    let hardware = Hardware::of(machine)?;
    let copiers = mix.kinds().iter().map(|it| copier(machine, it.kind)).collect::<Result<Vec<_>, _>>()?;
    let each = mix.kinds().iter().zip(&copiers);
    let all: Vec<Copier> = each.flat_map(|(it, &copier)| vec![copier; it.count]).collect();
    let together = copier_rates(&hardware, &all)?;
    let mut first = 0;
    let mut rows = Vec::new();
    for (kind, &copier) in mix.kinds().iter().zip(&copiers) {
        let (beside, alone) = (together[first], copier_rates(&hardware, &[copier])?[0]);
        first += kind.count;
        let row = row("modelled", Provenance::Modelled, mix, kind, &[beside]);
        rows.push(row.against(ALONE, alone, beside / alone));
    }
    Ok(rows)
}

/// A process on the machine of a profile: a core near its source, or the first device there.
fn copier(machine: &Machine, kind: Kind) -> Result<Copier, CopierError> {
    let has_both = machine.nodes().iter().find(|node| !node.cpus.is_empty() && node.has_memory());
    let Some((source, target)) = kind.nodes.or(has_both.map(|node| (node.id, node.id))) else {
        return cannot(format!("{} has no node with CPUs and memory; name nodes", machine.name()));
    };
    let cpus = cpu_node(machine, source)?;
    let executor = match kind.by {
        By::Core => Executor::Core(cpus),
        By::Device => {
            let device = machine.accelerators().iter().position(|device| device.node == Some(cpus));
            match device {
                Some(device) => Executor::Device(device),
                None => return cannot(format!("{} has no DSA on node {cpus}", machine.name())),
            }
        }
    };
    Ok(Copier { executor, source, target })
}

/// The node whose CPUs are nearest to a memory.
fn cpu_node(machine: &Machine, memory: NodeId) -> Result<NodeId, CopierError> {
    machine.node(memory).map(|node| node.cpu_node).or_else(|error| cannot(error.to_string()))
}

/// Entries of the emulated queue.
const ENTRIES: u32 = 64;
/// Copies of each process of the emulated device.
const COPIES: usize = 200;

/// Rates of processes that share the queue and the four engines of an emulated device, with the costs of the machine's
/// devices. Each waits for a copy before it submits the next.
///
/// # Errors
/// [`CopierError::Cannot`]: processes by cores, or on nodes. [`CopierError::Model`],
/// [`CopierError::Load`].
pub fn emulated(mix: &Mix, machine: &Machine, size_bytes: u32) -> Result<Vec<Row>, CopierError> {
    let [Processes { count, kind: Kind { by: By::Device, nodes: None } }] = mix.kinds() else {
        return cannot("the emulated device has no cores and no memory beside it: leave out cores and nodes");
    };
    let queue = WorkQueueInfo { transfer_bytes_max: TRANSFER_BYTES_MAX, ..shared_queue("wq0.0", ENTRIES) };
    let costs = Offload::of(&Hardware::of(machine)?)?.costs()?;
    let config = DeviceConfig::new(vec![GroupConfig { engines: 4, queues: vec![queue] }]).with_timing(costs);
    let load = Load {
        work: LoadOperation::Copy,
        size_bytes,
        batch: 1,
        depth: 1,
        repetitions: COPIES,
        pages: PageState::Touched,
    };
    let rates = |count: usize| -> Result<Vec<f64>, LoadError> {
        let times = run_emulated(&config, &vec![(0, load); count])?;
        let bytes = f64::from(size_bytes) * COPIES as f64;
        Ok(times.iter().map(|time| bytes / time.elapsed_ns * 1e9).collect())
    };
    let (beside, alone) = (rates(*count)?, rates(1)?[0]);
    let row = row("emulated", Provenance::Emulated, mix, &mix.kinds()[0], &beside);
    let ratio = row.value / alone;
    Ok(vec![row.against(ALONE, alone, ratio)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xeon_max() -> Machine {
        Machine::from_profile("xeon-max-9468-2s-flat").unwrap()
    }

    fn ratio(row: &Row) -> f64 {
        row.peer.as_ref().unwrap().ratio.unwrap()
    }

    #[test]
    fn the_model_has_a_row_for_each_kind() {
        let mix: Mix = "device:0:8+12*core:0:8".parse().unwrap();
        let rows = modelled(&mix, &xeon_max()).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["modelled_device_0_8_beside_12core_0_8", "modelled_12core_0_8_beside_device_0_8"]);
        assert!(ratio(&rows[0]) == 1.0 && ratio(&rows[1]) < 0.7, "only the cores lose: {rows:?}");
        let far: Mix = "device:0:8+12*core:5:13".parse().unwrap();
        assert!((ratio(&modelled(&far, &xeon_max()).unwrap()[1]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_emulated_device_is_shared() {
        let of = |mix: &str| emulated(&mix.parse().unwrap(), &xeon_max(), 1 << 20);
        let [two, eight] = ["2*device", "8*device"].map(|mix| of(mix).unwrap().remove(0));
        assert_eq!(two.name, "emulated_2device");
        assert_eq!((two.samples, eight.samples), (2, 8), "a rate of each process");
        assert!(ratio(&eight) < 0.6 * ratio(&two), "{} and {}", ratio(&two), ratio(&eight));
        assert!(of("device+core").unwrap_err().to_string().contains("leave out cores"));
        assert!(of("device:0:0").unwrap_err().to_string().contains("leave out cores"));
    }

    #[test]
    fn what_the_model_refuses() {
        let refused =
            |mix: &str, machine: &Machine| modelled(&mix.parse().unwrap(), machine).unwrap_err().to_string();
        assert!(refused("core:0:99", &xeon_max()).contains("99"));
        let plain = Machine::two_tiers().unwrap();
        assert!(refused("device", &plain).contains("has no DSA on node 0"));
    }
}

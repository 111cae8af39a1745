//! Copiers that work at the same time: what each of them is left.

use crate::topology::NodeId;

use super::ModelError;
use super::cores::{copy_rate, cores};
use super::hardware::Hardware;
use super::traffic::{Fairness, Mover, Traffic};

/// The executor of a copier.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Executor {
    /// A core of this node.
    Core(NodeId),
    /// The accelerator with this index.
    Device(usize),
}

/// A process that copies from one memory to another all the time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Copier {
    /// Executes the copies.
    pub executor: Executor,
    /// The memory of the sources.
    pub source: NodeId,
    /// The memory of the targets.
    pub target: NodeId,
}

/// Bytes per second of each copier while all of them copy. Copies are long: a start takes no time.
///
/// # Errors
/// [`ModelError::Unknown`], [`Node`](ModelError::Node), [`Scenario`](ModelError::Scenario) for more copiers than cores on a
/// node, or for a device that the machine does not have.
pub fn copier_rates(hardware: &Hardware, copiers: &[Copier]) -> Result<Vec<f64>, ModelError> {
    let mut traffic = Traffic::new(hardware, Fairness::default());
    for copier in copiers {
        let (source, target) = (hardware.position(copier.source)?, hardware.position(copier.target)?);
        hardware.memory_rate(source)?;
        hardware.memory_rate(target)?;
        let mover = match copier.executor {
            Executor::Core(cpus) => {
                hardware.check_copier(false)?;
                let node = hardware.position(cpus)?;
                let count = copiers.iter().filter(|other| other.executor == copier.executor).count();
                // Refuses more of them than there are cores.
                cores(hardware, node, count, 0.0)?;
                let alone = hardware.thread_copy_rate_between(node, source, target);
                cores(hardware, node, 1, copy_rate(hardware, node, alone, count))?
            }
            Executor::Device(device) => match hardware.device_rates.get(device) {
                Some(Some(_)) => Mover::Device(device),
                Some(None) => {
                    return Err(ModelError::Unknown { what: format!("the rate of device {device}") });
                }
                None => {
                    let what = format!("device {device} is to copy on a machine without it");
                    return Err(ModelError::Scenario { what });
                }
            },
        };
        // How much it is does not matter: no stream ends.
        traffic.copy(mover, source, target, f64::MAX, ());
    }
    Ok(traffic.rates().to_vec())
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;
    use crate::model::cores::copies_s;
    use crate::topology::Machine;

    fn xeon_max() -> Hardware {
        Hardware::of(&Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap()
    }

    fn copier(executor: Executor, source: u32, target: u32) -> Copier {
        Copier { executor, source: NodeId(source), target: NodeId(target) }
    }

    fn core(node: u32) -> Copier {
        copier(Executor::Core(NodeId(node)), node, node + 8)
    }

    /// The same as the times of copies by cores, whose start does not count in a long copy.
    #[test]
    fn cores_are_as_fast_as_their_copies() {
        let hardware = xeon_max();
        for count in [1, 12] {
            let rates = copier_rates(&hardware, &vec![core(0); count]).unwrap();
            let seconds = copies_s(&hardware, NodeId(0), (NodeId(0), NodeId(8)), count, 1e12).unwrap();
            for rate in rates {
                assert!((rate * seconds / 1e12 - 1.0).abs() < 1e-6, "{count}: {rate}");
            }
        }
    }

    /// A memory is shared between its requesters; who uses other memories loses nothing.
    #[test]
    fn copiers_share_what_they_both_use() {
        let hardware = xeon_max();
        let device = copier(Executor::Device(0), 0, 8);
        let rates = |copiers: &[Copier]| copier_rates(&hardware, copiers).unwrap();
        let alone = rates(&[device])[0];
        // The device needs less than its share of the memory: only the cores lose.
        let beside = rates(&[&[device][..], &[core(0); 12]].concat());
        let cores: f64 = rates(&[core(0); 12]).iter().sum();
        let left: f64 = beside[1..].iter().sum();
        assert!(beside[0] == alone && left < 0.7 * cores, "{beside:?}, of {alone} and {cores}");
        let far = rates(&[&[device][..], &[core(5); 12]].concat());
        assert!((far[1] / rates(&[core(5)])[0] - 1.0).abs() < 1e-9, "of another socket: {far:?}");
        let two = rates(&[device, device]);
        assert!((two[0] * 2.0 / alone - 1.0).abs() < 1e-9, "two processes of one device: {two:?}");
    }

    #[test]
    fn impossible_copiers() {
        let hardware = xeon_max();
        let refused = |copiers: &[Copier]| copier_rates(&hardware, copiers).unwrap_err().to_string();
        let many = refused(&vec![core(0); 1000]);
        assert!(many.contains("1000 cores"), "{many}");
        assert!(refused(&[copier(Executor::Device(99), 0, 8)]).contains("device 99"));
        assert!(refused(&[copier(Executor::Device(0), 0, 99)]).contains("99"));
    }
}

//! Further copies and reads of this machine, beside the predictions of the model.

use memferry::internals::{CopyMethod, Hardware, copies_s, reads_s, worker_copy_s};
use memferry::model::ModelError;
use memferry::topology::{Machine, Node, NodeId};

use super::sampling::Sampler;
use super::{CalibrateError, SamplingPlan, copies};
use crate::memory::arena::Arena;

/// A benchmark: prediction and measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// Name of the benchmark.
    pub name: String,
    /// Predicted seconds.
    pub predicted_s: f64,
    /// Measured seconds, see [`undisturbed`](super::undisturbed).
    pub measured_s: f64,
}

impl Checked {
    /// Error of the model as a share of the measurement.
    pub fn error(&self) -> f64 {
        (self.predicted_s / self.measured_s - 1.0).abs()
    }
}

/// Sizes that calibration does not measure: between its sizes, and beyond.
const COPIES_BYTES: [usize; 6] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20];
/// Sizes whose copy takes longer than waking a worker, and shorter.
const WORKER_BYTES: [usize; 3] = [128 << 10, 1 << 20, 8 << 20];
/// Bytes of each core.
const TOGETHER_BYTES: usize = 8 << 20;

/// A benchmark that is run and predicted.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Task {
    Copy(usize),
    CopyByWorker(usize),
    Read { cores_count: usize },
    Copies { cores_count: usize },
}

impl Task {
    fn all(cores_count: usize) -> Vec<Task> {
        let alone = COPIES_BYTES.map(Task::Copy).into_iter().chain(WORKER_BYTES.map(Task::CopyByWorker));
        let mut tasks: Vec<Task> = alone.chain([Task::Read { cores_count: 1 }]).collect();
        if cores_count > 1 {
            tasks.extend([Task::Read { cores_count }, Task::Copies { cores_count }]);
        }
        tasks
    }

    fn name(self) -> String {
        match self {
            Task::Copy(bytes) => format!("copy_{}", size(bytes)),
            Task::CopyByWorker(bytes) => format!("copy_by_worker_{}", size(bytes)),
            Task::Read { cores_count } => format!("read_{}_by_{cores_count}", size(TOGETHER_BYTES)),
            Task::Copies { cores_count } => format!("copy_{}_by_{cores_count}", size(TOGETHER_BYTES)),
        }
    }

    fn predicted_s(self, hardware: &Hardware, here: NodeId) -> Result<f64, ModelError> {
        let bytes = TOGETHER_BYTES as f64;
        match self {
            Task::Copy(bytes) => copies_s(hardware, here, (here, here), 1, bytes as f64),
            Task::CopyByWorker(bytes) => worker_copy_s(hardware, here, (here, here), bytes as f64),
            Task::Read { cores_count } => reads_s(hardware, here, here, cores_count, bytes),
            Task::Copies { cores_count } => copies_s(hardware, here, (here, here), cores_count, bytes),
        }
    }

    fn measured_s(
        self,
        machine: &Machine,
        cpus: &[u32],
        arenas: &mut [Arena],
        sampler: &mut Sampler,
    ) -> Result<f64, CalibrateError> {
        let copy = |arena: &mut Arena| arena.copy(CopyMethod::Memcpy, TOGETHER_BYTES);
        let read = |arena: &mut Arena| arena.read(TOGETHER_BYTES);
        match self {
            Task::Copy(bytes) => copies::copy_s(cpus[0], &mut arenas[0], CopyMethod::Memcpy, bytes, sampler),
            Task::CopyByWorker(bytes) => copies::worker_s(machine, &mut arenas[0], bytes, sampler),
            Task::Read { cores_count } => sampler.together_s(&cpus[..cores_count], arenas, read),
            Task::Copies { cores_count } => sampler.together_s(&cpus[..cores_count], arenas, copy),
        }
    }
}

/// Measured copies and reads of this machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    here: NodeId,
    tasks: Vec<(Task, f64)>,
}

impl Check {
    /// Runs all benchmarks once, with one arena of `node` per CPU.
    pub(super) fn measure(
        machine: &Machine,
        node: &Node,
        arenas: &mut [Arena],
        effort: SamplingPlan,
    ) -> Result<Check, CalibrateError> {
        let cpus = &node.allowed_cpus[..];
        let tasks = Task::all(cpus.len());
        let mut sampler = Sampler::new(effort, tasks.len());
        let measured = |task: Task| Ok((task, task.measured_s(machine, cpus, arenas, &mut sampler)?));
        let tasks = tasks.into_iter().map(measured).collect::<Result<_, CalibrateError>>()?;
        Ok(Check { here: node.id, tasks })
    }

    /// Merges two passes by the better time of each.
    pub fn or_better(mut self, other: Check) -> Check {
        for ((_, time_s), (_, other_s)) in self.tasks.iter_mut().zip(other.tasks) {
            *time_s = time_s.min(other_s);
        }
        self
    }

    /// Adds the predictions of the model from `profile`, which was calibrated here.
    ///
    /// # Errors
    /// [`CalibrateError::Model`] for a profile without the parameters of the model.
    pub fn against(&self, profile: &Machine) -> Result<Vec<Checked>, CalibrateError> {
        let hardware = Hardware::of(profile)?;
        let checked = |&(task, measured_s): &(Task, f64)| {
            let predicted_s = task.predicted_s(&hardware, self.here)?;
            Ok(Checked { name: task.name(), predicted_s, measured_s })
        };
        self.tasks.iter().map(checked).collect()
    }
}

/// `8KiB`, `2MiB`.
fn size(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{}KiB", bytes >> 10) } else { format!("{}MiB", bytes >> 20) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_no_sign() {
        let error = |predicted_s| Checked { name: "x".to_owned(), predicted_s, measured_s: 2.0 }.error();
        assert_eq!([1.0, 2.0, 3.0].map(error), [0.5, 0.0, 0.5]);
    }

    /// No check uses a size of the calibration.
    #[test]
    fn other_sizes_are_checked_than_calibrated() {
        let names: Vec<String> = Task::all(2).into_iter().map(Task::name).collect();
        assert_eq!(names.len(), 12, "{names:?}");
        assert!(names.contains(&"copy_8MiB_by_2".to_owned()), "{names:?}");
        assert_eq!(Task::all(1).len(), 10);
        assert!(COPIES_BYTES.iter().all(|size| !copies::SIZES_BYTES.contains(size)));
        assert_ne!(TOGETHER_BYTES, SamplingPlan::FULL.round_bytes());
    }
}

//! This machine's own copies and reads, anew, beside what the model says of them.

use super::arena::Arena;
use super::threads::together;
use super::{CalibrateError, Effort, copies, home, undisturbed};
use crate::model::{Hardware, copies_s, reads_s, worker_copy_s};
use crate::mover::CopyMethod;
use crate::topology::Machine;

/// A benchmark: what the model said and what came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// What ran.
    pub name: String,
    /// By the model.
    pub predicted_s: f64,
    /// On this machine: see [`undisturbed`].
    pub measured_s: f64,
}

impl Checked {
    /// How far the model is off, as a share of what was measured.
    pub fn error(&self) -> f64 {
        (self.predicted_s / self.measured_s - 1.0).abs()
    }
}

/// Sizes that no calibration has measured: between those that it has, and beyond.
const COPIES_BYTES: [usize; 6] = [8 << 10, 32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20];
/// Long enough that a worker's copy is more than its waking, and shorter.
const WORKER_BYTES: [usize; 3] = [128 << 10, 1 << 20, 8 << 20];
/// Of each of all cores.
const TOGETHER_BYTES: usize = 8 << 20;

/// Runs copies and reads on this machine and predicts them from `profile`, which was calibrated here.
///
/// # Errors
/// As [`measure`](super::measure), and [`CalibrateError::Model`] for a profile that lacks what the model needs.
pub fn check(machine: &Machine, profile: &Machine, effort: Effort) -> Result<Vec<Checked>, CalibrateError> {
    if !machine.is_this_machine() {
        return Err(CalibrateError::NotHere { machine: machine.name().to_owned() });
    }
    let hardware = Hardware::of(profile)?;
    let node = home(machine)?;
    let (here, cpus) = (node.id, &node.allowed_cpus[..]);
    let first = cpus[0];
    let mut arenas = cpus
        .iter()
        .map(|_| Arena::new(machine, here, effort.arena_bytes(cpus)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut checked = Vec::new();
    let mut row = |name: String, predicted_s: f64, measured_s: f64| {
        checked.push(Checked { name, predicted_s, measured_s });
    };
    for size_bytes in COPIES_BYTES {
        let predicted_s = copies_s(&hardware, here, (here, here), 1, size_bytes as f64)?;
        let measured_s = copies::copy_s(first, &mut arenas[0], CopyMethod::Memcpy, size_bytes, effort)?;
        row(format!("copy_{}", size(size_bytes)), predicted_s, measured_s);
    }
    for size_bytes in WORKER_BYTES {
        let predicted_s = worker_copy_s(&hardware, here, (here, here), size_bytes as f64)?;
        let measured_s = copies::worker_s(machine, &mut arenas[0], size_bytes, effort)?;
        row(format!("copy_by_worker_{}", size(size_bytes)), predicted_s, measured_s);
    }
    let bytes = TOGETHER_BYTES as f64;
    for cpus in if cpus.len() > 1 { vec![&cpus[..1], cpus] } else { vec![cpus] } {
        let count = cpus.len();
        let name = |what: &str| format!("{what}_{}_by_{count}", size(TOGETHER_BYTES));
        let times = together(cpus, &mut arenas, effort.rounds, |arena| arena.read(TOGETHER_BYTES))?;
        row(name("read"), reads_s(&hardware, here, here, count, bytes)?, undisturbed(&times));
        if count > 1 {
            let copy = |arena: &mut Arena| arena.copy(CopyMethod::Memcpy, TOGETHER_BYTES);
            let times = together(cpus, &mut arenas, effort.rounds, copy)?;
            row(name("copy"), copies_s(&hardware, here, (here, here), count, bytes)?, undisturbed(&times));
        }
    }
    Ok(checked)
}

/// `8KiB`, `2MiB`.
fn size(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{}KiB", bytes >> 10) } else { format!("{}MiB", bytes >> 20) }
}

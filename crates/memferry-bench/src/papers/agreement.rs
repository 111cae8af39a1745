//! The emulated device beside the model of the same device.

use memferry::model::ModelError;
use memferry::topology::Machine;

use super::{BENCHMARKS, Backend, OnEmulated, OnModel, RunLength, Skipped};
use crate::harness::Row;

/// The machine whose devices, routes and memories are compared.
const MACHINE: &str = "xeon-max-9468-2s-flat";

/// Runs every point of every benchmark that both backends have; the differences in percent of the model's value.
///
/// # Errors
/// None in practice: [`ModelError`] of the built-in profile, [`Skipped::Failed`] of the emulated device.
pub fn emulator_vs_model() -> Result<Vec<Row>, Box<dyn std::error::Error + Send + Sync>> {
    let machine = || Machine::from_profile(MACHINE).map_err(ModelError::from);
    let (model, emulated) = (OnModel::new(machine()?)?, OnEmulated::new(machine()?)?);
    let mut differences: Vec<(f64, String)> = Vec::new();
    for benchmark in BENCHMARKS {
        let axes = (benchmark.axes)(false);
        for point in benchmark.points(&axes) {
            let run = |backend: &dyn Backend| match backend.run(&point, benchmark.metrics, RunLength::QUICK) {
                Err(Skipped::Cannot(_)) => Ok(None),
                Err(Skipped::Failed(error)) => Err(error),
                Ok(taken) => Ok(Some(taken)),
            };
            let Some(modelled) = run(&model)? else { continue };
            let Some(emulated) = run(&emulated)? else { continue };
            for (ours, other) in modelled.iter().zip(&emulated).filter(|(ours, _)| !ours.values.is_empty()) {
                let other = other.values.first().copied().unwrap_or(f64::NAN);
                let name = benchmark.row_name(&axes, &point, ours.metric);
                differences.push((100.0 * (other / ours.values[0] - 1.0).abs(), name));
            }
        }
    }
    differences.sort_by(|one, other| one.0.total_cmp(&other.0));
    let row = |name: &str, value: f64, unit: &'static str| Row::modelled(name, value, unit);
    let (most, at) = differences.last().cloned().unwrap_or_default();
    Ok(vec![
        row("emulator_vs_model", differences[differences.len() / 2].0, "%"),
        row("emulator_vs_model_max", most, "%").without_peer(at),
        row("emulator_vs_model_points", differences.len() as f64, ""),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_one_model() {
        let rows = emulator_vs_model().unwrap();
        let [median, most, points] = [0, 1, 2].map(|index| rows[index].value);
        assert!(points > 200.0, "{points}");
        assert!(median <= 3.0 && most <= 10.0, "median {median} %, at most {most} %: {rows:?}");
    }
}

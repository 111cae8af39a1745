//! The emulated device beside the model of the same device.

use memferry::model::ModelError;
use memferry::topology::Machine;

use super::{BENCHMARKS, Backend, Metric, OnEmulated, OnModel, RunLength, Skipped};
use crate::harness::{Provenance, Row};

/// The machine whose devices, routes and memories are compared.
const MACHINE: &str = "xeon-max-9468-2s-flat";

/// Runs every point of every benchmark that both backends have; the differences in percent of the model's value.
///
/// # Errors
/// None in practice: [`ModelError`] of the built-in profile, [`Skipped::Failed`] of the emulated device.
pub fn emulator_vs_model() -> Result<Vec<Row>, Box<dyn std::error::Error + Send + Sync>> {
    let machine = || Machine::from_profile(MACHINE).map_err(ModelError::from);
    let (model, emulated) = (OnModel::new(machine()?)?, OnEmulated::new(machine()?)?);
    let mut compared: Vec<Compared> = Vec::new();
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
                compared.push(Compared {
                    name: benchmark.row_name(&axes, &point, ours.metric),
                    metric: ours.metric,
                    modelled: ours.values[0],
                    emulated: other.values.first().copied().unwrap_or(f64::NAN),
                });
            }
        }
    }
    compared.sort_by(|one, other| one.percent().total_cmp(&other.percent()));
    let (middle, count) = (&compared[compared.len() / 2], compared.len() as f64);
    let mut rows = vec![
        Row::modelled("emulator_vs_model", middle.percent(), "%"),
        Row::modelled("emulator_vs_model_points", count, ""),
    ];
    if let Some(worst) = compared.last() {
        rows.push(Row::modelled("emulator_vs_model_max", worst.percent(), "%"));
        rows.push(worst.row());
    }
    Ok(rows)
}

/// A figure of a point by both.
struct Compared {
    name: String,
    metric: Metric,
    modelled: f64,
    emulated: f64,
}

impl Compared {
    /// Difference in percent of the model's value.
    fn percent(&self) -> f64 {
        100.0 * (self.emulated / self.modelled - 1.0).abs()
    }

    /// The emulated figure beside the modelled one.
    fn row(&self) -> Row {
        let Metric { unit, is_more_better, .. } = self.metric;
        let ratio = self.emulated / self.modelled;
        let ratio = if is_more_better { ratio } else { 1.0 / ratio };
        let name = format!("emulator_vs_model_max [{}]", self.name);
        let row = Row::median(name, unit, Provenance::Emulated, &[self.emulated]);
        let row = row.against("modelled", self.modelled, ratio);
        Row { peer: row.peer.map(|peer| peer.obtained(Provenance::Modelled)), ..row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_one_model() {
        let rows = emulator_vs_model().unwrap();
        let [median, points, most] = [0, 1, 2].map(|index| rows[index].value);
        let peer = rows[3].peer.as_ref().unwrap().value.unwrap();
        assert!((100.0 * (rows[3].value / peer - 1.0).abs() - most).abs() < 1e-9, "{:?}", rows[3]);
        assert!(points > 200.0, "{points}");
        assert!(median <= 3.0 && most <= 10.0, "median {median} %, at most {most} %: {rows:?}");
    }
}

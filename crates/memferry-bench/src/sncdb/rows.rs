//! The study as rows of a benchmark.

use memferry::internals::TaskRun;
use memferry::model::ModelError;
use memferry::topology::Machine;

use super::{PREDICATES, RANGE_PREDS, Setting, Study, lookups};
use crate::harness::Row;

/// The name of a run: `scan_10000_all_stealing_2_4`, with the predicates on the first and on the second table.
pub fn scan_name(setting: Setting, on_first: usize, range_pred: u64) -> String {
    let Setting { workers, is_stealing } = setting;
    let stealing = if is_stealing { "_stealing" } else { "" };
    format!("scan_{range_pred}_{workers}{stealing}_{on_first}_{}", PREDICATES - on_first)
}

/// The rows of a run: throughput, and after the name and a separator its deviation, the traffic of memories in all and between
/// domains, the tasks of the other domain's table, and the fairness between clients.
pub(crate) fn rows_of(name: &str, separator: &str, run: &TaskRun) -> Vec<Row> {
    let row = |what, value, unit| Row::modelled(format!("{name}{separator}{what}"), value, unit);
    vec![
        Row::modelled(name, run.queries_per_s, "queries/s"),
        row("deviation", run.deviation, "queries/s"),
        row("memory", run.bytes_per_s() / 1e9, "GB/s"),
        row("away", run.bytes_per_s_away() / 1e9, "GB/s"),
        row("stolen", 100.0 * run.away, "%"),
        row("fairness", run.fairness, ""),
    ]
}

/// All settings, skews and selectivities on a machine, and the time that a random access waits for memory, if the cache of the machine is known.
///
/// # Errors
/// As [`Study::of`] and [`Study::run`].
pub fn rows(machine: &Machine) -> Result<Vec<Row>, ModelError> {
    let study = Study::of(machine)?;
    let mut rows = Vec::new();
    match lookups(machine) {
        Ok(lookup) => {
            rows.push(Row::modelled("random_wait", lookup.wait_ns(), "ns"));
            rows.push(Row::modelled("random_misses", lookup.misses, "reads"));
        }
        Err(ModelError::Unknown { .. }) => (),
        Err(error) => return Err(error),
    }
    for range_pred in RANGE_PREDS {
        for setting in study.settings() {
            for on_first in (0..=PREDICATES).rev() {
                let run = study.run(setting, on_first, range_pred)?;
                rows.extend(rows_of(&scan_name(setting, on_first, range_pred), "_", &run));
            }
        }
    }
    Ok(rows)
}

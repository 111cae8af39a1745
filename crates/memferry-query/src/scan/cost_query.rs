//! The query of a scan to the cost model: its columns at their current places, and the engines of copies.

use std::collections::BTreeSet;

use memferry::model::{Column, Plan, Stage};
use memferry::topology::TopologyError;

use super::TieredScanExec;

/// A scan in terms of the model.
pub(super) struct CostQuery {
    pub(super) plan: Plan,
    /// The meaning of each column of the plan.
    pub(super) parts: Vec<Part>,
    /// For EXPLAIN, one clause per late column that is near in part.
    pub(super) near_already: Vec<String>,
}

/// A column of the table, or its near or its missing part.
pub(super) struct Part {
    pub(super) column: usize,
    /// Share of the column's bytes.
    pub(super) share: f64,
}

impl CostQuery {
    /// Describes the scan. It reads the state of the cache and changes nothing.
    ///
    /// # Errors
    /// The machine lacks the node of the data.
    pub(super) fn of(scan: &TieredScanExec, late: &BTreeSet<usize>) -> Result<CostQuery, TopologyError> {
        let (data, tiers) = (&scan.columns.data, &scan.columns.tiers);
        let groups = || scan.columns.regions.iter().flatten();
        // A dynamic filter may read late columns, too.
        let early: BTreeSet<usize> = scan.filter_columns().difference(late).copied().collect();
        let (mut columns, mut parts, mut near_already) = (Vec::new(), Vec::new(), Vec::new());
        for &column in early.union(late) {
            let size_bytes: u64 = groups().map(|group| group[column].size_bytes()).sum();
            let near_bytes: u64 =
                groups().map(|group| group[column].near_bytes(tiers.cache(), tiers.near())).sum();
            let name = data.schema().field(column).name();
            if late.contains(&column) && near_bytes > 0 {
                near_already.push(match near_bytes == size_bytes {
                    true => format!("{name} is near already"),
                    false => format!("of {name} {:.0} % are near already", percent(near_bytes, size_bytes)),
                });
            }
            let at_home = (data.home(), size_bytes - near_bytes);
            let near = (tiers.near(), near_bytes);
            for (node, bytes) in [at_home, near] {
                if bytes > 0 || (size_bytes == 0 && node == data.home()) {
                    columns.push(Column { name: name.clone(), size_bytes: bytes, node });
                    parts.push(Part { column, share: bytes as f64 / size_bytes.max(1) as f64 });
                }
            }
        }
        let stage = |name: &str, read: &BTreeSet<usize>, rate: &str| Stage {
            name: name.to_owned(),
            reads: (0..parts.len()).filter(|&place| read.contains(&parts[place].column)).collect(),
            threads_count: data.partitions().len().max(1),
            // Known for calibrated machines.
            thread_rate_max: tiers.machine().parameter(rate).map_or(f64::INFINITY, |rate| rate * 1e6),
        };
        let chunk_bytes = late
            .iter()
            .flat_map(|&column| groups().map(move |group| group[column].size_bytes()))
            .max()
            .unwrap_or(0);
        let plan = Plan {
            stages: vec![
                stage("the filter", &early, "filter_mb_per_s"),
                stage("the rows that passed", late, "late_mb_per_s"),
            ],
            columns,
            cpus: tiers.machine().node(data.home())?.cpu_node,
            chunk_bytes: chunk_bytes.max(1),
            near: Some(tiers.near()),
            reads_to_come: u32::try_from(scan.settings.options.reads_to_come).unwrap_or(u32::MAX),
        };
        Ok(CostQuery { plan, parts, near_already })
    }
}

/// Rounded down, so that a missing part shows.
fn percent(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 100.0).floor()
}

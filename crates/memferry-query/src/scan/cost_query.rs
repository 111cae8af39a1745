//! The query of a scan to the cost model: its columns at their current places, and the engines of copies.

use std::collections::{BTreeMap, BTreeSet};

use memferry::model::{Column, Plan, Stage};
use memferry::topology::{NodeId, TopologyError};

use super::TieredScanExec;
use super::admission::Reader;

/// A scan in terms of the model.
pub(super) struct CostQuery {
    pub(super) plan: Plan,
    /// The meaning of each column of the plan.
    pub(super) parts: Vec<Part>,
    /// For EXPLAIN, one clause per late column that is near in part.
    pub(super) near_already: Vec<String>,
}

/// A column of the table on one node: its near part, or what is missing near of the part with this home.
pub(super) struct Part {
    pub(super) column: usize,
    pub(super) home: NodeId,
    /// The missing share of the bytes with this home.
    pub(super) share: f64,
}

/// Bytes of a column by their homes, and those of them that are near.
struct Homes(BTreeMap<NodeId, (u64, u64)>);

impl Homes {
    fn of(scan: &TieredScanExec, reader: &Reader<'_>, column: usize) -> Homes {
        let (data, tiers) = (&scan.columns.data, &scan.columns.tiers);
        let mut homes: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
        let groups = data.partitions().iter().flatten().zip(scan.columns.regions.iter().flatten());
        for (_, (group, regions)) in groups.enumerate().filter(|(number, _)| reader.reads(*number)) {
            let (size_bytes, near_bytes) = homes.entry(group.node(column)).or_default();
            *size_bytes += regions[column].size_bytes();
            *near_bytes += regions[column].near_bytes(tiers.cache(), reader.near.node);
        }
        Homes(homes)
    }

    fn size_bytes(&self) -> u64 {
        self.0.values().map(|(size_bytes, _)| size_bytes).sum()
    }

    fn near_bytes(&self) -> u64 {
        self.0.values().map(|(_, near_bytes)| near_bytes).sum()
    }
}

impl CostQuery {
    /// Describes the part of the scan that `reader` runs. It reads the state of the cache and changes nothing.
    ///
    /// # Errors
    /// The machine lacks the node of the CPUs.
    pub(super) fn of(
        scan: &TieredScanExec,
        reader: &Reader<'_>,
        late: &BTreeSet<usize>,
    ) -> Result<CostQuery, TopologyError> {
        let (data, tiers) = (&scan.columns.data, &scan.columns.tiers);
        // A dynamic filter may read late columns, too.
        let early: BTreeSet<usize> = scan.filter_columns().difference(late).copied().collect();
        let (mut columns, mut parts, mut near_already) = (Vec::new(), Vec::new(), Vec::new());
        for &column in early.union(late) {
            let of_column = Homes::of(scan, reader, column);
            let (size_bytes, near_bytes) = (of_column.size_bytes(), of_column.near_bytes());
            let name = data.schema().field(column).name();
            if late.contains(&column) && near_bytes > 0 {
                near_already.push(match near_bytes == size_bytes {
                    true => format!("{name} is near already"),
                    false => format!("of {name} {:.0} % are near already", percent(near_bytes, size_bytes)),
                });
            }
            let is_spread = of_column.0.len() > 1;
            for (&home, &(size_bytes, near_bytes)) in &of_column.0 {
                let missing_bytes = size_bytes - near_bytes;
                if missing_bytes > 0 {
                    let name = if is_spread { format!("{name} on node {home}") } else { name.clone() };
                    columns.push(Column { name, size_bytes: missing_bytes, node: home });
                    parts.push(Part { column, home, share: missing_bytes as f64 / size_bytes as f64 });
                }
            }
            if near_bytes > 0 {
                columns.push(Column { name: name.clone(), size_bytes: near_bytes, node: reader.near.node });
                parts.push(Part { column, home: reader.near.node, share: 0.0 });
            } else if size_bytes == 0 {
                columns.push(Column { name: name.clone(), size_bytes: 0, node: data.home() });
                parts.push(Part { column, home: data.home(), share: 0.0 });
            }
        }
        let stage = |name: &str, read: &BTreeSet<usize>, rate: &str| Stage {
            name: name.to_owned(),
            reads: (0..parts.len()).filter(|&place| read.contains(&parts[place].column)).collect(),
            threads_count: reader.partitions_count,
            // Known for calibrated machines.
            thread_rate_max: tiers.machine().parameter(rate).map_or(f64::INFINITY, |rate| rate * 1e6),
        };
        let chunk_bytes = late
            .iter()
            .flat_map(|&column| {
                scan.columns.regions.iter().flatten().map(move |group| group[column].size_bytes())
            })
            .max()
            .unwrap_or(0);
        let plan = Plan {
            stages: vec![
                stage("the filter", &early, "filter_mb_per_s"),
                stage("the rows that passed", late, "late_mb_per_s"),
            ],
            columns,
            cpus: tiers.machine().node(reader.cpus)?.id,
            chunk_bytes: chunk_bytes.max(1),
            near: Some(reader.near.node),
            reads_to_come: u32::try_from(scan.settings.options.reads_to_come).unwrap_or(u32::MAX),
        };
        Ok(CostQuery { plan, parts, near_already })
    }
}

/// Rounded down, so that a missing part shows.
fn percent(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 100.0).floor()
}

//! Whether a scan brings its late columns near, and how much of them.
//!
//! `off` and `always` are orders. `auto` asks the model what the scan would take with and without: the filter reads its
//! columns while others are copied, then the rows that passed are read. It takes all rows to pass. What evaluating the
//! filter costs it knows of machines that were calibrated; of others copies have at least as much time as it says.
//! Where the machine does not tell what the model needs, a faster node with room is reason enough.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use memferry::model::{self, Advice, Alternative, Column, ModelError, Plan, Stage};
use memferry::topology::NodeId;

use super::TieredScanExec;
use crate::options::Prefetch;

/// What a scan does with the cache.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Admission {
    /// Copies late columns, and reads what is there.
    Prefetch(Near),
    /// Copies nothing, because ..., but reads what others brought to this node.
    Reuse(NodeId, String),
    /// Nothing, because ...
    Refused(String),
}

/// What is brought near.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Near {
    pub(super) node: NodeId,
    /// The mode, and what the model says.
    why: String,
    /// Table columns with the share of their row groups that is copied.
    shares: BTreeMap<usize, f64>,
    pub(super) predicted: Option<Predicted>,
}

/// How long each partition works. As many as there are CPUs run beside each other, and then the next ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Predicted {
    pub(super) time: Duration,
    pub(super) without: Duration,
}

impl Near {
    fn whole(node: NodeId, late: &BTreeSet<usize>, why: String) -> Near {
        Near { node, why, shares: late.iter().map(|&column| (column, 1.0)).collect(), predicted: None }
    }

    /// Whether a column of a partition's row group is copied; those that are lie evenly among the others.
    pub(super) fn copies(&self, column: usize, group: usize) -> bool {
        let copied_before = |group: usize, share: f64| (group as f64 * share) as usize;
        self.shares
            .get(&column)
            .is_some_and(|&share| copied_before(group + 1, share) > copied_before(group, share))
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admission::Prefetch(near) => write!(f, "{}", near.why),
            Admission::Reuse(_, why) | Admission::Refused(why) => write!(f, "none ({why})"),
        }
    }
}

impl TieredScanExec {
    /// The same for every partition: it depends on the plan, the machine's description and the settings only.
    pub(super) fn admission(&self) -> Admission {
        let tiers = &self.columns.tiers;
        let mode = self.settings.options.prefetch;
        if mode == Prefetch::Off {
            return Admission::Refused("off".into());
        }
        if mode == Prefetch::Auto && !tiers.near_is_faster() {
            return Admission::Refused(format!("no node is faster than home node {}", tiers.home()));
        }
        let (late, node) = (self.late_columns(), tiers.near());
        if mode == Prefetch::Auto
            && let Some(why) = self.lacks_room(&late)
        {
            return Admission::Refused(why);
        }
        if late.is_empty() {
            return Admission::Reuse(node, "no column is late".into());
        }
        if mode == Prefetch::Always {
            return Admission::Prefetch(Near::whole(node, &late, format!("{mode} to node {node}")));
        }
        match self.advice(&late) {
            Ok((advice, columns)) => advised(node, &advice, &columns, self.share_of_partition()),
            Err(error) => {
                let why =
                    format!("{mode} to node {node} (it is faster; what that gains is not known: {error})");
                Admission::Prefetch(Near::whole(node, &late, why))
            }
        }
    }

    /// Which part of the scan's time a partition works.
    fn share_of_partition(&self) -> f64 {
        let (data, machine) = (&self.columns.data, self.columns.tiers.machine());
        let cpus = machine.node(data.home()).and_then(|home| machine.node(home.cpu_node));
        let cpus_count = cpus.map_or(1, |node| node.cpus.len());
        (cpus_count as f64 / data.partitions().len().max(1) as f64).min(1.0)
    }

    /// Why what is under way at a time does not fit, if it does not.
    fn lacks_room(&self, late: &BTreeSet<usize>) -> Option<String> {
        let tiers = &self.columns.tiers;
        let groups = self.columns.regions.iter().flatten();
        let group_bytes_max =
            groups.map(|group| late.iter().map(|&column| group[column].size_bytes()).sum::<u64>()).max();
        let window_bytes = group_bytes_max
            .unwrap_or(0)
            .saturating_mul(self.window_groups() as u64)
            .saturating_mul(self.columns.data.partitions().len() as u64);
        (window_bytes > tiers.budget_bytes()).then(|| {
            let (budget, node) = (tiers.budget_bytes(), tiers.near());
            format!(
                "the window of {window_bytes} bytes does not fit the budget of {budget} bytes on node {node}"
            )
        })
    }

    /// What the model says, and the table columns that its columns stand for.
    fn advice(&self, late: &BTreeSet<usize>) -> Result<(Advice, Vec<usize>), ModelError> {
        let (data, tiers) = (&self.columns.data, &self.columns.tiers);
        let groups = || self.columns.regions.iter().flatten();
        // A dynamic filter may read late columns too.
        let early: BTreeSet<usize> = self.filter_columns().difference(late).copied().collect();
        let columns: Vec<usize> = early.union(late).copied().collect();
        let column = |&column: &usize| Column {
            name: data.schema().field(column).name().clone(),
            size_bytes: groups().map(|group| group[column].size_bytes()).sum(),
            node: data.home(),
        };
        let stage = |name: &str, read: &BTreeSet<usize>, rate: &str| Stage {
            name: name.to_owned(),
            reads: (0..columns.len()).filter(|&place| read.contains(&columns[place])).collect(),
            threads_count: data.partitions().len().max(1),
            // Known of machines that were calibrated.
            thread_rate_max: tiers.machine().parameter(rate).map_or(f64::INFINITY, |rate| rate.value * 1e6),
        };
        let chunk_bytes = late
            .iter()
            .flat_map(|&column| groups().map(move |group| group[column].size_bytes()))
            .max()
            .unwrap_or(0);
        let plan = Plan {
            columns: columns.iter().map(column).collect(),
            stages: vec![
                stage("the filter", &early, "filter_mb_per_s"),
                stage("the rows that passed", late, "late_mb_per_s"),
            ],
            cpus: tiers.machine().node(data.home())?.cpu_node,
            chunk_bytes: chunk_bytes.max(1),
            near: Some(tiers.near()),
            is_by_devices: tiers.has_dsa(),
            reads_to_come: u32::try_from(self.settings.options.reads_to_come).unwrap_or(u32::MAX),
        };
        Ok((model::advise(tiers.machine(), &plan)?, columns))
    }
}

fn advised(node: NodeId, advice: &Advice, columns: &[usize], share_of_partition: f64) -> Admission {
    let Some(chosen) = advice.chosen.and_then(|index| advice.alternatives.get(index)) else {
        let why: Vec<&str> = advice.alternatives.iter().map(|it| it.words.as_str()).collect();
        return Admission::Reuse(
            node,
            match why.is_empty() {
                true => format!("node {node} is hardly faster for the CPUs that read"),
                false => why.join("; "),
            },
        );
    };
    let Alternative { words, predicted_s, .. } = chosen;
    let share = |(place, share): (usize, f64)| Some((*columns.get(place)?, share));
    Admission::Prefetch(Near {
        node,
        why: format!("auto to node {node} ({words})"),
        shares: chosen.shares().filter_map(share).collect(),
        predicted: Some(Predicted {
            time: Duration::from_secs_f64(share_of_partition * predicted_s),
            without: Duration::from_secs_f64(share_of_partition * advice.baseline_s),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_the_row_groups_lies_evenly_among_them() {
        let near = |share| Near {
            shares: BTreeMap::from([(3, share)]),
            ..Near::whole(NodeId(1), &BTreeSet::new(), String::new())
        };
        let copied = |share| (0..8).filter(|&group| near(share).copies(3, group)).collect::<Vec<_>>();
        assert_eq!(copied(1.0), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(copied(0.5), [1, 3, 5, 7]);
        assert_eq!(copied(0.4), [2, 4, 7]);
        assert_eq!(copied(0.0), [0; 0]);
        assert!(!near(1.0).copies(4, 0), "another column");
    }
}

//! The decision of a scan whether to copy its late columns near, and how much of them.
//!
//! `off` and `always` are orders. `auto` asks the model for the time of the scan with and without copies: the filter reads
//! its columns while others are copied, then the rows that passed are read. The model assumes that all rows pass. It knows
//! the cost of filters on calibrated machines; on others copies have at least as much time as it predicts. Ready copies
//! are read. A copy that is not known to pay is not made: a faster node alone is no reason, since the thesis lost 18 % with
//! one, and only known rates tell how many reads earn a copy back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use memferry::model::{Advice, ModelError};
use memferry::mover::Route;
use memferry::topology::NodeId;

use super::TieredScanExec;
use super::claims::RowGroupClaims;
use super::cost_query::CostQuery;
use crate::options::Prefetch;
use crate::tiers::{NearMemory, Pins};

/// A scan's use of the cache.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Admission {
    /// Copies late columns, and reads ready copies.
    Prefetch(Near),
    /// Copies nothing, but reads ready copies on this node.
    Reuse { node: NodeId, why: String, predicted: Option<Predicted> },
    /// Copies nothing and leaves the cache untouched; the reason.
    Refused(String),
}

/// The copies of a scan.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Near {
    pub(super) node: NodeId,
    /// The mode, and the prediction of the model.
    why: String,
    /// Copies by table column, and by home if only the part on that node is copied.
    wanted: BTreeMap<(usize, Option<NodeId>), Wanted>,
    pub(super) predicted: Option<Predicted>,
}

/// The copies of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Wanted {
    /// Share of the row groups, including those with ready copies.
    share: f64,
    /// The route; `None` leaves it to the mover.
    route: Option<Route>,
}

/// Predicted working times of a partition. One partition per CPU runs at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Predicted {
    /// As decided: one of the other two.
    pub(super) time: Duration,
    /// With the copies that gain most, or lose least.
    pub(super) with: Duration,
    pub(super) without: Duration,
}

impl Near {
    fn whole(node: NodeId, late: &BTreeSet<usize>, why: String) -> Near {
        let whole = Wanted { share: 1.0, route: None };
        let wanted = late.iter().map(|&column| ((column, None), whole)).collect();
        Near { node, why, wanted, predicted: None }
    }

    /// Whether a column of a row group of the table is copied from this home, and its route. Copied row groups are spread
    /// evenly over the table, so that small partitions have their share too.
    pub(super) fn copies(&self, column: usize, home: NodeId, group: usize) -> Option<Option<Route>> {
        let of_home = self.wanted.get(&(column, Some(home)));
        let Wanted { share, route } = *of_home.or_else(|| self.wanted.get(&(column, None)))?;
        let copied_before = |group: usize| (group as f64 * share).round() as usize;
        (copied_before(group + 1) > copied_before(group)).then_some(route)
    }
}

impl Admission {
    pub(super) fn predicted(&self) -> Option<Predicted> {
        match self {
            Admission::Prefetch(near) => near.predicted,
            Admission::Reuse { predicted, .. } => *predicted,
            Admission::Refused(_) => None,
        }
    }
}

impl fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admission::Prefetch(near) => write!(f, "{}", near.why),
            Admission::Reuse { why, .. } | Admission::Refused(why) => write!(f, "none ({why})"),
        }
    }
}

/// The decision of a scan for each of its readers, made when it is first executed or shown. The cache changes during execution,
/// and all partitions and a later EXPLAIN must agree. A clone is another plan and decides anew.
#[derive(Debug, Default)]
pub(super) struct Decided(OnceLock<Vec<(NodeId, Admission)>>);

/// CPUs that run partitions of a scan.
pub(super) struct Reader<'a> {
    /// Their node.
    pub(super) cpus: NodeId,
    pub(super) near: &'a NearMemory,
    /// The partitions that they run.
    pub(super) partitions_count: usize,
    /// Numbers of the row groups that they read, if they steal none; `None`: all.
    groups: Option<BTreeSet<usize>>,
}

impl Reader<'_> {
    /// Whether they read the row group with this number in the table.
    pub(super) fn reads(&self, number: usize) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&number))
    }
}

impl Clone for Decided {
    fn clone(&self) -> Decided {
        Decided::default()
    }
}

impl TieredScanExec {
    /// The decision for a partition.
    pub(super) fn admission_of(&self, partition: usize) -> &Admission {
        let decisions = self.decisions();
        let cpus = self.claims.as_ref().map(|claims| claims.cpus_of(partition));
        let own = decisions.iter().find(|(of, _)| Some(*of) == cpus);
        &own.unwrap_or(&decisions[0]).1
    }

    /// The decisions as EXPLAIN shows them.
    pub(super) fn admission(&self) -> String {
        match self.decisions() {
            [(_, admission)] => admission.to_string(),
            several => {
                let of_cpus =
                    |(cpus, admission): &(NodeId, Admission)| format!("CPUs of node {cpus}: {admission}");
                several.iter().map(of_cpus).collect::<Vec<_>>().join("; ")
            }
        }
    }

    /// Near bytes that the consumers of a partition may hold.
    pub(super) fn pins_of(&self, partition: usize) -> Arc<Pins> {
        let tiers = &self.columns.tiers;
        let of_domain = self.claims.as_ref().filter(|_| tiers.is_near_of_domains());
        let memory =
            of_domain.map_or(tiers.default_near(), |claims| tiers.near_memory(claims.cpus_of(partition)));
        Arc::clone(&memory.pins)
    }

    /// At least one.
    fn decisions(&self) -> &[(NodeId, Admission)] {
        let decide = |reader: &Reader<'_>| (reader.cpus, self.decide(reader));
        self.decided.0.get_or_init(|| self.readers().iter().map(decide).collect())
    }

    /// Those on domains if each domain has near memory of its own, or else one for all.
    fn readers(&self) -> Vec<Reader<'_>> {
        let (data, tiers) = (&self.columns.data, &self.columns.tiers);
        let of_domains =
            self.claims.as_ref().filter(|_| tiers.is_near_of_domains()).map(RowGroupClaims::readers);
        let of_domains = of_domains.into_iter().flatten().map(|(cpus, (partitions_count, groups))| Reader {
            cpus,
            near: tiers.near_memory(cpus),
            partitions_count,
            // With nothing beside them, they read what they steal.
            groups: Some(groups).filter(|groups| !groups.is_empty()),
        });
        let mut readers: Vec<_> = of_domains.collect();
        if readers.is_empty() {
            readers.push(Reader {
                cpus: tiers.machine().node(data.home()).map_or(data.home(), |home| home.cpu_node),
                near: tiers.default_near(),
                partitions_count: data.partitions().len().max(1),
                groups: None,
            });
        }
        readers
    }

    fn decide(&self, reader: &Reader<'_>) -> Admission {
        let tiers = &self.columns.tiers;
        let mode = self.settings.options.prefetch;
        if mode == Prefetch::Off {
            return Admission::Refused("off".into());
        }
        let (late, node) = (self.late_columns(), reader.near.node);
        if mode == Prefetch::Auto
            && let Some(why) = self.lacks_speed(reader, &late)
        {
            return Admission::Refused(why);
        }
        if mode == Prefetch::Auto
            && let Some(why) = self.lacks_room(reader, &late)
        {
            return Admission::Refused(why);
        }
        let reuse = |why: String| Admission::Reuse { node, why, predicted: None };
        if late.is_empty() {
            return reuse("no column is late".into());
        }
        if mode == Prefetch::Always {
            return Admission::Prefetch(Near::whole(node, &late, format!("{mode} to node {node}")));
        }
        let cost_query = match CostQuery::of(self, reader, &late) {
            Ok(cost_query) => cost_query,
            Err(error) => return reuse(error.to_string()),
        };
        match cost_query.plan.advise(tiers.planned()) {
            Ok(advice) => advised(node, &advice, &cost_query, self.share_of_partition(reader)),
            Err(error @ ModelError::Unknown { .. }) => {
                let remedy = match tiers.machine().is_this_machine() {
                    true => " (`memferry calibrate --out FILE` measures it, for `--calibration FILE`)",
                    false => "",
                };
                reuse(format!("the gain of copies to node {node} is unknown: {error}{remedy}"))
            }
            Err(error) => reuse(error.to_string()),
        }
    }

    /// Share of the scan's time in which a partition works.
    fn share_of_partition(&self, reader: &Reader<'_>) -> f64 {
        let cpus = self.columns.tiers.machine().node(reader.cpus);
        let cpus_count = cpus.map_or(1, |node| node.cpus.len());
        (cpus_count as f64 / reader.partitions_count as f64).min(1.0)
    }

    /// The reason why the near node is not faster for the readers than any home of late columns, if it is not.
    ///
    /// Whether it is faster than memory beside other CPUs is left to the model, which knows the link to them.
    fn lacks_speed(&self, reader: &Reader<'_>, late: &BTreeSet<usize>) -> Option<String> {
        let (data, machine) = (&self.columns.data, self.columns.tiers.machine());
        let near = reader.near.node;
        let is_faster = |&home: &NodeId| {
            let is_beside = machine.node(home).is_ok_and(|home| home.cpu_node == reader.cpus);
            near != home && (!is_beside || machine.faster_than(home).iter().any(|node| node.id == near))
        };
        let groups =
            data.partitions().iter().flatten().enumerate().filter(|(number, _)| reader.reads(*number));
        let mut homes: BTreeSet<NodeId> =
            groups.flat_map(|(_, group)| late.iter().map(|&column| group.node(column))).collect();
        if homes.is_empty() {
            homes.insert(data.home());
        }
        if homes.iter().any(is_faster) {
            return None;
        }
        let home = *homes.first()?;
        Some(match (near == home, machine.nearest_faster(home)) {
            (true, None) => format!("no node is faster than home node {home}"),
            (true, Some(_)) => format!("copies to home node {home} itself gain nothing"),
            (false, _) => format!("node {near} is not faster than home node {home}"),
        })
    }

    /// The reason why the copies in flight at one time do not fit, if they do not.
    fn lacks_room(&self, reader: &Reader<'_>, late: &BTreeSet<usize>) -> Option<String> {
        let groups = self.columns.regions.iter().flatten();
        let group_bytes_max =
            groups.map(|group| late.iter().map(|&column| group[column].size_bytes()).sum::<u64>()).max();
        let window_bytes = group_bytes_max
            .unwrap_or(0)
            .saturating_mul(self.window_groups() as u64)
            .saturating_mul(reader.partitions_count as u64);
        let (budget, node) = (reader.near.budget_bytes, reader.near.node);
        (window_bytes > budget).then(|| {
            format!(
                "the window of {window_bytes} bytes does not fit the budget of {budget} bytes on node {node}"
            )
        })
    }
}

fn advised(node: NodeId, advice: &Advice, cost_query: &CostQuery, share_of_partition: f64) -> Admission {
    let best = advice.alternatives.iter().max_by(|one, other| one.speed_up.total_cmp(&other.speed_up));
    let of_partition = |seconds: f64| Duration::from_secs_f64(share_of_partition * seconds);
    let without = of_partition(advice.baseline_s);
    let chosen = advice.chosen.and_then(|index| advice.alternatives.get(index));
    let with = chosen.or(best).map_or(without, |it| of_partition(it.predicted_s));
    let time = if chosen.is_some() { with } else { without };
    let predicted = Some(Predicted { time, with, without });
    let near_already = cost_query.near_already.iter().cloned();
    let Some(chosen) = chosen else {
        let why: Vec<String> =
            near_already.chain(advice.alternatives.iter().map(|it| it.words.clone())).collect();
        let why = match why.is_empty() {
            true => format!("node {node} is hardly faster for the CPUs that read"),
            false => why.join("; "),
        };
        return Admission::Reuse { node, why, predicted };
    };
    let words: Vec<String> = near_already.chain([chosen.words.clone()]).collect();
    let routes = chosen.fetches.iter().map(|fetch| fetch.route);
    let wanted = chosen.shares().zip(routes).filter_map(|((place, share), route)| {
        let part = cost_query.parts.get(place)?;
        // Of the missing part; ready copies count as requested.
        let share = 1.0 - part.share * (1.0 - share);
        Some(((part.column, Some(part.home)), Wanted { share, route }))
    });
    Admission::Prefetch(Near {
        node,
        why: format!("auto to node {node} ({})", words.join("; ")),
        wanted: wanted.collect(),
        predicted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: NodeId = NodeId(0);

    #[test]
    fn a_part_of_the_row_groups_lies_evenly_among_them() {
        let route = Some(Route::PushPull);
        let near = |share| Near {
            wanted: BTreeMap::from([((3, None), Wanted { share, route })]),
            ..Near::whole(NodeId(1), &BTreeSet::new(), String::new())
        };
        let copied =
            |share| (0..8).filter(|&group| near(share).copies(3, HOME, group).is_some()).collect::<Vec<_>>();
        assert_eq!(copied(1.0), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(copied(0.5), [0, 2, 4, 6]);
        assert_eq!(copied(0.4), [1, 3, 6]);
        assert_eq!(copied(0.1), [4]);
        assert_eq!(copied(0.0), [0; 0]);
        assert_eq!(near(1.0).copies(3, HOME, 0), Some(route));
        assert_eq!(near(1.0).copies(4, HOME, 0), None, "another column");
    }

    #[test]
    fn the_part_of_a_column_with_another_home_is_not_copied() {
        let wanted = Wanted { share: 1.0, route: None };
        let near = Near {
            wanted: BTreeMap::from([((3, Some(HOME)), wanted)]),
            ..Near::whole(NodeId(1), &BTreeSet::new(), String::new())
        };
        assert_eq!((near.copies(3, HOME, 0), near.copies(3, NodeId(2), 0)), (Some(None), None));
    }
}

//! The row groups of a scan as items that its partitions claim.
//!
//! Claims belong to one execution of the plan: its `TaskContext`, which all partitions share. So a plan that runs again
//! reads all its rows each time, also twice at once if each run has its own context.
//!
//! A partition that is executed twice in a context begins another round, and rounds that no partition reads any more are
//! dropped then. Two runs at once in one context can take partitions of each other's round.
//!
//! Each context begins its own round: partitions that are executed with contexts of their own share nothing, and each can
//! read all row groups.
//!
//! Without `datafusion.execution.enable_file_stream_work_stealing` a partition reads its own row groups only, also if no
//! other one ever runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use datafusion::execution::TaskContext;
use memferry::topology::NodeId;
use memferry_schedule::{Claimer, Distance, Domains, Stealing, claims};

use crate::data::TableData;
use crate::tiers::Tiers;

/// The claims of a scan on domains.
#[derive(Debug)]
pub(super) struct RowGroupClaims {
    items: Arc<Items>,
    rounds: Mutex<Vec<Round>>,
}

/// The row groups and the partitions of a scan, with their domains.
#[derive(Debug)]
struct Items {
    domains: Domains,
    stealing: Stealing,
    /// The domain of each partition.
    workers: Vec<usize>,
    /// Partition, and index in it, of each row group.
    groups: Vec<(usize, usize)>,
    /// The domain of each row group.
    homes: Vec<Home>,
}

/// The domain to which a row group belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    /// The row group is beside CPUs of this domain.
    Beside(usize),
    /// It is beside CPUs of no domain, so it belongs to any: to this one. The socket of those CPUs, if it is known.
    Elsewhere { domain: usize, socket: Option<u32> },
}

impl Home {
    fn domain(self) -> usize {
        let (Home::Beside(domain) | Home::Elsewhere { domain, .. }) = self;
        domain
    }
}

impl Items {
    /// How far a row group is from the CPUs of a partition.
    fn distance(&self, partition: usize, number: usize) -> Distance {
        let worker = self.workers[partition];
        match self.homes[number] {
            Home::Beside(domain) => self.domains.distance(worker, domain),
            Home::Elsewhere { socket, .. } if socket.is_some() && socket == self.domains[worker].socket => {
                Distance::SameSocket
            }
            Home::Elsewhere { .. } => Distance::OtherSocket,
        }
    }
}

/// The claims of one execution.
#[derive(Debug)]
struct Round {
    context: Weak<TaskContext>,
    /// Of each partition that has not been executed.
    claimers: Vec<Option<Claimer>>,
    /// Shared with the partitions that run.
    running: Arc<()>,
}

/// A clone belongs to another plan.
impl Clone for RowGroupClaims {
    fn clone(&self) -> Self {
        Self { items: Arc::clone(&self.items), rounds: Mutex::default() }
    }
}

/// A row group that a partition reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) partition: usize,
    /// Its index in the partition.
    pub(super) index: usize,
    /// Its index in the table.
    pub(super) number: usize,
    /// How far its domain is from the reader's; `None` for scans that are not on domains.
    pub(super) distance: Option<Distance>,
}

impl RowGroupClaims {
    /// Claims for the partitions of `data`, which run on the domains `chosen` in turns.
    pub(super) fn new(
        data: &TableData,
        tiers: &Tiers,
        domains: &Domains,
        chosen: &[usize],
        stealing: Stealing,
    ) -> Self {
        let partitions = data.partitions().iter().enumerate();
        let groups: Vec<(usize, usize)> = partitions
            .flat_map(|(partition, groups)| (0..groups.len()).map(move |index| (partition, index)))
            .collect();
        let items = Items {
            domains: domains.clone(),
            stealing,
            workers: (0..data.partitions().len()).map(|it| chosen[it % chosen.len()]).collect(),
            homes: homes(data, tiers, domains),
            groups,
        };
        Self { items: Arc::new(items), rounds: Mutex::default() }
    }

    /// The nodes whose CPUs run partitions, with the number of these, and the row groups beside them.
    pub(super) fn readers(&self) -> BTreeMap<NodeId, (usize, BTreeSet<usize>)> {
        let Items { domains, workers, homes, .. } = &*self.items;
        let mut readers: BTreeMap<NodeId, (usize, BTreeSet<usize>)> = BTreeMap::new();
        for &worker in workers {
            readers.entry(domains[worker].cpu_node).or_default().0 += 1;
        }
        for (number, &home) in homes.iter().enumerate() {
            if let Some((_, groups)) = readers.get_mut(&domains[home.domain()].cpu_node) {
                groups.insert(number);
            }
        }
        readers
    }

    /// The node of the CPUs that run a partition.
    pub(super) fn cpus_of(&self, partition: usize) -> NodeId {
        self.items.domains[self.items.workers[partition]].cpu_node
    }

    pub(super) fn stealing(&self) -> Stealing {
        self.items.stealing
    }

    fn claimer(&self, partition: usize, context: &Arc<TaskContext>) -> RunningClaimer {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let is_of_context = |round: &Round| round.context.as_ptr() == Arc::as_ptr(context);
        rounds.retain(|round| {
            let is_over = is_of_context(round)
                && round.claimers[partition].is_none()
                && Arc::strong_count(&round.running) == 1;
            !is_over && round.context.strong_count() > 0 && round.claimers.iter().any(Option::is_some)
        });
        for round in rounds.iter_mut().filter(|round| is_of_context(round)) {
            if let Some(claimer) = round.claimers[partition].take() {
                return RunningClaimer { claimer, _running: Arc::clone(&round.running) };
            }
        }
        let Items { domains, stealing, workers, homes, .. } = &*self.items;
        let homes: Vec<usize> = homes.iter().map(|home| home.domain()).collect();
        let dealt = claims(domains, *stealing, workers, &homes);
        let mut claimers: Vec<_> = dealt.into_iter().map(Some).collect();
        let claimer = claimers[partition].take().expect("each worker has one");
        let running = Arc::new(());
        let round = Round { context: Arc::downgrade(context), claimers, running: Arc::clone(&running) };
        rounds.push(round);
        RunningClaimer { claimer, _running: running }
    }
}

/// The claimer of a partition that runs. Its round lasts as long.
#[derive(Debug)]
struct RunningClaimer {
    claimer: Claimer,
    _running: Arc<()>,
}

/// The domain of each row group: that beside the node of most of its bytes. If the node has several, partitions lie in them
/// in turns.
fn homes(data: &TableData, tiers: &Tiers, domains: &Domains) -> Vec<Home> {
    let beside = |node: NodeId| -> Vec<Home> {
        let node_of = |id: NodeId| tiers.machine().node(id).ok();
        let cpu_node = node_of(node).map_or(node, |node| node.cpu_node);
        let beside: Vec<Home> = (0..domains.len())
            .filter(|&index| domains[index].cpu_node == cpu_node)
            .map(Home::Beside)
            .collect();
        if !beside.is_empty() {
            return beside;
        }
        // The CPUs of the node are not for this process or this session, so all domains share its rows.
        let socket = node_of(cpu_node).and_then(|node| node.socket);
        (0..domains.len()).map(|domain| Home::Elsewhere { domain, socket }).collect()
    };
    let mut known: BTreeMap<NodeId, Vec<Home>> = BTreeMap::new();
    let partitions = data.partitions().iter().enumerate();
    let groups =
        partitions.flat_map(|(partition, groups)| groups.iter().map(move |group| (partition, group)));
    groups
        .map(|(partition, group)| {
            let node = group.home().unwrap_or_else(|| data.home());
            let beside = known.entry(node).or_insert_with(|| beside(node));
            beside[partition % beside.len()]
        })
        .collect()
}

/// The row groups of a partition that runs.
#[derive(Debug)]
pub(super) struct Places {
    /// `None` for a scan that is not on domains.
    items: Option<Arc<Items>>,
    /// `None`: the partition reads its own row groups.
    claimer: Option<RunningClaimer>,
    partition: usize,
    /// Row groups of the partitions before this one.
    groups_before: usize,
    /// Own row groups that have been read.
    groups_read: usize,
}

impl Places {
    pub(super) fn new(
        data: &TableData,
        claims: Option<&RowGroupClaims>,
        partition: usize,
        context: &Arc<TaskContext>,
    ) -> Self {
        let may_claim = context.session_config().options().execution.enable_file_stream_work_stealing;
        Self {
            items: claims.map(|claims| Arc::clone(&claims.items)),
            claimer: claims.filter(|_| may_claim).map(|claims| claims.claimer(partition, context)),
            partition,
            groups_before: data.partitions()[..partition].iter().map(Vec::len).sum(),
            groups_read: 0,
        }
    }

    /// The domain of the partition.
    pub(super) fn domain(&self) -> Option<usize> {
        Some(self.items.as_ref()?.workers[self.partition])
    }

    /// The next row group; of another partition only if it `may_steal` and has no own ones left.
    pub(super) fn next(&mut self, data: &TableData, may_steal: bool) -> Option<Place> {
        if let (Some(items), Some(RunningClaimer { claimer, .. })) = (&self.items, &mut self.claimer) {
            let claim = if may_steal { claimer.next() } else { claimer.next_own() }?;
            let (partition, index) = items.groups[claim.item];
            let distance = Some(items.distance(self.partition, claim.item));
            return Some(Place { partition, index, number: claim.item, distance });
        }
        let index = self.groups_read;
        if index == data.partitions()[self.partition].len() {
            return None;
        }
        self.groups_read += 1;
        let number = self.groups_before + index;
        let distance = self.items.as_ref().map(|items| items.distance(self.partition, number));
        Some(Place { partition: self.partition, index, number, distance })
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use memferry::topology::Machine;

    use super::*;
    use crate::{Layout, load};

    /// The distances of the row groups of a table on `home`, read by one partition on domain 0 of `domains`.
    fn distances(machine: &Arc<Machine>, home: u32, domains: &Domains) -> Vec<Distance> {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2048));
        let rows = RecordBatch::try_from_iter([("a", column)]).unwrap();
        let layout =
            Layout { partitions: 1, row_group_rows: 512, ..Layout::new(Arc::clone(machine), NodeId(home)) };
        let data = load::from_batches(rows.schema(), &[vec![rows]], &layout).unwrap();
        let tiers = Tiers::builder(Arc::clone(machine)).budget_bytes(Some(1 << 20)).build().unwrap();
        let claims = RowGroupClaims::new(&data, &tiers, domains, &[0], Stealing::Off);
        let mut places = Places::new(&data, Some(&claims), 0, &Arc::new(TaskContext::default()));
        std::iter::from_fn(|| places.next(&data, true)).filter_map(|place| place.distance).collect()
    }

    /// Rows whose CPUs belong to no domain were once counted as local.
    #[test]
    fn row_groups_beside_other_cpus_are_read_by_any_domain_and_not_local() {
        let machine = Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap());
        let all = Domains::of(&machine).unwrap();
        let last = all.on(&[NodeId(7)]).unwrap();
        for (home, expected) in [
            (7, Distance::Own),
            (15, Distance::Own),
            (4, Distance::SameSocket),
            (12, Distance::SameSocket),
            (0, Distance::OtherSocket),
        ] {
            assert_eq!(distances(&machine, home, &last), [expected; 4], "home {home}");
        }
        assert_eq!(distances(&machine, 4, &all), [Distance::OtherSocket; 4], "domain 0 is its only reader");
    }
}

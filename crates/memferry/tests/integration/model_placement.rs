//! Places of columns by measured reads: single decisions, and simulations of changing workloads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use memferry::model::{
    ColumnMove, HomeRead, ModelError, PlacedColumn, PlacementRules, PlacementVerdict, ReadHistory, ReadWindow,
};
use memferry::topology::{Machine, NodeId};
use proptest::prelude::*;

const GB: u64 = 1_000_000_000;
/// The length of windows in the tests.
const WINDOW_S: f64 = 10.0;

fn xeon_max() -> Arc<Machine> {
    static MACHINE: LazyLock<Arc<Machine>> =
        LazyLock::new(|| Arc::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap()));
    Arc::clone(&MACHINE)
}

/// DDR has room, HBM has none unless a test gives it some.
fn rules(machine: &Machine) -> PlacementRules {
    let ddr = machine.nodes().iter().filter(|node| !node.cpus.is_empty());
    PlacementRules { room_bytes: ddr.map(|node| (node.id, 100 * GB)).collect(), ..PlacementRules::default() }
}

fn column(name: &str, places: &[(u32, u64)]) -> PlacedColumn {
    let size_bytes = places.iter().map(|&(node, bytes)| (NodeId(node), bytes)).collect();
    PlacedColumn { name: name.to_owned(), size_bytes, ..PlacedColumn::default() }
}

fn read(cpus: u32, column: usize, node: u32, size_bytes: u64) -> HomeRead {
    HomeRead { cpus: NodeId(cpus), column, node: NodeId(node), size_bytes }
}

fn history(columns: Vec<PlacedColumn>, reads: Vec<HomeRead>) -> ReadHistory {
    ReadHistory { columns, windows: vec![ReadWindow { seconds: WINDOW_S, reads }] }
}

fn nodes(of: &ColumnMove) -> Vec<u32> {
    of.nodes.iter().map(|node| node.0).collect()
}

#[test]
fn a_memory_that_two_domains_read_is_relieved() {
    let machine = xeon_max();
    let columns = vec![column("a", &[(0, GB)]), column("b", &[(0, GB)])];
    let history = history(columns, vec![read(0, 0, 0, 100 * GB), read(1, 1, 0, 100 * GB)]);
    let advice = history.advise(&rules(&machine), &machine).unwrap();
    assert_eq!(advice.verdict, PlacementVerdict::Move, "{advice:?}");
    // 200 GB from a memory of 67.5 GB/s, then half of it from each of two.
    assert!((advice.before_s - 200.0 / 67.5212).abs() < 0.01, "{advice:?}");
    assert!((advice.speed_up() - 2.0).abs() < 0.01, "{advice:?}");
    let [only] = advice.moves.as_slice() else { panic!("one move is enough: {advice:?}") };
    assert_eq!((only.column, nodes(only)), (1, vec![1]), "the one that comes beside its readers: {advice:?}");
    assert_eq!(only.size_bytes, GB);
    assert!(only.reason.contains("node 0 serves 100 % of all reads"), "{}", only.reason);
}

#[test]
fn a_column_that_all_domains_read_is_spread() {
    let machine = xeon_max();
    let reads = (0..8).map(|cpus| read(cpus, 0, 0, 10 * GB)).collect();
    let history = history(vec![column("a", &[(0, GB)])], reads);
    let advice = history.advise(&rules(&machine), &machine).unwrap();
    assert_eq!(advice.verdict, PlacementVerdict::Move, "{advice:?}");
    assert_eq!(nodes(&advice.moves[0]), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(advice.speed_up() > 7.0, "{advice:?}");
    assert_eq!(advice.moves[0].size_bytes, GB / 8 * 7, "an eighth stays");
}

#[test]
fn readers_of_slow_memory_get_faster_memory_if_it_has_room() {
    let machine = xeon_max();
    let history = history(vec![column("a", &[(0, GB)])], vec![read(0, 0, 0, 100 * GB)]);
    let mut rules = rules(&machine);
    let advice = history.advise(&rules, &machine).unwrap();
    assert_eq!((advice.verdict, advice.moves.len()), (PlacementVerdict::Keep, 0), "{advice:?}");
    assert!(advice.reason.contains("the memory of node 0 takes longest"), "{}", advice.reason);
    rules.room_bytes.insert(NodeId(8), GB - 1);
    assert_eq!(
        history.advise(&rules, &machine).unwrap().verdict,
        PlacementVerdict::Keep,
        "a byte is missing"
    );
    rules.room_bytes.insert(NodeId(8), GB);
    let advice = history.advise(&rules, &machine).unwrap();
    assert_eq!((advice.verdict, nodes(&advice.moves[0])), (PlacementVerdict::Move, vec![8]), "{advice:?}");
    assert!(advice.moves[0].reason.contains("at 67.5 GB/s, and would at 133.8 GB/s"), "{advice:?}");
}

#[test]
fn a_move_must_pay_and_be_seen_to() {
    let machine = xeon_max();
    let columns = || vec![column("a", &[(0, 10 * GB)]), column("b", &[(0, 10 * GB)])];
    let reads = |bytes| vec![read(0, 0, 0, bytes), read(1, 1, 0, bytes)];
    // The copy takes 10 GB at the 67.5 GB/s of both memories, and each window saves a tenth of a gigabyte's time.
    let few = history(columns(), reads(GB / 10));
    let advice = few.advise(&rules(&machine), &machine).unwrap();
    assert!(advice.cost_s() == 0.0 && advice.verdict == PlacementVerdict::Keep, "{advice:?}");
    let mut some = history(columns(), reads(5 * GB));
    let advice = some.advise(&rules(&machine), &machine).unwrap();
    assert!((advice.cost_s() - 10.0 / 67.5212).abs() < 0.001, "{advice:?}");
    assert!((advice.pays_after_s() - 20.0).abs() < 0.1, "{advice:?}");
    assert!(matches!(advice.verdict, PlacementVerdict::Wait { .. }), "half of the cost was seen: {advice:?}");
    let last = some.windows[0].clone();
    some.record(last.clone());
    // Both windows together are about the cost, and the third one makes it more.
    some.record(ReadWindow { reads: reads(GB), ..last });
    assert_eq!(some.advise(&rules(&machine), &machine).unwrap().verdict, PlacementVerdict::Move);
    // A column that moved before needs twice the loss, after its rest.
    let mut again = some.clone();
    let rest_s = rules(&machine).rest_s;
    again.columns.iter_mut().for_each(|column| (column.moves_count, column.quiet_s) = (1, rest_s));
    let advice = again.advise(&rules(&machine), &machine).unwrap();
    assert!(matches!(advice.verdict, PlacementVerdict::Wait { .. }), "{advice:?}");
    // The workload has changed.
    some.record(ReadWindow { seconds: WINDOW_S, reads: vec![read(0, 0, 0, GB)] });
    assert_eq!(some.advise(&rules(&machine), &machine).unwrap().verdict, PlacementVerdict::Keep);
}

#[test]
fn reads_of_the_same_socket_alone_move_nothing() {
    let machine = xeon_max();
    // Nodes 0 to 3 are one socket, and no memory is busier than another.
    let columns: Vec<_> = (0..4).map(|node| column(&format!("c{node}"), &[(node, GB)])).collect();
    let reads = (0..4).map(|cpus| read(cpus, cpus as usize, (cpus + 1) % 4, 100 * GB)).collect();
    let columns = columns.into_iter().cycle().skip(1).take(4).collect();
    let advice = history(columns, reads).advise(&rules(&machine), &machine).unwrap();
    assert_eq!((advice.verdict, advice.moves.len()), (PlacementVerdict::Keep, 0), "{advice:?}");
}

#[test]
fn without_rates_there_is_no_advice() {
    let machine = Machine::two_tiers().unwrap();
    let history = history(vec![column("a", &[(0, GB)])], vec![read(0, 0, 0, GB)]);
    let error = history.advise(&rules(&machine), &machine).unwrap_err();
    assert!(matches!(&error, ModelError::Unknown { what } if what.contains("node 0")), "{error}");
    let history = ReadHistory::default();
    let advice = history.advise(&rules(&machine), &machine).unwrap();
    assert_eq!(
        (advice.verdict, advice.reason.as_str()),
        (PlacementVerdict::Keep, "nothing was read at home")
    );
}

#[test]
fn moves_are_forgotten_after_quiet_hours() {
    let mut history = history(vec![column("a", &[(0, GB)])], Vec::new());
    for _ in 0..2 {
        history.moved([(0, BTreeMap::from([(NodeId(1), GB)]))]);
    }
    assert!(history.windows.is_empty() && history.columns[0].size_bytes[&NodeId(1)] == GB);
    // To the same node again, which is no other place.
    assert_eq!(history.columns[0].former, [BTreeSet::from([NodeId(0)])]);
    history.moved([(0, BTreeMap::from([(NodeId(2), GB)]))]);
    for (windows, moves, former) in [(0, 3, 2), (359, 3, 2), (1, 2, 2), (360, 1, 1), (360, 0, 0), (360, 0, 0)]
    {
        for _ in 0..windows {
            history.record(ReadWindow { seconds: WINDOW_S, reads: Vec::new() });
        }
        let it = &history.columns[0];
        assert_eq!((it.moves_count, it.former.len(), it.returns_count), (moves, former, 0));
        assert!(former != 1 || it.former[0] == BTreeSet::from([NodeId(1)]), "the oldest is forgotten first");
    }
    assert_eq!(history.windows.len(), 60);
}

/// A column that moved can only move back, and each move back doubles the time in which that is so.
#[test]
fn a_column_that_moved_rests() {
    let machine = xeon_max();
    let mut rules = PlacementRules { evidence: 0.0, ..rules(&machine) };
    rules.room_bytes.values_mut().for_each(|room| *room = 2 * GB);
    // The first and the last column have no room elsewhere.
    let columns = vec![column("a", &[(0, 100 * GB)]), column("b", &[(0, GB)]), column("c", &[(1, 100 * GB)])];
    let mut history = ReadHistory { columns, windows: Vec::new() };
    let place =
        |history: &ReadHistory, column: usize| history.columns[column].size_bytes.keys().next().unwrap().0;
    let record = |history: &mut ReadHistory, seconds: f64, cpus: u32, of_c: u64| {
        let of_b = read(cpus, 1, place(history, 1), 50 * GB);
        history
            .record(ReadWindow { seconds, reads: vec![read(0, 0, 0, 100 * GB), of_b, read(1, 2, 1, of_c)] });
    };
    let advise = |history: &ReadHistory| history.advise(&rules, &machine).unwrap();
    let to = |node: u32| [(1, BTreeMap::from([(NodeId(node), GB)]))];

    record(&mut history, 10.0, 1, 0);
    let advice = advise(&history);
    assert_eq!((advice.verdict, nodes(&advice.moves[0])), (PlacementVerdict::Move, vec![1]), "{advice:?}");
    // The first rest is 300 s, and a rest after one and two moves back 600 and 1200 s, up to 2400 s.
    for (returns, rest_s) in [(0, 300.0), (1, 600.0), (2, 1200.0), (3, 2400.0), (4, 2400.0)] {
        let it = &history.columns[1];
        assert_eq!((it.returns_count, place(&history, 1)), (returns, 0));
        assert!(it.former.is_empty(), "moving back forgets the places between");
        history.moved(to(1));
        assert_eq!(history.columns[1].former, [BTreeSet::from([NodeId(0)])]);
        // Now other CPUs read it, and its memory is busy: a third node would be best.
        record(&mut history, rest_s - 1.0, 2, 100 * GB);
        let advice = advise(&history);
        assert!(advice.moves.iter().all(|it| it.column != 1), "{returns} returns: {advice:?}");
        assert!(
            advice.reason.contains("b moved lately, and can only move back for up to 1.0 s"),
            "{advice:?}"
        );
        record(&mut history, 2.0, 2, 100 * GB);
        let advice = advise(&history);
        let of_b = advice.moves.iter().find(|it| it.column == 1).map(nodes);
        assert_eq!(of_b, Some(vec![2]), "the rest is over after {rest_s} s: {advice:?}");
        history.moved(to(0));
    }
    // Back at once, when the place that it left is the better one.
    history.moved(to(1));
    history
        .record(ReadWindow { seconds: 10.0, reads: vec![read(0, 1, 1, 50 * GB), read(1, 2, 1, 100 * GB)] });
    let advice = advise(&history);
    let of_b = advice.moves.iter().find(|it| it.column == 1).map(nodes);
    assert_eq!(of_b, Some(vec![0]), "{advice:?}");
}

/// Random numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // Source: splitmix64, Steele et al. 2014.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % end
    }
}

/// What the CPUs read of each column in a window.
type Demand = Vec<(u32, usize, u64)>;

fn demand(random: &mut Random, columns: usize) -> Demand {
    let readers = 1 + random.below(6);
    (0..readers)
        .map(|_| {
            let (cpus, column) = (random.below(8) as u32, random.below(columns as u64) as usize);
            (cpus, column, GB / 10 * (1 + random.below(400)))
        })
        .collect()
}

/// A table whose columns move when the advice says so.
struct Simulation {
    machine: Arc<Machine>,
    rules: PlacementRules,
    history: ReadHistory,
    /// The nodes of each column, in the order in which it had them.
    places: Vec<Vec<BTreeSet<NodeId>>>,
    /// The windows since the last move.
    windows: Vec<ReadWindow>,
    /// All windows as they would be if nothing had moved.
    unmoved: Vec<ReadWindow>,
    /// Modelled time of the reads.
    reads_s: f64,
    /// Cost of the moves.
    moves_s: f64,
    /// Cost of the moves, each weighted with the loss that had to be seen.
    weighted_s: f64,
    first: Vec<PlacedColumn>,
}

impl Simulation {
    fn new(random: &mut Random) -> Simulation {
        let machine = xeon_max();
        let mut rules = rules(&machine);
        if random.below(2) == 0 {
            rules.room_bytes.extend((8..16).map(|node| (NodeId(node), 4 * GB)));
        }
        let columns = 1 + random.below(5) as usize;
        let placed = |index: usize| {
            let node = if random.below(2) == 0 { 0 } else { random.below(8) as u32 };
            column(&format!("c{index}"), &[(node, GB / 4 * (1 + random.below(16)))])
        };
        let columns: Vec<_> = (0..columns).map(placed).collect();
        let places = columns.iter().map(|it| vec![it.size_bytes.keys().copied().collect()]).collect();
        Simulation {
            machine,
            rules,
            history: ReadHistory { columns: columns.clone(), windows: Vec::new() },
            places,
            windows: Vec::new(),
            unmoved: Vec::new(),
            reads_s: 0.0,
            moves_s: 0.0,
            weighted_s: 0.0,
            first: columns,
        }
    }

    fn window(columns: &[PlacedColumn], demand: &Demand) -> ReadWindow {
        let reads = demand.iter().flat_map(|&(cpus, column, bytes)| {
            let places = &columns[column].size_bytes;
            let all: u64 = places.values().sum();
            places.iter().map(move |(&node, &part)| HomeRead {
                cpus: NodeId(cpus),
                column,
                node,
                size_bytes: (bytes as f64 * part as f64 / all as f64) as u64,
            })
        });
        ReadWindow { seconds: WINDOW_S, reads: reads.collect() }
    }

    /// Modelled time of windows in which the columns were there.
    fn seconds(&self, columns: &[PlacedColumn], windows: Vec<ReadWindow>) -> f64 {
        ReadHistory { columns: columns.to_vec(), windows }.seconds(&self.machine).unwrap().iter().sum()
    }

    /// Adds up the windows since the last move.
    fn add_up(&mut self) {
        let windows = std::mem::take(&mut self.windows);
        self.reads_s += self.seconds(&self.history.columns, windows);
    }

    /// A window of this workload, and the moves that follow if anybody asks. Returns their number.
    fn run(&mut self, demand: &Demand, is_asked: bool) -> usize {
        let window = Self::window(&self.history.columns, demand);
        self.windows.push(window.clone());
        self.history.record(window);
        self.unmoved.push(Self::window(&self.first, demand));
        if !is_asked {
            return 0;
        }
        let advice = self.history.advise(&self.rules, &self.machine).unwrap();
        if advice.verdict != PlacementVerdict::Move {
            return 0;
        }
        // Of each decision: the model never gains less than the cost of moving within the time of the rules.
        let saved_s = advice.before_s - advice.after_s;
        assert!(
            advice.cost_s() <= saved_s * self.rules.payback_s / advice.windows_s * 1.000_001,
            "{advice:?}"
        );
        assert!(advice.speed_up() >= self.rules.speed_up_min && advice.cost_s() <= saved_s, "{advice:?}");
        self.add_up();
        let mut arrived: BTreeMap<NodeId, u64> = BTreeMap::new();
        let mut moved = Vec::new();
        for it in &advice.moves {
            let column = &self.history.columns[it.column];
            let nodes: BTreeSet<NodeId> = it.nodes.iter().copied().collect();
            let is_resting = column.moves_count > 0 && column.quiet_s < self.rules.rest_s;
            assert!(
                !is_resting || column.former.contains(&nodes),
                "it rests, and only moves back: {column:?} {it:?}"
            );
            let all: u64 = column.size_bytes.values().sum();
            let share = all / it.nodes.len() as u64;
            for &node in &it.nodes {
                *arrived.entry(node).or_default() +=
                    share.saturating_sub(*column.size_bytes.get(&node).unwrap_or(&0));
            }
            self.moves_s += it.cost_s;
            self.weighted_s += it.cost_s * f64::from(column.moves_count).exp2();
            self.places[it.column].push(nodes);
            moved.push((it.column, it.nodes.iter().map(|&node| (node, share.max(1))).collect()));
        }
        for (node, bytes) in arrived {
            assert!(bytes <= self.rules.room_bytes[&node], "node {node} takes {bytes} bytes");
        }
        self.history.moved(moved);
        advice.moves.len()
    }

    /// The number of moves of the column that moved most.
    fn most_moves(&self) -> usize {
        self.places.iter().map(|places| places.len() - 1).max().unwrap_or(0)
    }

    /// The end: the time that reads and moves took, and that of the reads if nothing had moved.
    fn end(&mut self) -> (f64, f64) {
        self.add_up();
        let windows = std::mem::take(&mut self.unmoved);
        (self.reads_s + self.moves_s, self.seconds(&self.first, windows))
    }
}

/// Seeds of each simulation; more with `MEMFERRY_PLACEMENT_SEEDS`.
fn seeds(test: &str, mut check: impl FnMut(Random) -> Simulation) {
    let count = std::env::var("MEMFERRY_PLACEMENT_SEEDS").map_or(100, |count| count.parse().unwrap());
    let mut tally: BTreeMap<usize, usize> = BTreeMap::new();
    for seed in 0..count {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(Random(seed))));
        match result {
            Ok(simulation) => *tally.entry(simulation.most_moves()).or_default() += 1,
            Err(panic) => {
                eprintln!("{test}: seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{test}: simulations by moves of the column that moves most: {tally:?}");
    let moved: usize =
        tally.iter().filter(|(moves, _)| **moves > 0).map(|(_, simulations)| simulations).sum();
    assert!(moved as u64 > count / 4, "the workloads are to cause moves: {tally:?}");
}

/// The same reads with noise of a tenth: the columns come to rest, and none returns to a place that it left.
#[test]
fn a_steady_workload_comes_to_rest() {
    seeds("a_steady_workload_comes_to_rest", |mut random| {
        let mut simulation = Simulation::new(&mut random);
        let demand = demand(&mut random, simulation.places.len());
        let mut last_move = 0;
        for window in 0..240 {
            let noisy = demand
                .iter()
                .map(|&(cpus, column, bytes)| (cpus, column, bytes / 100 * (95 + random.below(11))));
            let noisy: Demand = noisy.collect();
            if simulation.run(&noisy, random.below(8) == 0) > 0 {
                last_move = window;
            }
        }
        assert!(last_move < 200, "it still moves at window {last_move}");
        for places in &simulation.places {
            let distinct: BTreeSet<_> = places.iter().collect();
            assert_eq!(distinct.len(), places.len(), "a column moved back: {places:?}");
        }
        let (moved_s, unmoved_s) = simulation.end();
        assert!(
            moved_s <= unmoved_s * 1.000_001,
            "moving cost more than it gained: {moved_s} and {unmoved_s}"
        );
        simulation
    });
}

/// Two workloads in turns, for one to 40 windows each: a column moves a few times at most, whatever the turns are.
#[test]
fn workloads_that_alternate_do_not_oscillate() {
    seeds("workloads_that_alternate_do_not_oscillate", |mut random| {
        let mut simulation = Simulation::new(&mut random);
        let count = simulation.places.len();
        let turns = [demand(&mut random, count), demand(&mut random, count)];
        let length = 1 + random.below(40) as usize;
        for window in 0..240 {
            simulation.run(&turns[window / length % 2], random.below(8) == 0);
        }
        // Without rests up to ten.
        assert!(simulation.most_moves() <= 6, "{:?}", simulation.places);
        bounded(&mut simulation, 240);
        simulation
    });
}

/// Another workload every few windows, as an adversary has it.
#[test]
fn workloads_that_change_at_random_cost_little() {
    seeds("workloads_that_change_at_random_cost_little", |mut random| {
        let mut simulation = Simulation::new(&mut random);
        let mut now = demand(&mut random, simulation.places.len());
        for _ in 0..240 {
            if random.below(16) == 0 {
                now = demand(&mut random, simulation.places.len());
            }
            simulation.run(&now, random.below(8) == 0);
        }
        bounded(&mut simulation, 240);
        simulation
    });
}

/// The bounds of any workload of so many windows.
#[track_caller]
fn bounded(simulation: &mut Simulation, windows: usize) {
    // The kth move of a column needs 2^k costs of loss, and the kept windows have 600 s at most. Few columns are below 1 ms.
    let cost_s = simulation
        .first
        .iter()
        .map(|it| it.size_bytes.values().sum::<u64>() as f64)
        .fold(f64::INFINITY, f64::min)
        / 8.0
        / 256e9;
    let by_loss = (60.0 * WINDOW_S / cost_s).log2().ceil() as usize + 1 + windows * 10 / 3600;
    // A move to a new place comes after a rest, and each move back undoes one of these.
    let by_rests = 2 * (1 + (windows as f64 * WINDOW_S / simulation.rules.rest_s) as usize);
    let moves_max = by_loss.min(by_rests);
    assert!(simulation.most_moves() <= moves_max, "{} moves of {moves_max}", simulation.most_moves());
    let (moved_s, unmoved_s) = simulation.end();
    let allowed_s = unmoved_s * 0.05 + 2.0 * simulation.weighted_s;
    let lost_s = moved_s - unmoved_s;
    assert!(lost_s <= allowed_s, "lost {lost_s} s of {unmoved_s} s; allowed are {allowed_s} s");
}

proptest! {
    /// Whatever the reads are: the moves fit, follow from the reads, and a second question after them has no answer.
    #[test]
    fn any_reads_have_an_advice_that_ends(
        reads in prop::collection::vec((0_u32..8, 0_usize..4, 0_u64..100), 0..20),
        homes in prop::collection::vec((0_u32..16, 1_u64..8), 4..5),
    ) {
        let machine = xeon_max();
        let rules = rules(&machine);
        let columns: Vec<_> = homes.iter().enumerate()
            .map(|(index, &(node, size))| column(&format!("c{index}"), &[(node, size * GB)]))
            .collect();
        let reads = |columns: &[PlacedColumn]| -> Vec<HomeRead> {
            reads.iter().flat_map(|&(cpus, column, bytes)| {
                let nodes = &columns[column].size_bytes;
                let count = nodes.len() as u64;
                nodes.keys().map(move |node| read(cpus, column, node.0, bytes * GB / count)).collect::<Vec<_>>()
            }).collect()
        };
        let mut history = history(columns.clone(), reads(&columns));
        for round in 0..5 {
            let advice = history.advise(&rules, &machine).unwrap();
            prop_assert!(advice.after_s <= advice.before_s * 1.000_001, "{advice:?}");
            if advice.verdict != PlacementVerdict::Move {
                return Ok(());
            }
            prop_assert!(round < 4, "it does not end: {advice:?}");
            let moved: Vec<_> = advice.moves.iter().map(|it| {
                let all: u64 = history.columns[it.column].size_bytes.values().sum();
                (it.column, it.nodes.iter().map(|&node| (node, all / it.nodes.len() as u64)).collect())
            }).collect();
            history.moved(moved);
            let window = ReadWindow { seconds: WINDOW_S, reads: reads(&history.columns) };
            history.record(window);
        }
    }
}

//! A deterministic simulation of routing and failure: thousands of clusters, queries and accidents from printed seeds.
//!
//! A world has workers with rows of a version. A query is planned by the code of the coordinator ([`Members`]), its tasks read
//! shards in random order, and workers die, hang, come back, or get another version between any two steps. The answer must be
//! all rows once, or an error that names a worker that had an accident.

use std::collections::BTreeSet;
use std::sync::Arc;

use memferry_bench::harness::Random;
use memferry_cluster::shards::{Failure, Members, Next, ShardMap};

const SEEDS: u64 = 4000;

fn one_in(random: &mut Random, of: usize) -> bool {
    random.below(of) == 0
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Up {
        version: u64,
    },
    Down,
    /// Accepts connections and never answers: found by the keep-alive.
    Hung,
}

struct World {
    map: Arc<ShardMap>,
    states: Vec<State>,
    /// Workers that ever had an accident.
    hurt: BTreeSet<usize>,
    accidents_one_in: usize,
}

impl World {
    fn new(random: &mut Random) -> World {
        let count = 1 + random.below(6);
        let workers = (0..count).map(|index| format!("w{index}:1")).collect();
        let shards = 1 + random.below(4 * count);
        let map = Arc::new(ShardMap::new(7, workers, shards, 1 + random.below(3)).unwrap());
        let accidents_one_in = [3, 10, 40, usize::MAX][random.below(4)];
        World { map, states: vec![State::Up { version: 7 }; count], hurt: BTreeSet::new(), accidents_one_in }
    }

    fn step(&mut self, random: &mut Random) {
        if !one_in(random, self.accidents_one_in) {
            return;
        }
        let worker = random.below(self.states.len());
        self.states[worker] = match random.below(5) {
            0 | 1 => State::Down,
            2 => State::Hung,
            3 => State::Up { version: 8 },
            _ => State::Up { version: 7 },
        };
        self.hurt.insert(worker);
    }

    /// The rows of a shard that a worker answers: a row is (shard, version of its data).
    fn read(&self, worker: usize, shard: usize) -> Result<(usize, u64), Failure> {
        let failure = |what: &str| Failure::Worker { worker, what: what.to_owned() };
        match self.states[worker] {
            State::Down => Err(failure("connection refused")),
            State::Hung => Err(failure("no answer in 2 s")),
            State::Up { version } if version != self.map.version() => Err(failure("another version")),
            State::Up { version } => {
                assert!(
                    self.map.replicas(shard).contains(&worker),
                    "a worker was asked for a shard that it does not hold"
                );
                Ok((shard, version))
            }
        }
    }
}

enum Outcome {
    Rows(Vec<(usize, u64)>),
    /// Rows that had been returned, and the text of the error.
    Error(usize, String),
}

/// One query, as the coordinator runs it.
fn query(world: &mut World, random: &mut Random, plans: &mut usize) -> Outcome {
    let mut members = Members::new(Arc::clone(&world.map));
    // Answers leave as they come, or when all is there, as below a sort.
    let streams = one_in(random, 2);
    let mut returned = Vec::new();
    loop {
        *plans += 1;
        let tasks = 1 + random.below(members.alive().len().max(1) + 1);
        let assignment = match members.assign(tasks) {
            Ok(assignment) => assignment,
            Err(lost) => return Outcome::Error(returned.len(), lost.to_string()),
        };
        let mut reads: Vec<(usize, usize)> = (0..tasks)
            .flat_map(|task| assignment.shards[task].iter().map(move |&shard| (task, shard)))
            .map(|(task, shard)| (assignment.workers[task], shard))
            .collect();
        let mut rows = Vec::new();
        let mut failure = None;
        while !reads.is_empty() {
            world.step(random);
            let (worker, shard) = reads.swap_remove(random.below(reads.len()));
            // A task whose worker does not hold the shard reads it from one that does.
            let holder = match world.map.replicas(shard) {
                holders if holders.contains(&worker) => worker,
                holders => *holders.iter().find(|holder| members.alive().contains(holder)).unwrap(),
            };
            match world.read(holder, shard) {
                Ok(row) if streams => returned.push(row),
                Ok(row) => rows.push(row),
                Err(failed) => {
                    failure = Some(failed);
                    break;
                }
            }
        }
        let Some(failure) = failure else {
            returned.extend(rows);
            return Outcome::Rows(returned);
        };
        match members.after(&failure, returned.len() as u64) {
            Next::Again => {}
            Next::Report => panic!("a failure of a worker in use is not an error of the query"),
            Next::ReportLost(lost) => return Outcome::Error(returned.len(), lost.to_string()),
        }
    }
}

#[test]
fn answers_are_whole_or_errors_are_clear() {
    let (mut whole, mut again, mut partial, mut lost) = (0, 0, 0, 0);
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let mut world = World::new(&mut random);
        for _ in 0..3 {
            let mut plans = 0;
            let outcome = query(&mut world, &mut random, &mut plans);
            assert!(plans <= world.states.len() + 1, "seed {seed}: {plans} plans");
            match outcome {
                Outcome::Rows(mut rows) => {
                    rows.sort_unstable();
                    let all: Vec<_> = (0..world.map.shards_count()).map(|shard| (shard, 7)).collect();
                    assert_eq!(rows, all, "seed {seed}");
                    whole += 1;
                    again += usize::from(plans > 1);
                }
                Outcome::Error(returned, text) => {
                    let named = world.hurt.iter().any(|&worker| text.contains(&world.map.workers()[worker]));
                    assert!(named, "seed {seed}: {text}");
                    if returned > 0 {
                        assert!(text.contains(&format!("after {returned} rows")), "seed {seed}: {text}");
                        partial += 1;
                    } else {
                        lost += 1;
                    }
                }
            }
        }
    }
    // Each kind of outcome was met often.
    println!("{whole} whole, {again} of them planned again, {partial} after rows, {lost} without a replica");
    assert!(whole > 4000 && again > 200 && partial > 200 && lost > 200);
}

#[test]
fn without_accidents_one_plan_is_enough() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut world = World::new(&mut random);
        world.accidents_one_in = usize::MAX;
        let mut plans = 0;
        assert!(matches!(query(&mut world, &mut random, &mut plans), Outcome::Rows(_)), "seed {seed}");
        assert_eq!(plans, 1, "seed {seed}");
    }
}

#[test]
fn a_wrong_query_is_not_run_again() {
    let map = Arc::new(ShardMap::new(1, vec!["a:1".into(), "b:1".into()], 4, 2).unwrap());
    let mut members = Members::new(map);
    assert_eq!(members.after(&Failure::Query, 0), Next::Report);
    assert_eq!(members.alive().len(), 2);
    // A worker that was excluded and fails again cannot be the reason.
    let failure = Failure::Worker { worker: 0, what: "gone".into() };
    assert_eq!(members.after(&failure, 0), Next::Again);
    assert_eq!(members.after(&failure, 0), Next::Report);
}

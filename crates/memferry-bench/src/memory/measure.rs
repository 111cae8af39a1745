//! Measurements in one memory with one kind of pages: rows beside the loops in C, cells of the matrix, curves.

use std::io;

use memferry::internals::CopyMethod;

use super::arena::Arena;
use super::chain::Chain;
use super::loaded::{self, DELAYS, Load, TRAFFICS};
use super::peers::{NoPeers, Peers};
use super::row::{Figure, MemoryRow, Place, Traffic};
use super::threads::{in_turns, together};
use super::{Rounds, kernels};
use crate::harness::{Pairs, Peer, Provenance, Row, geomean_ratio, median};

/// Names of the rows beside loops in C, and of these.
const LATENCY: [&str; 2] = ["idle_latency", "a dependent-load loop in C"];
const BANDWIDTHS: [(Traffic, [&str; 2]); 4] = [
    (Traffic::Read, ["read_bandwidth", "a read loop in C"]),
    (Traffic::Write, ["write_bandwidth", "a fill loop in C"]),
    (Traffic::Copy, ["stream_copy", "STREAM's copy in C"]),
    (Traffic::Mix, ["mix_bandwidth", "a 2:1 loop in C"]),
];

/// Rows beside loops in C.
pub(super) const COMPARED_COUNT: usize = 1 + BANDWIDTHS.len();

/// The memory of a measurement.
pub(super) struct Field<'a> {
    /// One for each thread.
    pub(super) arenas: &'a mut [Arena],
    pub(super) chain: &'a Chain,
    /// The place of the last reader in the chain: the next one continues there, on lines that no cache holds.
    pub(super) line: usize,
    pub(super) copy_method: CopyMethod,
}

/// The CPUs of a measurement, a thread on each.
#[derive(Clone, Copy)]
pub(super) struct Site<'a> {
    pub(super) place: Place,
    pub(super) cpus: &'a [u32],
}

impl Site<'_> {
    fn row(self, row: Row, figure: Figure, traffic: Option<Traffic>) -> MemoryRow {
        let threads = if figure == Figure::Latency { 1 } else { self.cpus.len() };
        MemoryRow { row, figure, place: self.place, traffic, threads, delay: None, load_mb_per_s: None }
    }
}

/// Goes through all of an arena.
fn run(traffic: Traffic, arena: &mut Arena, copy_method: CopyMethod) {
    let loops = arena.loops();
    let (source, target) = arena.all();
    match traffic {
        Traffic::Read => _ = loops.read(source),
        Traffic::Write => kernels::write(target, 3),
        Traffic::Copy => copy_method.copy(source, target),
        Traffic::Mix => _ = loops.mix(target),
    }
}

fn run_peer(traffic: Traffic, arena: &mut Arena, peers: &Peers) {
    let (source, target) = arena.all();
    match traffic {
        Traffic::Read => _ = std::hint::black_box(peers.read(source)),
        Traffic::Write => peers.write(target, 3),
        Traffic::Copy => peers.copy(source, target),
        Traffic::Mix => _ = std::hint::black_box(peers.mix(target)),
    }
}

/// The fastest method of copies by these CPUs together. Another one than memcpy must be 3 % faster: less is noise.
pub(super) fn fastest_copy(cpus: &[u32], arenas: &mut [Arena], rounds: usize) -> io::Result<CopyMethod> {
    const GAIN_MIN: f64 = 1.03;
    let mut fastest = (CopyMethod::Memcpy, f64::INFINITY);
    for &method in CopyMethod::ALL {
        let times = together(cpus, arenas, rounds, |arena| run(Traffic::Copy, arena, method))?;
        let time_s = median(&times);
        let is_faster = if method == CopyMethod::Memcpy { true } else { time_s * GAIN_MIN < fastest.1 };
        if is_faster {
            fastest = (method, time_s);
        }
    }
    Ok(fastest.0)
}

/// Our loops beside those in C, in turns on the same memory.
pub(super) fn compared(
    site: Site,
    field: &mut Field,
    peers: Result<&Peers, &NoPeers>,
    (rounds, seed): (Rounds, u64),
    progress: &mut dyn FnMut(),
) -> io::Result<Vec<MemoryRow>> {
    let first = &site.cpus[..1];
    let (chain, steps) = (field.chain, rounds.steps);
    let ours = |line: &mut usize| *line = chain.follow(*line, steps);
    let lines = std::slice::from_mut(&mut field.line);
    let pairs = match peers {
        Ok(peers) => in_turns(first, lines, rounds.compared_latency, ours, |line| {
            *line = peers.follow(chain, *line, steps);
        })?,
        Err(_) => Pairs { ours: together(first, lines, rounds.compared_latency, ours)?, peer: Vec::new() },
    };
    let row = beside(LATENCY, "ns", pairs, &|time_s| time_s * 1e9 / steps as f64, peers.err(), seed);
    let mut rows = vec![MemoryRow { threads: 1, ..site.row(row, Figure::Compared, None) }];
    progress();
    for (traffic, names) in BANDWIDTHS {
        let method = field.copy_method;
        let ours = |arena: &mut Arena| run(traffic, arena, method);
        let pairs = match peers {
            Ok(peers) => in_turns(site.cpus, field.arenas, rounds.compared, ours, |arena| {
                run_peer(traffic, arena, peers);
            })?,
            Err(_) => {
                Pairs { ours: together(site.cpus, field.arenas, rounds.compared, ours)?, peer: Vec::new() }
            }
        };
        let mb = megabytes(traffic, site, field);
        let row = beside(names, "MB/s", pairs, &|time_s| mb / time_s, peers.err(), seed);
        rows.push(site.row(row, Figure::Compared, Some(traffic)));
        progress();
    }
    Ok(rows)
}

/// What all threads read and write in a round.
fn megabytes(traffic: Traffic, site: Site, field: &Field) -> f64 {
    let bytes =
        field.arenas[..site.cpus.len()].iter().map(|arena| traffic.bytes(arena.size_bytes())).sum::<usize>();
    bytes as f64 / 1e6
}

/// A row from times, with its peer, or with the reason for none. A ratio above 1 means that ours takes less time.
fn beside(
    [name, peer]: [&str; 2],
    unit: &'static str,
    pairs: Pairs,
    value: &dyn Fn(f64) -> f64,
    no_peers: Option<&NoPeers>,
    seed: u64,
) -> Row {
    let values = |times: &[f64]| times.iter().map(|&time_s| value(time_s)).collect::<Vec<_>>();
    let row = Row::median(name, unit, Provenance::Measured, &values(&pairs.ours));
    match no_peers {
        Some(why) => row.without_peer(format!("{peer}, without a number: {why}")),
        None => {
            let peer = Peer::new(peer, median(&values(&pairs.peer)), geomean_ratio([&pairs], seed));
            Row { peer: Some(peer), ..row }
        }
    }
}

/// A cell of each matrix: idle latency, and bandwidth of each traffic.
pub(super) fn cell(site: Site, field: &mut Field, rounds: Rounds) -> io::Result<Vec<MemoryRow>> {
    let (chain, steps) = (field.chain, rounds.steps);
    let lines = std::slice::from_mut(&mut field.line);
    let times = together(&site.cpus[..1], lines, rounds.latency, |line| *line = chain.follow(*line, steps))?;
    let latencies: Vec<f64> = times.iter().map(|time_s| time_s * 1e9 / steps as f64).collect();
    let row = Row::median(site.place.name("latency"), "ns", Provenance::Measured, &latencies);
    let mut rows = vec![site.row(row, Figure::Latency, None)];
    for traffic in Traffic::ALL {
        let method = field.copy_method;
        let times = together(site.cpus, field.arenas, rounds.cell, |arena| run(traffic, arena, method))?;
        let mb = megabytes(traffic, site, field);
        let rates: Vec<f64> = times.iter().map(|time_s| mb / time_s).collect();
        let row = Row::median(site.place.name(traffic.name()), "MB/s", Provenance::Measured, &rates);
        rows.push(site.row(row, Figure::Bandwidth, Some(traffic)));
    }
    Ok(rows)
}

/// Latency under each load.
pub(super) fn curves(
    site: Site,
    field: &mut Field,
    rounds: Rounds,
    progress: &mut dyn FnMut(),
) -> io::Result<Vec<MemoryRow>> {
    let mut rows = Vec::new();
    for traffic in TRAFFICS {
        for delay in DELAYS {
            let measured = loaded::measure(
                site.cpus,
                field.arenas,
                (field.chain, &mut field.line),
                Load { traffic, delay },
                (rounds.latency, rounds.steps),
            )?;
            let name = format!("{}_delay_{delay}", site.place.name(&format!("loaded_{}", traffic.name())));
            let row = Row::median(name, "ns", Provenance::Measured, &measured.latencies_ns);
            rows.push(MemoryRow {
                delay: Some(delay),
                load_mb_per_s: Some(measured.load_bytes_per_s / 1e6),
                ..site.row(row, Figure::LoadedLatency, Some(traffic))
            });
        }
        progress();
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use memferry::memory::HugePages;
    use memferry::topology::{Machine, NodeId};

    use super::super::row::Pages;
    use super::*;

    const BYTES: usize = 1 << 20;

    fn arenas(count: usize) -> (NodeId, Vec<Arena>, Chain) {
        let machine = Machine::discover().unwrap();
        let node = machine.nodes().iter().find(|node| node.has_memory() && node.is_allowed).unwrap().id;
        let arenas = Arena::several(&machine, node, count, BYTES, HugePages::AsSystem).unwrap();
        (node, arenas, Chain::new(&machine, node, BYTES, HugePages::AsSystem, 1).unwrap())
    }

    #[test]
    fn each_traffic_does_what_its_name_says() {
        let arena = &mut arenas(1).1[0];
        let mut target = |traffic| {
            run(traffic, arena, CopyMethod::Memcpy);
            let (source, target) = arena.all();
            (target.iter().all(|&byte| byte == 3), *source == *target)
        };
        assert_eq!(target(Traffic::Write), (true, false));
        assert_eq!(target(Traffic::Read), (true, false));
        assert_eq!(target(Traffic::Copy), (false, true));
        assert_eq!(target(Traffic::Mix), (false, false));
    }

    #[test]
    fn rates_are_of_all_bytes_of_all_threads() {
        let (node, mut arenas, chain) = arenas(2);
        let copy_method = CopyMethod::Memcpy;
        let field = Field { arenas: &mut arenas, chain: &chain, line: 0, copy_method };
        let place = Place { cpus: node, memory: node, pages: Pages::Small };
        for (cpus, wanted) in [(&[0][..], [2, 2, 4, 3]), (&[0, 1], [4, 4, 8, 6])] {
            let found = Traffic::ALL.map(|traffic| megabytes(traffic, Site { place, cpus }, &field));
            assert_eq!(found, wanted.map(|halves| (halves * BYTES / 2) as f64 / 1e6));
        }
    }

    #[test]
    fn a_ratio_above_1_is_less_time() {
        let pairs = Pairs { ours: vec![1.0; 3], peer: vec![2.0; 3] };
        let row = beside(["copy", "in C"], "MB/s", pairs, &|time_s| 10.0 / time_s, None, 1);
        let peer = row.peer.unwrap();
        assert_eq!((row.value, peer.value), (10.0, Some(5.0)));
        assert!((peer.ratio.unwrap() - 2.0).abs() < 1e-9, "{peer:?}");
    }
}

//! The reasons of advice.

use crate::topology::Node;

use super::PlacementVerdict;
use super::search::{Search, Step};

/// Why a column should move: its readers would be faster, or a memory would be relieved.
pub(super) fn of_move(search: &Search<'_>, step: &Step, nodes: &[Node]) -> String {
    let reads = || search.reads.iter().flat_map(|by_column| &by_column[step.column]);
    let bytes: f64 = reads().map(|read| read.bytes).sum();
    let rate = |target: Option<&[usize]>| {
        let seconds: f64 = reads()
            .map(|read| {
                let own = [read.memory];
                let memories = target.unwrap_or(&own);
                let rates = memories.iter().map(|&memory| search.rates.reads[read.cpus][memory]);
                rates.map(|rate| read.bytes / memories.len() as f64 / rate).sum::<f64>()
            })
            .sum();
        bytes / seconds / 1e9
    };
    let (now, then) = (rate(None), rate(Some(&step.targets)));
    let most = |positions: &mut dyn Iterator<Item = (usize, f64)>| {
        let mut sums = vec![0.0; nodes.len()];
        positions.for_each(|(position, bytes)| sums[position] += bytes);
        (0..sums.len()).max_by(|&one, &other| sums[one].total_cmp(&sums[other]).then(other.cmp(&one)))
    };
    let cpus = most(&mut reads().map(|read| (read.cpus, read.bytes))).map_or(0, |it| nodes[it].id.0);
    let memory = most(&mut reads().map(|read| (read.memory, read.bytes)));
    let node = memory.map_or(0, |it| nodes[it].id.0);
    if then >= now * search.speed_up_min() {
        return format!(
            "the CPUs of node {cpus} read it from node {node} at {now:.1} GB/s, and would at {then:.1} GB/s"
        );
    }
    let others: f64 = search
        .reads
        .iter()
        .flatten()
        .flatten()
        .filter(|read| Some(read.memory) == memory)
        .map(|it| it.bytes)
        .sum();
    let all: f64 = search.reads.iter().flatten().flatten().map(|read| read.bytes).sum();
    format!(
        "node {node} serves {:.0} % of all reads, and this column is a part of them",
        others / all * 100.0
    )
}

/// Why the moves are made, wait, or are not there.
pub(super) fn of_advice(search: &Search<'_>, verdict: PlacementVerdict, nodes: &[Node]) -> String {
    match verdict {
        PlacementVerdict::Move => "they pay".to_owned(),
        PlacementVerdict::Wait { seen_s, needed_s } => format!(
            "they would have saved {} so far, and move when that has reached {}: the workload may change",
            time(seen_s),
            time(needed_s)
        ),
        PlacementVerdict::Keep => match busiest(search) {
            None => "nothing was read at home".to_owned(),
            Some((is_memory, position)) => format!(
                "no move would be {} times as fast and pay soon enough; the {} of node {} take{} longest{}",
                search.speed_up_min(),
                if is_memory { "memory" } else { "CPUs" },
                nodes[position].id,
                if is_memory { "s" } else { "" },
                rests(search),
            ),
        },
    }
}

/// Which columns could not be moved yet, as the end of a sentence.
fn rests(search: &Search<'_>) -> String {
    match search.resting() {
        (names, _) if names.is_empty() => String::new(),
        (names, rest_s) => {
            format!("; {} moved lately, and can only move back for up to {}", names.join(", "), time(rest_s))
        }
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.1} us", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

/// Whether a memory takes longest rather than the CPUs of a node, and its position.
fn busiest(search: &Search<'_>) -> Option<(bool, usize)> {
    let count = search.rates.memories.len();
    let sum = |is_memory: bool, position: usize| -> f64 {
        let of = search.loads.iter();
        of.map(|loads| if is_memory { loads.memories[position] } else { loads.cpus[position] }).sum()
    };
    let all =
        [true, false].into_iter().flat_map(|is_memory| (0..count).map(move |position| (is_memory, position)));
    let (load, busiest) = all
        .map(|(is_memory, position)| (sum(is_memory, position), (is_memory, position)))
        .fold((0.0, None), |most, (load, it)| if load > most.0 { (load, Some(it)) } else { most });
    busiest.filter(|_| load > 0.0)
}

//! Two processes that want the same device: what they get is decided by queues, thresholds and priorities, as on
//! silicon.
//!
//! Under a timing in which a copy takes long against all that this machine does meanwhile. What is compared is the
//! order in which the device takes descriptors, from the trace; latencies follow from it.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use common::{Machine, contends};
use memferry_bench::dsa::sharing::{self, ProcessLoad};
use memferry_dsa::WorkQueueInfo;
use memferry_dsa_emulator::shared::Options;
use memferry_dsa_emulator::{Timing, shared_queue};
use serde_json::Value;

/// A descriptor keeps an engine busy for so long.
const OCCUPANCY_NS: u64 = 3_000_000;

/// A descriptor as the device took it.
struct Taken {
    process: u32,
    submitted_ns: u64,
    time_ns: u64,
}

/// Runs two processes at a time, on these queues of one group with one engine, each with up to `depth` of its `count`
/// copies in flight; what each got, its process number, and all descriptors in their order.
fn run(
    queues: &[WorkQueueInfo],
    uses: [usize; 2],
    count: usize,
    depth: usize,
) -> ([(ProcessLoad, u32); 2], Vec<Taken>) {
    let trace = tempfile::NamedTempFile::new().unwrap();
    let timing = Timing { occupancy_ns: OCCUPANCY_NS, ..Timing::sapphire_rapids() };
    let options =
        Options { timing: Some(timing), trace: Some(trace.path().to_owned()), ..Options::default() };
    let machine = Machine::with(&options, queues);
    let programs = uses.map(|queue| {
        let (queue, count, depth) = (format!("wq0.{queue}"), count.to_string(), depth.to_string());
        machine.program(&contends(), &[&queue, &count, &depth, "64"])
    });
    let loads = sharing::together(programs).unwrap();
    assert!(loads.iter().all(|(load, _)| load.latencies_ns.len() == count));
    machine.state.write_trace().unwrap();
    let text = std::fs::read_to_string(trace.path()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let number = |line: &Value, name: &str| line[name].as_u64().unwrap();
    let mut taken: Vec<Taken> = lines
        .filter(|line| line["event"] == "descriptor")
        .map(|line| Taken {
            process: number(&line, "process") as u32,
            submitted_ns: number(&line, "submitted_ns"),
            time_ns: number(&line, "time_ns"),
        })
        .collect();
    taken.sort_by_key(|taken| taken.time_ns);
    assert_eq!(taken.len(), 2 * count);
    (loads.try_into().expect("two"), taken)
}

fn mean(load: &ProcessLoad) -> u64 {
    load.latencies_ns.iter().sum::<u64>() / load.latencies_ns.len() as u64
}

/// Of two queues that never run dry, that with three times the priority is served three times as often, so that who
/// uses it waits a third as long.
#[test]
fn priorities() {
    const COUNT: usize = 48;
    const DEPTH: usize = 16;
    let of = |priority| WorkQueueInfo { priority, ..shared_queue("", 32) };
    let ([(first, high), (second, _)], taken) = run(&[of(12), of(4)], [0, 1], COUNT, DEPTH);
    // While both had descriptors in their queues: from the first of both to the last submission of the one that is
    // faster.
    let firsts = |is_high: bool| taken.iter().find(|taken| (taken.process == high) == is_high).unwrap();
    let start = firsts(true).submitted_ns.max(firsts(false).submitted_ns);
    let end =
        taken.iter().filter(|taken| taken.process == high).map(|taken| taken.submitted_ns).max().unwrap();
    let both = taken.iter().filter(|taken| (start..=end).contains(&taken.time_ns));
    let (of_high, of_low): (Vec<_>, Vec<_>) = both.partition(|taken| taken.process == high);
    println!("{} and {} descriptors; {} and {} ns", of_high.len(), of_low.len(), mean(&first), mean(&second));
    assert!(of_high.len() >= COUNT / 2, "they did not run at the same time: {}", of_high.len());
    // Turns of four: three and one.
    let expected = of_high.len() / 3;
    assert!(of_low.len().abs_diff(expected) <= 2, "{} of {}", of_low.len(), of_high.len());
    assert!(mean(&second) > mean(&first), "latencies of {} and {} ns", mean(&first), mean(&second));
}

/// Both fill one queue, which takes no more than its threshold, whoever comes; so nobody waits for more than that.
#[test]
fn a_threshold_is_one_for_both() {
    const THRESHOLD: usize = 4;
    let queue = WorkQueueInfo { threshold: THRESHOLD as u32, ..shared_queue("", 16) };
    let (loads, taken) = run(&[queue], [0, 0], 24, 16);
    for entry in &taken {
        let is_before =
            |other: &&Taken| other.submitted_ns < entry.submitted_ns && other.time_ns > entry.submitted_ns;
        let before = taken.iter().filter(is_before).count();
        assert!(before <= THRESHOLD, "{before} were before one in the queue");
    }
    for (load, _) in &loads {
        assert!(load.retries > 0, "the queue is full most of the time");
    }
    let submitted_in_order = taken.is_sorted_by_key(|taken| taken.submitted_ns);
    assert!(submitted_in_order, "first come, first served, whoever it is");
}

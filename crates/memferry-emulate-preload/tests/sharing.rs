//! Two processes share a device by queues, thresholds and priorities, as on silicon.
//!
//! The modelled time of a copy is long compared with all other work of this machine. The tests compare the order in
//! which the device starts descriptors, from the trace; latencies follow from it. A program of its own, since other tests would
//! delay a process between reading the clock and submitting.

#[path = "integration/common/mod.rs"]
mod common;

use memferry_bench::dsa::sharing::{self, ProcessLoad};
use memferry_dsa::WorkQueueInfo;
use memferry_dsa_emulator::shared::Options;
use memferry_dsa_emulator::{DeviceCosts, shared_queue};
use serde_json::Value;

use common::{Machine, contends};

/// How long a descriptor occupies an engine.
const OCCUPANCY_NS: u64 = 3_000_000;

/// A descriptor in the trace.
struct Started {
    process: u32,
    submitted_ns: u64,
    time_ns: u64,
}

/// Runs two processes at the same time, on these queues of one group with one engine, each with up to `depth` of its
/// `count` copies in flight. Returns the load and the number of each process, and all descriptors in their order.
fn run(
    queues: &[WorkQueueInfo],
    uses: [usize; 2],
    count: usize,
    depth: usize,
) -> ([(ProcessLoad, u32); 2], Vec<Started>) {
    let trace = tempfile::NamedTempFile::new().unwrap();
    let timing = DeviceCosts { occupancy_ns: OCCUPANCY_NS, ..DeviceCosts::sapphire_rapids() };
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
    let mut started: Vec<Started> = lines
        .filter(|line| line["event"] == "descriptor")
        .map(|line| Started {
            process: number(&line, "process") as u32,
            submitted_ns: number(&line, "submitted_ns"),
            time_ns: number(&line, "time_ns"),
        })
        .collect();
    started.sort_by_key(|started| started.time_ns);
    assert_eq!(started.len(), 2 * count);
    (loads.try_into().expect("two"), started)
}

fn mean(load: &ProcessLoad) -> u64 {
    load.latencies_ns.iter().sum::<u64>() / load.latencies_ns.len() as u64
}

/// Of two queues that are never empty, the one with three times the priority is served three times as often, so its
/// latency is a third.
#[test]
fn priorities() {
    const COUNT: usize = 48;
    const DEPTH: usize = 16;
    let of = |priority| WorkQueueInfo { priority, ..shared_queue("", 32) };
    let ([(first, high), (second, _)], started) = run(&[of(12), of(4)], [0, 1], COUNT, DEPTH);
    // The time in which both queues had descriptors: from the first of both to the last submission of the faster
    // process.
    let firsts = |is_high: bool| started.iter().find(|started| (started.process == high) == is_high).unwrap();
    let start = firsts(true).submitted_ns.max(firsts(false).submitted_ns);
    let end = started
        .iter()
        .filter(|started| started.process == high)
        .map(|started| started.submitted_ns)
        .max()
        .unwrap();
    let both = started.iter().filter(|started| (start..=end).contains(&started.time_ns));
    let (of_high, of_low): (Vec<_>, Vec<_>) = both.partition(|started| started.process == high);
    println!("{} and {} descriptors; {} and {} ns", of_high.len(), of_low.len(), mean(&first), mean(&second));
    assert!(of_high.len() >= COUNT / 2, "they did not run at the same time: {}", of_high.len());
    // Turns of four: three and one.
    let expected = of_high.len() / 3;
    assert!(of_low.len().abs_diff(expected) <= 2, "{} of {}", of_low.len(), of_high.len());
    assert!(mean(&second) > mean(&first), "latencies of {} and {} ns", mean(&first), mean(&second));
}

/// Both processes fill one queue, which accepts no more than its threshold. So no descriptor waits for more than that.
#[test]
fn a_threshold_holds_for_both_together() {
    const THRESHOLD: usize = 4;
    let queue = WorkQueueInfo { threshold: THRESHOLD as u32, ..shared_queue("", 16) };
    let (loads, started) = run(&[queue], [0, 0], 24, 16);
    for entry in &started {
        let is_before =
            |other: &&Started| other.submitted_ns < entry.submitted_ns && other.time_ns > entry.submitted_ns;
        let before = started.iter().filter(is_before).count();
        assert!(before <= THRESHOLD, "{before} were before one in the queue");
    }
    for (load, _) in &loads {
        assert!(load.retries > 0, "the queue is full most of the time");
    }
    let submitted_in_order = started.is_sorted_by_key(|started| started.submitted_ns);
    assert!(submitted_in_order, "first come, first served, whoever it is");
}

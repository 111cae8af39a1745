//! Processes of this machine that copy when they are told to.
//!
//! ```text
//! measured ── "MILLISECONDS\n" ──▶ serve, in a process of its own, on a CPU of its own
//!          ◀── {"bytes":..,"ns":..} ──
//! ```

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use memferry::memory::{Binding, Mapping};
use memferry::topology::{Machine, NodeId};
use memferry_dsa::internals::affinity::confine;
use memferry_dsa::{Client, ClientOptions, Request};
use serde::{Deserialize, Serialize};

use super::mix::{By, Kind, Mix, Processes};
use super::{ALONE, CopierError, cannot, cpu_node, row};
use crate::dsa::device_provenance;
use crate::harness::{Effort, Pairs, Peer, Provenance, Row, geomean_ratio, median};

/// Bytes of the sources and of the targets of a process: more than its share of today's last-level caches.
const REGION_BYTES: usize = 128 << 20;

/// What a copying process needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its kind.
    pub kind: Kind,
    /// Its CPU.
    pub cpu: u32,
    /// Bytes of each copy.
    pub size_bytes: usize,
}

/// The copies of a process in one turn.
#[derive(Serialize, Deserialize)]
struct Turn {
    bytes: u64,
    ns: u64,
}

const READY: &str = "ready\n";

/// Measures a mix by processes of this machine, each on a CPU of its own near its source. `start` makes the command of a
/// process that calls [`serve`]. All processes copy together and, in turns with that, the first of each kind alone.
///
/// # Errors
/// [`CopierError::Cannot`]: too few CPUs, no such node, no usable queue. [`CopierError::Process`].
pub fn measured(
    mix: &Mix,
    machine: &Machine,
    size_bytes: usize,
    effort: Effort,
    seed: u64,
    start: impl Fn(&Place) -> Command,
) -> Result<Vec<Row>, CopierError> {
    let places = places(mix, machine, size_bytes)?;
    let mut running = Vec::new();
    for place in &places {
        running.push(Process::start(start(place))?);
    }
    let turn = Duration::from_millis(effort.of(200, 10));
    let firsts: Vec<usize> =
        (mix.kinds().iter()).scan(0, |next, it| Some(std::mem::replace(next, *next + it.count))).collect();
    let mut pairs: Vec<Pairs> = vec![Pairs::default(); firsts.len()];
    for round in 0..effort.of(15, 2) {
        for is_together in [round % 2 == 0, round % 2 != 0] {
            let rates = if is_together { turns(&mut running, turn)? } else { Vec::new() };
            for ((pairs, &first), kind) in pairs.iter_mut().zip(&firsts).zip(mix.kinds()) {
                if is_together {
                    let of_kind = &rates[first..first + kind.count];
                    pairs.ours.push(kind.count as f64 / of_kind.iter().sum::<f64>());
                } else {
                    pairs.peer.push(1.0 / turns(&mut running[first..=first], turn)?[0]);
                }
            }
        }
    }
    // Times under load against times alone: a ratio below 1 is what a process loses.
    let row = |(kind, pairs): (&Processes, &Pairs)| {
        let rates = |times: &[f64]| times.iter().map(|time| 1.0 / time).collect::<Vec<_>>();
        let how = if kind.kind.by == By::Device { device_provenance() } else { Provenance::Measured };
        let peer = Peer::new(ALONE, median(&rates(&pairs.peer)), geomean_ratio([pairs], seed));
        Row { peer: Some(peer), ..row("processes", how, mix, kind, &rates(&pairs.ours)) }
    };
    Ok(mix.kinds().iter().zip(&pairs).map(row).collect())
}

/// A CPU for each process.
fn places(mix: &Mix, machine: &Machine, size_bytes: usize) -> Result<Vec<Place>, CopierError> {
    let first = machine.nodes().iter().find(|node| !node.allowed_cpus.is_empty() && node.has_memory());
    let mut used: HashMap<NodeId, usize> = HashMap::new();
    let mut places = Vec::new();
    for processes in mix.kinds() {
        let Some(source) = processes.kind.nodes.map(|(source, _)| source).or(first.map(|node| node.id))
        else {
            return cannot("this machine has no node with CPUs and memory; name nodes");
        };
        let node = cpu_node(machine, source)?;
        let cpus = machine.node(node).map(|node| &node.allowed_cpus[..]).unwrap_or_default();
        for _ in 0..processes.count {
            let next = used.entry(node).or_default();
            let Some(&cpu) = cpus.get(*next) else {
                return cannot(format!(
                    "{mix} needs more than the {} CPUs of node {node}; each process has one of its own",
                    cpus.len()
                ));
            };
            *next += 1;
            places.push(Place { kind: processes.kind, cpu, size_bytes });
        }
    }
    Ok(places)
}

/// Lets processes copy at the same time. Returns the bytes per second of each.
fn turns(running: &mut [Process], time: Duration) -> io::Result<Vec<f64>> {
    let line = format!("{}\n", time.as_millis());
    for process in &mut *running {
        process.input.write_all(line.as_bytes())?;
    }
    running.iter_mut().map(Process::rate).collect()
}

/// A copying process, killed on drop.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(mut command: Command) -> Result<Process, CopierError> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        let mut process = Process { child, input, output: BufReader::new(output) };
        let mut line = String::new();
        process.output.read_line(&mut line)?;
        if line == READY {
            return Ok(process);
        }
        // It has ended: its message says why.
        let mut message = String::new();
        if let Some(mut errors) = process.child.stderr.take() {
            io::Read::read_to_string(&mut errors, &mut message)?;
        }
        cannot(message.trim().trim_start_matches("error: ").to_owned())
    }

    fn rate(&mut self) -> io::Result<f64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let Turn { bytes, ns } = serde_json::from_str(&line)?;
        Ok(bytes as f64 / ns as f64 * 1e9)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // No effect on a process that has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The work of a process that [`measured`] starts: copies for as long as each line of standard input says, and prints how
/// much it was. Ends with its input.
///
/// # Errors
/// [`CopierError::Cannot`]: memory, CPU or queue cannot be used, or a copy is wrong.
/// [`CopierError::Process`]: standard input or output.
pub fn serve(place: &Place) -> Result<(), CopierError> {
    let because = |error: &dyn std::fmt::Display| CopierError::Cannot(error.to_string());
    let machine = Machine::discover().map_err(|error| because(&error))?;
    confine(&[place.cpu])?;
    let binding = |node: Option<NodeId>| node.map_or(Binding::Any, Binding::Bind);
    let region_bytes = REGION_BYTES.next_multiple_of(place.size_bytes);
    let region = |node| Mapping::new(&machine, region_bytes, binding(node)).map_err(|error| because(&error));
    let mut source = region(place.kind.nodes.map(|nodes| nodes.0))?;
    let mut target = region(place.kind.nodes.map(|nodes| nodes.1))?;
    source.chunks_mut(place.size_bytes).zip((1u8..=255).cycle()).for_each(|(part, byte)| part.fill(byte));
    let client = match place.kind.by {
        By::Core => None,
        By::Device => {
            // The CPU would be measured under the name of a device.
            let options =
                ClientOptions { may_use_cpu: false, faults_max: u32::MAX, ..ClientOptions::default() };
            let (client, why) = Client::discover(options).map_err(|error| because(&error))?;
            if client.portals().len() == 0 {
                return cannot(format!("no DSA queue can be used: {}", why.join("; ")));
            }
            Some(client)
        }
    };
    let mut out = io::stdout().lock();
    out.write_all(READY.as_bytes())?;
    out.flush()?;
    let mut parts = (0..region_bytes).step_by(place.size_bytes).cycle();
    for line in io::stdin().lock().lines() {
        let time = line?.trim().parse().map(Duration::from_millis).map_err(io::Error::other)?;
        let begin = Instant::now();
        let mut turn = Turn { bytes: 0, ns: 0 };
        let mut last = 0..0;
        while begin.elapsed() < time {
            let first = parts.next().unwrap_or_default();
            last = first..first + place.size_bytes;
            match &client {
                None => target[last.clone()].copy_from_slice(&source[last.clone()]),
                Some(client) => {
                    let copy = Request::copy(&source[last.clone()], &mut target[last.clone()]);
                    client.run(copy).map_err(|error| because(&error))?;
                }
            }
            turn.bytes += place.size_bytes as u64;
        }
        turn.ns = begin.elapsed().as_nanos() as u64;
        if source[last.clone()] != target[last] {
            return cannot("a copy is wrong; please report this");
        }
        serde_json::to_writer(&mut out, &turn).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    Ok(())
}

//! Shares of processes that use one device, by thresholds and priorities.
//!
//! ```text
//! bench ── memferry bench emulate --device       an emulation; standard input configures the queues
//!             └─ ... --together QUEUE,COUNT ...  inside: starts processes at the same time
//!                  └─ ... --contend QUEUE,COUNT  each keeps 16 copies in flight, COUNT in total
//! ```
//!
//! The device takes a millisecond per copy, far longer than all other work here: times are those of the device, not of the
//! machine.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use memferry_bench::dsa::sharing::{self, ProcessLoad};
use memferry_bench::harness::{Effort, Provenance, Row};
use memferry_dsa_emulator::DeviceCosts;
use memferry_emulate::{Options, Setup, exit_as};
use serde_json::{Value, json};

/// An engine's time for a descriptor.
const OCCUPANCY_NS: u64 = 1_000_000;
/// Copies that each process has in flight.
const DEPTH: usize = 16;
/// Bytes of a copy.
const SIZE_BYTES: u32 = 64;

/// The step that this process runs.
#[derive(Debug, clap::Args)]
pub(super) struct Step {
    /// Runs `--together` on a device with the queues of standard input.
    #[arg(long, hide = true, requires = "together")]
    device: bool,
    /// Runs `--contend` for each.
    #[arg(long, hide = true, value_name = "QUEUE,COUNT")]
    together: Vec<Share>,
    /// Keeps the queue busy.
    #[arg(long, hide = true, value_name = "QUEUE,COUNT")]
    contend: Option<Share>,
}

/// The work of a process: a number of copies through a queue.
#[derive(Clone, Debug)]
struct Share {
    queue: String,
    count: usize,
}

impl FromStr for Share {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Share, &'static str> {
        let parts = text.split_once(',').and_then(|(queue, count)| Some((queue, count.parse().ok()?)));
        let (queue, count) = parts.ok_or("not a queue and a number; write it such as wq0.0,100")?;
        Ok(Share { queue: queue.to_owned(), count })
    }
}

impl Share {
    fn argument(&self) -> String {
        format!("{},{}", self.queue, self.count)
    }
}

impl Step {
    /// Runs the step; false if this process was not started for one.
    pub(super) fn run(&self) -> Result<bool> {
        if let Some(Share { queue, count }) = &self.contend {
            sharing::contend(&Path::new("/dev/dsa").join(queue), *count, DEPTH, SIZE_BYTES)?;
            return Ok(true);
        }
        if self.device {
            let mut arguments: Vec<_> = ["bench", "emulate"].map(Into::into).to_vec();
            for share in &self.together {
                arguments.extend(["--together".into(), share.argument().into()]);
            }
            exit_as(memferry_emulate::run(Options {
                arguments,
                setup: Setup::File("/dev/stdin".into()),
                timing: Some(DeviceCosts { occupancy_ns: OCCUPANCY_NS, ..DeviceCosts::sapphire_rapids() }),
                ..Options::new(std::env::current_exe()?)
            })?)
        }
        if self.together.is_empty() {
            return Ok(false);
        }
        let this = std::env::current_exe()?;
        let contend = |share: &Share| {
            let mut command = Command::new(&this);
            command.args(["bench", "emulate", "--contend", &share.argument()]);
            command
        };
        let loads = sharing::together(self.together.iter().map(contend))?;
        let loads: Vec<ProcessLoad> = loads.into_iter().map(|(load, _)| load).collect();
        println!("{}", serde_json::to_string(&loads)?);
        Ok(true)
    }
}

/// Rows for two queues with priorities, for two thresholds of a queue that two processes share, and for one process
/// alone.
pub(super) fn rows(effort: Effort) -> Result<Vec<Row>> {
    let count = effort.of(96, 24);
    let mut rows = Vec::new();
    // Of four turns, one queue gets three and the other one: both end at about the same time.
    let queues = [(16, 12), (16, 4)];
    let loads = loads(&queues, &[share(0, count), share(1, count / 3)])?;
    for ((_, priority), load) in queues.iter().zip(&loads) {
        rows.push(row(format!("share_priority_{priority}_ms"), std::slice::from_ref(load)));
    }
    for (name, threshold, processes) in [
        ("share_threshold_32_alone_ms", 32, 1),
        ("share_threshold_32_ms", 32, 2),
        ("share_threshold_4_ms", 4, 2),
    ] {
        let shares = vec![share(0, count / 2); processes];
        rows.push(row(name.to_owned(), &self::loads(&[(threshold, 10)], &shares)?));
    }
    Ok(rows)
}

fn share(queue: usize, count: usize) -> Share {
    Share { queue: format!("wq0.{queue}"), count }
}

/// Times from acceptance of a copy to its completion, of all processes.
fn row(name: String, loads: &[ProcessLoad]) -> Row {
    let latencies = loads.iter().flat_map(|load| &load.latencies_ns);
    let milliseconds: Vec<f64> = latencies.map(|ns| *ns as f64 / 1e6).collect();
    Row::median(name, "ms", Provenance::Emulated, &milliseconds)
}

/// The latencies of each share on a device with one engine and these shared queues, (threshold, priority).
fn loads(queues: &[(u32, u32)], shares: &[Share]) -> Result<Vec<ProcessLoad>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "emulate", "--device"]);
    shares.iter().for_each(|share| _ = command.args(["--together", &share.argument()]));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.spawn().context("cannot run this command again")?;
    let mut input = running.stdin.take().context("the measuring process has no standard input")?;
    input.write_all(configuration(queues).to_string().as_bytes())?;
    drop(input);
    let output = running.wait_with_output()?;
    if !output.status.success() {
        bail!("sharing a device cannot be measured: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("the measuring processes printed no measurement")
}

/// The configuration in accel-config's format.
fn configuration(queues: &[(u32, u32)]) -> Value {
    let queue = |(index, (threshold, priority)): (usize, &(u32, u32))| {
        json!({
            "dev": format!("wq0.{index}"), "mode": "shared", "size": 32, "group_id": 0, "priority": priority,
            "block_on_fault": 1, "max_batch_size": 32, "max_transfer_size": 1 << 20, "type": "user",
            "driver_name": "user", "name": format!("share{index}"), "threshold": threshold,
        })
    };
    let queues: Vec<Value> = queues.iter().enumerate().map(queue).collect();
    json!([{"dev": "dsa0", "groups": [{
        "dev": "group0.0", "grouped_workqueues": queues, "grouped_engines": [{"dev": "engine0.0", "group_id": 0}],
    }]}])
}

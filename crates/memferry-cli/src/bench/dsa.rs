//! `memferry bench dsa`: a device from one thread, ways to wait for it, and its operations in software.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use memferry::topology::Machine;
use memferry_bench::dsa::load::LoadError;
use memferry_bench::dsa::{device, device_provenance, software, waiting};
use memferry_bench::harness::{Effort, Peer, Provenance, Record, Row, geomean_ratio, median};
use memferry_bench::mover::hand_overs;
use memferry_dsa::system::{QueueFilter, QueueId, SystemState};
use memferry_dsa::{DevicePortal, OpenOptions, Portal, Wait};
use memferry_query::load::Progress as _;
use serde_json::json;

use super::isa::Limit;
use super::{BUILD_PROFILE, Keep, start_record};
use crate::progress::Bar;

/// A DSA queue from one thread, ways to wait for it, and its operations in software.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// The device whose queue is measured.
    #[arg(long, value_enum, default_value_t = Dsa::Emulated)]
    dsa: Dsa,
    /// The queue of this machine's devices, `wq0.1` [default: the first that can be used].
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueId>,
    /// Seed of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    keep: Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Dsa {
    /// The emulated device, in this process, as fast as it is.
    Emulated,
    /// A device of this machine.
    System,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if arguments.queue.is_some() && arguments.dsa != Dsa::System {
        bail!("--queue names a queue of this machine; add --dsa system");
    }
    let isa = arguments.limit.apply()?;
    let directory = arguments.keep.directory(arguments.quick)?;
    let effort = super::effort(arguments.quick);
    let options = json!({
        "quick": arguments.quick,
        "dsa": arguments.dsa.to_possible_value().map(|value| value.get_name().to_owned()),
        "queue": arguments.queue.map(|queue| queue.to_string()),
        "isa": isa,
        "profile": BUILD_PROFILE,
    });
    let machine = Machine::discover()?;
    let mut record: Record = start_record("dsa", machine.clone(), arguments.seed, options);
    let telemetry = arguments.keep.telemetry();
    record.rows = telemetry.rows(|| match arguments.dsa {
        Dsa::Emulated => {
            queue_rows("emulator", &*device::emulated()?.portal(0), Provenance::Emulated, effort)
        }
        Dsa::System => {
            let portal = open(arguments.queue)?;
            queue_rows("system", &*portal, device_provenance(), effort)
        }
    })?;
    record.rows.extend(telemetry.rows(|| waiting_rows(effort))?);
    record.rows.extend(telemetry.rows(|| software_rows(&machine, effort, arguments.seed))?);
    arguments.keep.finish_as(&arguments.limit.file_name(record.bench), &record, directory, out)
}

/// A portal to a queue of this machine.
pub(crate) fn open(wanted: Option<QueueId>) -> Result<Arc<dyn Portal>> {
    let state = SystemState::discover()?;
    let diagnosis = state.diagnose(&QueueFilter::default());
    let mut usable = diagnosis.usable.iter();
    let Some((device, queue)) = usable.find(|(_, queue)| wanted.is_none_or(|id| queue.id == id)) else {
        let what = wanted.map_or("no queue of this machine".to_owned(), |id| format!("{id}"));
        let diagnostics: Vec<String> = diagnosis.diagnostics.iter().map(ToString::to_string).collect();
        bail!("{what} can be used: {}", diagnostics.join("; "));
    };
    let file = queue.file.as_ref().with_context(|| format!("{} has no file in /dev/dsa", queue.id))?;
    let path = Path::new(&file.path);
    Ok(DevicePortal::open(path, queue.info(device)?, OpenOptions::default())?)
}

/// Samples of a median. They take some 25 s together, twice the longest time for which a virtual CPU was seen far from the
/// other (docs/decisions/emulated-device.md).
const SAMPLES: usize = 301;

/// A row of a queue: its name, its unit, and one sample of it.
type QueueRow<'a> = (String, &'static str, Box<dyn Fn() -> Result<f64, LoadError> + 'a>);

/// Rows of a queue that one thread submits to.
///
/// The rows take their samples in turn. A hypervisor may run the two threads on distant cores for some seconds, in which an
/// operation takes three times as long: otherwise these seconds would be all samples of one row.
fn queue_rows(prefix: &str, portal: &dyn Portal, provenance: Provenance, effort: Effort) -> Result<Vec<Row>> {
    let (singles, batches, trips) = (effort.of(300_000, 100), effort.of(10_000, 10), effort.of(20_000, 10));
    let mut rows: Vec<QueueRow> =
        vec![("noop_single".into(), "1/s", Box::new(move || device::singles(portal, 32, singles)))];
    if portal.supports_batch() {
        let members = 64.min(portal.work_queue().batch_max) as usize;
        for (suffix, with_records) in [("", false), ("_records", true)] {
            let measure = move || device::batches(portal, members, with_records, batches);
            rows.push((format!("noop_batch{members}{suffix}"), "1/s", Box::new(measure)));
        }
    }
    let round_trip = move || device::round_trip(portal, trips).map(|time| time.as_nanos() as f64);
    rows.push(("round_trip_ns".into(), "ns", Box::new(round_trip)));
    let size_bytes = portal.work_queue().transfer_bytes_max.min(1 << 20);
    let copies = move || device::copies(portal, size_bytes, effort.of(200, 1));
    rows.push(("copy_bytes".into(), "bytes/s", Box::new(copies)));

    let rounds_count = effort.of(SAMPLES, 2);
    let bar = Bar::of("measuring the queue", rounds_count);
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); rows.len()];
    let mut word_trips_ns = Vec::new();
    for _ in 0..rounds_count {
        for ((.., measure), samples) in rows.iter().zip(&mut samples) {
            let sample = measure();
            samples.push(
                sample.with_context(|| format!("queue {} cannot be measured", portal.work_queue().name))?,
            );
        }
        word_trips_ns.extend(hand_overs(1).into_iter().flatten().map(|ns| 2.0 * ns));
        bar.advance(1);
    }
    let row = |((name, unit, _), samples): (QueueRow, Vec<f64>)| {
        let row = Row::median(format!("{prefix}_{name}"), unit, provenance, &samples);
        match name == "round_trip_ns" && !word_trips_ns.is_empty() {
            true => row.beside("a word there and back between two threads", median(&word_trips_ns)),
            false => row,
        }
    };
    Ok(rows.into_iter().zip(samples).map(row).collect())
}

/// Costs of each way to wait, on an emulated device as slow as silicon.
fn waiting_rows(effort: Effort) -> Result<Vec<Row>> {
    let bar = Bar::of("measuring ways to wait", 2);
    let emulator = waiting::timed_device()?;
    let portal = &*emulator.portal(0);
    // A way that the CPU lacks falls back to another one, which is measured under its own name.
    let ways: Vec<Wait> = Wait::ALL.into_iter().filter(|wait| wait.effective() == *wait).collect();
    let [(long, long_count), (short, short_count)] = waiting::sizes(effort);
    let long = waiting::costs(portal, &ways, long, 1, long_count)?;
    bar.advance(1);
    let short = waiting::costs(portal, &ways, short, 1, short_count)?;
    bar.advance(1);
    let name = |wait: Wait| format!("wait_{wait:?}").to_lowercase().replace(['(', ')'], "");
    let mut rows: Vec<Row> = (long.iter())
        .map(|cost| {
            let name = format!("{}_core_share", name(cost.wait));
            Row::median(name, "cores", Provenance::Emulated, &cost.core_shares)
        })
        .collect();
    rows.extend(latencies(&short, "latency_us", name));
    rows.extend(latencies(&long, "latency_long_us", name));
    Ok(rows)
}

/// Delay of each waiter behind a spinning one, for the same transfer.
fn latencies(costs: &[waiting::Cost], figure: &str, name: impl Fn(Wait) -> String) -> Vec<Row> {
    let Some(spin) = costs.iter().find(|cost| cost.wait == Wait::Spin) else { return Vec::new() };
    let later = |(this, spin): (&Duration, &Duration)| (this.as_secs_f64() - spin.as_secs_f64()) * 1e6;
    let others = costs.iter().filter(|cost| cost.wait != Wait::Spin);
    let row = |cost: &waiting::Cost| {
        let values: Vec<f64> = cost.durations.iter().zip(&spin.durations).map(later).collect();
        Row::median(format!("{}_{figure}", name(cost.wait)), "us", Provenance::Emulated, &values)
    };
    others.map(row).collect()
}

/// Operations in software beside their best alternatives.
fn software_rows(machine: &Machine, effort: Effort, seed: u64) -> Result<Vec<Row>> {
    let bar = Bar::of("measuring software operations", software::OPERATIONS_COUNT);
    let row = |row: &software::OperationTimes| {
        let ratio = geomean_ratio([&row.pairs], seed);
        let peer = Peer::new(row.peer, median(&row.peer_bytes_per_second()), ratio);
        let rates = row.bytes_per_second();
        Row { peer: Some(peer), ..Row::median(&row.name, "bytes/s", Provenance::Measured, &rates) }
    };
    let operations = software::all(machine, effort, &mut |_| bar.advance(1))
        .context("operations in software cannot be measured")?;
    Ok(operations.iter().map(row).collect())
}

//! `memferry bench processes`: processes that copy at the same time.

use std::io::Write;
use std::process::Command;

use anyhow::{Context, Result, bail};
use memferry::topology::Machine;
use memferry_bench::harness::{Record, Row};
use memferry_bench::processes::{self, CopierError, Kind, Mix, Place};
use memferry_query::load::Progress as _;
use serde_json::json;

use super::{BUILD_PROFILE, Keep, effort, start_record};
use crate::options::size_bytes;
use crate::progress::Bar;
use crate::topology;

/// Processes that copy at the same time, by cores and DSA, on this machine, emulated and modelled: what each is left.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Processes, such as `device:0:8+4*core:0:8`: a device that copies from node 0 to node 8, beside four cores; may be repeated
    /// [default: as many as this machine can run, and others for the emulated device and the model].
    #[arg(long = "mix", value_name = "MIX")]
    mixes: Vec<Mix>,
    /// Bytes of each copy.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, default_value = "1MiB")]
    size: u64,
    /// The machine of the model and of the emulated device.
    #[arg(long, value_name = "PROFILE", default_value = "xeon-max-9468-2s-flat")]
    machine: String,
    /// Short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Seed of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Copies when standard input says so, on the CPU of `--cpu`.
    #[arg(long, hide = true, requires = "cpu")]
    copier: Option<Kind>,
    #[arg(long, hide = true)]
    cpu: Option<u32>,
    #[command(flatten)]
    keep: Keep,
}

/// Copies of emulated devices are at most so large; larger ones are several.
const SIZE_BYTES_MAX: u64 = 1 << 30;

/// Mixes for the emulated device.
const EMULATED: [&str; 3] = ["2*device", "4*device", "8*device"];

/// Mixes for the machine of a profile with DSA and HBM: cores beside each other, a device beside cores and beside itself, and
/// copiers that share no memory.
const MODELLED: [&str; 9] = [
    "2*core:0:8",
    "6*core:0:8",
    "12*core:0:8",
    "2*device:0:8",
    "device:0:8+core:0:8",
    "device:0:8+6*core:0:8",
    "device:0:8+12*core:0:8",
    "device:0:8+12*core:1:9",
    "device:0:8+device:4:8",
];

/// Runs a mix in one way.
type Run<'a> = &'a dyn Fn(&Mix) -> Result<Vec<Row>, CopierError>;

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if !(1..=SIZE_BYTES_MAX).contains(&arguments.size) {
        return Err(crate::error::usage("a copy has 1 byte to 1 GiB; choose --size in between"));
    }
    if let (Some(kind), Some(cpu)) = (arguments.copier, arguments.cpu) {
        return Ok(processes::serve(&Place { kind, cpu, size_bytes: arguments.size as usize })?);
    }
    let directory = arguments.keep.directory(arguments.quick)?;
    let (here, modelled) = (Machine::discover()?, topology::open(Some(&arguments.machine))?);
    let options = json!({
        "quick": arguments.quick,
        "mixes": arguments.mixes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "size_bytes": arguments.size,
        "machine": arguments.machine,
        "profile": BUILD_PROFILE,
    });
    let this = std::env::current_exe().context("cannot find the executable of this command")?;
    let start = |place: &Place| {
        let mut command = Command::new(&this);
        command.args(["bench", "processes", "--copier", &place.kind.to_string()]);
        command.args(["--cpu", &place.cpu.to_string(), "--size", &place.size_bytes.to_string()]);
        command
    };
    let telemetry = arguments.keep.telemetry();
    let measure = |mix: &Mix| {
        let (size, seed) = (arguments.size as usize, arguments.seed);
        let run = || processes::measured(mix, &here, size, effort(arguments.quick), seed, start);
        telemetry.rows(run)
    };
    let emulate = |mix: &Mix| processes::emulated(mix, &modelled, arguments.size as u32);
    let model = |mix: &Mix| processes::modelled(mix, &modelled);
    let own = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("a mix")).collect::<Vec<Mix>>();
    let mixes = |default: Vec<Mix>| match arguments.mixes.is_empty() {
        true => default,
        false => arguments.mixes.clone(),
    };
    let ways: [(&str, Vec<Mix>, Run<'_>); 3] = [
        ("measured", mixes(mixes_here(&here)), &measure),
        ("emulated", mixes(own(&EMULATED)), &emulate),
        ("modelled", mixes(own(&MODELLED)), &model),
    ];
    let mut record: Record = start_record("processes", here.clone(), arguments.seed, options);
    let mut reasons = Vec::new();
    let bar = Bar::of("running processes", ways.iter().map(|(_, mixes, _)| mixes.len()).sum());
    for (how, mixes, run) in &ways {
        for mix in mixes {
            match run(mix) {
                Ok(rows) => record.rows.extend(rows),
                Err(error @ (CopierError::Cannot(_) | CopierError::Model(_))) => {
                    reasons.push(format!("not {how}, {mix}: {error}"));
                }
                Err(error) => return Err(error).with_context(|| format!("{mix} cannot be {how}")),
            }
            bar.advance(1);
        }
    }
    drop(bar);
    if record.rows.is_empty() {
        bail!("no mix can run: {}", reasons.join("; "));
    }
    if arguments.keep.json {
        record.options["notes"] = json!(reasons);
    } else {
        reasons.iter().try_for_each(|reason| writeln!(out, "{reason}"))?;
    }
    arguments.keep.finish(&record, directory, out)
}

/// Mixes for the CPUs of this machine: more and more cores, a device beside them, two processes of one device, and cores of two
/// nodes that copy from and to each other's memory.
fn mixes_here(machine: &Machine) -> Vec<Mix> {
    let with_both: Vec<_> =
        machine.nodes().iter().filter(|node| !node.allowed_cpus.is_empty() && node.has_memory()).collect();
    let cpus_count = with_both.first().map_or(1, |node| node.allowed_cpus.len());
    let counts: Vec<usize> = (1..).map(|power| 1 << power).take_while(|&count| count <= cpus_count).collect();
    let mut texts: Vec<String> = counts.iter().map(|count| format!("{count}*core")).collect();
    if !machine.accelerators().is_empty() {
        texts.extend(counts.iter().map(|count| format!("device+{}*core", count - 1)));
        texts.push("2*device".to_owned());
    }
    if let [one, other, ..] = with_both[..] {
        let (one, other) = (one.id, other.id);
        texts.extend([
            format!("core:{one}:{one}+core:{other}:{other}"),
            format!("core:{one}:{other}+core:{other}:{one}"),
        ]);
    }
    texts.iter().map(|text| text.parse().expect("a mix")).collect()
}

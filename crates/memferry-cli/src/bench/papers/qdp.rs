//! `memferry bench qdp`: the papers' query with one column brought near, in all variants, on this machine, with
//! emulated devices, or in the model. See `memferry_bench::papers::qdp`.

use std::io::Write;

use anyhow::{Context, Result, anyhow};
use memferry::topology::NodeId;
use memferry_bench::dsa::device_provenance;
use memferry_bench::harness::{Provenance, Record, median};
use memferry_bench::papers::qdp::{Axes, Nodes, Qdp, Query, QueryRuns, Variant, decide, published};
use memferry_bench::papers::{Measurement, Metric, Skipped};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::not_modelled;
use super::options::{On, place};
use super::row::PaperRow;
use super::session::{RunArguments, Session};
use super::values::{Word, counted, named, values};
use crate::bench::{BUILD_PROFILE, start_record};
use crate::error::usage;
use crate::options::size_bytes;
use crate::output::wrapped;
use crate::topology;

/// The papers' query, SELECT sum(b) WHERE a < x: column b in DDR, in faster memory, copied there meanwhile, and the
/// same from another node (Fürst 2024, table 6.2)
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    run: RunArguments,
    /// Decides what the gain of distributed prefetching comes from: runs baseline, distributed-alone and distributed in
    /// turns [default of --iterations: 15; 3 with --quick], and prints a verdict. Needs a faster memory and another one
    /// of home's kind.
    #[arg(long, conflicts_with_all = ["variants", "restart"])]
    decide: bool,
}

/// Options of the command line and of a file.
#[derive(Clone, Debug, Default, clap::Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Options {
    /// Where to run it [default: machine; model with --machine].
    #[arg(long, value_enum)]
    on: Option<On>,
    /// The machine of the model, or whose devices are emulated: the name of a profile (see `memferry topology`), or a
    /// JSON file.
    #[arg(long, value_name = "PROFILE")]
    machine: Option<String>,
    /// What this machine can do: a file that `memferry calibrate --out FILE` wrote here, or a published profile of such a
    /// machine [env: MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
    /// Small columns and few runs: to see that it works, not for the record.
    #[arg(long)]
    quick: bool,
    /// Runs that count [default: 5; 2 with --quick]; the model has no noise, and computes one.
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    /// Runs before those [default: 5; 1 with --quick]; none in the model.
    #[arg(long, value_name = "N")]
    warm_ups: Option<usize>,
    /// Where column b is, and what is done about it: baseline, upper-limit, prefetching, distributed,
    /// distributed-alone, cache-mode-cold, cache-mode, advised, advised-distributed [default: all].
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    variants: Option<Vec<Word>>,
    /// Size of each of the two columns [default: 4GiB in the model, 512MiB elsewhere].
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    sizes: Option<Vec<Word>>,
    /// Groups of threads; each has its part of the rows.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    groups: Option<Vec<Word>>,
    /// Threads of the first stage, over all groups.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    scan_threads: Option<Vec<Word>>,
    /// Those of them that prefetch, where all of column b is prefetched.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    prefetch_threads: Option<Vec<Word>>,
    /// Threads that aggregate, over all groups.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    aggregate_threads: Option<Vec<Word>>,
    /// Sizes of what is scanned, copied and looked for at a time.
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    chunks: Option<Vec<Word>>,
    /// What aggregating waits for: relaxed (the scan of column a) or barrier (copies of column b, too).
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    sync: Option<Vec<Word>>,
    /// Node of column a and of all threads [default: the first node with CPUs and memory].
    #[arg(long, value_name = "NODE")]
    home: Option<u32>,
    /// Node of the faster memory [default: the nearest that is faster than home].
    #[arg(long, value_name = "NODE")]
    near: Option<u32>,
    /// Node of column b where columns are distributed [default: the nearest of home's kind].
    #[arg(long, value_name = "NODE")]
    other: Option<u32>,
}

/// The reason for a missing speed-up.
const NO_BASELINE: &str = "the baseline has no time to compare with: add it to --variants, or see its row";

/// More warm-up runs have no effect.
const WARM_UPS_MAX: usize = 1000;

impl Options {
    fn effort(&self, on: On) -> Result<QueryRuns> {
        let effort = if self.quick { QueryRuns::QUICK } else { QueryRuns::FULL };
        if self.warm_ups.is_some_and(|count| count > WARM_UPS_MAX) {
            return Err(usage(format!("--warm-ups is a number up to {WARM_UPS_MAX}")));
        }
        if on == On::Model {
            return Ok(QueryRuns { warm_ups: 0, runs: 1 });
        }
        Ok(QueryRuns {
            warm_ups: self.warm_ups.unwrap_or(effort.warm_ups),
            runs: self.iterations.unwrap_or(effort.runs),
        })
    }

    fn axes(&self, qdp: &Qdp, is_model: bool) -> Result<Axes> {
        let node = |option: &str, node: Option<u32>| -> Result<Option<NodeId>> {
            let Some(node) = node else { return Ok(None) };
            let found = qdp.machine().node(NodeId(node));
            found.map(|node| Some(node.id)).map_err(|error| usage(format!("--{option}: {error}")))
        };
        let home = node("home", self.home)?;
        let own = Nodes::of(qdp.machine(), home).map_err(|error| usage(error.to_string()))?;
        let nodes = Nodes {
            near: node("near", self.near)?.or(own.near),
            other: node("other", self.other)?.or(own.other),
            ..own
        };
        let own = Axes::on(qdp.machine(), nodes, is_model, self.quick);
        let mut variants = values("variants", &self.variants, own.variants, named)?;
        // The baseline comes first: other variants are compared with it.
        variants.sort_by_key(|variant| *variant != Variant::Baseline);
        Ok(Axes {
            variants,
            columns_bytes: values("sizes", &self.sizes, own.columns_bytes, size_bytes)?,
            groups: values("groups", &self.groups, own.groups, counted)?,
            scan_threads: values("scan-threads", &self.scan_threads, own.scan_threads, counted)?,
            prefetch_threads: values(
                "prefetch-threads",
                &self.prefetch_threads,
                own.prefetch_threads,
                counted,
            )?,
            aggregate_threads: values(
                "aggregate-threads",
                &self.aggregate_threads,
                own.aggregate_threads,
                counted,
            )?,
            chunks_bytes: values("chunks", &self.chunks, own.chunks_bytes, size_bytes)?,
            syncs: values("sync", &self.sync, own.syncs, named)?,
            nodes,
        })
    }

    /// The options in a record: every value of every axis, chosen or default.
    fn record(&self, on: On, axes: &Axes, effort: QueryRuns) -> Value {
        json!({
            "on": on,
            "machine": self.machine,
            "calibration": self.calibration,
            "quick": self.quick,
            "iterations": effort.runs,
            "warm-ups": effort.warm_ups,
            "variants": axes.variants,
            "sizes": axes.columns_bytes,
            "groups": axes.groups,
            "scan-threads": axes.scan_threads,
            "prefetch-threads": axes.prefetch_threads,
            "aggregate-threads": axes.aggregate_threads,
            "chunks": axes.chunks_bytes,
            "sync": axes.syncs,
            "home": axes.nodes.home,
            "near": axes.nodes.near,
            "other": axes.nodes.other,
            "profile": BUILD_PROFILE,
        })
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let options = arguments.run.options(&arguments.options, "qdp")?;
    let on = place(options.on, options.machine.as_deref(), options.iterations)?;
    let effort = options.effort(on)?;
    let qdp = qdp(on, &options)?;
    let axes = options.axes(&qdp, on == On::Model)?;
    if arguments.decide {
        return decided(&qdp, &axes, on, arguments, &options, out);
    }
    let queries = axes.queries();
    let mut session = Session::begin(
        "qdp",
        on,
        qdp.machine().as_ref().clone(),
        options.record(on, &axes, effort),
        (&arguments.run, options.quick),
    )?;
    let provenance = provenance(on);
    let name = |query: &Query, metric| axes.row_name(query, metric);
    let work = ("running the query", &queries[..]);
    session.run(
        work,
        Metric::TOTAL,
        name,
        |_| provenance,
        |session, query| {
            let taken = qdp.run(query, effort)?;
            let row = |taken: &Measurement| {
                let peer = published(query, taken.metric);
                PaperRow::taken(name(query, taken.metric), query, provenance, taken, peer)
            };
            let speed_up = match speed_up(session, &axes, query, &taken) {
                _ if query.variant == Variant::Baseline => None,
                Some(value) => Some(Measurement::new(Metric::SPEED_UP, vec![value])),
                None => Some(Measurement::missing(Metric::SPEED_UP, NO_BASELINE)),
            };
            Ok(taken.iter().chain(&speed_up).map(row).collect())
        },
    )?;
    session.end(arguments.run.keep.json, out)
}

/// `--decide`.
fn decided(
    qdp: &Qdp,
    axes: &Axes,
    on: On,
    arguments: &Arguments,
    options: &Options,
    out: &mut dyn Write,
) -> Result<()> {
    let keep = &arguments.run.keep;
    let directory = keep.directory(options.quick)?;
    let runs = match (on, options.quick) {
        (On::Model, _) => 1,
        (_, quick) => options.iterations.unwrap_or(if quick { 3 } else { 15 }),
    };
    let effort = QueryRuns { runs, ..options.effort(on)? };
    let queries = Axes { variants: vec![Variant::Baseline], ..axes.clone() }.queries();
    let [query] = &queries[..] else {
        return Err(usage("--decide runs one query; give each option one value"));
    };
    let verdict = decide(qdp, query, effort, provenance(on)).map_err(|why| match why {
        Skipped::Cannot(why) => anyhow!("this machine cannot decide it: {why}"),
        Skipped::Failed(error) => anyhow::Error::from_boxed(error),
    })?;
    let mut noted = options.record(on, axes, effort);
    noted["decide"] = verdict.to_string().into();
    let record = start_record("qdp-decide", qdp.machine().as_ref().clone(), 19, noted);
    keep.finish(&Record { rows: verdict.rows.clone(), ..record }, directory, out)?;
    if keep.json { Ok(()) } else { Ok(write!(out, "\n{}", wrapped(&verdict.to_string(), 0))?) }
}

fn qdp(on: On, options: &Options) -> Result<Qdp> {
    let machine = topology::open_calibrated(options.machine.as_deref(), options.calibration.as_deref())?;
    let started = |qdp: Result<Qdp, Skipped>| qdp.context("the benchmark cannot begin");
    match on {
        On::Machine => started(Qdp::on_machine(machine)),
        On::Emulated => started(Qdp::on_emulated(machine)),
        On::Model => Qdp::on_model(machine).map_err(not_modelled),
    }
}

fn provenance(on: On) -> Provenance {
    match on {
        // Queries with and without devices are compared, so both have the provenance of the devices.
        On::Machine => device_provenance(),
        On::Emulated => Provenance::Emulated,
        On::Model => Provenance::Modelled,
    }
}

/// The time of the baseline among the rows, divided by this query's.
fn speed_up(session: &Session<'_, Query>, axes: &Axes, query: &Query, taken: &[Measurement]) -> Option<f64> {
    let baseline = Query { variant: Variant::Baseline, ..query.clone() };
    let baseline_ms = session.row(&axes.row_name(&baseline, Metric::TOTAL))?.number("value")?;
    let total = taken.iter().find(|taken| taken.metric == Metric::TOTAL)?;
    Some(baseline_ms / median(&total.values))
}

//! `memferry bench query`: TPC-H against plain DataFusion over the same batches.
//!
//! Four questions: are all answers the same, whatever brings the columns near; what does each way of prefetching cost or
//! gain, query by query; which technique of the scan gains how much; and how much memory it takes.
//!
//! Every timed run of a way starts with an empty cache, planning is included, and each is paired with a run of its peer:
//! A B B A ..., so that what changes slowly on the machine hits both.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use datafusion::config::ExtensionOptions;
use memferry::mover::EngineKind;
use memferry::topology::{Machine, Measured, Parameter};
use memferry_bench::harness::{
    Pairs, Peer, Provenance, Record, Row, geomean, geomean_ratio, median, try_alternate,
};
use memferry_query::load::Progress as _;
use memferry_query::{Dsa, MemferryOptions, Prefetch, SessionOptions, Tiers, answers_equal, tpch};
use serde_json::json;
use tokio::runtime::Runtime;

use super::{BUILD_PROFILE, Keep, start_record};
use crate::options::{scale, session_options};
use crate::progress::Bar;
use crate::query::{self, NamedTable, Outcome, Way};
use crate::topology;

/// TPC-H against plain DataFusion: answers, times, techniques, memory.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The same measurements on little data with few pairs: to see that they work, not for the record.
    #[arg(long)]
    quick: bool,
    /// TPC-H scale of the timed queries [default: 1; 0.01 with --quick].
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    scale: Option<f64>,
    /// Pairs of runs for each query, at least 11 [default: 11; 2 with --quick].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(11..=1001), conflicts_with = "quick")]
    pairs: Option<u16>,
    /// Seed of the emulated DSA's nastiness and of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What this machine can do: a file that `memferry calibrate --out FILE` wrote here, or a published profile of such a
    /// machine [env: MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
    #[command(flatten)]
    keep: Keep,
    /// Does the work whose memory is measured, and prints the peak; `bench query` starts itself with this.
    #[arg(long, hide = true)]
    measure_rss: bool,
}

impl Arguments {
    fn scale(&self) -> f64 {
        self.scale.unwrap_or(if self.quick { 0.01 } else { 1.0 })
    }

    fn answers_scale(&self) -> f64 {
        if self.quick { 0.01 } else { 0.1 }
    }

    fn pairs(&self) -> usize {
        self.pairs.map_or(if self.quick { 2 } else { 11 }, usize::from)
    }
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let bench = Bench {
        machine: Arc::new(topology::open_calibrated(None, arguments.calibration.as_deref())?),
        runtime: Runtime::new().context("the threads for the queries cannot be started")?,
        options: session_options(None),
        seed: arguments.seed,
        pairs: arguments.pairs(),
    };
    if arguments.measure_rss {
        return bench.print_rss_peak(arguments.scale(), out);
    }
    let directory = arguments.keep.directory(arguments.quick)?;
    let options = json!({
        "quick": arguments.quick,
        "calibration": arguments.calibration,
        "scale": arguments.scale(),
        "answers_scale": arguments.answers_scale(),
        "pairs": bench.pairs,
        "partitions": bench.options.partitions,
        "batch_rows": bench.options.batch_rows,
        "profile": BUILD_PROFILE,
    });
    let mut record: Record = start_record("query", bench.machine.as_ref().clone(), bench.seed, options);
    let (rows, differences) = bench.answers(arguments.answers_scale())?;
    record.rows.extend(rows);
    record.rows.extend(bench.times(arguments.scale())?);
    record.rows.push(rss_peak(arguments.scale())?);

    arguments.keep.finish(&record, directory, out)?;
    if !differences.is_empty() {
        bail!("answers differ from plain DataFusion's, please report this: {}", differences.join("; "));
    }
    Ok(())
}

/// What all measurements need.
struct Bench {
    machine: Arc<Machine>,
    runtime: Runtime,
    options: SessionOptions,
    seed: u64,
    pairs: usize,
}

impl Bench {
    fn load(&self, scale: f64, tiers: &Tiers) -> Result<Vec<NamedTable>> {
        query::tpch(scale, tiers, self.options.partitions)
    }

    fn tiered(
        &self,
        name: &'static str,
        tables: &[NamedTable],
        tiers: &Arc<Tiers>,
        prefetch: Prefetch,
    ) -> Result<Way> {
        Way::tiered(name, tables, tiers, &self.options, prefetch)
    }

    fn run(&self, way: &Way, sql: &str) -> Result<Outcome> {
        self.runtime.block_on(way.run_cold(sql)).with_context(|| format!("way `{}`", way.name))
    }

    /// Whether all answers agree with plain DataFusion's; also which do not.
    ///
    /// A way that should prefetch and does not would prove nothing, and is an error.
    fn answers(&self, scale: f64) -> Result<(Vec<Row>, Vec<String>)> {
        let here = || Tiers::builder(Arc::clone(&self.machine));
        let two_tiers = Tiers::builder(Arc::new(two_tiers_with_rates()?)).build()?;
        let home = here().build()?;
        let tables = self.load(scale, &home)?;
        let tables_of_two_tiers = self.load(scale, &two_tiers)?;
        let nasty = here().dsa(Dsa::Emulated { seed: Some(self.seed) }).build()?;
        let plain = Way::plain(&tables, &self.options)?;
        let ways = [
            (Provenance::Measured, self.tiered("off", &tables, &home, Prefetch::Off)?),
            (Provenance::Measured, self.tiered("always_cpu", &tables, &home, Prefetch::Always)?),
            (Provenance::Emulated, self.tiered("always_dsa", &tables, &nasty, Prefetch::Always)?),
            (
                Provenance::Emulated,
                self.tiered("auto_two_tiers", &tables_of_two_tiers, &two_tiers, Prefetch::Auto)?,
            ),
        ];
        // Within one query not much pays, since all columns of a table have one home.
        self.set(&ways[3].1, "reads_to_come", "1000")?;

        let bar = Bar::of("comparing answers", tpch::QUERIES.count() * ways.len());
        let mut equal = [0; 4];
        let mut prefetched_bytes = [0; 4];
        let mut differences = Vec::new();
        for number in tpch::QUERIES {
            let sql = tpch::query(number, scale);
            let expected = self.run(&plain, &sql)?.batches;
            for (index, (_, way)) in ways.iter().enumerate() {
                let outcome = self.run(way, &sql)?;
                prefetched_bytes[index] += outcome.report.bytes_prefetched;
                match answers_equal(&expected, &outcome.batches) {
                    Ok(()) => equal[index] += 1,
                    Err(difference) => differences.push(format!("Q{number} {}: {difference}", way.name)),
                }
                bar.advance(1);
            }
        }
        drop(bar);
        if nasty.mover().stats().bytes_by(EngineKind::Dsa) == 0 {
            bail!(
                "the emulated DSA carried nothing, so that the answers of `always_dsa` prove nothing about it"
            );
        }
        for (index, (_, way)) in ways.iter().enumerate() {
            match (way.name, prefetched_bytes[index]) {
                ("off", 1..) => bail!("prefetching was off and copied {} bytes", prefetched_bytes[index]),
                ("off", 0) | (_, 1..) => {}
                (name, 0) => bail!("`{name}` copied nothing, so that its answers prove nothing"),
            }
        }

        let counted = |name: String, value: usize, how| Row::median(name, "answers", how, &[value as f64]);
        let mut rows =
            vec![counted("tpch_answers_equal".to_owned(), equal.iter().sum(), Provenance::Emulated)];
        for (index, (how, way)) in ways.iter().enumerate() {
            rows.push(counted(format!("tpch_answers_equal_{}", way.name), equal[index], *how));
        }
        Ok((rows, differences))
    }

    /// Times of all queries in three ways, of the selective ones, and of the selective ones without each technique.
    fn times(&self, scale: f64) -> Result<Vec<Row>> {
        let tiers = Tiers::builder(Arc::clone(&self.machine)).build()?;
        let mut tables = self.load(scale, &tiers)?;
        tables.push(query::paper_table(scale, &tiers, self.options.partitions)?);
        let plain = Way::plain(&tables, &self.options)?;
        let way = |name, prefetch| self.tiered(name, &tables, &tiers, prefetch);
        let ways =
            [way("off", Prefetch::Off)?, way("auto", Prefetch::Auto)?, way("always", Prefetch::Always)?];
        let ablations = ablations();
        let queries = queries(scale);
        let selective: Vec<&Query> = queries.iter().filter(|query| query.selective).collect();

        let runs = queries.len() * ways.len() + selective.len() * ablations.len();
        let bar = Bar::of("timing queries", runs * self.pairs);
        let (mut rows, mut rows_by_query) = (Vec::new(), Vec::new());
        for way in &ways {
            let mut timed = Vec::new();
            for query in &queries {
                timed.push((query, self.pairs(way, &plain, &query.sql, &bar)?));
            }
            let prefix = format!("tpch_sf{scale}_{}", way.name);
            let all = timed.iter().filter(|(query, _)| query.tpch).map(|(_, pairs)| pairs);
            rows.push(self.geomean_row(format!("{prefix}_geomean"), "datafusion", all));
            if way.name == "auto" {
                // What users get who set nothing.
                let selective = timed.iter().filter(|(query, _)| query.selective).map(|(_, pairs)| pairs);
                rows.push(self.geomean_row("selective_geomean".to_owned(), "datafusion", selective));
            }
            for (query, pairs) in &timed {
                rows_by_query.push(self.row(format!("{prefix}_{}", query.name), "datafusion", pairs));
            }
        }
        let [off, ..] = &ways;
        for (name, techniques) in ablations {
            let without = self.tiered("without a technique", &tables, &tiers, Prefetch::Off)?;
            for technique in &techniques {
                self.set(&without, technique, "false")?;
            }
            let mut timed = Vec::new();
            for query in &selective {
                timed.push(self.pairs(off, &without, &query.sql, &bar)?);
            }
            let peer = format!("memferry without {}", techniques.join(", "));
            rows.push(self.geomean_row(format!("selective_ablation_{name}"), &peer, &timed));
        }
        // What sums up comes first.
        rows.append(&mut rows_by_query);
        Ok(rows)
    }

    fn set(&self, way: &Way, option: &str, value: &str) -> Result<()> {
        let statement = format!("SET {}.{option} = '{value}'", MEMFERRY);
        self.runtime.block_on(async { way.context.sql(&statement).await?.collect().await })?;
        Ok(())
    }

    /// Pairs of times, after one run of each that is not timed.
    fn pairs(&self, ours: &Way, peer: &Way, sql: &str, bar: &Bar) -> Result<Pairs> {
        let time_ms = |way| Ok::<_, anyhow::Error>(self.run(way, sql)?.elapsed.as_secs_f64() * 1e3);
        time_ms(ours)?;
        time_ms(peer)?;
        let peer_ms = || time_ms(peer).inspect(|_| bar.advance(1));
        let (ours, peer) = try_alternate(self.pairs, || time_ms(ours), peer_ms)?;
        Ok(Pairs { ours, peer })
    }

    fn row(&self, name: String, peer: &str, pairs: &Pairs) -> Row {
        self.geomean_row(name, peer, [pairs])
    }

    /// Geometric means over queries: of medians, of shortest and of longest times, and of the ratios.
    fn geomean_row<'a>(&self, name: String, peer: &str, queries: impl IntoIterator<Item = &'a Pairs>) -> Row {
        let queries: Vec<&Pairs> = queries.into_iter().collect();
        let over = |figure: fn(&Pairs) -> f64| geomean(queries.iter().map(|query| figure(query)));
        let ratio = geomean_ratio(queries.iter().copied(), self.seed);
        Row {
            name,
            value: over(|query| median(&query.ours)),
            unit: "ms",
            provenance: Provenance::Measured,
            samples: self.pairs,
            min: over(|query| query.ours.iter().copied().fold(f64::INFINITY, f64::min)),
            max: over(|query| query.ours.iter().copied().fold(0.0, f64::max)),
            peer: Some(Peer::new(peer, over(|query| median(&query.peer)), ratio)),
        }
    }

    /// Generates TPC-H, runs all queries with every late column copied near, and prints this process's peak of memory.
    fn print_rss_peak(&self, scale: f64, out: &mut dyn Write) -> Result<()> {
        let tiers = Tiers::builder(Arc::clone(&self.machine)).build()?;
        let tables = self.load(scale, &tiers)?;
        let way = self.tiered("always", &tables, &tiers, Prefetch::Always)?;
        for number in tpch::QUERIES {
            // The cache keeps what one query brought near for the next: that is the most it ever holds.
            self.runtime.block_on(way.run(&tpch::query(number, scale)))?;
        }
        let status =
            std::fs::read_to_string("/proc/self/status").context("/proc/self/status cannot be read")?;
        let peak_kib: u64 = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok())
            .context("/proc/self/status tells no VmHWM; is this Linux?")?;
        writeln!(out, "{}", peak_kib * 1024)?;
        Ok(())
    }
}

/// The made-up machine with rates, also made up, by which it pays to copy what is read again.
fn two_tiers_with_rates() -> Result<Machine> {
    let rates = [
        ("dram_mb_per_s", 40e3),
        ("hbm_mb_per_s", 200e3),
        ("core_mb_per_s", 100e3),
        ("core_copy_mb_per_s", 20e3),
    ];
    let parameters = rates.map(|(name, rate)| Parameter::assumed(name, rate, "made up, as the machine is"));
    let reference = ("made up".to_owned(), "rates of ours that describe no machine".to_owned());
    let measured = Measured { reference, parameters: parameters.to_vec(), ..Measured::default() };
    Ok(Machine::two_tiers()?.with_measured(measured)?)
}

/// Prefix of memferry's settings in SQL.
const MEMFERRY: &str = <MemferryOptions as datafusion::config::ConfigExtension>::PREFIX;

struct Query {
    name: String,
    sql: String,
    /// One of the 22.
    tpch: bool,
    /// Few rows pass its filters.
    selective: bool,
}

/// The 22 queries of TPC-H, and the one of the papers on prefetching.
fn queries(scale: f64) -> Vec<Query> {
    let mut queries: Vec<Query> = tpch::QUERIES
        .map(|number| Query {
            name: format!("q{number:02}"),
            sql: tpch::query(number, scale),
            tpch: true,
            selective: [6, 12, 14, 19].contains(&number),
        })
        .collect();
    queries.push(Query {
        name: "paper".to_owned(),
        sql: tpch::paper_query(PAPER_SELECTIVITY),
        tpch: false,
        selective: true,
    });
    queries
}

/// Share of the rows that pass in the papers' query.
const PAPER_SELECTIVITY: f64 = 0.02;

/// What is switched off, and under which name: each technique of the scan, which is a setting that is on by default, and
/// all of them. What is then left of the gain over DataFusion is that of one scan over a filter, a coalescer and a source.
fn ablations() -> Vec<(String, Vec<String>)> {
    let options = MemferryOptions::default().entries().into_iter();
    let on = options.filter(|option| option.value.as_deref() == Some("true"));
    let techniques: Vec<String> = on.map(|option| option.key).collect();
    let mut ablations: Vec<_> =
        techniques.iter().map(|technique| (technique.clone(), vec![technique.clone()])).collect();
    ablations.push(("all".to_owned(), techniques));
    ablations
}

/// Peak of memory of another process that does nothing else.
fn rss_peak(scale: f64) -> Result<Row> {
    let program = std::env::current_exe().context("the path of this program is not known")?;
    let output = Command::new(program)
        .args(["bench", "query", "--measure-rss", "--scale", &scale.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .context("this program cannot start itself to measure memory")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let Ok(bytes) = text.trim().parse::<f64>() else {
        bail!("measuring memory failed in a process of its own ({})", output.status);
    };
    Ok(Row::median("rss_peak_bytes".to_owned(), "bytes", Provenance::Measured, &[bytes]))
}

//! `memferry bench cache`: what a hit costs beside other caches, what it costs when room is short, and how soon a block
//! that was absent is near.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use memferry::topology::Machine;
use memferry_bench::cache::{self as measure, FirstAccess, HitPeer, Size, Trace};
use memferry_query::load::Progress as _;
use serde_json::json;

use super::peers::peers;
use super::record::{BUILD_PROFILE, Comparison, Record, Row};
use super::stats::Estimate;
use super::{Keep, allocations};
use crate::progress::Bar;
use crate::provenance::Provenance;

/// Hits of the cache beside other caches, misses on a full node, and first accesses.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: to see that it works, not for the record.
    #[arg(long)]
    quick: bool,
    /// Seed of the keys and of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

/// Of a first access: 1 MiB, and how many.
const FIRST_BYTES: usize = 1 << 20;
const FIRST_COUNT: usize = 310;
/// Before each first access to an idle cache: ten times as long as a worker lingers.
const IDLE: Duration = Duration::from_millis(2);
/// Blocks that are copied by who asks for them, and blocks that a worker copies.
const CHURNS: [(&str, usize); 2] = [("churn", 4 << 10), ("churn_64KiB", 64 << 10)];

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let directory = arguments.keep.directory(arguments.quick)?;
    let (size, first_count) = match arguments.quick {
        true => (Size::QUICK, 3),
        false => (Size::FULL, FIRST_COUNT),
    };
    let peers = peers(size.keys_count, size.block_bytes);
    let names: Vec<&str> = ["thesis"].into_iter().chain(peers.iter().map(|peer| peer.name())).collect();
    let options = json!({
        "quick": arguments.quick,
        "peers": names,
        "profile": BUILD_PROFILE,
    });
    let mut record = Record::start("cache", Machine::discover()?, arguments.seed, options);
    let bar = Bar::of("measuring the cache", 7);
    let mut take = |rows: Result<Vec<Row>, Box<dyn std::error::Error>>, what: &str| {
        bar.advance(1);
        let rows = rows.map_err(|error| anyhow::anyhow!("{error}"));
        record.rows.extend(rows.with_context(|| format!("{what} cannot be measured"))?);
        anyhow::Ok(())
    };
    let seed = arguments.seed;
    take(hit_rows(size, seed, &peers), "hits")?;
    for (name, block_bytes) in CHURNS {
        let times = measure::churn(name, Size { block_bytes, ..size }, seed);
        let rows = times.map(|times| times.into_iter().map(|times| Row::compared(times, seed)).collect());
        take(rows, "a full node")?;
    }
    for (kind, pause) in [("", Duration::ZERO), ("idle_", IDLE)] {
        let times = measure::first_access(FIRST_BYTES, first_count, pause);
        take(times.map(|times| first_access_rows(kind, times)), "first accesses")?;
    }
    take(Ok(measure::traces(seed).iter().map(ratio_row).collect()), "hit ratios")?;
    take(measure::evictions(size).map(|times| vec![Row::compared(times, seed)]), "evictions")?;
    drop(bar);
    arguments.keep.finish(&record, directory, out)?;
    if names.len() == 1 && !arguments.keep.json {
        writeln!(
            out,
            "\nfor rows beside moka and quick_cache: cargo xtask bench cache (the feature `peers`)"
        )?;
    }
    Ok(())
}

/// The nodes are made up, and all in this machine's memory. That is where those of the peers are, too: nothing that is
/// timed here depends on which node it is, so it is measured.
fn hit_rows(
    size: Size,
    seed: u64,
    peers: &[Box<dyn HitPeer>],
) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let peers: Vec<&dyn HitPeer> = peers.iter().map(|peer| &**peer).collect();
    let times = measure::hits(size, seed, &peers)?;
    let mut rows: Vec<Row> = times.into_iter().map(|times| Row::compared(times, seed)).collect();
    let allocations = measure::hits_allocations(size, allocations::count)?;
    rows.push(Row::median("hit_allocations".to_owned(), "1", Provenance::Measured, &[allocations]));
    Ok(rows)
}

fn first_access_rows(kind: &str, times: FirstAccess) -> Vec<Row> {
    let row = |name: &str, values: &[f64]| {
        Row::median(format!("first_access_{kind}{name}_us"), "us", Provenance::Measured, values)
    };
    let p99 = |name: &str, values: &[f64]| Row { value: FirstAccess::p99(values), ..row(name, values) };
    vec![
        row("poll", &times.poll_us),
        p99("poll_p99", &times.poll_us),
        row("block", &times.block_us),
        p99("block_p99", &times.block_us),
        row("copy", &times.copy_us),
    ]
}

/// Counted, not timed: the same on every machine.
fn ratio_row(trace: &Trace) -> Row {
    let ratios = measure::hit_ratios(&trace.keys, trace.capacity);
    let row = Row::median(format!("hit_ratio_{}", trace.name), "1", Provenance::Measured, &[ratios.ours]);
    let value = ratios.ours / ratios.lru;
    let ratio = Estimate { value, low: value, high: value };
    Row { comparison: Some(Comparison::new("LRU", ratios.lru, ratio)), ..row }
}

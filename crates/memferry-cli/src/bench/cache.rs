//! `memferry bench cache`: hits beside other caches, accesses with a short budget, and first accesses to absent blocks.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use memferry::topology::Machine;
use memferry_bench::cache::{self as measure, FirstAccess, HitPeer, Size, Trace};
use memferry_bench::harness::{Estimate, Peer, Provenance, Record, Row, allocations_count};
use memferry_query::load::Progress as _;
use serde_json::json;

use super::peers::peers;
use super::{BUILD_PROFILE, Keep, start_record};
use crate::progress::Bar;

/// Hits of the cache beside other caches, misses on a full node, and first accesses.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Small and short: checks that it works; not for records.
    #[arg(long)]
    quick: bool,
    /// Seed of the keys and of the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    keep: Keep,
}

/// First accesses: size of the block, and their number.
const FIRST_BYTES: usize = 1 << 20;
const FIRST_COUNT: usize = 310;
/// Pause before each first access to an idle cache: ten times as long as a worker polls before it sleeps.
const IDLE: Duration = Duration::from_millis(2);
/// Blocks that the accessing thread copies, and blocks that a worker copies.
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
    let mut record: Record = start_record("cache", Machine::discover()?, arguments.seed, options);
    let bar = Bar::of("measuring the cache", 7);
    let telemetry = arguments.keep.telemetry();
    let mut take = |rows: &dyn Fn() -> Result<Vec<Row>, Box<dyn std::error::Error>>, what: &str| {
        let rows = telemetry.rows(rows).map_err(|error| anyhow::anyhow!("{error}"));
        bar.advance(1);
        record.rows.extend(rows.with_context(|| format!("{what} cannot be measured"))?);
        anyhow::Ok(())
    };
    let seed = arguments.seed;
    let compared = |times| Row::compared(times, seed);
    take(&|| hit_rows(size, seed, &peers), "hits")?;
    for (name, block_bytes) in CHURNS {
        let times = || measure::churn(name, Size { block_bytes, ..size }, seed);
        take(&|| Ok(times()?.into_iter().map(compared).collect()), "a full node")?;
    }
    for (kind, pause) in [("", Duration::ZERO), ("idle_", IDLE)] {
        let times = || measure::first_access(FIRST_BYTES, first_count, pause);
        take(&|| Ok(first_access_rows(kind, times()?)), "first accesses")?;
    }
    take(&|| Ok(measure::traces(seed).iter().map(ratio_row).collect()), "hit ratios")?;
    take(&|| Ok(vec![compared(measure::evictions(size)?)]), "evictions")?;
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

/// Rows about hits. They are measured although the nodes are made up: all memory, the peers' too, is this machine's, and
/// no time depends on the node.
fn hit_rows(
    size: Size,
    seed: u64,
    peers: &[Box<dyn HitPeer>],
) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let peers: Vec<&dyn HitPeer> = peers.iter().map(|peer| &**peer).collect();
    let times = measure::hits(size, seed, &peers)?;
    let mut rows: Vec<Row> = times.into_iter().map(|times| Row::compared(times, seed)).collect();
    let allocations = measure::hits_allocations(size, allocations_count)?;
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

/// Hit ratio of a trace: counted, not timed, so the same on every machine.
fn ratio_row(trace: &Trace) -> Row {
    let ratios = measure::hit_ratios(&trace.keys, trace.capacity);
    let row = Row::median(format!("hit_ratio_{}", trace.name), "1", Provenance::Measured, &[ratios.ours]);
    let ratio = Estimate::exact(ratios.ours / ratios.lru);
    Row { peer: Some(Peer::new("LRU", ratios.lru, ratio)), ..row }
}

//! Tables for queries.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use memferry::mover::EngineKind;
use memferry_bench_query::{CarriedBytes, NamedTable, layout, paper_table, tpch_files};
use memferry_query::Tiers;

use crate::error::usage;
use crate::output::size;
use crate::progress::Bar;
use memferry_bench::harness::Provenance;

pub(crate) use memferry_session::query::{explain_error, query_error};

/// The table of the papers' query ([`memferry_bench_query::paper_query`]), with as many rows as TPC-H's largest table
/// has at this scale.
pub(crate) fn papers_table(scale: f64, tiers: &Tiers, partitions: usize) -> Result<NamedTable> {
    let rows = (6e6 * scale) as u64;
    let data = paper_table(rows, 1, &layout(tiers, partitions), &Bar::new("generating the papers' table"))?;
    Ok(("ab".to_owned(), Arc::new(data)))
}

/// Writes the TPC-H files of this scale below `directory` if they are missing, and returns their own directory.
pub(crate) fn write_tpch(scale: f64, directory: &Path) -> Result<PathBuf> {
    let files = tpch_files(scale, directory, &Bar::new("writing TPC-H files"));
    files.map_err(|error| query_error(error.into()))
}

/// The directory of generated files: `chosen`, or one below that of the user's caches.
pub(crate) fn files_directory(chosen: Option<&Path>) -> Result<PathBuf> {
    if let Some(chosen) = chosen {
        return Ok(chosen.to_owned());
    }
    let of = |variable| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
    let caches = caches.ok_or_else(|| usage("the directory for generated files is not known; set HOME"))?;
    Ok(caches.join("memferry/tpch"))
}

/// Bytes by engine, such as `3 MiB by emulated DSA, 64 KiB by cpu`; empty if nothing was copied.
pub(crate) fn carried_text(carried: &CarriedBytes) -> String {
    let share = |share: memferry_bench_query::EngineShare| {
        let engine = match (share.kind, share.provenance) {
            (EngineKind::Cpu, _) => "cpu",
            (EngineKind::Dsa, Provenance::Emulated) => "emulated DSA",
            (EngineKind::Dsa, _) => "DSA",
            _ => "another engine",
        };
        format!("{} by {engine}", size(share.bytes))
    };
    carried.shares().map(share).collect::<Vec<_>>().join(", ")
}

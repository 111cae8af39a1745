//! Tables for queries, and errors of queries as sentences.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use datafusion::common::DataFusionError;
use memferry::mover::EngineKind;
use memferry_bench_query::{
    CarriedBytes, NamedTable, QueryError, TpchError, layout, paper_table, tpch_files, tpch_tables,
};
use memferry_query::Tiers;

use crate::error::{one_line, usage};
use crate::output::size;
use crate::progress::Bar;
use memferry_bench::harness::Provenance;

/// The eight TPC-H tables, generated on the home node.
pub(crate) fn tpch(scale: f64, tiers: &Tiers, partitions: usize) -> Result<Vec<NamedTable>> {
    let tables = tpch_tables(scale, &layout(tiers, partitions), &Bar::new("generating TPC-H"));
    let tables = tables.map_err(|error| query_error(error.into()))?;
    Ok(tables.into_iter().map(|(name, data)| (name, Arc::new(data))).collect())
}

/// The table of the papers' query ([`memferry_bench_query::paper_query`]), with as many rows as TPC-H's largest table
/// has at this scale.
pub(crate) fn papers_table(scale: f64, tiers: &Tiers, partitions: usize) -> Result<NamedTable> {
    let rows = (6e6 * scale) as u64;
    let data = paper_table(rows, 1, &layout(tiers, partitions), &Bar::new("generating the papers' table"))?;
    Ok(("ab".to_owned(), Arc::new(data)))
}

/// The directory of generated files, which is `chosen` or below that of the user's caches, and in it the directory of the
/// TPC-H files of this scale. They are written if they are missing.
pub(crate) fn written_tpch(scale: f64, chosen: Option<&Path>) -> Result<(PathBuf, PathBuf)> {
    let directory = chosen.map_or_else(files_directory, |chosen| Ok(chosen.to_owned()))?;
    let files = tpch_files(scale, &directory, &Bar::new("writing TPC-H files"));
    let files = files.map_err(|error| query_error(error.into()))?;
    Ok((directory, files))
}

/// The directory of generated files, below that of the user's caches.
fn files_directory() -> Result<PathBuf> {
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

/// A query that cannot run, as a usage error if the command line is at fault.
pub(crate) fn query_error(error: QueryError) -> anyhow::Error {
    match error {
        QueryError::Budget(_)
        | QueryError::UnknownQuery { .. }
        | QueryError::Tpch(TpchError::Scale { .. } | TpchError::NoRoom { .. }) => usage(error),
        _ => error.into(),
    }
}

/// A DataFusion error as a sentence. Errors in the statement are usage errors.
pub(crate) fn explain_error(error: DataFusionError) -> anyhow::Error {
    let root = error.find_root();
    let text = one_line(&root.strip_backtrace());
    let text = text.trim_end_matches('.');
    match root {
        DataFusionError::SQL(parser, _) => usage(format!(
            "cannot parse the statement: {}; fix it there",
            one_line(&parser.to_string().replace("sql parser error: ", ""))
        )),
        DataFusionError::SchemaError(..) => usage(format!(
            "{}; `memferry sql ... \"describe TABLE\"` lists the columns of a table",
            without_kind(text)
        )),
        DataFusionError::Plan(text) if text.starts_with("table '") => usage(format!(
            "{}; name its files with --table NAME=LOCATION or CREATE EXTERNAL TABLE, or generate the TPC-H tables with \
             --tpch SCALE",
            one_line(text)
        )),
        DataFusionError::Plan(text) if text.starts_with("Invalid function '") => {
            let (name, hint) = invalid_function(text);
            usage(format!(
                "memferry has no SQL function {name}{hint}; `memferry sql \"select distinct routine_name from \
                 information_schema.routines\"` lists those that it has"
            ))
        }
        DataFusionError::Plan(_) | DataFusionError::NotImplemented(_) => {
            usage(format!("cannot plan the statement: {}", without_kind(text)))
        }
        // Found while planning: the statement is wrong.
        DataFusionError::Execution(text) if text.starts_with("Cannot access field") => usage(format!(
            "cannot plan the statement: {}; use [...] on lists, structs and maps only",
            one_line(text)
        )),
        DataFusionError::Configuration(text) => {
            usage(format!("cannot change the setting: {}", one_line(text)))
        }
        DataFusionError::Execution(text) => anyhow::anyhow!("the query failed: {}", one_line(text)),
        _ => anyhow::anyhow!("the query failed: {text}"),
    }
}

/// The name of a function that DataFusion does not know, in quotes, and its hint.
fn invalid_function(text: &str) -> (String, String) {
    let (message, hint) = text.split_once(".\n").unwrap_or((text, ""));
    let name = one_line(message.trim_start_matches("Invalid function "));
    let guess = hint.strip_prefix("Did you mean ").map(|guess| one_line(guess.trim_end_matches('?')));
    (name, guess.map_or(String::new(), |guess| format!(" (did you mean {guess}?)")))
}

/// Removes DataFusion's prefix for the kind of the error.
fn without_kind(text: &str) -> &str {
    text.split_once(": ").map_or(text, |(_, rest)| rest)
}

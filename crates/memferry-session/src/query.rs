//! Errors of queries as sentences.

use datafusion::common::DataFusionError;
use memferry_bench_query::{QueryError, TpchError};

use crate::error::{one_line, usage};

/// A query that cannot run, as a usage error if the command line is at fault.
pub fn query_error(error: QueryError) -> anyhow::Error {
    match error {
        QueryError::Budget(_)
        | QueryError::UnknownQuery { .. }
        | QueryError::Tpch(TpchError::Scale { .. } | TpchError::NoRoom { .. }) => usage(error),
        _ => error.into(),
    }
}

/// A DataFusion error as a sentence. Errors in the statement are usage errors.
pub fn explain_error(error: DataFusionError) -> anyhow::Error {
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

//! Other engines over the same rows: DuckDB and Polars, each in a Python process that waits for queries.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde::Deserialize;
use serde_json::json;

use crate::QueryError;

/// The engines: the name of the Python package, and the name for people.
pub(crate) const ENGINES: [(&str, &str); 2] = [("duckdb", "DuckDB"), ("polars", "Polars")];

/// Where an engine has the rows of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerTables {
    /// In the files; each query reads them.
    Files,
    /// In tables of its own in memory, loaded before the first query.
    Memory,
}

/// A running engine.
pub(crate) struct Peer {
    /// Name and version.
    pub(crate) name: String,
    child: Child,
    queries: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// One run of a query by another engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerRun {
    pub(crate) ms: f64,
    /// Rows of the answer.
    pub(crate) rows: usize,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Version { version: String },
    Done { ms: f64, rows: usize },
    Failed { error: String },
}

impl Peer {
    /// Starts `engine` over the files of a directory. When this returns, it has its tables.
    pub(crate) fn start(
        python: &Path,
        (engine, name): (&str, &str),
        files: &Path,
        tables: PeerTables,
        threads_count: usize,
    ) -> Result<Peer, QueryError> {
        let failed = |error: &dyn std::fmt::Display| {
            QueryError::Peer(format!(
                "{name} does not start in {}: {error}; `cargo xtask setup` installs the Python packages",
                python.display()
            ))
        };
        let mut child = Command::new(python)
            .args(["-c", include_str!("peers.py"), engine])
            .arg(files)
            .arg(threads_count.to_string())
            .arg(match tables {
                PeerTables::Files => "files",
                PeerTables::Memory => "memory",
            })
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let queries = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut peer = Peer { name: name.to_owned(), child, queries, answers };
        match peer.answer()? {
            Answer::Version { version } => peer.name = format!("{name} {version}"),
            _ => return Err(failed(&"its first line is no version")),
        }
        Ok(peer)
    }

    /// The process of the engine.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Runs a query. The inner error is the engine's own: it cannot run this query.
    pub(crate) fn run(&mut self, sql: &str) -> Result<Result<PeerRun, String>, QueryError> {
        let queries = self.queries.as_mut().expect("only drop takes it");
        writeln!(queries, "{}", json!({ "sql": sql }))
            .map_err(|error| QueryError::Peer(format!("{} has ended: {error}", self.name)))?;
        Ok(match self.answer()? {
            Answer::Done { ms, rows } => Ok(PeerRun { ms, rows }),
            Answer::Failed { error } => Err(error),
            Answer::Version { .. } => {
                return Err(QueryError::Peer(format!("{} answers nonsense", self.name)));
            }
        })
    }

    fn answer(&mut self) -> Result<Answer, QueryError> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line);
        let failed =
            |why: &dyn std::fmt::Display| QueryError::Peer(format!("{} has ended: {why}", self.name));
        if read.map_err(|error| failed(&error))? == 0 {
            return Err(failed(&"it closed its output; its messages are above"));
        }
        serde_json::from_str(&line).map_err(|error| failed(&error))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input ends it.
        self.queries.take();
        let _ = self.child.wait();
    }
}

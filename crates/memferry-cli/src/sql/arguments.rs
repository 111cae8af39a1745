//! The options of `memferry sql`.

use std::path::PathBuf;

use anyhow::Result;
use memferry_query::schedule::{Binding, Stealing};
use memferry_query::{PlacementError, Prefetch, TablePlacement};

use crate::error::usage;
use crate::options::{TierOptions, partitions, scale};

/// Runs SQL over files and TPC-H tables: the given statements, those of a file or of standard input, or a shell.
///
/// Without statements and --file, a terminal gets a shell, and anything else on standard input is read as statements.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Statements, separated by semicolons.
    pub(super) statements: Option<String>,
    /// Runs the statements of this file, before those on the command line.
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) session: SessionArguments,
    /// Loads the tables of --table into memory first, on the home node or where --place says.
    #[arg(long)]
    pub(super) load: bool,
    /// Shows the plan of each query with its metrics too.
    #[arg(long)]
    pub(super) explain: bool,
    /// The format of rows.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(super) format: Format,
    /// Writes the rows to a file, which is replaced when all statements have succeeded.
    #[arg(long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Prints the answer of one statement as one JSON object, with what prefetching did.
    #[arg(long, conflicts_with_all = ["format", "output"])]
    pub(super) json: bool,
}

/// The tables of a session, and how it runs queries.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SessionArguments {
    /// Registers Parquet or Arrow files as the table NAME: a file, a directory, a glob or a URL; may be repeated.
    #[arg(long = "table", value_name = "NAME=LOCATION", value_parser = table)]
    pub(super) tables: Vec<NamedLocation>,
    /// Nodes of the table NAME when it is in memory, such as 'trips=COLUMN fare NUMA NODE (8)'; may be repeated.
    #[arg(long = "place", value_name = "NAME=PLACEMENT", value_parser = place)]
    pub(super) places: Vec<NamedPlacement>,
    /// Generates the eight TPC-H tables at this scale; 1 takes about 1.7 GiB.
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    pub(super) tpch: Option<f64>,
    /// When late columns are copied: off, always, or auto (to a faster node, if the copy is known to pay).
    #[arg(long, value_name = "off|always|auto", default_value = "auto")]
    pub(super) prefetch: Prefetch,
    #[command(flatten)]
    pub(super) tiers: TierOptions,
    /// Number of partitions of tables and queries [default: the number of CPUs].
    #[arg(long, value_name = "N", value_parser = partitions)]
    pub(super) partitions: Option<usize>,
    /// Where queries run on a machine with several domains: none (anywhere), preferred (scans on the domain of their rows),
    /// opportunistic (the operators above them too), or always (each worker on one CPU).
    #[arg(long, value_name = "none|preferred|opportunistic|always", default_value = "none")]
    pub(super) binding: Binding,
    /// Which row groups a scan claims after those of its own domain: off, neighbour, any, or bulk(N).
    #[arg(long, value_name = "off|neighbour|any|bulk(N)", default_value = "neighbour")]
    pub(super) stealing: Stealing,
    /// Divides the CPUs of each node into N domains.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) domains_per_node: usize,
}

/// The format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns.
    Table,
    /// Comma-separated values with a line of headings (RFC 4180).
    Csv,
    /// A JSON object for each row, on a line of its own.
    Json,
    /// A file of Arrow IPC; needs --output.
    Arrow,
}

impl Arguments {
    /// Checks options that do not go together.
    pub(super) fn check(&self) -> Result<()> {
        if self.format == Format::Arrow && self.output.is_none() {
            return Err(usage("--format arrow writes a file; name it with --output FILE"));
        }
        if self.explain && self.format != Format::Table && self.output.is_none() {
            return Err(usage(
                "--explain would mix the plan with the rows; write the rows to a file with --output FILE, or leave out \
                 --format",
            ));
        }
        self.session.check()
    }
}

impl SessionArguments {
    /// Whether no option makes a table.
    pub(super) fn has_no_table(&self) -> bool {
        self.tables.is_empty() && self.tpch.is_none()
    }

    /// Checks tables and placements that do not go together.
    fn check(&self) -> Result<()> {
        let mut names: Vec<&str> = self.tables.iter().map(|table| table.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(usage(format!("two tables are called {}; give --table another name", pair[0])));
        }
        let mut placed: Vec<&str> = self.places.iter().map(|place| place.name.as_str()).collect();
        placed.sort_unstable();
        match placed.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(usage(format!(
                "--place names the table {} twice; separate the clauses of one placement by commas",
                pair[0]
            ))),
            None => Ok(()),
        }
    }
}

/// A table of `--table`.
#[derive(Clone, Debug)]
pub(crate) struct NamedLocation {
    pub(super) name: String,
    pub(super) location: String,
}

/// A placement of `--place`.
#[derive(Clone, Debug)]
pub(crate) struct NamedPlacement {
    pub(super) name: String,
    pub(super) placement: TablePlacement,
}

fn place(text: &str) -> Result<NamedPlacement, String> {
    let (name, placement) =
        text.split_once('=').ok_or("a placement is given as NAME=PLACEMENT, such as 't=NUMA NODE (0, 1)'")?;
    let placement = placement.parse().map_err(|error: PlacementError| error.to_string())?;
    Ok(NamedPlacement { name: name.trim().to_ascii_lowercase(), placement })
}

fn table(text: &str) -> Result<NamedLocation, String> {
    let (name, location) =
        text.split_once('=').ok_or("a table is given as NAME=LOCATION, such as t=t.parquet")?;
    let mut letters = name.chars();
    let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !first || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(format!(
            "{name:?} cannot name a table; use letters, digits and _, such as trips=FILE.parquet"
        ));
    }
    // As SQL does with unquoted names.
    Ok(NamedLocation { name: name.to_ascii_lowercase(), location: location.to_owned() })
}

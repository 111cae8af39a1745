//! The options that make the tables and the near memory of a session.

use memferry_query::schedule::{Binding, Stealing};
use memferry_query::{PlacementError, Prefetch, TablePlacement};

use anyhow::Result;

use crate::error::usage;
use crate::options::{TierOptions, partitions, scale};

/// Tables, near memory, and where queries run.
#[derive(Clone, Debug, clap::Args)]
pub struct SessionArguments {
    /// Registers Parquet or Arrow files as the table NAME: a file, a directory, a glob or a URL; may be repeated.
    #[arg(long = "table", value_name = "NAME=LOCATION", value_parser = table)]
    pub tables: Vec<NamedLocation>,
    /// Nodes of the table NAME when it is in memory, such as 'trips=COLUMN fare NUMA NODE (8)'; may be repeated.
    #[arg(long = "place", value_name = "NAME=PLACEMENT", value_parser = place)]
    pub places: Vec<NamedPlacement>,
    /// Generates the eight TPC-H tables at this scale; 1 takes about 1.7 GiB.
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    pub tpch: Option<f64>,
    /// When late columns are copied: off, always, or auto (to a faster node, if the copy is known to pay).
    #[arg(long, value_name = "off|always|auto", default_value = "auto")]
    pub prefetch: Prefetch,
    /// The near memory.
    #[command(flatten)]
    pub tiers: TierOptions,
    /// Number of partitions of tables and queries [default: the number of CPUs].
    #[arg(long, value_name = "N", value_parser = partitions)]
    pub partitions: Option<usize>,
    /// Where queries run on a machine with several domains: none (anywhere), preferred (scans on the domain of their rows),
    /// opportunistic (the operators above them too), or always (each worker on one CPU).
    #[arg(long, value_name = "none|preferred|opportunistic|always", default_value = "none")]
    pub binding: Binding,
    /// Which row groups a scan claims after those of its own domain: off, neighbour, any, or bulk(N).
    #[arg(long, value_name = "off|neighbour|any|bulk(N)", default_value = "neighbour")]
    pub stealing: Stealing,
    /// Divides the CPUs of each node into N domains.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub domains_per_node: usize,
}

impl SessionArguments {
    /// Whether no option makes a table.
    pub fn has_no_table(&self) -> bool {
        self.tables.is_empty() && self.tpch.is_none()
    }

    /// Checks options that do not go together.
    ///
    /// # Errors
    /// A usage error: two tables or two placements have one name.
    pub fn check(&self) -> Result<()> {
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
pub struct NamedLocation {
    /// Its name in SQL, in lower case.
    pub name: String,
    /// A file, a directory, a glob or a URL.
    pub location: String,
}

/// A placement of `--place`.
#[derive(Clone, Debug)]
pub struct NamedPlacement {
    /// The table's name in SQL, in lower case.
    pub name: String,
    /// The nodes of its columns and rows.
    pub placement: TablePlacement,
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

//! The options of `memferry sql`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::Result;
pub(super) use memferry_session::SessionArguments;

use crate::error::usage;

/// Runs SQL over files and TPC-H tables: the given statements, those of a file or of standard input, or a shell.
///
/// Without statements and --file, a terminal gets a shell, and anything else on standard input is read as statements.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("remote").args(["cluster", "connect"]))]
pub(crate) struct Arguments {
    /// Statements, separated by semicolons.
    pub(super) statements: Option<String>,
    /// Runs the statements of this file, before those on the command line.
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Runs the query on the workers of a cluster: addresses of them, see `memferry worker`. Tables are those of the cluster.
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        conflicts_with_all = [
            "file", "tables", "load", "places", "tpch", "prefetch", "binding", "stealing", "domains_per_node", "output", "json"
        ]
    )]
    pub(super) cluster: Option<String>,
    /// Runs the query on a server: the address of `memferry serve`. Tables, near memory and settings are those of the server, which all
    /// its clients share.
    #[arg(
        long,
        value_name = "HOST:PORT",
        conflicts_with_all = [
            "file", "tables", "load", "places", "tpch", "prefetch", "binding", "stealing", "domains_per_node", "output", "json",
            "partitions", "explain"
        ]
    )]
    pub(super) connect: Option<String>,
    /// Certificate of the authority that signed the certificates of the workers, or of the server, a PEM file: messages are encrypted.
    #[arg(long, value_name = "FILE", requires = "remote")]
    pub(super) tls_ca: Option<PathBuf>,
    /// File with the token for the workers, or the server, which only the owner may read [default: the variable MEMFERRY_TOKEN].
    #[arg(long, value_name = "FILE", requires = "remote")]
    pub(super) token_file: Option<PathBuf>,
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
    /// The command line of `memferry-cluster sql`, if the query is for a cluster or a server.
    pub(super) fn of_cluster(&self) -> Result<Option<Vec<OsString>>> {
        let to = match (&self.cluster, &self.connect) {
            (Some(cluster), _) => format!("--cluster={cluster}"),
            (None, Some(server)) => format!("--connect={server}"),
            (None, None) => return Ok(None),
        };
        let format = match self.format {
            Format::Table => "table",
            Format::Csv => "csv",
            Format::Json => "json",
            Format::Arrow => {
                return Err(usage("--format arrow is not for --cluster and --connect; use csv or json"));
            }
        };
        let mut options: Vec<OsString> = vec![to.into(), format!("--format={format}").into()];
        options.extend(self.session.partitions.map(|count| format!("--partitions={count}").into()));
        options.extend(self.explain.then(|| "--explain".into()));
        for (option, file) in [("--tls-ca=", &self.tls_ca), ("--token-file=", &self.token_file)] {
            let with = |file: &PathBuf| [OsStr::new(option), file.as_os_str()].join(OsStr::new(""));
            options.extend(file.as_ref().map(with));
        }
        if let Some(query) = &self.statements {
            options.extend(["--".into(), query.into()]);
        }
        Ok(Some(options))
    }

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

//! The options of `memferry sql --cluster` and `memferry sql --connect`.

use std::io::{self, Read, Write};
use std::time::Instant;

use anyhow::{Context, Result};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::arrow::util::pretty::pretty_format_batches_with_schema;
use futures::stream::{self, LocalBoxStream};
use futures::{StreamExt, TryStreamExt};
use memferry_session::error::usage;

use super::connected;
use crate::cluster::{Answer, Cluster};
use crate::credentials::CredentialArguments;

/// Runs a query on the workers of a cluster, or on a server.
///
/// Without a query on the command line, it is read from standard input.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The query.
    query: Option<String>,
    /// Addresses of workers; one is enough if it is running, because it knows the others.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', required_unless_present = "connect")]
    cluster: Vec<String>,
    /// Address of `memferry serve`, or of another server of Arrow Flight SQL.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["cluster", "partitions", "explain"])]
    connect: Option<String>,
    /// Number of partitions of each worker's part [default: the number of CPUs of this machine].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    partitions: Option<u16>,
    /// The format of rows. Rows of csv and json are printed as they come.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Format,
    /// Shows the distributed plan too, on standard error.
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    credentials: CredentialArguments,
}

/// The format of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Aligned columns.
    Table,
    /// Comma-separated values with a line of headings (RFC 4180).
    Csv,
    /// A JSON object for each row, on a line of its own.
    Json,
}

/// Runs the query and prints its rows.
///
/// # Errors
/// Those of the cluster and the query.
pub fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let sql = match &arguments.query {
        Some(sql) => sql.clone(),
        None => {
            let mut sql = String::new();
            io::stdin().read_to_string(&mut sql).context("cannot read the query from standard input")?;
            sql
        }
    };
    let sql = sql.trim().trim_end_matches(';');
    if sql.is_empty() {
        return Err(usage("the query is empty; write one such as \"select 1\""));
    }
    let partitions = arguments
        .partitions
        .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let credentials = arguments.credentials.credentials()?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    if let Some(address) = &arguments.connect {
        let began = Instant::now();
        return runtime.block_on(async {
            let rows = connected::query(address, sql, credentials).await?;
            let count = rows.print(arguments.format, out).await?;
            print_count(arguments.format, count, began, "", out)
        });
    }
    let cluster = Cluster::with_credentials(arguments.cluster.clone(), partitions, credentials)?;
    runtime.block_on(answer(&cluster, sql, arguments, out))
}

async fn answer(cluster: &Cluster, sql: &str, arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let began = Instant::now();
    let mut answer = match arguments.format {
        Format::Table => cluster.query_whole(sql).await?,
        Format::Csv | Format::Json => cluster.query(sql).await?,
    };
    if arguments.explain {
        eprint!("{}", answer.plan());
    }
    let rows = Rows::of(&mut answer).print(arguments.format, out).await?;
    for reason in answer.lost() {
        eprintln!("note: {reason}; its shards were read from replicas");
    }
    let again =
        if answer.plans() > 1 { format!(", planned {} times", answer.plans()) } else { String::new() };
    print_count(arguments.format, rows, began, &again, out)
}

/// The line below a table.
fn print_count(format: Format, rows: usize, began: Instant, note: &str, out: &mut dyn Write) -> Result<()> {
    if format == Format::Table {
        let unit = if rows == 1 { "row" } else { "rows" };
        writeln!(out, "{rows} {unit} in {:.3} s{note}", began.elapsed().as_secs_f64())?;
    }
    Ok(())
}

/// The rows of an answer, as they come.
pub(super) struct Rows<'a> {
    pub(super) schema: SchemaRef,
    pub(super) batches: LocalBoxStream<'a, Result<RecordBatch>>,
}

impl<'a> Rows<'a> {
    fn of(answer: &'a mut Answer) -> Rows<'a> {
        let schema = answer.schema();
        let batches = stream::unfold(answer, async |answer| {
            let batch = answer.next().await?;
            Some((batch.map_err(anyhow::Error::from), answer))
        });
        Rows { schema, batches: batches.boxed_local() }
    }

    /// Prints all of them, and returns their number.
    async fn print(mut self, format: Format, out: &mut dyn Write) -> Result<usize> {
        if format == Format::Table {
            let batches: Vec<RecordBatch> = self.batches.try_collect().await?;
            writeln!(out, "{}", pretty_format_batches_with_schema(self.schema, &batches)?)?;
            return Ok(batches.iter().map(RecordBatch::num_rows).sum());
        }
        if format == Format::Csv {
            let none = RecordBatch::new_empty(self.schema);
            WriterBuilder::new().with_header(true).build(&mut *out).write(&none)?;
        }
        let mut rows = 0;
        while let Some(batch) = self.batches.next().await {
            let batch = batch?;
            rows += batch.num_rows();
            if format == Format::Csv {
                WriterBuilder::new().with_header(false).build(&mut *out).write(&batch)?;
            } else {
                let mut writer = LineDelimitedWriter::new(&mut *out);
                writer.write(&batch)?;
                writer.finish()?;
            }
        }
        Ok(rows)
    }
}

//! The options of `memferry sql --cluster`.

use std::io::{self, Read, Write};
use std::time::Instant;

use anyhow::{Context, Result};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::csv::WriterBuilder;
use datafusion::arrow::json::LineDelimitedWriter;
use datafusion::arrow::util::pretty::pretty_format_batches_with_schema;
use memferry_session::error::usage;

use crate::cluster::{Answer, Cluster};
use crate::credentials::CredentialArguments;

/// Runs a query on the workers of a cluster.
///
/// Without a query on the command line, it is read from standard input.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The query.
    query: Option<String>,
    /// Addresses of workers; one is enough if it is running, because it knows the others.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', required = true)]
    cluster: Vec<String>,
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
    let cluster = Cluster::with_credentials(arguments.cluster.clone(), partitions, credentials)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
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
    let rows = match arguments.format {
        Format::Table => table(&mut answer, out).await?,
        Format::Csv => csv(&mut answer, out).await?,
        Format::Json => json(&mut answer, out).await?,
    };
    for reason in answer.lost() {
        eprintln!("note: {reason}; its shards were read from replicas");
    }
    if arguments.format == Format::Table {
        let again =
            if answer.plans() > 1 { format!(", planned {} times", answer.plans()) } else { String::new() };
        let unit = if rows == 1 { "row" } else { "rows" };
        writeln!(out, "{rows} {unit} in {:.3} s{again}", began.elapsed().as_secs_f64())?;
    }
    Ok(())
}

async fn table(answer: &mut Answer, out: &mut dyn Write) -> Result<usize> {
    let mut batches = Vec::new();
    while let Some(batch) = answer.next().await {
        batches.push(batch?);
    }
    writeln!(out, "{}", pretty_format_batches_with_schema(answer.schema(), &batches)?)?;
    Ok(batches.iter().map(|batch| batch.num_rows()).sum())
}

async fn csv(answer: &mut Answer, out: &mut dyn Write) -> Result<usize> {
    let mut rows = 0;
    let none = RecordBatch::new_empty(answer.schema());
    WriterBuilder::new().with_header(true).build(&mut *out).write(&none)?;
    while let Some(batch) = answer.next().await {
        let batch = batch?;
        rows += batch.num_rows();
        WriterBuilder::new().with_header(false).build(&mut *out).write(&batch)?;
    }
    Ok(rows)
}

async fn json(answer: &mut Answer, out: &mut dyn Write) -> Result<usize> {
    let mut rows = 0;
    while let Some(batch) = answer.next().await {
        let batch = batch?;
        rows += batch.num_rows();
        let mut writer = LineDelimitedWriter::new(&mut *out);
        writer.write(&batch)?;
        writer.finish()?;
    }
    Ok(rows)
}

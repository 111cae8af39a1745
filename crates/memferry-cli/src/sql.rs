//! `memferry sql`: runs one query over Parquet files or TPC-H tables, with prefetching.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::execution::context::SQLOptions;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::DFParser;
use futures::StreamExt;
use memferry::internals::Origin;
use memferry::topology::Machine;
use memferry_bench_query::{CarriedBytes, NamedTable, QueryTiers, tiered_session};
use memferry_query::{Prefetch, ScanReport, SessionOptions, Tiers};
use serde_json::{Value, json};

use crate::error::usage;
use crate::options::{TierOptions, partitions, scale, session_options};
use crate::output::{self, Align, count, line, widen};
use crate::query::{self, explain_error, query_error};

/// Runs a query over Parquet files or TPC-H tables.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The query.
    statement: String,
    /// Loads a Parquet file as the table NAME; may be repeated.
    #[arg(long = "table", value_name = "NAME=FILE", value_parser = table)]
    tables: Vec<TableFile>,
    /// Generates the eight TPC-H tables at this scale; 1 takes about 1.7 GiB.
    #[arg(long, value_name = "SCALE", value_parser = scale, allow_negative_numbers = true)]
    tpch: Option<f64>,
    /// When late columns are copied: off, always, or auto (to a faster node, if the copy is known to pay).
    #[arg(long, value_name = "off|always|auto", default_value = "auto")]
    prefetch: Prefetch,
    #[command(flatten)]
    tiers: TierOptions,
    /// Number of partitions of tables and queries [default: the number of CPUs].
    #[arg(long, value_name = "N", value_parser = partitions)]
    partitions: Option<usize>,
    /// Shows the plan with its metrics too.
    #[arg(long)]
    explain: bool,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug)]
struct TableFile {
    name: String,
    file: PathBuf,
}

fn table(text: &str) -> Result<TableFile, String> {
    let (name, file) = text.split_once('=').ok_or("a table is given as NAME=FILE.parquet")?;
    let mut letters = name.chars();
    let first = letters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
    if !first || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return Err(format!(
            "{name:?} cannot name a table; use letters, digits and _, such as trips=FILE.parquet"
        ));
    }
    // As SQL does with unquoted names.
    Ok(TableFile { name: name.to_ascii_lowercase(), file: file.into() })
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the threads for the query")?;
    let options = SessionOptions { prefetch: arguments.prefetch, ..session_options(arguments.partitions) };
    // Report syntax errors before loading the tables, which may take long.
    parse(&arguments.statement)?;
    let tiers = arguments.tiers.open()?;
    let tables = load_tables(arguments, &tiers, options.partitions)?;
    let context = tiered_session(&tables, &tiers.tiers, &options).map_err(query_error)?;
    runtime.block_on(answer(arguments, &context, &tiers, out))
}

fn parse(statement: &str) -> Result<()> {
    match DFParser::parse_sql(statement).map_err(explain_error)?.len() {
        1 => Ok(()),
        0 => Err(usage("the statement is empty; write a query such as \"select 1\"")),
        _ => Err(usage("the text has more than one statement; run `memferry sql` for each")),
    }
}

fn load_tables(arguments: &Arguments, tiers: &Tiers, partitions: usize) -> Result<Vec<NamedTable>> {
    let mut tables = match arguments.tpch {
        Some(scale) => query::tpch(scale, tiers, partitions)?,
        None => Vec::new(),
    };
    for TableFile { name, file } in &arguments.tables {
        if tables.iter().any(|(other, _)| other == name) {
            return Err(usage(format!("two tables are called {name}; give --table another name")));
        }
        tables.push((name.clone(), query::parquet(file, tiers, partitions)?));
    }
    Ok(tables)
}

async fn answer(
    arguments: &Arguments,
    context: &SessionContext,
    tiers: &QueryTiers,
    out: &mut dyn Write,
) -> Result<()> {
    let mut clock = Clock::default();
    let plan = clock.run(plan(context, &arguments.statement)).await?;
    let mut rows = execute_stream(Arc::clone(&plan), context.task_ctx()).map_err(explain_error)?;
    let mut printer = Printer::new(arguments.json, plan.schema(), out);
    while let Some(batch) = clock.run(rows.next()).await {
        printer.batch(&batch.map_err(explain_error)?)?;
    }
    let prefetch = Summary {
        mode: arguments.prefetch,
        report: ScanReport::of(plan.as_ref()),
        carried: CarriedBytes::by(Some(tiers)),
        tiers,
    };
    let explained = arguments
        .explain
        .then(|| DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(true).to_string());
    printer.finish(&arguments.statement, clock.elapsed, &prefetch, explained)
}

/// The physical plan of a query; other statements are refused.
async fn plan(context: &SessionContext, statement: &str) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = context.state().create_logical_plan(statement).await.map_err(explain_error)?;
    let queries = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    queries
        .verify_plan(&plan)
        .map_err(|_| usage("`memferry sql` runs queries only; start with SELECT or WITH"))?;
    context.state().create_physical_plan(&plan).await.map_err(explain_error)
}

/// Time of the query, without the printing of its rows.
#[derive(Default)]
struct Clock {
    elapsed: Duration,
}

impl Clock {
    async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let outcome = work.await;
        self.elapsed += started.elapsed();
        outcome
    }
}

/// The effect of prefetching on a query.
struct Summary<'a> {
    mode: Prefetch,
    report: ScanReport,
    carried: CarriedBytes,
    tiers: &'a Tiers,
}

impl Summary<'_> {
    fn sentence(&self) -> String {
        let report = &self.report;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let predicted = |other: Duration, what: &str| match report.time_predicted {
            Duration::ZERO => String::new(),
            time => format!(
                "; scans worked {:.1} ms, predicted {:.1} ms, and {:.1} ms {what}",
                ms(report.time_working),
                ms(time),
                ms(other)
            ),
        };
        if self.carried.shares().next().is_none() {
            let predicted = predicted(report.time_predicted_with, "with copies");
            let decisions = match self.report.decisions.as_slice() {
                [] => "no table was scanned".to_owned(),
                decisions => decisions.join("; "),
            };
            return format!("prefetch {}: nothing was copied: {decisions}{predicted}", self.mode);
        }
        let hits = match report.hit_ratio() {
            Some(ratio) => format!("{:.0} % of what was read late was near", 100.0 * ratio),
            None => "no late column was read".to_owned(),
        };
        let predicted = predicted(report.time_predicted_without, "without");
        format!(
            "prefetch {}: {} to node {}{}; {hits}; waited {:.1} ms{predicted}",
            self.mode,
            query::carried_text(&self.carried),
            self.tiers.near(),
            where_nodes_are(self.tiers.machine()),
            ms(report.time_waiting),
        )
    }

    fn json(&self) -> Value {
        let report = &self.report;
        let engines: Vec<Value> = self
            .carried
            .shares()
            .map(|share| json!({ "engine": share.kind, "bytes": share.bytes, "how": share.provenance }))
            .collect();
        json!({
            "mode": self.mode.to_string(),
            "home_node": self.tiers.home(),
            "near_node": self.tiers.near(),
            "machine": self.tiers.machine().name(),
            "machine_origin": self.tiers.machine().origin(),
            "decisions": report.decisions,
            "columns": report.columns_prefetched,
            "bytes": report.bytes_prefetched,
            "bytes_by_engine": engines,
            "late_bytes": report.late_bytes,
            "late_bytes_near": report.late_bytes_near,
            "hit_ratio": report.hit_ratio(),
            "waiting_seconds": report.time_waiting.as_secs_f64(),
            "working_seconds": report.time_working.as_secs_f64(),
            "predicted_seconds": report.time_predicted.as_secs_f64(),
            "predicted_with_seconds": report.time_predicted_with.as_secs_f64(),
            "predicted_without_seconds": report.time_predicted_without.as_secs_f64(),
        })
    }
}

/// A remark for machines that are not this machine.
pub(crate) fn where_nodes_are(machine: &Machine) -> String {
    match machine.origin() {
        Origin::Discovered => String::new(),
        _ => format!(" of {} (a profile: the bytes lie in this machine's memory)", machine.name()),
    }
}

/// Prints an answer, as text row by row, or as one JSON object.
struct Printer<'a> {
    out: &'a mut dyn Write,
    schema: SchemaRef,
    align: Vec<Align>,
    /// Widths of the columns, known after the first rows.
    widths: Option<Vec<usize>>,
    rows_count: usize,
    json_rows: Option<Vec<Value>>,
}

impl<'a> Printer<'a> {
    fn new(json: bool, schema: SchemaRef, out: &'a mut dyn Write) -> Printer<'a> {
        let align = schema
            .fields()
            .iter()
            .map(|field| if field.data_type().is_numeric() { Align::Right } else { Align::Left })
            .collect();
        Printer { out, schema, align, widths: None, rows_count: 0, json_rows: json.then(Vec::new) }
    }

    fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.rows_count += batch.num_rows();
        let options = FormatOptions::default().with_null("NULL");
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        if let Some(rows) = &mut self.json_rows {
            for row in 0..batch.num_rows() {
                let cells = batch.columns().iter().zip(&columns).map(|(column, texts)| {
                    if column.is_null(row) {
                        return Ok(Value::Null);
                    }
                    Ok(json_value(column.data_type(), texts.value(row).try_to_string()?))
                });
                rows.push(Value::Array(cells.collect::<Result<_>>()?));
            }
            return Ok(());
        }
        let rows = (0..batch.num_rows()).map(|row| {
            columns
                .iter()
                .map(|column| Ok(column.value(row).try_to_string()?))
                .collect::<Result<Vec<String>>>()
        });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        self.headings(&rows)?;
        let widths = self.widths.as_deref().unwrap_or_default();
        for row in &rows {
            writeln!(self.out, "{}", line(row, widths, &self.align, 0))?;
        }
        Ok(())
    }

    /// Prints the headings. The first rows determine the widths; later rows may be wider.
    fn headings(&mut self, rows: &[Vec<String>]) -> Result<()> {
        if self.widths.is_some() {
            return Ok(());
        }
        let names: Vec<String> = self.schema.fields().iter().map(|field| field.name().clone()).collect();
        let mut widths = vec![0; names.len()];
        for row in std::iter::once(&names).chain(rows) {
            widen(&mut widths, row);
        }
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        for row in [&names, &rule] {
            writeln!(self.out, "{}", line(row, &widths, &self.align, 0))?;
        }
        self.widths = Some(widths);
        Ok(())
    }

    fn finish(
        mut self,
        statement: &str,
        elapsed: Duration,
        prefetch: &Summary<'_>,
        explained: Option<String>,
    ) -> Result<()> {
        if let Some(rows) = self.json_rows {
            let columns: Vec<Value> = self
                .schema
                .fields()
                .iter()
                .map(|field| json!({ "name": field.name(), "type": field.data_type().to_string() }))
                .collect();
            let object = json!({
                "statement": statement,
                "columns": columns,
                "rows": rows,
                "rows_count": self.rows_count,
                "seconds": elapsed.as_secs_f64(),
                "prefetch": prefetch.json(),
                "plan": explained,
            });
            return output::json(self.out, &object);
        }
        self.headings(&[])?;
        writeln!(self.out)?;
        if let Some(plan) = explained {
            writeln!(self.out, "{plan}")?;
        }
        writeln!(self.out, "{} in {:.3} s", count(self.rows_count, "row"), elapsed.as_secs_f64())?;
        writeln!(self.out, "{}", prefetch.sentence())?;
        Ok(())
    }
}

/// A value as JSON: integers and floats are numbers; decimals, dates and others are text, which no reader rounds.
fn json_value(kind: &DataType, text: String) -> Value {
    let number = match kind {
        DataType::Boolean => return Value::Bool(text == "true"),
        _ if kind.is_integer() => text.parse().ok().map(Value::Number),
        _ if kind.is_floating() => {
            text.parse().ok().and_then(serde_json::Number::from_f64).map(Value::Number)
        }
        _ => None,
    };
    number.unwrap_or(Value::String(text))
}

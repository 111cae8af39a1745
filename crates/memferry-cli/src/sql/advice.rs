//! Advice on the nodes of tables by the reads of queries: `SHOW READS`, `ADVISE PLACEMENT`, `memferry advise placement`.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use datafusion::arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use datafusion::common::TableReference;
use memferry::model::{
    ColumnMove, ModelError, PlacementAdvice, PlacementRules, PlacementVerdict, ReadHistory,
};
use memferry::topology::Machine;
use memferry_query::{PlacementClause, TablePlacement, TieredTable};
use serde_json::{Value, json};

use super::answer::Planned;
use super::arguments::{Arguments, Format, SessionArguments};
use super::catalog;
use super::placement::in_memory;
use super::runner::Runner;
use super::session::Session;
use super::statement::{Moving, PlaceTable};
use crate::error::usage;
use crate::output::{self, Table, count, number, size, wrapped};

/// Runs queries, and says which columns should lie on other nodes, with the modelled gain.
#[derive(Debug, clap::Args)]
pub(crate) struct AdviceArguments {
    /// The queries, separated by semicolons.
    queries: String,
    #[command(flatten)]
    session: SessionArguments,
    /// Runs of the queries.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// A move must save its cost within this time of such queries, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = PlacementRules::default().payback_s, value_parser = seconds)]
    payback: f64,
    /// Makes the moves, runs the queries again, and asks again.
    #[arg(long = "move")]
    moves: bool,
    /// Share of the bandwidths that --move takes, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u8).range(1..=100), requires = "moves")]
    share: u8,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds.is_finite() => Ok(seconds),
        _ => Err("a time is a number of seconds above 0, such as 600".to_owned()),
    }
}

/// A decision about a table.
pub(super) struct Advised {
    advice: PlacementAdvice,
    placement: TablePlacement,
}

impl Session<'_> {
    /// The plan of `SHOW READS`, whose rows are the sums of all windows.
    pub(super) fn show_reads(&mut self, name: &TableReference) -> Result<Planned> {
        let provider = self.provider(name)?;
        let history = in_memory(name, &provider)?.reads();
        self.planned(reads(&history)?)
    }

    /// The plan of `ADVISE PLACEMENT`, whose rows are the moves, or one that says why there is none.
    pub(super) fn advise(&mut self, name: &TableReference) -> Result<(Planned, Advised)> {
        let provider = self.provider(name)?;
        let table = in_memory(name, &provider)?;
        let advice = advice(name, table, &table.placement_rules(), self.tiers.tiers.machine())?;
        let placement = table.placement_of(&advice);
        let rows = rows(name, &advice, &placement)?;
        Ok((self.planned(rows)?, Advised { advice, placement }))
    }

    /// Makes the moves if they are to be made now.
    pub(super) fn follow(
        &mut self,
        name: &TableReference,
        advised: Advised,
        how: Moving,
        out: &mut dyn Write,
    ) -> Result<()> {
        match advised.advice.verdict {
            PlacementVerdict::Move => {
                let place = PlaceTable { table: name.clone(), placement: advised.placement, how };
                self.place(&place, out)
            }
            _ if self.has_notes() => Ok(writeln!(out, "nothing was moved: {}", advised.advice.reason)?),
            _ => Ok(()),
        }
    }
}

fn advice(
    name: &TableReference,
    table: &TieredTable,
    rules: &PlacementRules,
    machine: &Machine,
) -> Result<PlacementAdvice> {
    table.advise(rules).map_err(|error| {
        let is_unknown = matches!(error, ModelError::Unknown { .. });
        let error = anyhow::Error::from(error);
        let remedy = "; `memferry calibrate --out FILE` measures it, for --calibration FILE";
        let remedy = if is_unknown && machine.is_this_machine() { remedy } else { "" };
        anyhow::anyhow!("no advice about the placement of {name}: {error:#}{remedy}")
    })
}

fn verdict(advice: &PlacementAdvice) -> &'static str {
    match advice.verdict {
        PlacementVerdict::Move => "move",
        PlacementVerdict::Wait { .. } => "wait",
        _ => "keep",
    }
}

/// The statement of a move.
fn statement(name: &TableReference, clause: &PlacementClause) -> String {
    format!("ALTER TABLE {} {clause}", name.to_quoted_string())
}

fn nodes(it: &ColumnMove) -> String {
    it.nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Moves as rows.
fn rows(name: &TableReference, advice: &PlacementAdvice, placement: &TablePlacement) -> Result<RecordBatch> {
    let moves: Vec<Option<(&ColumnMove, &PlacementClause)>> = match advice.moves.as_slice() {
        [] => vec![None],
        moves => moves.iter().zip(&placement.clauses).map(Some).collect(),
    };
    let has_moves = !advice.moves.is_empty();
    let text = |of: &dyn Fn(&ColumnMove, &PlacementClause) -> Option<String>| -> ArrayRef {
        Arc::new(StringArray::from_iter(moves.iter().map(|it| it.and_then(|(it, clause)| of(it, clause)))))
    };
    let figure = |value: f64| -> ArrayRef {
        let value = has_moves.then_some(value).filter(|value| value.is_finite());
        Arc::new(Float64Array::from_iter(moves.iter().map(|_| value)))
    };
    let reason = |it: &Option<(&ColumnMove, &PlacementClause)>| match (it, advice.verdict) {
        (Some((it, _)), PlacementVerdict::Move) => it.reason.clone(),
        (Some((it, _)), _) => format!("{}; {}", it.reason, advice.reason),
        (None, _) => advice.reason.clone(),
    };
    let columns: [(&str, ArrayRef); 8] = [
        ("verdict", Arc::new(StringArray::from_iter_values(moves.iter().map(|_| verdict(advice))))),
        ("column", text(&|_, clause| clause.column.clone())),
        ("nodes", text(&|it, _| Some(nodes(it)))),
        ("bytes", Arc::new(UInt64Array::from_iter(moves.iter().map(|it| it.map(|(it, _)| it.size_bytes))))),
        ("speed_up", figure(advice.speed_up())),
        ("pays_after_s", figure(advice.pays_after_s())),
        ("reason", Arc::new(StringArray::from_iter_values(moves.iter().map(reason)))),
        ("statement", text(&|_, clause| Some(statement(name, clause)))),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns.map(|(name, values)| (name, values, true)))?)
}

/// Reads as rows: the sums of all windows, by column, CPUs and node.
fn reads(history: &ReadHistory) -> Result<RecordBatch> {
    let mut sums = std::collections::BTreeMap::new();
    for read in history.windows.iter().flat_map(|window| &window.reads) {
        *sums.entry((read.column, read.cpus, read.node)).or_insert(0_u64) += read.size_bytes;
    }
    let names = sums.keys().map(|&(column, ..)| &history.columns[column].name);
    let columns: [(&str, ArrayRef); 4] = [
        ("column", Arc::new(StringArray::from_iter_values(names))),
        ("cpus_of_node", Arc::new(UInt32Array::from_iter_values(sums.keys().map(|(_, cpus, _)| cpus.0)))),
        ("node", Arc::new(UInt32Array::from_iter_values(sums.keys().map(|(.., node)| node.0)))),
        ("bytes", Arc::new(UInt64Array::from_iter_values(sums.values().copied()))),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// `memferry advise placement QUERIES`.
pub(crate) fn advise(arguments: &AdviceArguments, out: &mut dyn Write) -> Result<()> {
    let of_session = Arguments {
        statements: None,
        file: None,
        cluster: None,
        connect: None,
        tls_ca: None,
        token_file: None,
        session: arguments.session.clone(),
        load: true,
        explain: false,
        format: Format::Table,
        output: None,
        json: false,
    };
    of_session.check()?;
    if arguments.session.has_no_table() {
        return Err(usage(
            "there is no table to give advice about; name one with --table NAME=LOCATION, or use --tpch SCALE",
        ));
    }
    let mut session = Session::open(&of_session, Runner::start(None)?, &mut io::sink())?;
    let before = Round::run(&mut session, arguments)?;
    let mut after = None;
    if arguments.moves {
        for (name, advised) in &before.tables {
            let how = Moving { share_percent: arguments.share, in_background: false };
            if advised.advice.verdict == PlacementVerdict::Move {
                let placement = advised.placement.clone();
                session.place(&PlaceTable { table: name.clone(), placement, how }, &mut io::sink())?;
            }
        }
        after = Some(Round::run(&mut session, arguments)?);
    }
    let machine = session.tiers.machine();
    if arguments.json {
        let object = json!({
            "machine": machine.name(),
            "runs": arguments.runs,
            "before": before.json(),
            "after": after.as_ref().map(Round::json),
        });
        return output::json(out, &object);
    }
    writeln!(
        out,
        "Modelled on {}, by the reads of {} of the queries.\n",
        machine.name(),
        count(arguments.runs as usize, "run")
    )?;
    before.print(out)?;
    if let Some(after) = after {
        writeln!(out, "\nAfter the moves:\n")?;
        after.print(out)?;
        if machine.is_this_machine() {
            let (before, after) = (before.queries.as_secs_f64(), after.queries.as_secs_f64());
            writeln!(
                out,
                "\nThe queries took {before:.3} s before and {after:.3} s after, measured as medians."
            )?;
        }
    }
    Ok(())
}

/// A time in a unit that suits it.
fn time(seconds: f64) -> String {
    match seconds {
        ..1e-3 => format!("{:.1} us", seconds * 1e6),
        ..1.0 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{} s", number(seconds)),
    }
}

/// The queries once or more, and the advice that follows.
struct Round {
    /// The median time of all queries.
    queries: Duration,
    tables: Vec<(TableReference, Advised)>,
}

impl Round {
    fn run(session: &mut Session<'_>, arguments: &AdviceArguments) -> Result<Round> {
        let mut times = Vec::new();
        for _ in 0..arguments.runs {
            let started = Instant::now();
            session.run_text(&arguments.queries, &mut io::sink())?;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        let queries = times[times.len() / 2];
        let context = session.context.clone();
        let described = session.runner.run(async move { catalog::tables(&context).await })?;
        let mut tables = Vec::new();
        for it in described {
            let Some(table) = it.provider.downcast_ref::<TieredTable>() else { continue };
            if table.reads().windows.is_empty() {
                continue;
            }
            let name = TableReference::from(it.name.as_str());
            // The queries are the workload, so there is nothing to wait for.
            let rules = PlacementRules {
                payback_s: arguments.payback,
                evidence: 0.0,
                rest_s: 0.0,
                ..table.placement_rules()
            };
            let advice = advice(&name, table, &rules, session.tiers.machine())?;
            let placement = table.placement_of(&advice);
            tables.push((name, Advised { advice, placement }));
        }
        Ok(Round { queries, tables })
    }

    fn print(&self, out: &mut dyn Write) -> Result<()> {
        if self.tables.is_empty() {
            writeln!(out, "The queries read no table in memory at its home.")?;
        }
        for (name, Advised { advice, placement }) in &self.tables {
            if advice.moves.is_empty() {
                write!(out, "{}", wrapped(&format!("{name} stays where it is: {}.", advice.reason), 0))?;
                continue;
            }
            let mut table = Table::new("column | to nodes | moved: | copy:");
            for (it, clause) in advice.moves.iter().zip(&placement.clauses) {
                let column = clause.column.clone().unwrap_or_default();
                table.row(vec![column, nodes(it), size(it.size_bytes), time(it.cost_s)]);
            }
            writeln!(out, "{name}\n{table}")?;
            for (it, clause) in advice.moves.iter().zip(&placement.clauses) {
                let column = clause.column.as_deref().unwrap_or_default();
                write!(out, "{}", wrapped(&format!("{column}: {}.", it.reason), 0))?;
            }
            let gain = format!(
                "The reads take {}, and {} after the moves: {:.2} times as fast. The moves are paid back after {} of such \
                 queries.",
                time(advice.before_s),
                time(advice.after_s),
                advice.speed_up(),
                time(advice.pays_after_s())
            );
            write!(out, "{}", wrapped(&gain, 0))?;
            writeln!(out)?;
            for clause in &placement.clauses {
                writeln!(out, "{};", statement(name, clause))?;
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let table = |(name, Advised { advice, placement }): &(TableReference, Advised)| {
            let moves = advice.moves.iter().zip(&placement.clauses).map(|(it, clause)| {
                json!({
                    "column": clause.column,
                    "nodes": it.nodes.iter().map(|node| node.0).collect::<Vec<_>>(),
                    "size_bytes": it.size_bytes,
                    "cost_s": it.cost_s,
                    "reason": it.reason,
                    "statement": statement(name, clause),
                })
            });
            json!({
                "table": name.to_string(),
                "verdict": verdict(advice),
                "reads_s": advice.before_s,
                "reads_after_s": advice.after_s,
                "speed_up": advice.speed_up(),
                "pays_after_s": Some(advice.pays_after_s()).filter(|seconds| seconds.is_finite()),
                "reason": advice.reason,
                "moves": moves.collect::<Vec<_>>(),
            })
        };
        json!({
            "queries_s": self.queries.as_secs_f64(),
            "tables": self.tables.iter().map(table).collect::<Vec<_>>(),
        })
    }
}

//! A session: its tables, and the statements and commands that run in it one after the other.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use datafusion::common::TableReference;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as SqlStatement;
use memferry_bench_query::{CarriedBytes, QueryTiers};
use memferry_query::files::FileReport;
use memferry_query::{MemferryOptions, PackedColumns, Prefetch, ScanReport};
use memferry_session::{NamedPlacement, Opened, stores};

use super::answer::{Answer, Discarded, Planned, Printed};
use super::arguments::{Arguments, Format};
use super::catalog;
use super::commands::{self, COMMANDS, Command};
use super::load::{Loaded, Loading};
use super::placement::{self, KeptPlacement, MoveInBackground};
use super::print::{self, Object};
use super::runner::Runner;
use super::scanner::{Input, Located, Scanner, inputs};
use super::statement::{self, LoadTable, Moving, PlaceTable, Statement};
use super::summary::Summary;
use super::target::Target;
use crate::error::{self, usage};
use crate::output::{self, Align, Table, count};
use crate::progress::Bar;
use crate::query::explain_error;

/// Whether the session goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Flow {
    Continue,
    Quit,
}

/// Files that `\i` nests; more are taken for a file that includes itself.
const INCLUDES_MAX: usize = 16;

pub(super) struct Session<'a> {
    arguments: &'a Arguments,
    pub(super) runner: Runner,
    pub(super) context: SessionContext,
    pub(super) tiers: QueryTiers,
    pub(super) partitions: usize,
    pub(super) loaded: Vec<Loaded>,
    /// Loads in the background.
    pub(super) loading: Vec<Loading>,
    /// Moves in the background.
    pub(super) moving: Vec<MoveInBackground>,
    /// For tables of files that may be loaded.
    pub(super) placements: Vec<KeptPlacement>,
    target: Target,
    timing: bool,
    /// A shell also says that a statement without rows is done.
    pub(super) interactive: bool,
    /// Width of the terminal, if standard output is one.
    pub(super) width: Option<usize>,
    includes: usize,
}

impl<'a> Session<'a> {
    /// Opens a session and makes the tables of the command line.
    pub(super) fn open(
        arguments: &'a Arguments,
        mut runner: Runner,
        out: &mut dyn Write,
    ) -> Result<Session<'a>> {
        let given = &arguments.session;
        let Opened { context, tiers, partitions, generated } =
            memferry_session::open(given, || Box::new(Bar::new("generating TPC-H")))?;
        runner.run(Opened::register(context.clone(), given.tables.clone()))??;
        let mut session = Session {
            arguments,
            runner,
            context,
            tiers,
            partitions,
            loaded: Vec::new(),
            loading: Vec::new(),
            moving: Vec::new(),
            placements: Vec::new(),
            target: Target::open(arguments.output.as_deref())?,
            timing: true,
            interactive: false,
            width: None,
            includes: 0,
        };
        for NamedPlacement { name, placement } in &given.places {
            let (table, placement) = (TableReference::bare(name.as_str()), placement.clone());
            if given.tables.iter().any(|it| it.name == *name) {
                session.keep_placement(&table, Some(placement))?;
            } else if generated.contains(name) {
                session.place(&PlaceTable { table, placement, how: Moving::default() }, out)?;
            } else {
                return Err(usage(format!(
                    "--place names the table {name}, which neither --table nor --tpch makes"
                )));
            }
        }
        if arguments.load {
            for table in &given.tables {
                let table = TableReference::bare(table.name.as_str());
                let packed = PackedColumns::None;
                let load = LoadTable { table, columns: None, packed, placement: None, in_background: false };
                session.load(&load, out)?;
            }
        }
        Ok(session)
    }

    /// Runs a text of statements and commands, up to the first error.
    pub(super) fn run_text(&mut self, text: &str, out: &mut dyn Write) -> Result<Flow> {
        for located in inputs(text) {
            if self.run(located.input, out)? == Flow::Quit {
                return Ok(Flow::Quit);
            }
        }
        Ok(Flow::Continue)
    }

    /// Runs the statements of a file. Errors name its lines.
    pub(super) fn run_file(&mut self, path: &Path, out: &mut dyn Write) -> Result<Flow> {
        if self.includes == INCLUDES_MAX {
            return Err(usage(format!(
                "{} is included by {INCLUDES_MAX} files in turn; does one include itself?",
                path.display()
            )));
        }
        let unreadable = || format!("cannot read {}; check the path and its permissions", path.display());
        let file = File::open(path).with_context(unreadable)?;
        self.includes += 1;
        let outcome = self.run_lines(&mut BufReader::new(file), &path.display().to_string(), out);
        self.includes -= 1;
        outcome
    }

    /// Runs statements as they arrive. Errors name the lines of `name`.
    pub(super) fn run_lines(
        &mut self,
        source: &mut dyn BufRead,
        name: &str,
        out: &mut dyn Write,
    ) -> Result<Flow> {
        let mut scanner = Scanner::default();
        let mut line = String::new();
        loop {
            line.clear();
            let read = source.read_line(&mut line);
            if read.with_context(|| format!("cannot read {name}; it must be text in UTF-8"))? == 0 {
                return match scanner.finish() {
                    Some(last) => self.run_located(last, name, out),
                    None => Ok(Flow::Continue),
                };
            }
            for located in scanner.line(&line) {
                if self.run_located(located, name, out)? == Flow::Quit {
                    return Ok(Flow::Quit);
                }
                // The writer of a pipe may wait for this answer.
                out.flush()?;
            }
        }
    }

    fn run_located(&mut self, located: Located, name: &str, out: &mut dyn Write) -> Result<Flow> {
        self.run(located.input, out).map_err(|error| match error.is::<io::Error>() {
            // The output failed, not the statement.
            true => error,
            false => error::at(name, located.line, &error),
        })
    }

    /// Runs one statement or command.
    pub(super) fn run(&mut self, input: Input, out: &mut dyn Write) -> Result<Flow> {
        self.finish_loads(out)?;
        self.finish_moves(out)?;
        match input {
            Input::Statement(text) => self.statement(&text, out).map(|()| Flow::Continue),
            Input::Command(text) => self.command(&commands::parse(&text)?, out),
        }
    }

    fn command(&mut self, command: &Command, out: &mut dyn Write) -> Result<Flow> {
        match command {
            Command::Quit => return Ok(Flow::Quit),
            Command::Include(path) => return self.run_file(path, out),
            Command::Timing(on) => {
                self.timing = on.unwrap_or(!self.timing);
                writeln!(out, "timing is {}", if self.timing { "on" } else { "off" })?;
            }
            Command::Help => {
                let mut table = Table::plain(vec![Align::Left, Align::Left]);
                for (name, effect) in COMMANDS {
                    table.row(vec![name.to_owned(), effect.to_owned()]);
                }
                writeln!(out, "End a statement with a semicolon; Enter runs it.")?;
                write!(out, "{table}")?;
            }
            Command::Tables => self.describe_tables(out)?,
            Command::Columns(name) => self.describe_columns(name, out)?,
        }
        Ok(Flow::Continue)
    }

    fn describe_tables(&mut self, out: &mut dyn Write) -> Result<()> {
        let context = self.context.clone();
        let tables = self.runner.run(async move { catalog::tables(&context).await })?;
        Ok(write!(out, "{}", catalog::list(&tables))?)
    }

    fn describe_columns(&mut self, name: &str, out: &mut dyn Write) -> Result<()> {
        let (context, name) = (self.context.clone(), name.to_owned());
        let table = self.runner.run(async move { context.table_provider(name.as_str()).await })?;
        let schema = table.map_err(explain_error)?.schema();
        Ok(write!(out, "{}", catalog::list_columns(&schema))?)
    }

    fn statement(&mut self, text: &str, out: &mut dyn Write) -> Result<()> {
        self.runner.forget_interrupts();
        let dialect = self.context.state().config().options().sql_parser.dialect;
        match statement::parse(text, dialect.as_ref())? {
            Statement::Load(load) => self.load(&load, out),
            Statement::Replicate(replicate) => self.replicate(&replicate, out),
            Statement::Restore(restore) => self.restore(&restore, out),
            Statement::Place(place) => self.place(&place, out),
            Statement::ShowPlacement(table) => self.show(text, out, |session| session.show_placement(&table)),
            Statement::ShowReads(table) => self.show(text, out, |session| session.show_reads(&table)),
            Statement::Advise(advise) => {
                let mut advised = None;
                self.show(text, out, |session| {
                    let (planned, advice) = session.advise(&advise.table)?;
                    advised = Some(advice);
                    Ok(planned)
                })?;
                match (advised, advise.moving) {
                    (Some(advised), Some(how)) => self.follow(&advise.table, advised, how, out),
                    _ => Ok(()),
                }
            }
            Statement::Sql(sql) => self.sql(text, *sql, out),
        }
    }

    /// Answers with rows that are there without a query.
    fn show(
        &mut self,
        text: &str,
        out: &mut dyn Write,
        rows: impl FnOnce(&mut Self) -> Result<Planned>,
    ) -> Result<()> {
        let (before, started) = (CarriedBytes::by(Some(&self.tiers)), Instant::now());
        let planned = rows(self)?;
        self.answer(text, &planned, &before, started, out)
    }

    fn sql(&mut self, text: &str, mut sql: SqlStatement, out: &mut dyn Write) -> Result<()> {
        let before = CarriedBytes::by(Some(&self.tiers));
        let started = Instant::now();
        stores::reach_locations(&self.context, &sql)?;
        let placement = placement::take_option(&mut sql)?;
        let context = self.context.clone();
        let planned = self.runner.run(async move { Planned::of(&context, sql).await })??;
        if let Some((name, placement)) = placement {
            self.keep_placement(&name, placement)?;
        }
        self.answer(text, &planned, &before, started, out)
    }

    /// Runs a plan and prints its rows.
    fn answer(
        &mut self,
        text: &str,
        planned: &Planned,
        before: &CarriedBytes,
        started: Instant,
        out: &mut dyn Write,
    ) -> Result<()> {
        let answer = Answer::start(&self.runner, &planned.plan, &self.context, started.elapsed());
        if self.arguments.json {
            let mut object = Object::new(&planned.plan.schema());
            let elapsed = answer.print(&mut self.runner, &mut object)?.elapsed;
            planned.keep_copied()?;
            let plan = self.arguments.explain.then(|| planned.with_metrics());
            let prefetch = self.summary(planned, before).json();
            return output::json(out, &object.value(text, elapsed, &prefetch, plan));
        }
        let printed = if planned.has_rows {
            self.print(answer, planned, out)?
        } else {
            answer.print(&mut self.runner, &mut Discarded)?
        };
        planned.keep_copied()?;
        if !self.has_notes() || !(planned.has_rows || self.interactive) {
            return Ok(());
        }
        if planned.has_rows && !self.target.is_file() && !planned.plan.schema().fields().is_empty() {
            writeln!(out)?;
        }
        if self.arguments.explain && planned.has_rows {
            writeln!(out, "{}", planned.with_metrics())?;
        }
        let what = if planned.has_rows { count(printed.rows_count, "row") } else { "done".to_owned() };
        self.note(&what, printed.elapsed, out)?;
        if let Some(remark) = printed.remark {
            writeln!(out, "{remark}")?;
        }
        let summary = self.summary(planned, before);
        for sentence in summary.sentences() {
            writeln!(out, "{sentence}")?;
        }
        Ok(())
    }

    /// Prints rows to the file of --output, or else to `out`.
    fn print(&mut self, answer: Answer, planned: &Planned, out: &mut dyn Write) -> Result<Printed> {
        let format = self.arguments.format;
        let schema = planned.plan.schema();
        let Some(file) = self.target.begin(format)? else {
            // A plan is of no use if it is cut.
            let width = self.width.filter(|_| !planned.is_explained);
            let mut printer = print::printer(format, &schema, width, out)?;
            return answer.print(&mut self.runner, &mut *printer);
        };
        let mut printer = print::printer(format, &schema, None, file)?;
        let printed = answer.print(&mut self.runner, &mut *printer);
        drop(printer);
        printed.map_err(|error| self.target.explain(error))
    }

    /// Writes what a statement did, and its time unless that is switched off.
    pub(super) fn note(&self, what: &str, elapsed: Duration, out: &mut dyn Write) -> Result<()> {
        let time = if self.timing { format!(" in {:.3} s", elapsed.as_secs_f64()) } else { String::new() };
        Ok(writeln!(out, "{what}{time}")?)
    }

    /// Whether text about statements may stand beside the rows.
    pub(super) fn has_notes(&self) -> bool {
        !self.arguments.json
            && (self.interactive || self.target.is_file() || self.arguments.format == Format::Table)
    }

    fn summary(&self, planned: &Planned, before: &CarriedBytes) -> Summary<'_> {
        Summary {
            mode: self.prefetch(),
            report: ScanReport::of(planned.plan.as_ref()),
            files: FileReport::of(planned.plan.as_ref()),
            carried: CarriedBytes::by(Some(&self.tiers)).since(before),
            tiers: &self.tiers,
        }
    }

    /// The mode now: SET may have changed it.
    fn prefetch(&self) -> Prefetch {
        let state = self.context.state();
        let options = state.config().options().extensions.get::<MemferryOptions>().map(|it| it.prefetch);
        options.unwrap_or(self.arguments.session.prefetch)
    }

    /// Keeps the file of --output.
    pub(super) fn finish(self) -> Result<()> {
        self.target.keep()
    }
}

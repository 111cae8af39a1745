//! The answer to one statement of SQL, from its plan to its printed rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as SqlStatement;
use futures::StreamExt;
use tokio::sync::mpsc;

use super::copy::CopiedFile;
use super::print::Printer;
use super::runner::Runner;
use super::statement;
use crate::query::explain_error;

/// A statement ready to run. What changes the session (DDL, SET) has been done by then.
pub(super) struct Planned {
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) has_rows: bool,
    /// Whether the rows are a plan: EXPLAIN.
    pub(super) is_explained: bool,
    /// The file that COPY writes.
    pub(super) copied: Option<CopiedFile>,
}

impl Planned {
    pub(super) async fn of(context: &SessionContext, sql: SqlStatement) -> Result<Planned> {
        let plan = context.state().statement_to_plan(sql).await.map_err(explain_error)?;
        statement::check(&plan)?;
        let has_rows = statement::has_rows(&plan);
        let is_explained = matches!(plan, LogicalPlan::Explain(_) | LogicalPlan::Analyze(_));
        let (plan, copied) = CopiedFile::redirect(plan);
        let frame = context.execute_logical_plan(plan).await.map_err(explain_error)?;
        let plan = frame.create_physical_plan().await.map_err(explain_error)?;
        Ok(Planned { plan, has_rows, is_explained, copied })
    }

    /// Gives the file of COPY its name.
    pub(super) fn keep_copied(&self) -> Result<()> {
        self.copied.as_ref().map_or(Ok(()), CopiedFile::keep)
    }

    /// The plan as text, with what each part did so far.
    pub(super) fn with_metrics(&self) -> String {
        DisplayableExecutionPlan::with_metrics(self.plan.as_ref()).indent(true).to_string()
    }
}

/// The batches of a running query. Dropping it cancels the query and its reads.
pub(super) struct Answer {
    batches: mpsc::Receiver<Result<RecordBatch, DataFusionError>>,
    task: SpawnedTask<Duration>,
    elapsed: Duration,
}

impl Answer {
    /// Starts a plan; `elapsed` is the time that planning took.
    pub(super) fn start(
        runner: &Runner,
        plan: &Arc<dyn ExecutionPlan>,
        context: &SessionContext,
        elapsed: Duration,
    ) -> Answer {
        // One batch is printed while the next is computed.
        let (sender, batches) = mpsc::channel(1);
        let (plan, context) = (Arc::clone(plan), context.task_ctx());
        let task = runner.spawn(async move {
            // Time of the query, without the time that it waits for the printing of its rows.
            let mut elapsed = Duration::ZERO;
            let mut started = Instant::now();
            let mut rows = match execute_stream(plan, context) {
                Ok(rows) => rows,
                Err(error) => {
                    // Nobody receives it if the statement was cancelled.
                    let _ = sender.send(Err(error)).await;
                    return started.elapsed();
                }
            };
            loop {
                let batch = rows.next().await;
                elapsed += started.elapsed();
                let Some(batch) = batch else { return elapsed };
                if sender.send(batch).await.is_err() {
                    return elapsed;
                }
                started = Instant::now();
            }
        });
        Answer { batches, task, elapsed }
    }

    /// Prints all batches and ends the answer.
    pub(super) fn print(mut self, runner: &mut Runner, printer: &mut dyn Printer) -> Result<Printed> {
        let mut rows_count = 0;
        while let Some(batch) = runner.wait(self.batches.recv())? {
            let batch = batch.map_err(explain_error)?;
            rows_count += batch.num_rows();
            printer.batch(&batch)?;
        }
        let elapsed = self.elapsed + runner.join(self.task)?;
        Ok(Printed { elapsed, rows_count, remark: printer.finish()? })
    }
}

/// A printed answer.
pub(super) struct Printed {
    /// Time of planning and running, without printing.
    pub(super) elapsed: Duration,
    pub(super) rows_count: usize,
    /// What the printer did not show.
    pub(super) remark: Option<String>,
}

/// The printer of statements without rows.
pub(super) struct Discarded;

impl Printer for Discarded {
    fn batch(&mut self, _batch: &RecordBatch) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Option<String>> {
        Ok(None)
    }
}

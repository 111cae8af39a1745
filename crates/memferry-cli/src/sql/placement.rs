//! The nodes of tables: `ALTER TABLE ... NUMA NODE`, `SHOW PLACEMENT`, and the placements that tables are loaded with.

use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::runtime::SpawnedTask;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::Value;
use futures::FutureExt;
use memferry_query::load::{LoadingTable, Progress};
use memferry_query::{ColumnPlace, PlacementError, TableData, TablePlacement, TieredTable};
use memferry_session::explain_placement;

use super::answer::Planned;
use super::runner::explain_end;
use super::session::Session;
use super::statement::PlaceTable;
use crate::error::{self, usage};
use crate::output::size;
use crate::progress::Bar;
use crate::query::explain_error;

/// The option of CREATE EXTERNAL TABLE.
const OPTION: &str = "memferry.placement";

/// Ranges of rows that SHOW PLACEMENT writes out; the row groups of an interleaved table may be thousands.
const RANGES_MAX: usize = 4;

/// A placement for a table of files, used when it is loaded.
pub(super) struct KeptPlacement {
    pub(super) table: Arc<dyn TableProvider>,
    pub(super) placement: TablePlacement,
}

/// A move in the background.
pub(super) struct MoveInBackground {
    name: TableReference,
    started: Instant,
    task: SpawnedTask<Result<u64, PlacementError>>,
}

impl Session<'_> {
    /// Moves rows of a table in memory. If that fails, they stay where they are.
    ///
    /// In the background, the next statement finds that the move has begun, and does not wait for it;
    /// [`finish_moves`](Self::finish_moves) reports the end.
    pub(super) fn place(&mut self, place: &PlaceTable, out: &mut dyn Write) -> Result<()> {
        let (name, placement) = (&place.table, place.placement.clone());
        let provider = self.provider(name)?;
        in_memory(name, &provider)?;
        let bar = (!place.how.in_background).then(|| Arc::new(Bar::new("moving")));
        let progress: Arc<dyn Progress + Send> = match &bar {
            Some(bar) => Arc::clone(bar) as _,
            None => Arc::new(()),
        };
        let (started, share) = (Instant::now(), f64::from(place.how.share_percent) / 100.0);
        let work = async move {
            let table = provider.downcast_ref::<TieredTable>();
            table.expect("checked above").place_within(&placement, share, progress).await
        };
        let Some(bar) = bar else {
            let task = self.runner.begin(work)?;
            self.moving.push(MoveInBackground { name: name.clone(), started, task });
            return Ok(());
        };
        let moved = self.runner.run(work);
        // A move that was cancelled may hold it for a moment, when the prompt is there again.
        bar.clear();
        self.moved(name, moved?.map_err(explain_placement)?, started, out)
    }

    /// Reports the moves in the background that have ended.
    pub(super) fn finish_moves(&mut self, out: &mut dyn Write) -> Result<()> {
        let moving = std::mem::take(&mut self.moving);
        for mut one in moving {
            let Some(ended) = (&mut one.task).now_or_never() else {
                self.moving.push(one);
                continue;
            };
            let MoveInBackground { name, started, .. } = one;
            match ended.map_err(explain_end).and_then(|moved| moved.map_err(explain_placement)) {
                Ok(bytes) => self.moved(&name, bytes, started, out)?,
                Err(error) => {
                    let error = error.context(format!("table {name} was not moved, and is as it was before"));
                    if !self.interactive {
                        return Err(error);
                    }
                    // An error of standard error cannot be reported.
                    let _ = writeln!(io::stderr(), "error: {}", error::sentence(&error));
                }
            }
        }
        Ok(())
    }

    fn moved(&self, name: &TableReference, bytes: u64, started: Instant, out: &mut dyn Write) -> Result<()> {
        if self.has_notes() {
            self.note(&format!("moved {} of {name}", size(bytes)), started.elapsed(), out)?;
        }
        Ok(())
    }

    /// The plan of `SHOW PLACEMENT`, whose rows are the places of the columns.
    pub(super) fn show_placement(&mut self, name: &TableReference) -> Result<Planned> {
        let provider = self.provider(name)?;
        let places = in_memory(name, &provider)?.data().places();
        self.planned(batch(&places)?)
    }

    /// A plan whose rows are there.
    pub(super) fn planned(&mut self, rows: RecordBatch) -> Result<Planned> {
        let context = self.context.clone();
        self.runner.run(async move {
            let frame = context.read_batch(rows).map_err(explain_error)?;
            let plan = frame.create_physical_plan().await.map_err(explain_error)?;
            Ok(Planned { plan, has_rows: true, is_explained: false, copied: None })
        })?
    }

    /// Keeps a placement for the table `name` of files, in place of an earlier one.
    pub(super) fn keep_placement(
        &mut self,
        name: &TableReference,
        placement: Option<TablePlacement>,
    ) -> Result<()> {
        let table = self.provider(name)?;
        self.placements.retain(|kept| !Arc::ptr_eq(&kept.table, &table));
        self.placements.extend(placement.map(|placement| KeptPlacement { table, placement }));
        Ok(())
    }

    /// The placement with which the table of files `source` is loaded: the kept one, without clauses for columns that are
    /// not loaded.
    pub(super) fn kept_placement(
        &self,
        source: &Arc<dyn TableProvider>,
        columns: Option<&[String]>,
    ) -> TablePlacement {
        let kept = self.placements.iter().find(|kept| Arc::ptr_eq(&kept.table, source));
        let mut placement = kept.map(|kept| kept.placement.clone()).unwrap_or_default();
        if let Some(columns) = columns {
            let is_loaded = |column: &String| columns.contains(column);
            placement.clauses.retain(|clause| clause.column.as_ref().is_none_or(is_loaded));
        }
        placement
    }
}

/// The table in memory that `provider` is.
pub(super) fn in_memory<'a>(
    name: &TableReference,
    provider: &'a Arc<dyn TableProvider>,
) -> Result<&'a TieredTable> {
    if let Some(table) = provider.downcast_ref::<TieredTable>() {
        return Ok(table);
    }
    if provider.downcast_ref::<LoadingTable>().is_some() {
        return Err(usage(format!("table {name} is being loaded; wait until it is, or DROP it")));
    }
    Err(usage(format!(
        "table {name} has no rows in memory of memferry; LOAD TABLE {name} brings them there, with PLACE to other nodes than \
         the home node"
    )))
}

/// Takes the placement out of the options of CREATE EXTERNAL TABLE: the table, and its placement if it has one.
pub(super) fn take_option(
    statement: &mut SqlStatement,
) -> Result<Option<(TableReference, Option<TablePlacement>)>> {
    let SqlStatement::CreateExternalTable(table) = statement else { return Ok(None) };
    let name = object_name_to_table_reference(table.name.clone(), true).map_err(explain_error)?;
    let position = table.options.iter().position(|(key, _)| key.eq_ignore_ascii_case(OPTION));
    let Some(position) = position else { return Ok(Some((name, None))) };
    let placement = match table.options.remove(position).1 {
        Value::SingleQuotedString(text) => text.parse().map_err(usage)?,
        other => return Err(usage(format!("the option {OPTION} is a text in single quotes, not {other}"))),
    };
    Ok(Some((name, Some(placement))))
}

/// `node 0`, or `nodes 0, 8`.
pub(super) fn nodes_of(data: &TableData) -> String {
    let mut nodes: Vec<_> = data.places().into_iter().map(|place| place.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    match nodes.as_slice() {
        [] => format!("node {}", data.home()),
        [node] => format!("node {node}"),
        nodes => format!("nodes {}", nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Places as rows.
fn batch(places: &[ColumnPlace]) -> Result<RecordBatch> {
    let rows = |place: &ColumnPlace| place.rows.iter().map(|rows| rows.len() as u64).sum::<u64>();
    let columns: [(&str, ArrayRef); 6] = [
        ("column", Arc::new(StringArray::from_iter_values(places.iter().map(|place| &place.column)))),
        ("node", Arc::new(UInt32Array::from_iter_values(places.iter().map(|place| place.node.0)))),
        (
            "row_groups",
            Arc::new(UInt64Array::from_iter_values(places.iter().map(|place| place.row_groups as u64))),
        ),
        ("rows", Arc::new(UInt64Array::from_iter_values(places.iter().map(rows)))),
        ("bytes", Arc::new(UInt64Array::from_iter_values(places.iter().map(|place| place.size_bytes)))),
        ("ranges", Arc::new(StringArray::from_iter_values(places.iter().map(|place| ranges(&place.rows))))),
    ];
    Ok(RecordBatch::try_from_iter(columns)?)
}

/// The first ranges of rows, as ALTER TABLE takes them.
fn ranges(rows: &[Range<usize>]) -> String {
    let first = rows.iter().take(RANGES_MAX).map(|rows| format!("{} TO {}", rows.start, rows.end));
    let more = rows.len().saturating_sub(RANGES_MAX);
    let more = (more > 0).then(|| format!("{more} more"));
    first.chain(more).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_many_row_groups_are_cut() {
        let rows: Vec<Range<usize>> = (0..6).map(|index| index * 20..index * 20 + 10).collect();
        assert_eq!(ranges(&rows[..1]), "0 TO 10");
        assert_eq!(ranges(&rows[..4]), "0 TO 10, 20 TO 30, 40 TO 50, 60 TO 70");
        assert_eq!(ranges(&rows), "0 TO 10, 20 TO 30, 40 TO 50, 60 TO 70, 2 more");
    }
}

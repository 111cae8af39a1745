//! Rows as text, CSV, JSON or Arrow IPC.
//!
//! A [`Printer`] is made for one answer and gets its batches one by one, so that rows appear while the query runs and
//! large answers need no memory.

mod arrow;
mod cells;
mod csv;
mod json;
mod object;
mod table;

use std::io::Write;

use anyhow::Result;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;

use super::arguments::Format;

pub(super) use object::Object;

/// Prints the rows of one answer.
pub(super) trait Printer {
    /// Prints the rows of a batch.
    fn batch(&mut self, batch: &RecordBatch) -> Result<()>;

    /// Ends the answer, also one without rows. Returns a remark about what was not shown.
    fn finish(&mut self) -> Result<Option<String>>;
}

/// A printer in this format. `width` is the width of the terminal, if the rows go to one.
pub(super) fn printer<'a>(
    format: Format,
    schema: &SchemaRef,
    width: Option<usize>,
    out: &'a mut dyn Write,
) -> Result<Box<dyn Printer + 'a>> {
    Ok(match format {
        Format::Table => Box::new(table::Table::new(schema, width, out)),
        Format::Csv => Box::new(csv::Csv::new(schema, out)),
        Format::Json => Box::new(json::Lines::new(schema, out)?),
        Format::Arrow => Box::new(arrow::Ipc::new(schema, out)?),
    })
}

#[cfg(test)]
mod tests;

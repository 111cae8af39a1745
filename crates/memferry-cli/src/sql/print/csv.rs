//! Rows as CSV (RFC 4180): a line of headings, then a line per row. A null is an empty field, an empty string is `""`.

use std::io::Write;

use anyhow::Result;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;

use super::{Printer, cells};

pub(super) struct Csv<'a> {
    out: &'a mut dyn Write,
    /// Taken when they are printed.
    headings: Option<Vec<Option<String>>>,
}

impl<'a> Csv<'a> {
    pub(super) fn new(schema: &SchemaRef, out: &'a mut dyn Write) -> Csv<'a> {
        let headings = schema.fields().iter().map(|field| Some(field.name().clone())).collect();
        Csv { out, headings: Some(headings) }
    }

    fn head(&mut self) -> Result<()> {
        self.headings.take().map_or(Ok(()), |headings| write_row(self.out, &headings))
    }
}

impl Printer for Csv<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        self.head()?;
        cells::rows(batch, |cells| write_row(self.out, &cells))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        self.head()?;
        Ok(None)
    }
}

fn write_row(out: &mut dyn Write, cells: &[Option<String>]) -> Result<()> {
    for (index, cell) in cells.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        match cell {
            None => write!(out, "{comma}")?,
            Some(text) if text.is_empty() || text.contains([',', '"', '\n', '\r']) => {
                write!(out, "{comma}\"{}\"", text.replace('"', "\"\""))?;
            }
            Some(text) => write!(out, "{comma}{text}")?,
        }
    }
    Ok(writeln!(out)?)
}

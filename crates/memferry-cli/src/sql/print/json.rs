//! Rows as JSON: an object per row, on a line of its own (JSON lines), so that readers need not wait for the last row and
//! answers can follow each other. Nulls are written.

use std::collections::HashSet;
use std::io::Write;

use anyhow::Result;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::json::WriterBuilder;
use datafusion::arrow::json::writer::LineDelimited;

use super::Printer;
use crate::error::usage;

pub(super) struct Lines<'a> {
    out: &'a mut dyn Write,
}

impl<'a> Lines<'a> {
    /// Refuses two columns of one name, since readers would keep one of them.
    pub(super) fn new(schema: &SchemaRef, out: &'a mut dyn Write) -> Result<Lines<'a>> {
        let mut names = HashSet::new();
        match schema.fields().iter().find(|field| !names.insert(field.name())) {
            Some(field) => Err(usage(format!(
                "two columns are called {}, which JSON cannot keep apart; rename one with AS",
                field.name()
            ))),
            None => Ok(Lines { out }),
        }
    }
}

impl Printer for Lines<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut text = Vec::new();
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
        writer.write(batch).and_then(|()| writer.finish()).map_err(refused)?;
        drop(writer);
        Ok(self.out.write_all(&text)?)
    }

    fn finish(&mut self) -> Result<Option<String>> {
        Ok(None)
    }
}

fn refused(error: ArrowError) -> anyhow::Error {
    anyhow::anyhow!("the rows cannot be written as JSON: {error}; cast the column, or use another --format")
}

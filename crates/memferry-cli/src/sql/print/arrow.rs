//! Rows as a file of Arrow IPC.

use std::io::Write;

use anyhow::{Context, Result};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::writer::FileWriter;

use super::Printer;

pub(super) struct Ipc<'a> {
    writer: FileWriter<&'a mut dyn Write>,
}

const FAILED: &str = "cannot write Arrow IPC; choose --output FILE on a disk with free space";

impl<'a> Ipc<'a> {
    pub(super) fn new(schema: &SchemaRef, out: &'a mut dyn Write) -> Result<Ipc<'a>> {
        Ok(Ipc { writer: FileWriter::try_new(out, schema).context(FAILED)? })
    }
}

impl Printer for Ipc<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        self.writer.write(batch).context(FAILED)
    }

    fn finish(&mut self) -> Result<Option<String>> {
        self.writer.finish().context(FAILED)?;
        Ok(None)
    }
}

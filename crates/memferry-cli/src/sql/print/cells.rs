//! The text of values.

use anyhow::Result;
use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Calls `each` with the texts of every row; a null is `None`. Nested values are written as `[1, 2]` and `{a: 1}`.
pub(super) fn rows(
    batch: &RecordBatch,
    mut each: impl FnMut(Vec<Option<String>>) -> Result<()>,
) -> Result<()> {
    let options = FormatOptions::default().with_null("NULL");
    let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    // Also of types that keep their nulls in their values, such as dictionaries.
    let nulls: Vec<Option<NullBuffer>> =
        batch.columns().iter().map(|column| column.logical_nulls()).collect();
    for row in 0..batch.num_rows() {
        let cells = columns.iter().zip(&nulls).map(|(texts, nulls)| {
            let is_null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
            Ok(if is_null { None } else { Some(texts.value(row).try_to_string()?) })
        });
        each(cells.collect::<Result<_>>()?)?;
    }
    Ok(())
}

//! The text of values.

use anyhow::Result;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

/// Calls `each` with the texts of every row; a null is `None`. Nested values are written as `[1, 2]` and `{a: 1}`.
pub(super) fn rows(
    batch: &RecordBatch,
    mut each: impl FnMut(Vec<Option<String>>) -> Result<()>,
) -> Result<()> {
    let options = FormatOptions::default().with_null("NULL");
    let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    for row in 0..batch.num_rows() {
        let cells = batch.columns().iter().zip(&columns).map(|(column, texts)| {
            // `is_nullable` arrays such as dictionaries and the null type keep their nulls elsewhere.
            let null = column.is_null(row) || column.data_type().is_null();
            Ok(if null { None } else { Some(texts.value(row).try_to_string()?) })
        });
        each(cells.collect::<Result<_>>()?)?;
    }
    Ok(())
}

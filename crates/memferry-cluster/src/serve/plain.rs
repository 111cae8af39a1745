//! Columns in types that every client of Arrow reads.
//!
//! The drivers of JDBC, ODBC and older libraries know neither views nor run ends, which DataFusion makes of strings. Such
//! columns are sent as plain ones, at the cost of a copy of their rows.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;

/// The schema with plain types.
pub(super) fn schema(schema: &Schema) -> SchemaRef {
    let fields: Vec<FieldRef> = schema.fields().iter().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The batch with the columns of a schema that [`schema`] made.
pub(super) fn batch(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        if column.data_type() == field.data_type() {
            Ok(Arc::clone(column))
        } else {
            cast(column, field.data_type())
        }
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let options = datafusion::arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

fn field(from: &FieldRef) -> FieldRef {
    let plain = data_type(from.data_type());
    if plain == *from.data_type() {
        return Arc::clone(from);
    }
    Arc::new(Field::clone(from).with_data_type(plain))
}

/// The plain type for a type.
pub(super) fn data_type(from: &DataType) -> DataType {
    match from {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, values) => data_type(values),
        DataType::RunEndEncoded(_, values) => data_type(values.data_type()),
        DataType::List(item) | DataType::ListView(item) => DataType::List(field(item)),
        DataType::LargeList(item) | DataType::LargeListView(item) => DataType::LargeList(field(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(field(item), *length),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, DictionaryArray, Int64Array, StringViewArray, StructArray};
    use datafusion::arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn views_and_dictionaries_become_plain() {
        let views: ArrayRef =
            Arc::new(StringViewArray::from(vec![Some("a"), None, Some("a longer text than a view")]));
        let words: DictionaryArray<Int32Type> = vec!["x", "y", "x"].into_iter().collect();
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let nested = StructArray::try_from(vec![("v", Arc::clone(&views))]).unwrap();
        let rows = RecordBatch::try_from_iter([
            ("views", views),
            ("words", Arc::new(words) as ArrayRef),
            ("numbers", numbers),
            ("nested", Arc::new(nested) as ArrayRef),
        ])
        .unwrap();
        let plain = schema(&rows.schema());
        let types: Vec<String> = plain.fields().iter().map(|field| field.data_type().to_string()).collect();
        assert_eq!(types[..3], ["Utf8", "Utf8", "Int64"]);
        assert!(types[3].contains("Utf8") && !types[3].contains("View"), "{}", types[3]);
        let sent = batch(&rows, &plain).unwrap();
        let text = |batch: &RecordBatch| {
            datafusion::arrow::util::pretty::pretty_format_batches(std::slice::from_ref(batch))
                .unwrap()
                .to_string()
        };
        assert_eq!(text(&sent), text(&rows));
    }

    #[test]
    fn rows_without_columns_are_counted() {
        let options = datafusion::arrow::array::RecordBatchOptions::new().with_row_count(Some(7));
        let rows = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
        assert_eq!(batch(&rows, &schema(&rows.schema())).unwrap().num_rows(), 7);
    }
}

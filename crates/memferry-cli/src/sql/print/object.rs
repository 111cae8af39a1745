//! The answer of one statement as one JSON object (`--json`).

use std::time::Duration;

use anyhow::Result;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use serde_json::{Value, json};

use super::{Printer, cells};

/// Collects the rows of an answer.
pub(in crate::sql) struct Object {
    schema: SchemaRef,
    rows: Vec<Value>,
}

impl Object {
    pub(in crate::sql) fn new(schema: &SchemaRef) -> Object {
        Object { schema: schema.clone(), rows: Vec::new() }
    }

    /// The object, with the text of the statement, its time, what prefetching did, and its plan if requested.
    pub(in crate::sql) fn value(
        self,
        statement: &str,
        elapsed: Duration,
        prefetch: &Value,
        plan: Option<String>,
    ) -> Value {
        let fields = self.schema.fields().iter();
        let columns: Vec<Value> = fields
            .map(|field| json!({ "name": field.name(), "type": field.data_type().to_string() }))
            .collect();
        json!({
            "statement": statement,
            "columns": columns,
            "rows_count": self.rows.len(),
            "rows": self.rows,
            "seconds": elapsed.as_secs_f64(),
            "prefetch": prefetch,
            "plan": plan,
        })
    }
}

impl Printer for Object {
    fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        let types: Vec<DataType> =
            batch.schema_ref().fields().iter().map(|field| field.data_type().clone()).collect();
        cells::rows(batch, |cells| {
            let values = types
                .iter()
                .zip(cells)
                .map(|(kind, cell)| cell.map_or(Value::Null, |text| value(kind, text)));
            self.rows.push(Value::Array(values.collect()));
            Ok(())
        })
    }

    fn finish(&mut self) -> Result<Option<String>> {
        Ok(None)
    }
}

/// A value as JSON: integers and floats are numbers; decimals, dates and others are text, which no reader rounds.
fn value(kind: &DataType, text: String) -> Value {
    let number = match kind {
        DataType::Boolean => return Value::Bool(text == "true"),
        _ if kind.is_integer() => text.parse().ok().map(Value::Number),
        _ if kind.is_floating() => {
            text.parse().ok().and_then(serde_json::Number::from_f64).map(Value::Number)
        }
        _ => None,
    };
    number.unwrap_or(Value::String(text))
}

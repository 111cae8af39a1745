//! Types and values of Arrow as those of PostgreSQL. Types without a counterpart of the same bits are sent as text.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::datatypes::{
    DataType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema, UInt8Type,
    UInt16Type, UInt32Type,
};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::scalar::ScalarValue;
use pgwire::api::Type;
use pgwire::api::portal::{Format, Portal};
use pgwire::api::results::{DataRowEncoder, FieldInfo};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::data::DataRow;

use super::statement::{user_error, wrong_message};

/// The type of a column or a parameter.
pub(super) fn type_of(data_type: &DataType) -> Type {
    match data_type {
        DataType::Boolean => Type::BOOL,
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => Type::INT2,
        DataType::Int32 | DataType::UInt16 => Type::INT4,
        DataType::Int64 | DataType::UInt32 => Type::INT8,
        DataType::Float32 => Type::FLOAT4,
        DataType::Float64 => Type::FLOAT8,
        _ => Type::TEXT,
    }
}

/// The columns of an answer, in the formats that the client asked for.
pub(super) fn fields_of(schema: &Schema, format: &Format) -> PgWireResult<Arc<Vec<FieldInfo>>> {
    let columns = schema.fields().len();
    check(format, columns, "columns of the answer")?;
    let fields = schema.fields().iter().enumerate().map(|(index, field)| {
        let name = field.name().clone();
        FieldInfo::new(name, None, None, type_of(field.data_type()), format.format_for(index))
    });
    Ok(Arc::new(fields.collect()))
}

/// One format for all, or one for each.
fn check(format: &Format, count: usize, what: &str) -> PgWireResult<()> {
    match format {
        Format::Individual(codes) if codes.len() != count => Err(wrong_message(format!(
            "{} formats for {count} {what}; send none, one, or one for each",
            codes.len()
        ))),
        _ => Ok(()),
    }
}

/// The values of a portal for parameters of these types.
pub(super) fn parameters<S: Clone>(
    portal: &Portal<S>,
    wanted: &[Option<DataType>],
) -> PgWireResult<Vec<ScalarValue>> {
    if portal.parameter_len() != wanted.len() {
        return Err(wrong_message(format!(
            "{} values for {} parameters; send one for each",
            portal.parameter_len(),
            wanted.len()
        )));
    }
    check(&portal.parameter_format, wanted.len(), "parameters")?;
    let value = |(index, wanted): (usize, &Option<DataType>)| {
        let said = portal.statement.parameter_types.get(index).cloned().flatten();
        let said = said.filter(|said| *said != Type::UNKNOWN);
        let sent = said.unwrap_or_else(|| wanted.as_ref().map_or(Type::TEXT, type_of));
        let value = match sent {
            Type::BOOL => ScalarValue::Boolean(portal.parameter(index, &sent)?),
            Type::INT2 => ScalarValue::Int16(portal.parameter(index, &sent)?),
            Type::INT4 => ScalarValue::Int32(portal.parameter(index, &sent)?),
            Type::INT8 => ScalarValue::Int64(portal.parameter(index, &sent)?),
            Type::FLOAT4 => ScalarValue::Float32(portal.parameter(index, &sent)?),
            Type::FLOAT8 => ScalarValue::Float64(portal.parameter(index, &sent)?),
            Type::TEXT | Type::VARCHAR => ScalarValue::Utf8(portal.parameter(index, &sent)?),
            other => {
                let text = format!("parameters of type {other} are not supported; send a number or text");
                return Err(user_error("0A000", text));
            }
        };
        match wanted {
            Some(wanted) => {
                value.cast_to(wanted).map_err(|error| user_error("22000", error.strip_backtrace()))
            }
            None => Ok(value),
        }
    };
    wanted.iter().enumerate().map(value).collect()
}

/// The rows of a batch.
pub(super) fn rows_of(batch: &RecordBatch, fields: &Arc<Vec<FieldInfo>>) -> PgWireResult<Vec<DataRow>> {
    let columns = batch.columns().iter().map(Column::of).collect::<Result<Vec<_>, _>>()?;
    let mut encoder = DataRowEncoder::new(Arc::clone(fields));
    let row = |row| {
        for column in &columns {
            column.encode(row, &mut encoder)?;
        }
        Ok(encoder.take_row())
    };
    (0..batch.num_rows()).map(row).collect()
}

enum Column<'a> {
    Typed(&'a ArrayRef),
    Text(&'a ArrayRef, ArrayFormatter<'a>),
}

impl<'a> Column<'a> {
    fn of(array: &'a ArrayRef) -> PgWireResult<Column<'a>> {
        const OPTIONS: FormatOptions<'static> = FormatOptions::new();
        Ok(match type_of(array.data_type()) {
            Type::TEXT => {
                let formatter = ArrayFormatter::try_new(array.as_ref(), &OPTIONS);
                Column::Text(array, formatter.map_err(|error| PgWireError::ApiError(Box::new(error)))?)
            }
            _ => Column::Typed(array),
        })
    }

    fn encode(&self, row: usize, to: &mut DataRowEncoder) -> PgWireResult<()> {
        macro_rules! value {
            ($array:ident, $type:ty, $as:ty) => {
                to.encode_field(
                    &$array.is_valid(row).then(|| <$as>::from($array.as_primitive::<$type>().value(row))),
                )
            };
        }
        match self {
            Column::Text(array, text) => {
                to.encode_field(&array.is_valid(row).then(|| text.value(row).to_string()))
            }
            Column::Typed(array) => match array.data_type() {
                DataType::Boolean => {
                    to.encode_field(&array.is_valid(row).then(|| array.as_boolean().value(row)))
                }
                DataType::Int8 => value!(array, Int8Type, i16),
                DataType::Int16 => value!(array, Int16Type, i16),
                DataType::Int32 => value!(array, Int32Type, i32),
                DataType::UInt8 => value!(array, UInt8Type, i16),
                DataType::UInt16 => value!(array, UInt16Type, i32),
                DataType::UInt32 => value!(array, UInt32Type, i64),
                DataType::Float32 => value!(array, Float32Type, f32),
                DataType::Float64 => value!(array, Float64Type, f64),
                _ => value!(array, Int64Type, i64),
            },
        }
    }
}

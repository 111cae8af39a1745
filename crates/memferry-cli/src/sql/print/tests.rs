//! Answers in every format, and formats read back.

use std::io::Cursor;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, RecordBatchOptions,
    StringArray, StructArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef};
use datafusion::arrow::ipc::reader::FileReader;
use serde_json::{Value, json};

use super::*;

/// Numbers, text with all that needs quotes, nulls, and nested values.
fn batch() -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-300)]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("é, \"x\""), Some(""), None]));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(vec![
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
    ]));
    let field = Arc::new(Field::new("f", DataType::Float64, true));
    let structs: ArrayRef = Arc::new(StructArray::from(vec![(
        field,
        Arc::new(Float64Array::from(vec![Some(0.5), None, Some(2.0)])) as ArrayRef,
    )]));
    RecordBatch::try_from_iter_with_nullable([
        ("n", numbers, true),
        ("t", texts, true),
        ("list", lists, true),
        ("s", structs, true),
    ])
    .unwrap()
}

fn printed(
    format: Format,
    width: Option<usize>,
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> (Vec<u8>, Option<String>) {
    let mut out = Vec::new();
    let mut printer = printer(format, schema, width, &mut out).unwrap();
    for batch in batches {
        printer.batch(batch).unwrap();
    }
    let note = printer.finish().unwrap();
    drop(printer);
    (out, note)
}

fn text(format: Format, batches: &[RecordBatch]) -> String {
    String::from_utf8(printed(format, None, &batches[0].schema(), batches).0).unwrap()
}

#[test]
fn tables() {
    let expected = [
        "   n  t       list       s",
        "----  ------  ---------  ---------",
        "   1  é, \"x\"  [1, NULL]  {f: 0.5}",
        "NULL          NULL       {f: NULL}",
        "-300  NULL    []         {f: 2.0}",
    ];
    assert_eq!(text(Format::Table, &[batch()]).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn wide_characters_align() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["日本", "ab", "two\nlines"]));
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let batch = RecordBatch::try_from_iter([("t", texts), ("n", numbers)]).unwrap();
    let expected = "t      n\n-----  -\n日本   1\nab     2\ntwo    3\nlines\n";
    assert_eq!(text(Format::Table, &[batch]), expected);
}

#[test]
fn tables_fit_a_terminal() {
    let long = "x".repeat(50);
    let texts: ArrayRef = Arc::new(StringArray::from(vec![long.as_str()]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1_234_567_890_123]));
    let columns = [("t", Arc::clone(&texts)), ("n", Arc::clone(&numbers)), ("m", numbers), ("u", texts)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let (out, note) = printed(Format::Table, Some(60), &batch.schema(), std::slice::from_ref(&batch));
    let out = String::from_utf8(out).unwrap();
    assert!(out.contains("1234567890123  1234567890123") && out.contains("x…"), "{out}");
    let width = out.lines().map(|line| line.chars().count()).max();
    assert_eq!((width, note), (Some(60), None), "{out}");

    let (out, note) = printed(Format::Table, Some(30), &batch.schema(), std::slice::from_ref(&batch));
    let out = String::from_utf8(out).unwrap();
    assert!(out.lines().all(|line| line.chars().count() <= 30), "{out}");
    assert!(out.lines().step_by(2).all(|line| line.ends_with('…')), "{out}");
    assert!(note.unwrap().starts_with("2 columns did not fit"), "{out}");

    // Never in a pipe.
    let (out, note) = printed(Format::Table, None, &batch.schema(), &[batch]);
    assert!(!String::from_utf8(out).unwrap().contains('…') && note.is_none());
}

#[test]
fn answers_without_rows_or_columns() {
    let schema = batch().schema();
    let no_columns: SchemaRef = Arc::new(Schema::empty());
    let options = RecordBatchOptions::new().with_row_count(Some(2));
    let two_rows = RecordBatch::try_new_with_options(Arc::clone(&no_columns), vec![], &options).unwrap();
    let of = |format, schema: &SchemaRef, batches: &[RecordBatch]| {
        String::from_utf8(printed(format, Some(80), schema, batches).0).unwrap()
    };
    assert_eq!(of(Format::Table, &schema, &[]), "n  t  list  s\n-  -  ----  -\n");
    assert_eq!(of(Format::Csv, &schema, &[]), "n,t,list,s\n");
    assert_eq!(of(Format::Json, &schema, &[]), "");
    assert_eq!(of(Format::Table, &no_columns, &[two_rows]), "");
}

#[test]
fn csv_is_read_back() {
    let csv = text(Format::Csv, &[batch()]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("n,t,list,s"));
    assert_eq!(lines.next_back(), Some("-300,,[],{f: 2.0}"));
    assert!(csv.contains("\n,\"\",,"), "an empty string is no null: {csv}");
    let mut reader = ::csv::Reader::from_reader(csv.as_bytes());
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 3);
    assert_eq!((&rows[0][0], &rows[0][1]), ("1", "é, \"x\""));
    assert_eq!(&rows[2][1], "");
}

#[test]
fn json_lines_are_read_back() {
    let json = text(Format::Json, &[batch(), batch()]);
    let rows: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[0], json!({ "n": 1, "t": "é, \"x\"", "list": [1, null], "s": { "f": 0.5 } }));
    assert_eq!(rows[4], json!({ "n": null, "t": "", "list": null, "s": { "f": null } }));
}

#[test]
fn json_refuses_two_columns_of_one_name() {
    let field = Field::new("a", DataType::Int32, true);
    let schema: SchemaRef = Arc::new(Schema::new(vec![field.clone(), field]));
    let error = printer(Format::Json, &schema, None, &mut Vec::new()).err().unwrap().to_string();
    assert!(error.contains("called a") && error.contains("AS"), "{error}");
}

#[test]
fn arrow_files_are_read_back() {
    let (file, _) = printed(Format::Arrow, None, &batch().schema(), &[batch(), batch()]);
    let read: Vec<RecordBatch> =
        FileReader::try_new(Cursor::new(file), None).unwrap().map(Result::unwrap).collect();
    assert_eq!(read, [batch(), batch()]);
    assert_eq!(read[0].column(1).null_count(), 1);
}

#[test]
fn objects_have_numbers_and_text() {
    let batch = batch();
    let mut object = Object::new(&batch.schema());
    object.batch(&batch).unwrap();
    let value = object.value("select", std::time::Duration::from_millis(500), &Value::Null, None);
    assert_eq!(value["rows"][0][0], 1);
    assert_eq!(value["rows"][1][0], Value::Null);
    assert_eq!(value["rows"][2][1], Value::Null);
    assert_eq!((&value["rows_count"], &value["seconds"]), (&json!(3), &json!(0.5)));
    assert_eq!(value["columns"][0], json!({ "name": "n", "type": "Int64" }));
}

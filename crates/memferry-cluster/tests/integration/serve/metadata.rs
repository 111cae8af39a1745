//! Catalogs, schemas, tables and facts about the server.

use arrow_flight::sql::{
    CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys, CommandGetImportedKeys,
    CommandGetPrimaryKeys, CommandGetTables, CommandGetXdbcTypeInfo, SqlInfo,
};
use arrow_flight::{FlightInfo, IpcMessage};
use datafusion::arrow::array::{Array, BinaryArray, RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Schema};

use super::fixture::{Client, Fixture, fetch, text};

async fn rows(client: &mut Client, info: FlightInfo) -> RecordBatch {
    let rows = fetch(client, &info).await.unwrap();
    assert_eq!(
        *rows[0].schema(),
        info.clone().try_decode_schema().unwrap(),
        "the schema was announced as another"
    );
    assert_eq!(rows.len(), 1);
    rows.into_iter().next().unwrap()
}

fn strings(batch: &RecordBatch, column: &str) -> Vec<String> {
    let column = batch.column_by_name(column).unwrap().as_any().downcast_ref::<StringArray>().unwrap();
    column.iter().map(|value| value.unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn catalogs_schemas_and_tables() {
    let fixture = Fixture::start().await;
    fixture.context.sql("create view w as select v from t").await.unwrap().collect().await.unwrap();
    let mut client = fixture.client().await;
    let info = client.get_catalogs().await.unwrap();
    assert_eq!(strings(&rows(&mut client, info).await, "catalog_name"), ["datafusion"]);
    let request = CommandGetDbSchemas { catalog: None, db_schema_filter_pattern: None };
    let info = client.get_db_schemas(request).await.unwrap();
    let schemas = rows(&mut client, info).await;
    assert_eq!(strings(&schemas, "db_schema_name"), ["information_schema", "public"]);
    let request = CommandGetDbSchemas {
        catalog: Some("datafusion".to_owned()),
        db_schema_filter_pattern: Some("pub%".to_owned()),
    };
    let info = client.get_db_schemas(request).await.unwrap();
    assert_eq!(strings(&rows(&mut client, info).await, "db_schema_name"), ["public"]);

    let mut request = CommandGetTables {
        db_schema_filter_pattern: Some("public".to_owned()),
        include_schema: true,
        ..CommandGetTables::default()
    };
    let info = client.get_tables(request.clone()).await.unwrap();
    let tables = rows(&mut client, info).await;
    let names = strings(&tables, "table_name");
    assert!(
        ["lineitem", "nation", "t", "w"].iter().all(|name| names.iter().any(|it| it == name)),
        "{names:?}"
    );
    let position = names.iter().position(|name| name == "t").unwrap();
    let schemas =
        tables.column_by_name("table_schema").unwrap().as_any().downcast_ref::<BinaryArray>().unwrap();
    let schema = Schema::try_from(IpcMessage(schemas.value(position).to_vec().into())).unwrap();
    assert_eq!(schema.field(0).name(), "v");
    assert_eq!(*schema.field(1).data_type(), DataType::Utf8);

    request.table_types = vec!["VIEW".to_owned()];
    request.include_schema = false;
    let info = client.get_tables(request.clone()).await.unwrap();
    assert_eq!(strings(&rows(&mut client, info).await, "table_name"), ["w"]);
    request.table_types.clear();
    request.table_name_filter_pattern = Some("line%".to_owned());
    let info = client.get_tables(request).await.unwrap();
    assert_eq!(strings(&rows(&mut client, info).await, "table_name"), ["lineitem"]);
    let info = client.get_table_types().await.unwrap();
    let types = strings(&rows(&mut client, info).await, "table_type");
    assert_eq!(types, ["BASE TABLE", "LOCAL TEMPORARY", "VIEW"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn facts_types_and_keys() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let wanted =
        vec![SqlInfo::FlightSqlServerName, SqlInfo::FlightSqlServerReadOnly, SqlInfo::FlightSqlServerCancel];
    let info = client.get_sql_info(wanted).await.unwrap();
    let facts = rows(&mut client, info).await;
    assert_eq!(facts.num_rows(), 3);
    assert!(text(&[facts]).contains("memferry"));
    let info = client.get_xdbc_type_info(CommandGetXdbcTypeInfo { data_type: None }).await.unwrap();
    let types = rows(&mut client, info).await;
    let names = strings(&types, "type_name");
    assert!(
        ["BIGINT", "VARCHAR", "TIMESTAMP", "DECIMAL"].iter().all(|name| names.iter().any(|it| it == name))
    );
    // That of BIGINT.
    let info = client.get_xdbc_type_info(CommandGetXdbcTypeInfo { data_type: Some(-5) }).await.unwrap();
    assert_eq!(strings(&rows(&mut client, info).await, "type_name"), ["BIGINT"]);
    let table = "t".to_owned();
    let keys = CommandGetPrimaryKeys { catalog: None, db_schema: None, table: table.clone() };
    let exported = CommandGetExportedKeys { catalog: None, db_schema: None, table: table.clone() };
    let imported = CommandGetImportedKeys { catalog: None, db_schema: None, table: table.clone() };
    let cross = CommandGetCrossReference {
        pk_catalog: None,
        pk_db_schema: None,
        pk_table: table.clone(),
        fk_catalog: None,
        fk_db_schema: None,
        fk_table: table,
    };
    let infos = [
        (client.get_primary_keys(keys).await.unwrap(), 6),
        (client.get_exported_keys(exported).await.unwrap(), 13),
        (client.get_imported_keys(imported).await.unwrap(), 13),
        (client.get_cross_reference(cross).await.unwrap(), 13),
    ];
    for (info, columns) in infos {
        assert_eq!(columns_count(&info), columns);
        let rows = fetch(&mut client, &info).await.unwrap();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
    }
}

/// Number of columns that an answer announces.
fn columns_count(info: &FlightInfo) -> usize {
    info.clone().try_decode_schema().unwrap().fields().len()
}

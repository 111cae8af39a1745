//! Facts about the server and its tables, as the drivers of ADBC, JDBC and ODBC ask for them.
//!
//! Source: `FlightSql.proto` of Apache Arrow.

use std::sync::Arc;

use arrow_flight::error::Result as BuilderResult;
use arrow_flight::sql::metadata::{
    SqlInfoData, SqlInfoDataBuilder, XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder,
};
use arrow_flight::sql::{
    CommandGetCatalogs, CommandGetDbSchemas, CommandGetTableTypes, CommandGetTables, Nullable, Searchable,
    SqlInfo, SqlNullOrdering, SqlOuterJoinsSupportLevel, SqlSupportedCaseSensitivity, SqlSupportedGroupBy,
    SqlSupportedResultSetType, SqlSupportedSubqueries, SqlSupportedTransaction, SqlSupportedUnions,
    SqlTransactionIsolationLevel, SupportedSqlGrammar, XdbcDataType, XdbcDatetimeSubcode,
};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::logical_expr::TableType;
use datafusion::prelude::SessionContext;

use super::limits::Limits;
use super::plain;

/// The result of a builder of arrow-flight.
type Built = BuilderResult<RecordBatch>;

/// The names of the kinds of tables, as the information schema has them.
const TABLE_TYPES: [&str; 3] = ["BASE TABLE", "LOCAL TEMPORARY", "VIEW"];

pub(super) fn catalogs(context: &SessionContext, command: CommandGetCatalogs) -> Built {
    let mut builder = command.into_builder();
    for name in context.catalog_names() {
        builder.append(name);
    }
    builder.build()
}

pub(super) fn schemas(context: &SessionContext, command: CommandGetDbSchemas) -> Built {
    let mut builder = command.into_builder();
    for (catalog, schema) in all_schemas(context) {
        builder.append(catalog, schema);
    }
    builder.build()
}

pub(super) async fn tables(context: &SessionContext, command: CommandGetTables) -> Built {
    let mut builder = command.into_builder();
    for (catalog_name, schema_name) in all_schemas(context) {
        let schema = context.catalog(&catalog_name).and_then(|catalog| catalog.schema(&schema_name));
        let Some(schema) = schema else { continue };
        let mut names = schema.table_names();
        names.sort_unstable();
        for name in names {
            // A table that cannot be opened reports its error when it is used.
            let Ok(Some(table)) = schema.table(&name).await else { continue };
            let columns = plain::schema(&table.schema());
            builder.append(&catalog_name, &schema_name, &name, table_type(&table), &columns)?;
        }
    }
    builder.build()
}

pub(super) fn table_types(command: CommandGetTableTypes) -> Built {
    let mut builder = command.into_builder();
    for name in TABLE_TYPES {
        builder.append(name);
    }
    builder.build()
}

fn table_type(table: &Arc<dyn TableProvider>) -> &'static str {
    match table.table_type() {
        TableType::Base => TABLE_TYPES[0],
        TableType::Temporary => TABLE_TYPES[1],
        TableType::View => TABLE_TYPES[2],
    }
}

/// Names of catalogs and of their schemas; each catalog has an information schema too.
fn all_schemas(context: &SessionContext) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for catalog_name in context.catalog_names() {
        let Some(catalog) = context.catalog(&catalog_name) else { continue };
        let has_own = catalog.schema_names().iter().any(|name| name == "information_schema");
        let own = (!has_own).then(|| "information_schema".to_owned());
        names.extend(catalog.schema_names().into_iter().chain(own).map(|name| (catalog_name.clone(), name)));
    }
    names.sort_unstable();
    names
}

/// The answers to GetSqlInfo.
pub(super) fn sql_info(updates: bool, limits: &Limits) -> BuilderResult<SqlInfoData> {
    let mut info = SqlInfoDataBuilder::new();
    info.append(SqlInfo::FlightSqlServerName, "memferry");
    info.append(SqlInfo::FlightSqlServerVersion, env!("CARGO_PKG_VERSION"));
    info.append(SqlInfo::FlightSqlServerArrowVersion, "1.3");
    info.append(SqlInfo::FlightSqlServerReadOnly, !updates);
    info.append(SqlInfo::FlightSqlServerSql, true);
    info.append(SqlInfo::FlightSqlServerSubstrait, false);
    info.append(SqlInfo::FlightSqlServerTransaction, SqlSupportedTransaction::None as i32);
    info.append(SqlInfo::FlightSqlServerCancel, true);
    info.append(SqlInfo::FlightSqlServerBulkIngestion, false);
    let milliseconds = i32::try_from(limits.query_time.as_millis()).unwrap_or(i32::MAX);
    info.append(SqlInfo::FlightSqlServerStatementTimeout, milliseconds);
    info.append(SqlInfo::SqlDdlCatalog, false);
    info.append(SqlInfo::SqlDdlSchema, updates);
    info.append(SqlInfo::SqlDdlTable, updates);
    let lower = SqlSupportedCaseSensitivity::SqlCaseSensitivityLowercase as i32;
    info.append(SqlInfo::SqlIdentifierCase, lower);
    info.append(SqlInfo::SqlIdentifierQuoteChar, "\"");
    let as_written = SqlSupportedCaseSensitivity::SqlCaseSensitivityCaseInsensitive as i32;
    info.append(SqlInfo::SqlQuotedIdentifierCase, as_written);
    info.append(SqlInfo::SqlAllTablesAreSelectable, true);
    info.append(SqlInfo::SqlNullOrdering, SqlNullOrdering::SqlNullsSortedHigh as i32);
    // DataFusion's functions are in information_schema.routines; none has the meaning that the driver's escapes give it.
    let none: &[&str] = &[];
    for list in [
        SqlInfo::SqlKeywords,
        SqlInfo::SqlNumericFunctions,
        SqlInfo::SqlStringFunctions,
        SqlInfo::SqlSystemFunctions,
        SqlInfo::SqlDatetimeFunctions,
    ] {
        info.append(list, none);
    }
    info.append(SqlInfo::SqlSearchStringEscape, "\\");
    info.append(SqlInfo::SqlExtraNameCharacters, "");
    // Sets of bits; each bit has the number of a value of the enum.
    let bits = |values: &[i32]| values.iter().fold(0_i32, |set, value| set | 1 << value);
    let group_by = bits(&[
        SqlSupportedGroupBy::SqlGroupByUnrelated as i32,
        SqlSupportedGroupBy::SqlGroupByBeyondSelect as i32,
    ]);
    info.append(SqlInfo::SqlSupportedGroupBy, group_by);
    let grammar =
        bits(&[SupportedSqlGrammar::SqlMinimumGrammar as i32, SupportedSqlGrammar::SqlCoreGrammar as i32]);
    info.append(SqlInfo::SqlSupportedGrammar, grammar);
    let joins = bits(&[
        SqlOuterJoinsSupportLevel::SqlLimitedOuterJoins as i32,
        SqlOuterJoinsSupportLevel::SqlFullOuterJoins as i32,
    ]);
    info.append(SqlInfo::SqlOuterJoinsSupportLevel, joins);
    let subqueries = bits(&[
        SqlSupportedSubqueries::SqlSubqueriesInComparisons as i32,
        SqlSupportedSubqueries::SqlSubqueriesInExists as i32,
        SqlSupportedSubqueries::SqlSubqueriesInIns as i32,
    ]);
    info.append(SqlInfo::SqlSupportedSubqueries, subqueries);
    let unions = bits(&[SqlSupportedUnions::SqlUnion as i32, SqlSupportedUnions::SqlUnionAll as i32]);
    info.append(SqlInfo::SqlSupportedUnions, unions);
    let isolation = SqlTransactionIsolationLevel::SqlTransactionNone as i32;
    info.append(SqlInfo::SqlDefaultTransactionIsolation, i64::from(isolation));
    info.append(SqlInfo::SqlSupportedTransactionsIsolationLevels, bits(&[isolation]));
    let results = bits(&[SqlSupportedResultSetType::SqlResultSetTypeForwardOnly as i32]);
    info.append(SqlInfo::SqlSupportedResultSetTypes, results);
    info.append(SqlInfo::SqlSupportsColumnAliasing, true);
    info.append(SqlInfo::SqlNullPlusNullIsNull, true);
    info.append(SqlInfo::SqlSupportsTableCorrelationNames, true);
    info.append(SqlInfo::SqlSupportsExpressionsInOrderBy, true);
    info.append(SqlInfo::SqlSupportsOrderByUnrelated, true);
    info.append(SqlInfo::SqlSupportsLikeEscapeClause, true);
    info.append(SqlInfo::SqlSupportsNonNullableColumns, true);
    info.append(SqlInfo::SqlSchemaTerm, "schema");
    info.append(SqlInfo::SqlCatalogTerm, "catalog");
    info.append(SqlInfo::SqlCatalogAtStart, true);
    info.append(SqlInfo::SqlSelectForUpdateSupported, false);
    info.append(SqlInfo::SqlStoredProceduresSupported, false);
    info.append(SqlInfo::SqlCorrelatedSubqueriesSupported, true);
    info.append(SqlInfo::SqlTransactionsSupported, false);
    info.append(SqlInfo::SqlBatchUpdatesSupported, false);
    info.append(SqlInfo::SqlSavepointsSupported, false);
    info.append(SqlInfo::SqlNamedParametersSupported, true);
    info.append(SqlInfo::SqlLocatorsUpdateCopy, false);
    info.append(SqlInfo::SqlStoredFunctionsUsingCallSyntaxSupported, false);
    info.build()
}

/// The answers to GetXdbcTypeInfo: the types of SQL that tables and casts have.
pub(super) fn xdbc_types() -> BuilderResult<XdbcTypeInfoData> {
    let mut types = XdbcTypeInfoDataBuilder::new();
    let number = |name: &str, data_type, bits| XdbcTypeInfo {
        type_name: name.to_owned(),
        data_type,
        column_size: Some(bits),
        literal_prefix: None,
        literal_suffix: None,
        create_params: None,
        nullable: Nullable::NullabilityNullable,
        case_sensitive: false,
        searchable: Searchable::Full,
        unsigned_attribute: Some(false),
        fixed_prec_scale: false,
        auto_increment: Some(false),
        local_type_name: Some(name.to_owned()),
        minimum_scale: None,
        maximum_scale: None,
        sql_data_type: data_type,
        datetime_subcode: None,
        num_prec_radix: Some(2),
        interval_precision: None,
    };
    let quoted = |name: &str, data_type, size| XdbcTypeInfo {
        literal_prefix: Some("'".to_owned()),
        literal_suffix: Some("'".to_owned()),
        column_size: size,
        unsigned_attribute: None,
        auto_increment: None,
        num_prec_radix: None,
        ..number(name, data_type, 0)
    };
    let time = |name: &str, data_type, size, subcode| XdbcTypeInfo {
        literal_prefix: Some(format!("{name} '")),
        datetime_subcode: Some(subcode),
        sql_data_type: XdbcDataType::XdbcDatetime,
        ..quoted(name, data_type, Some(size))
    };
    types.append(number("TINYINT", XdbcDataType::XdbcTinyint, 8));
    types.append(number("SMALLINT", XdbcDataType::XdbcSmallint, 16));
    types.append(number("INTEGER", XdbcDataType::XdbcInteger, 32));
    types.append(number("BIGINT", XdbcDataType::XdbcBigint, 64));
    types.append(number("REAL", XdbcDataType::XdbcReal, 24));
    types.append(number("DOUBLE", XdbcDataType::XdbcDouble, 53));
    types.append(number("BOOLEAN", XdbcDataType::XdbcBit, 1));
    types.append(XdbcTypeInfo {
        create_params: Some(vec!["precision".to_owned(), "scale".to_owned()]),
        minimum_scale: Some(0),
        maximum_scale: Some(38),
        num_prec_radix: Some(10),
        ..number("DECIMAL", XdbcDataType::XdbcDecimal, 38)
    });
    types.append(XdbcTypeInfo { case_sensitive: true, ..quoted("VARCHAR", XdbcDataType::XdbcVarchar, None) });
    types.append(XdbcTypeInfo {
        literal_prefix: Some("X'".to_owned()),
        ..quoted("BYTEA", XdbcDataType::XdbcVarbinary, None)
    });
    // Sizes are those of the texts, such as 2026-11-26 and 13:00:00.000000000.
    // ODBC gives dates the number of years, 1.
    let subcode = XdbcDatetimeSubcode::XdbcSubcodeYear;
    types.append(time("DATE", XdbcDataType::XdbcDate, 10, subcode));
    let subcode = XdbcDatetimeSubcode::XdbcSubcodeTime;
    types.append(time("TIME", XdbcDataType::XdbcTime, 18, subcode));
    let subcode = XdbcDatetimeSubcode::XdbcSubcodeTimestamp;
    types.append(time("TIMESTAMP", XdbcDataType::XdbcTimestamp, 29, subcode));
    types.build()
}

/// The schema of the answer about primary keys, which no table has.
pub(super) fn primary_keys() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("catalog_name", DataType::Utf8, true),
        Field::new("db_schema_name", DataType::Utf8, true),
        Field::new("table_name", DataType::Utf8, false),
        Field::new("column_name", DataType::Utf8, false),
        Field::new("key_name", DataType::Utf8, true),
        Field::new("key_sequence", DataType::Int32, false),
    ]))
}

/// The schema of the answers about keys of other tables, which no table has.
pub(super) fn foreign_keys() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("pk_catalog_name", DataType::Utf8, true),
        Field::new("pk_db_schema_name", DataType::Utf8, true),
        Field::new("pk_table_name", DataType::Utf8, false),
        Field::new("pk_column_name", DataType::Utf8, false),
        Field::new("fk_catalog_name", DataType::Utf8, true),
        Field::new("fk_db_schema_name", DataType::Utf8, true),
        Field::new("fk_table_name", DataType::Utf8, false),
        Field::new("fk_column_name", DataType::Utf8, false),
        Field::new("key_sequence", DataType::Int32, false),
        Field::new("fk_key_name", DataType::Utf8, true),
        Field::new("pk_key_name", DataType::Utf8, true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ]))
}

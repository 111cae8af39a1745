//! The part of PostgreSQL's catalog that `psql` reads for `\d`, `\d TABLE`, `\dt`, `\di`, `\dv`, `\dn` and `\l`.
//!
//! ```text
//! psql ── query of pg_catalog ─▶ rewrite: types, functions and operators that DataFusion lacks ─▶ tables in memory
//!                                       └▶ no rows, if a table is joined that is always empty here
//! ```
//!
//! The crate datafusion-pg-catalog has more of it. It needs DataFusion with all default features, and the workspace would build
//! DataFusion twice.
//!
//! Source: PostgreSQL 18, chapter 52, "System Catalogs", and the queries that `psql -E` shows.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, Int32Array, RecordBatch, StringArray};
use datafusion::catalog::{MemorySchemaProvider, SchemaProvider};
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::TableType;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, JoinOperator,
    ObjectName, Query, Select, SelectItem, SetExpr, Statement as AstStatement, TableFactor, Value,
    visit_expressions_mut, visit_relations,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use pgwire::api::Type;
use pgwire::error::{PgWireError, PgWireResult};

use super::statement::user_error;
use super::values::type_of;

const CATALOG: &str = "pg_catalog";

/// Tables of the catalog that have no rows here: nothing of the kind exists.
const EMPTY: [&str; 14] = [
    "pg_attrdef",
    "pg_auth_members",
    "pg_collation",
    "pg_constraint",
    "pg_description",
    "pg_inherits",
    "pg_policy",
    "pg_proc",
    "pg_publication",
    "pg_publication_namespace",
    "pg_publication_rel",
    "pg_rewrite",
    "pg_statistic_ext",
    "pg_trigger",
];

/// Functions that return one row for no rows: a query with one of them is not without rows.
const AGGREGATES: [&str; 8] = ["array_agg", "avg", "bool_and", "bool_or", "count", "max", "min", "sum"];

/// The owner of all tables, and the identifiers of its role, of the schemas, and of the first table.
const OWNER: &str = "memferry";
const OWNER_OID: i32 = 10;
const SCHEMAS: [(&str, i32); 3] = [("pg_catalog", 11), ("public", 2200), ("information_schema", 13000)];
const PUBLIC_OID: i32 = 2200;
const FIRST_OID: i32 = 16384;

/// Types of columns, and their names in SQL.
const TYPES: [(Type, &str); 7] = [
    (Type::BOOL, "boolean"),
    (Type::INT2, "smallint"),
    (Type::INT4, "integer"),
    (Type::INT8, "bigint"),
    (Type::FLOAT4, "real"),
    (Type::FLOAT8, "double precision"),
    (Type::TEXT, "text"),
];

/// Adds the schema `pg_catalog`, which describes the tables of the schema `public`, to the catalog of a session.
///
/// # Errors
/// Those of DataFusion.
pub(super) async fn register(context: &SessionContext) -> Result<(), DataFusionError> {
    let catalog = context
        .catalog("datafusion")
        .ok_or_else(|| DataFusionError::Internal("the session has no catalog".to_owned()))?;
    let public = catalog.schema("public");
    let mut names = public.as_ref().map(|public| public.table_names()).unwrap_or_default();
    names.sort();
    let schema = MemorySchemaProvider::new();
    let mut classes = Vec::new();
    let mut attributes = Vec::new();
    for (oid, name) in (FIRST_OID..).zip(names) {
        let table = context.table_provider(name.as_str()).await?;
        for (number, field) in (1..).zip(table.schema().fields()) {
            attributes.push(Attribute {
                table: oid,
                name: field.name().clone(),
                type_oid: type_of(field.data_type()).oid() as i32,
                number,
                is_required: !field.is_nullable(),
            });
        }
        classes.push(Class {
            oid,
            name,
            kind: if table.table_type() == TableType::View { "v" } else { "r" },
        });
    }
    for (name, columns) in [
        ("pg_namespace", namespaces()),
        ("pg_class", classes_columns(&classes)),
        ("pg_attribute", attributes_columns(&attributes)),
        ("pg_database", databases()),
        // Joined from the left, and empty.
        ("pg_am", vec![("oid", numbers([])), ("amname", texts([]))]),
        ("pg_index", vec![("indexrelid", numbers([])), ("indrelid", numbers([]))]),
    ] {
        let rows = RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, values)| (name, values, true)),
        )?;
        let table = MemTable::try_new(rows.schema(), vec![vec![rows]])?;
        schema.register_table(name.to_owned(), Arc::new(table))?;
    }
    catalog.register_schema(CATALOG, Arc::new(schema))?;
    Ok(())
}

struct Class {
    oid: i32,
    name: String,
    kind: &'static str,
}

struct Attribute {
    table: i32,
    name: String,
    type_oid: i32,
    number: i32,
    is_required: bool,
}

type Columns = Vec<(&'static str, ArrayRef)>;

fn numbers(values: impl IntoIterator<Item = i32>) -> ArrayRef {
    Arc::new(Int32Array::from_iter_values(values))
}

fn texts<'a>(values: impl IntoIterator<Item = &'a str>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn truths(values: impl IntoIterator<Item = bool>) -> ArrayRef {
    Arc::new(BooleanArray::from_iter(values.into_iter().map(Some)))
}

fn namespaces() -> Columns {
    vec![
        ("oid", numbers(SCHEMAS.map(|(_, oid)| oid))),
        ("nspname", texts(SCHEMAS.map(|(name, _)| name))),
        ("nspowner", numbers(SCHEMAS.map(|_| OWNER_OID))),
    ]
}

fn classes_columns(classes: &[Class]) -> Columns {
    let number = |value: i32| numbers(classes.iter().map(|_| value));
    let text = |value: &'static str| texts(classes.iter().map(|_| value));
    let mut columns = vec![
        ("oid", numbers(classes.iter().map(|class| class.oid))),
        ("relname", texts(classes.iter().map(|class| class.name.as_str()))),
        ("relkind", texts(classes.iter().map(|class| class.kind))),
        ("relnamespace", number(PUBLIC_OID)),
        ("relowner", number(OWNER_OID)),
        ("relpersistence", text("p")),
        ("relreplident", text("n")),
    ];
    let zero = ["relam", "relchecks", "reloftype", "reltablespace", "reltoastrelid"];
    columns.extend(zero.map(|name| (name, number(0))));
    let no = [
        "relhasindex",
        "relhasrules",
        "relhastriggers",
        "relrowsecurity",
        "relforcerowsecurity",
        "relispartition",
    ];
    columns.extend(no.map(|name| (name, truths(classes.iter().map(|_| false)))));
    columns
}

fn attributes_columns(attributes: &[Attribute]) -> Columns {
    let mut columns = vec![
        ("attrelid", numbers(attributes.iter().map(|it| it.table))),
        ("attname", texts(attributes.iter().map(|it| it.name.as_str()))),
        ("atttypid", numbers(attributes.iter().map(|it| it.type_oid))),
        ("atttypmod", numbers(attributes.iter().map(|_| -1))),
        ("attnum", numbers(attributes.iter().map(|it| it.number))),
        ("attnotnull", truths(attributes.iter().map(|it| it.is_required))),
        ("attcollation", numbers(attributes.iter().map(|_| 0))),
    ];
    columns.extend(["attidentity", "attgenerated"].map(|name| (name, texts(attributes.iter().map(|_| "")))));
    columns
        .extend(["atthasdef", "attisdropped"].map(|name| (name, truths(attributes.iter().map(|_| false)))));
    columns
}

fn databases() -> Columns {
    let null = || -> ArrayRef { Arc::new(StringArray::from_iter([None::<&str>])) };
    let mut columns = vec![
        ("datname", texts(["datafusion"])),
        ("datdba", numbers([OWNER_OID])),
        ("encoding", numbers([6])),
        ("datcollate", texts(["C"])),
        ("datctype", texts(["C"])),
        ("datlocprovider", texts(["c"])),
    ];
    columns.extend(["daticulocale", "datlocale", "daticurules", "datacl"].map(|name| (name, null())));
    columns
}

/// Rewrites a query of the catalog as DataFusion can execute it, and returns whether it is one. Others are left as they are.
///
/// # Errors
/// An operator of PostgreSQL that is not supported.
pub(super) fn rewrite(statement: &mut SqlStatement) -> PgWireResult<bool> {
    let SqlStatement::Statement(statement) = statement else { return Ok(false) };
    let AstStatement::Query(query) = statement.as_mut() else { return Ok(false) };
    if !reads_catalog(query) {
        return Ok(false);
    }
    if has_no_rows(query) {
        let text = without_rows(query);
        **query = parser(&text).and_then(|mut parser| Ok(*parser.parse_query()?)).map_err(failed)?;
        return Ok(true);
    }
    match visit_expressions_mut(query, |expression| match rewritten(expression) {
        Ok(Some(new)) => {
            *expression = new;
            ControlFlow::Continue(())
        }
        Ok(None) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }) {
        ControlFlow::Continue(()) => Ok(true),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The error of a query of the catalog that has more of it than this module.
pub(super) fn incomplete(error: &DataFusionError) -> PgWireError {
    let text = format!(
        "{}; the catalog has what \\d, \\dt, \\dn and \\l of psql read: SHOW TABLES lists the tables, DESCRIBE TABLE_NAME the \
         columns of one",
        error.strip_backtrace()
    );
    user_error("0A000", text)
}

/// Whether a query names a table of the catalog.
fn reads_catalog(query: &Query) -> bool {
    let is_found = visit_relations(query, |name| match in_catalog(name) {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    });
    is_found.is_break()
}

/// The last part of a name in the schema of the catalog.
fn in_catalog(name: &ObjectName) -> Option<String> {
    let parts: Vec<String> =
        name.0.iter().filter_map(|part| Some(part.as_ident()?.value.to_lowercase())).collect();
    match &parts[..] {
        [schema, name] if schema == CATALOG => Some(name.clone()),
        _ => None,
    }
}

/// Whether a query joins a table that is always empty, so that it has no rows.
fn has_no_rows(query: &Query) -> bool {
    fn of_body(body: &SetExpr) -> bool {
        match body {
            SetExpr::Select(select) => of_select(select),
            SetExpr::Query(query) => of_body(&query.body),
            SetExpr::SetOperation { left, right, .. } => of_body(left) && of_body(right),
            _ => false,
        }
    }
    fn of_select(select: &Select) -> bool {
        let is_empty = |table: &TableFactor| {
            matches!(table, TableFactor::Table { name, .. }
                if in_catalog(name).is_some_and(|name| EMPTY.contains(&name.as_str())))
        };
        let is_inner = |operator: &JoinOperator| {
            matches!(operator, JoinOperator::Join(_) | JoinOperator::Inner(_) | JoinOperator::CrossJoin(_))
        };
        let is_joined = select.from.iter().any(|from| {
            let has_inner_only = from.joins.iter().all(|join| is_inner(&join.join_operator));
            let is_left = |operator: &JoinOperator| {
                matches!(operator, JoinOperator::Left(_) | JoinOperator::LeftOuter(_)) || is_inner(operator)
            };
            let is_kept = from.joins.iter().all(|join| is_left(&join.join_operator));
            (is_kept && is_empty(&from.relation))
                || (has_inner_only && from.joins.iter().any(|join| is_empty(&join.relation)))
        });
        is_joined && !select.projection.iter().any(is_aggregate)
    }
    of_body(&query.body)
}

/// Whether the expression of a column is an aggregate, or may hide one.
fn is_aggregate(item: &SelectItem) -> bool {
    match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
            let text = expr.to_string().to_lowercase();
            // Those of a subquery count for nothing in its outer query.
            !text.contains("select")
                && AGGREGATES.iter().any(|name| {
                    text.match_indices(&format!("{name}(")).any(|(at, _)| {
                        !text[..at].ends_with(|letter: char| letter == '_' || letter.is_alphanumeric())
                    })
                })
        }
        _ => true,
    }
}

/// A query with the columns of another one, and without rows.
fn without_rows(query: &Query) -> String {
    fn first(body: &SetExpr) -> &[SelectItem] {
        match body {
            SetExpr::Select(select) => &select.projection,
            SetExpr::Query(query) => first(&query.body),
            SetExpr::SetOperation { left, .. } => first(left),
            _ => &[],
        }
    }
    let mut names = HashSet::new();
    let column = |(index, item): (usize, &SelectItem)| {
        let mut name = match item {
            SelectItem::ExprWithAlias { alias, .. } => alias.value.clone(),
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => name.value.clone(),
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(names)) => {
                names.last().map(|name| name.value.clone()).unwrap_or_default()
            }
            _ => format!("column{}", index + 1),
        };
        if !names.insert(name.clone()) {
            // DataFusion wants different names.
            name = format!("{name} {}", index + 1);
        }
        format!("null as \"{}\"", name.replace('"', "\"\""))
    };
    let columns: Vec<String> = first(&query.body).iter().enumerate().map(column).collect();
    format!("select {} where false", columns.join(", "))
}

/// An expression in words of DataFusion; `None` if it is in them already.
fn rewritten(expression: &Expr) -> PgWireResult<Option<Expr>> {
    Ok(Some(match expression {
        Expr::Collate { expr, .. } => (**expr).clone(),
        Expr::BinaryOp { left, op: BinaryOperator::PGCustomBinaryOperator(names), right } => {
            let op = match names.last().map(String::as_str) {
                Some("~") => BinaryOperator::PGRegexMatch,
                Some("!~") => BinaryOperator::PGRegexNotMatch,
                Some("~*") => BinaryOperator::PGRegexIMatch,
                Some("=") => BinaryOperator::Eq,
                _ => {
                    let text = format!("the operator {} is not supported; use ~ or =", names.join("."));
                    return Err(user_error("0A000", text));
                }
            };
            Expr::BinaryOp { left: left.clone(), op, right: right.clone() }
        }
        Expr::Cast { kind, expr, data_type: DataType::Custom(name, _), array, format } => {
            match in_catalog(name).as_deref() {
                Some("text") => Expr::Cast {
                    kind: kind.clone(),
                    expr: expr.clone(),
                    data_type: DataType::Text,
                    array: *array,
                    format: format.clone(),
                },
                // Identifiers are numbers here.
                Some("oid" | "regclass" | "regnamespace" | "regtype") => (**expr).clone(),
                _ => return Ok(None),
            }
        }
        Expr::Function(function) => match in_catalog(&function.name) {
            Some(name) => return of_function(&name, function),
            None => return Ok(None),
        },
        Expr::Subquery(query) if has_no_rows(query) => null(),
        _ => return Ok(None),
    }))
}

/// A call of a function of the catalog.
fn of_function(name: &str, function: &Function) -> PgWireResult<Option<Expr>> {
    let first = match &function.args {
        FunctionArguments::List(list) => list.args.first().and_then(|argument| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
            _ => None,
        }),
        _ => None,
    };
    let is_access = first.is_some_and(|first| first.to_string().ends_with("acl"));
    Ok(Some(match name {
        "pg_table_is_visible" | "pg_function_is_visible" | "pg_type_is_visible" => {
            Expr::value(Value::Boolean(true))
        }
        "pg_get_userbyid" => text(OWNER),
        "pg_encoding_to_char" => text("UTF8"),
        "format_type" => {
            let names: String =
                TYPES.iter().map(|(of, name)| format!(" when {} then '{name}'", of.oid())).collect();
            let number = first.map(ToString::to_string).unwrap_or_default();
            let case = format!("case {number}{names} else '?' end");
            parser(&case).and_then(|mut parser| parser.parse_expr()).map_err(failed)?
        }
        // There are none: descriptions, defaults, sizes, rights.
        "pg_get_expr" | "obj_description" | "col_description" | "shobj_description" | "pg_size_pretty"
        | "pg_table_size" => null(),
        "array_to_string" | "array_length" if is_access => null(),
        // One of DataFusion, or an error that names it.
        _ => {
            let mut function = function.clone();
            function.name.0.drain(..function.name.0.len() - 1);
            Expr::Function(function)
        }
    }))
}

fn null() -> Expr {
    Expr::value(Value::Null)
}

fn text(text: &str) -> Expr {
    Expr::value(Value::SingleQuotedString(text.to_owned()))
}

fn parser(sql: &str) -> Result<Parser<'static>, datafusion::sql::sqlparser::parser::ParserError> {
    Parser::new(&GenericDialect {}).try_with_sql(sql)
}

fn failed(error: impl std::error::Error) -> PgWireError {
    user_error("XX000", format!("a query of the catalog cannot be rewritten: {error}; please report this"))
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn rewritten(sql: &str) -> String {
        let mut statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
        let is_of_catalog = rewrite(&mut statement).unwrap();
        assert_eq!(is_of_catalog, sql.contains("pg_catalog"), "{sql}");
        statement.to_string()
    }

    #[test]
    fn queries_that_join_an_empty_table_have_no_rows() {
        for (sql, has_rows) in [
            ("select polname from pg_catalog.pg_policy pol", false),
            (
                "select c.oid from pg_catalog.pg_class c, pg_catalog.pg_inherits i where c.oid = i.inhrelid",
                false,
            ),
            ("select 1 from pg_catalog.pg_class c join pg_catalog.pg_trigger t on c.oid = t.tgrelid", false),
            ("select 1 from pg_catalog.pg_policy p left join pg_catalog.pg_class c on true", false),
            ("select polname from pg_catalog.pg_policy union select 'x' from pg_catalog.pg_trigger", false),
            ("select polname from pg_catalog.pg_policy union select relname from pg_catalog.pg_class", true),
            ("select 1 from pg_catalog.pg_class c left join pg_catalog.pg_policy p on true", true),
            ("select 1 from pg_catalog.pg_policy p right join pg_catalog.pg_class c on true", true),
            ("select count(*) from pg_catalog.pg_policy", true),
            ("select 1 + max(polname) as m from pg_catalog.pg_policy", true),
        ] {
            assert_eq!(!rewritten(sql).to_lowercase().contains("where false"), has_rows, "{sql}");
        }
    }

    #[test]
    fn other_queries_are_left_as_they_are() {
        for sql in ["SELECT c0 FROM tbl_0 WHERE c0 = 1", "SELECT a ~ 'b' FROM t"] {
            assert_eq!(rewritten(sql), sql);
        }
    }

    #[test]
    fn words_of_postgresql_are_those_of_datafusion() {
        let sql = "select pg_catalog.format_type(a.atttypid, -1), pg_catalog.pg_get_userbyid(1), a.x::pg_catalog.regclass, \
                   pg_catalog.lower('A'), (select 1 from pg_catalog.pg_attrdef d where d.adrelid = a.attrelid) \
                   from pg_catalog.pg_attribute a where a.attname operator(pg_catalog.~) '^x$' collate pg_catalog.default";
        let expected = "SELECT CASE a.atttypid WHEN 16 THEN 'boolean' WHEN 21 THEN 'smallint' WHEN 23 THEN 'integer' \
                        WHEN 20 THEN 'bigint' WHEN 700 THEN 'real' WHEN 701 THEN 'double precision' WHEN 25 THEN 'text' \
                        ELSE '?' END, 'memferry', a.x, lower('A'), NULL \
                        FROM pg_catalog.pg_attribute AS a WHERE a.attname ~ '^x$'";
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&rewritten(sql)).replace("pg_attribute a ", "pg_attribute AS a "), words(expected));
        let mut statement =
            DFParser::parse_sql("select 1 operator(pg_catalog.<<) 2 from pg_catalog.pg_class")
                .unwrap()
                .pop_front()
                .unwrap();
        let error = rewrite(&mut statement).unwrap_err().to_string();
        assert!(error.contains("<<"), "{error}");
    }
}

//! One statement: SQL, or `LOAD TABLE`, which is ours.

use anyhow::Result;
use datafusion::common::TableReference;
use datafusion::common::config::ConfigExtension;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{LogicalPlan, Statement as PlanStatement, WriteOp};
use datafusion::sql::parser::{DFParser, Statement as SqlStatement};
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{Ident, Statement as AstStatement};
use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::parser::{IsOptional, Parser};
use datafusion::sql::sqlparser::tokenizer::Token;
use memferry_query::MemferryOptions;

use crate::error::usage;
use crate::query::explain_error;

/// A parsed statement.
#[derive(Debug)]
pub(super) enum Statement {
    Load(LoadTable),
    Sql(Box<SqlStatement>),
}

/// `LOAD TABLE name [COLUMNS (column, ...)] [IN BACKGROUND]`: brings a table into the memory of the home node.
#[derive(Debug, PartialEq)]
pub(super) struct LoadTable {
    pub(super) table: TableReference,
    /// `None`: all columns.
    pub(super) columns: Option<Vec<String>>,
    /// Whether the next statement need not wait.
    pub(super) in_background: bool,
}

/// Parses one statement in a dialect of `datafusion.sql_parser.dialect`.
pub(super) fn parse(text: &str, dialect: &str) -> Result<Statement> {
    // DataFusion accepts only dialects that its parser knows.
    let dialect = dialect_from_str(dialect).unwrap_or_else(|| Box::new(GenericDialect));
    if let Some(load) = parse_load(text, &*dialect)? {
        return Ok(Statement::Load(load));
    }
    let mut statements = DFParser::parse_sql_with_dialect(text, &*dialect).map_err(explain_error)?;
    match (statements.pop_front(), statements.len()) {
        (Some(statement), 0) => Ok(Statement::Sql(Box::new(without_prefix(statement)))),
        (None, _) => Err(usage("the statement is empty; write a query such as \"select 1\"")),
        _ => Err(usage("the statement has a semicolon in the middle; end each statement with one")),
    }
}

/// `SHOW memferry.x` as `SHOW x`: DataFusion lists the settings of extensions without their prefix.
fn without_prefix(mut statement: SqlStatement) -> SqlStatement {
    if let SqlStatement::Statement(sql) = &mut statement
        && let AstStatement::ShowVariable { variable } = &mut **sql
        && variable.len() > 1
        && variable[0].value.eq_ignore_ascii_case(MemferryOptions::PREFIX)
    {
        variable.remove(0);
    }
    statement
}

const LOAD_FORM: &str =
    "write LOAD TABLE name, or LOAD TABLE name COLUMNS (a, b); both may end with IN BACKGROUND";

fn parse_load(text: &str, dialect: &dyn Dialect) -> Result<Option<LoadTable>> {
    // Text that cannot even be cut into tokens is left to the parser of SQL, which says why.
    let Ok(mut parser) = Parser::new(dialect).try_with_sql(text) else { return Ok(None) };
    let word = |token: &Token, word: &str| token.to_string().eq_ignore_ascii_case(word);
    if !word(&parser.peek_token().token, "load") || !word(&parser.peek_nth_token(1).token, "table") {
        return Ok(None);
    }
    parser.next_token();
    parser.next_token();
    let mut rest = || -> Result<LoadTable, DataFusionError> {
        let table = object_name_to_table_reference(parser.parse_object_name(false)?, true)?;
        let mut columns = None;
        if word(&parser.peek_token().token, "columns") {
            parser.next_token();
            let listed = parser.parse_parenthesized_column_list(IsOptional::Mandatory, false)?;
            columns = Some(listed.into_iter().map(column_name).collect());
        }
        let in_background =
            word(&parser.peek_token().token, "in") && word(&parser.peek_nth_token(1).token, "background");
        if in_background {
            parser.next_token();
            parser.next_token();
        }
        parser.expect_token(&Token::EOF)?;
        Ok(LoadTable { table, columns, in_background })
    };
    rest().map(Some).map_err(|error| {
        let error = explain_error(error).to_string().replace("; fix it there", "");
        usage(format!("{error}; {LOAD_FORM}"))
    })
}

/// The name of a column: lower case unless quoted.
fn column_name(column: Ident) -> String {
    if column.quote_style.is_some() { column.value } else { column.value.to_ascii_lowercase() }
}

/// Refuses what would not work as its writer expects.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    let LogicalPlan::Dml(write) = plan else { return Ok(()) };
    let in_memory =
        source_as_provider(&write.target).is_ok_and(|provider| provider.downcast_ref::<MemTable>().is_some());
    if in_memory || write.op == WriteOp::Ctas {
        return Ok(());
    }
    let verb = write.op.name().to_uppercase();
    let verb = verb.split_whitespace().next().unwrap_or_default();
    Err(usage(format!(
        "{verb} works on tables made by CREATE TABLE only, and {} is not; write a file with COPY (SELECT ...) TO \
         'FILE.parquet', and register that",
        write.table_name
    )))
}

/// Whether a statement answers with rows.
pub(super) fn has_rows(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Ddl(_) => false,
        LogicalPlan::Statement(statement) => matches!(statement, PlanStatement::Execute(_)),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> LoadTable {
        match parse(text, "generic").unwrap() {
            Statement::Load(load) => load,
            Statement::Sql(sql) => panic!("{text} was read as {sql}"),
        }
    }

    #[test]
    fn load_table() {
        let all = |table: &str| LoadTable {
            table: TableReference::from(table),
            columns: None,
            in_background: false,
        };
        assert_eq!(load("LOAD TABLE trips"), all("trips"));
        assert_eq!(load("load\n table Trips -- all of it"), all("trips"));
        assert_eq!(load("load table public.trips"), all("public.trips"));
        assert_eq!(load("load table \"Trips\"").table, TableReference::bare("Trips"));
        let columns = load("load table t columns (A, \"B\", c)").columns;
        assert_eq!(columns, Some(vec!["a".to_owned(), "B".to_owned(), "c".to_owned()]));
        assert_eq!(load("load table t in Background"), LoadTable { in_background: true, ..all("t") });
        let some = load("load table t columns (a) in background");
        assert!(some.in_background && some.columns.is_some());
    }

    #[test]
    fn wrong_load_says_the_form() {
        for text in [
            "load table",
            "load table t columns",
            "load table t columns ()",
            "load table t columns (a",
            "load table t (a)",
            "load table t columns (a) where a > 1",
            "load table t in",
            "load table t in background columns (a)",
        ] {
            let error = parse(text, "generic").unwrap_err().to_string();
            assert!(error.contains("LOAD TABLE name COLUMNS (a, b)"), "{text}: {error}");
        }
    }

    #[test]
    fn other_statements_are_sql() {
        for text in
            ["select load from t", "show tables", "create external table t stored as parquet location 'x'"]
        {
            assert!(matches!(parse(text, "generic").unwrap(), Statement::Sql(_)), "{text}");
        }
        for text in ["selec 1", "select 'open", "", "select 1; select 2"] {
            assert!(parse(text, "generic").is_err(), "{text}");
        }
    }
}

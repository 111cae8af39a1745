//! One statement: SQL, or one of ours: `LOAD TABLE`, `REPLICATE TABLE`, `RESTORE TABLE`, `ALTER TABLE ... NUMA NODE`, `SHOW
//! PLACEMENT`, `SHOW READS`, `ADVISE PLACEMENT`.

use std::path::PathBuf;

use anyhow::Result;
use datafusion::common::TableReference;
use datafusion::common::config::ConfigExtension;
use datafusion::error::DataFusionError;
use datafusion::sql::parser::{DFParser, Statement as SqlStatement};
use datafusion::sql::planner::object_name_to_table_reference;
use datafusion::sql::sqlparser::ast::{Ident, Statement as AstStatement};
use datafusion::sql::sqlparser::dialect::{Dialect, GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::parser::{IsOptional, Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;
use memferry_query::{MemferryOptions, PackedColumns, PlacementError, TablePlacement};

use crate::error::usage;
use crate::query::explain_error;

pub(super) use memferry_session::statement::{check, has_rows};

/// A parsed statement.
#[derive(Debug)]
pub(super) enum Statement {
    Load(LoadTable),
    Replicate(ReplicateTable),
    Restore(RestoreTable),
    Place(PlaceTable),
    ShowPlacement(TableReference),
    /// `SHOW READS name`: the bytes that scans read at home.
    ShowReads(TableReference),
    Advise(AdvisePlacement),
    Sql(Box<SqlStatement>),
}

/// `LOAD TABLE name [COLUMNS (column, ...)] [PACKED [(column, ...)]] [PLACE placement] [IN BACKGROUND]`: brings a table into
/// memory.
#[derive(Debug, PartialEq)]
pub(super) struct LoadTable {
    pub(super) table: TableReference,
    /// `None`: all columns.
    pub(super) columns: Option<Vec<String>>,
    /// The columns that are bit-packed.
    pub(super) packed: PackedColumns,
    /// `None`: the one that the table was made with, or else the home node.
    pub(super) placement: Option<TablePlacement>,
    /// Whether the next statement need not wait.
    pub(super) in_background: bool,
}

/// `REPLICATE TABLE name TO 'file'`: writes a table in memory as the next version of a replica.
#[derive(Debug, PartialEq)]
pub(super) struct ReplicateTable {
    pub(super) table: TableReference,
    pub(super) path: PathBuf,
}

/// `RESTORE TABLE name FROM 'file' [PACKED [(column, ...)]] [PLACE placement]`: makes a table in memory of the newest version
/// of a replica.
#[derive(Debug, PartialEq)]
pub(super) struct RestoreTable {
    pub(super) table: TableReference,
    pub(super) path: PathBuf,
    /// The columns that are bit-packed.
    pub(super) packed: PackedColumns,
    /// `None`: the home node.
    pub(super) placement: Option<TablePlacement>,
}

/// `ALTER TABLE name placement [WITHIN n PERCENT] [IN BACKGROUND]`: moves rows of a table in memory to other nodes.
#[derive(Debug, PartialEq)]
pub(super) struct PlaceTable {
    pub(super) table: TableReference,
    pub(super) placement: TablePlacement,
    pub(super) how: Moving,
}

/// `ADVISE PLACEMENT name [MOVE [WITHIN n PERCENT] [IN BACKGROUND]]`: moves that would pay, and makes them.
#[derive(Debug, PartialEq)]
pub(super) struct AdvisePlacement {
    pub(super) table: TableReference,
    /// `None`: nothing is moved.
    pub(super) moving: Option<Moving>,
}

/// How rows are moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moving {
    /// Share of the bandwidths that the move takes.
    pub(super) share_percent: u8,
    /// Whether the next statement need not wait.
    pub(super) in_background: bool,
}

impl Default for Moving {
    fn default() -> Self {
        Moving { share_percent: 100, in_background: false }
    }
}

/// Parses one statement in a dialect of `datafusion.sql_parser.dialect`.
pub(super) fn parse(text: &str, dialect: &str) -> Result<Statement> {
    // DataFusion accepts only dialects that its parser knows.
    let dialect = dialect_from_str(dialect).unwrap_or_else(|| Box::new(GenericDialect));
    if let Some(statement) = parse_own(text, &*dialect)? {
        return Ok(statement);
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

const LOAD_FORM: &str = "write LOAD TABLE name, or LOAD TABLE name COLUMNS (a, b) PACKED (b) PLACE COLUMN a NUMA NODE (1); all \
                         may end with IN BACKGROUND";
const REPLICATE_FORM: &str = "write REPLICATE TABLE name TO 'FILE'";
const RESTORE_FORM: &str =
    "write RESTORE TABLE name FROM 'FILE'; it may end with PACKED (a), PLACE COLUMN a NUMA NODE (1), or both";
const PLACE_FORM: &str = "write ALTER TABLE name [COLUMN c] [ROWS a TO b] NUMA NODE (n, ...), ...; it may end with WITHIN n \
                          PERCENT, IN BACKGROUND or both";
const SHOW_FORM: &str = "write SHOW PLACEMENT name";
const READS_FORM: &str = "write SHOW READS name";
const ADVISE_FORM: &str = "write ADVISE PLACEMENT name; MOVE after it makes the moves, and may be followed by WITHIN n PERCENT, IN \
                           BACKGROUND or both";

/// Parses a statement that DataFusion does not know.
fn parse_own(text: &str, dialect: &dyn Dialect) -> Result<Option<Statement>> {
    // Text that cannot even be cut into tokens is left to the parser of SQL, which says why.
    let Ok(mut parser) = Parser::new(dialect).try_with_sql(text) else { return Ok(None) };
    let (statement, form) = if takes(&mut parser, &["load", "table"]) {
        (load(&mut parser).map(Statement::Load), LOAD_FORM)
    } else if takes(&mut parser, &["replicate", "table"]) {
        (replicate(&mut parser).map(Statement::Replicate), REPLICATE_FORM)
    } else if takes(&mut parser, &["restore", "table"]) {
        (restore(&mut parser).map(Statement::Restore), RESTORE_FORM)
    } else if takes(&mut parser, &["show", "placement"]) {
        (last_table(&mut parser).map(Statement::ShowPlacement), SHOW_FORM)
    } else if takes(&mut parser, &["show", "reads"]) {
        (last_table(&mut parser).map(Statement::ShowReads), READS_FORM)
    } else if takes(&mut parser, &["advise", "placement"]) {
        (advise(&mut parser).map(Statement::Advise), ADVISE_FORM)
    } else if takes(&mut parser, &["alter", "table"]) {
        let Ok(table) = table_name(&mut parser) else { return Ok(None) };
        if !["column", "rows", "numa"].iter().any(|word| is_word(&parser.peek_token().token, word)) {
            return Ok(None);
        }
        (place(&mut parser, table).map(Statement::Place), PLACE_FORM)
    } else {
        return Ok(None);
    };
    statement.map(Some).map_err(|error| {
        if error.is::<PlacementError>() {
            return usage(error);
        }
        let error = error.to_string().replace("; fix it there", "");
        usage(format!("{error}; {form}"))
    })
}

fn load(parser: &mut Parser<'_>) -> Result<LoadTable> {
    let table = table_name(parser)?;
    let columns = takes(parser, &["columns"]).then(|| column_names(parser)).transpose()?;
    let packed = packed(parser)?;
    let placement = takes(parser, &["place"]).then(|| placement(parser)).transpose()?;
    let in_background = ends_in_background(parser)?;
    Ok(LoadTable { table, columns, packed, placement, in_background })
}

fn replicate(parser: &mut Parser<'_>) -> Result<ReplicateTable> {
    let table = table_name(parser)?;
    let path = path(parser, "to")?;
    parser.expect_token(&Token::EOF).map_err(explain_parser)?;
    Ok(ReplicateTable { table, path })
}

fn restore(parser: &mut Parser<'_>) -> Result<RestoreTable> {
    let table = table_name(parser)?;
    let path = path(parser, "from")?;
    let packed = packed(parser)?;
    let placement = takes(parser, &["place"]).then(|| placement(parser)).transpose()?;
    parser.expect_token(&Token::EOF).map_err(explain_parser)?;
    Ok(RestoreTable { table, path, packed, placement })
}

/// A word and a path in single quotes.
fn path(parser: &mut Parser<'_>, word: &str) -> Result<PathBuf> {
    if !takes(parser, &[word]) {
        return Err(usage(format!(
            "{} where {} is expected",
            parser.peek_token().token,
            word.to_uppercase()
        )));
    }
    Ok(parser.parse_literal_string().map_err(explain_parser)?.into())
}

/// `[PACKED [(column, ...)]]`.
fn packed(parser: &mut Parser<'_>) -> Result<PackedColumns> {
    Ok(match takes(parser, &["packed"]) {
        true if parser.peek_token().token == Token::LParen => PackedColumns::Named(column_names(parser)?),
        true => PackedColumns::All,
        false => PackedColumns::None,
    })
}

fn place(parser: &mut Parser<'_>, table: TableReference) -> Result<PlaceTable> {
    let placement = placement(parser)?;
    Ok(PlaceTable { table, placement, how: moving(parser)? })
}

fn advise(parser: &mut Parser<'_>) -> Result<AdvisePlacement> {
    let table = table_name(parser)?;
    let moving = match takes(parser, &["move"]) {
        true => Some(moving(parser)?),
        false => None,
    };
    parser.expect_token(&Token::EOF).map_err(explain_parser)?;
    Ok(AdvisePlacement { table, moving })
}

/// `[WITHIN n PERCENT] [IN BACKGROUND]` and the end.
fn moving(parser: &mut Parser<'_>) -> Result<Moving> {
    let mut share_percent = Moving::default().share_percent;
    if takes(parser, &["within"]) {
        let number = parser.next_token().token.to_string();
        share_percent = match number.parse::<u8>() {
            Ok(share @ 1..=100) => share,
            _ => return Err(usage(format!("{number} is no share of 1 to 100 percent"))),
        };
        if !takes(parser, &["percent"]) {
            return Err(usage(format!("{} where PERCENT is expected", parser.peek_token().token)));
        }
    }
    Ok(Moving { share_percent, in_background: ends_in_background(parser)? })
}

fn last_table(parser: &mut Parser<'_>) -> Result<TableReference> {
    let table = table_name(parser)?;
    parser.expect_token(&Token::EOF).map_err(explain_parser)?;
    Ok(table)
}

/// Takes these words if they come next.
fn takes(parser: &mut Parser<'_>, words: &[&str]) -> bool {
    let come_next = (0..).zip(words).all(|(index, word)| is_word(&parser.peek_nth_token(index).token, word));
    if come_next {
        words.iter().for_each(|_| drop(parser.next_token()));
    }
    come_next
}

fn is_word(token: &Token, word: &str) -> bool {
    token.to_string().eq_ignore_ascii_case(word)
}

fn table_name(parser: &mut Parser<'_>) -> Result<TableReference> {
    let name = parser.parse_object_name(false).map_err(explain_parser)?;
    object_name_to_table_reference(name, true).map_err(explain_error)
}

/// The tokens up to the end, `WITHIN` or `IN BACKGROUND`, as a placement.
fn placement(parser: &mut Parser<'_>) -> Result<TablePlacement> {
    let mut text = String::new();
    loop {
        let is_in = is_word(&parser.peek_token().token, "in");
        if parser.peek_token().token == Token::EOF
            || is_word(&parser.peek_token().token, "within")
            || is_in && is_word(&parser.peek_nth_token(1).token, "background")
        {
            return Ok(text.parse()?);
        }
        match parser.next_token().token {
            // Dialects differ in their quotes.
            Token::Word(word) if word.quote_style.is_some() => {
                text += &format!("\"{}\" ", word.value.replace('"', "\"\""));
            }
            token => text += &format!("{token} "),
        }
    }
}

fn ends_in_background(parser: &mut Parser<'_>) -> Result<bool> {
    let in_background = takes(parser, &["in", "background"]);
    parser.expect_token(&Token::EOF).map_err(explain_parser)?;
    Ok(in_background)
}

fn explain_parser(error: ParserError) -> anyhow::Error {
    explain_error(DataFusionError::from(error))
}

/// The names of columns, in parentheses.
fn column_names(parser: &mut Parser<'_>) -> Result<Vec<String>> {
    let listed = parser.parse_parenthesized_column_list(IsOptional::Mandatory, false);
    Ok(listed.map_err(explain_parser)?.into_iter().map(column_name).collect())
}

/// The name of a column: lower case unless quoted.
fn column_name(column: Ident) -> String {
    if column.quote_style.is_some() { column.value } else { column.value.to_ascii_lowercase() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> LoadTable {
        match parse(text, "generic").unwrap() {
            Statement::Load(load) => load,
            other => panic!("{text} was read as {other:?}"),
        }
    }

    #[test]
    fn load_table() {
        let all = |table: &str| LoadTable {
            table: TableReference::from(table),
            columns: None,
            packed: PackedColumns::None,
            placement: None,
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
        let placed =
            load("load table t columns (a) place column a numa node (1), numa node (0) in background");
        let placement = "column a numa node (1), numa node (0)".parse().unwrap();
        assert_eq!((placed.placement, placed.in_background), (Some(placement), true));
        assert_eq!(load("load table t packed"), LoadTable { packed: PackedColumns::All, ..all("t") });
        let packed = load("load table t columns (a, b) packed (A, \"B\") place numa node (0)");
        assert_eq!(packed.packed, PackedColumns::Named(vec!["a".to_owned(), "B".to_owned()]));
        assert!(packed.columns.is_some() && packed.placement.is_some());
    }

    #[test]
    fn replicas_of_tables() {
        let table = TableReference::partial("public", "t");
        let replicate = ReplicateTable { table: table.clone(), path: "/mnt/pmem/It's t".into() };
        match parse("Replicate table public.T to '/mnt/pmem/It''s t'", "generic").unwrap() {
            Statement::Replicate(parsed) => assert_eq!(parsed, replicate),
            other => panic!("{other:?}"),
        }
        let restore = RestoreTable {
            table,
            path: "t.replica".into(),
            packed: PackedColumns::Named(vec!["a".to_owned()]),
            placement: Some("column a numa node (1)".parse().unwrap()),
        };
        let text = "restore table public.t from 't.replica' packed (A) place column a numa node (1)";
        match parse(text, "generic").unwrap() {
            Statement::Restore(parsed) => assert_eq!(parsed, restore),
            other => panic!("{other:?}"),
        }
        for (text, says) in [
            ("replicate table t", "EOF where TO is expected; write REPLICATE TABLE name TO 'FILE'"),
            ("replicate table t to file", "write REPLICATE TABLE"),
            ("replicate table t to 'file' place numa node (0)", "write REPLICATE TABLE"),
            ("restore table t to 'file'", "to where FROM is expected; write RESTORE TABLE"),
            ("restore table from 'file'", "write RESTORE TABLE"),
            ("restore table t from 'file' in background", "write RESTORE TABLE"),
            ("restore table t from 'file' place numa", "the end where NODE"),
        ] {
            let error = parse(text, "generic").unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn placements_of_tables() {
        let place = |text: &str, dialect: &str| match parse(text, dialect).unwrap() {
            Statement::Place(place) => place,
            other => panic!("{text} was read as {other:?}"),
        };
        let expected = PlaceTable {
            table: TableReference::partial("public", "t"),
            placement: "COLUMN \"B\" ROWS 0 TO 10 NUMA NODE (0, 1 WEIGHT 3) BY BANDWIDTH".parse().unwrap(),
            how: Moving::default(),
        };
        let text = "alter table public.t column \"B\" rows 0 to 10 numa node (0,1 weight 3) by bandwidth";
        assert_eq!(place(text, "generic"), expected);
        assert_eq!(place(&text.replace('"', "`"), "mysql"), expected);
        assert!(place("ALTER TABLE t NUMA NODE (0) IN BACKGROUND", "generic").how.in_background);
        let slow = Moving { share_percent: 25, in_background: true };
        assert_eq!(place("alter table t numa node (0) within 25 percent in background", "generic").how, slow);
        assert!(
            matches!(parse("show placement T", "generic").unwrap(), Statement::ShowPlacement(t) if t.table() == "t")
        );
        for (text, says) in [
            ("alter table t numa node 0", "0 where ("),
            ("alter table t numa node (0) in", "in where a comma"),
            ("alter table t column a", "the end where ROWS or NUMA NODE"),
            ("alter table t numa node (0) within 0 percent", "0 is no share of 1 to 100 percent"),
            ("alter table t numa node (0) within 25", "EOF where PERCENT is expected"),
            ("show placement", "SHOW PLACEMENT name"),
            ("show reads", "SHOW READS name"),
            ("advise placement", "ADVISE PLACEMENT name"),
            ("advise placement t within 25 percent", "ADVISE PLACEMENT name"),
            ("advise placement t move within 101 percent", "101 is no share of 1 to 100 percent"),
            ("show placement t where a > 1", "SHOW PLACEMENT name"),
            ("load table t place", "the end where COLUMN"),
        ] {
            let error = parse(text, "generic").unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn advice_about_placements() {
        let advise = |text: &str| match parse(text, "generic").unwrap() {
            Statement::Advise(advise) => advise,
            other => panic!("{text} was read as {other:?}"),
        };
        let table = TableReference::bare("t");
        let only = AdvisePlacement { table: table.clone(), moving: None };
        assert_eq!(advise("advise placement T"), only);
        assert_eq!(advise("ADVISE PLACEMENT t MOVE").moving, Some(Moving::default()));
        let slow = Moving { share_percent: 5, in_background: true };
        assert_eq!(advise("advise placement t move within 5 percent in background").moving, Some(slow));
        assert!(matches!(parse("show reads t", "generic").unwrap(), Statement::ShowReads(it) if it == table));
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
            "load table t packed ()",
            "load table t packed (a) columns (a)",
            "load table t in background columns (a)",
        ] {
            let error = parse(text, "generic").unwrap_err().to_string();
            assert!(error.contains("LOAD TABLE name COLUMNS (a, b)"), "{text}: {error}");
        }
    }

    #[test]
    fn other_statements_are_sql() {
        for text in [
            "select load from t",
            "show tables",
            "create external table t stored as parquet location 'x'",
            "alter table t add column c int",
        ] {
            assert!(matches!(parse(text, "generic").unwrap(), Statement::Sql(_)), "{text}");
        }
        for text in ["selec 1", "select 'open", "", "select 1; select 2"] {
            assert!(parse(text, "generic").is_err(), "{text}");
        }
    }
}

//! The statements that may run, and their errors.

use std::collections::VecDeque;

use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::{LogicalPlan, Statement};
use datafusion::sql::parser::{DFParser, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::Statement as AstStatement;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use pgwire::api::results::{Response, Tag};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};

/// Words and signs of the statements of a message. A sum of half as many numbers is planned by as many nested calls, and a stack
/// that overflows would end the server: in the development profile one of 64 MiB has room for 3000.
pub(super) const TOKENS_MAX: usize = 4000;

/// The statements of a message.
///
/// # Errors
/// A syntax error, COPY, or more than [`TOKENS_MAX`].
pub(super) fn parse(sql: &str) -> PgWireResult<VecDeque<SqlStatement>> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize();
    let tokens = tokens.map_err(|error| user_error("42601", error.to_string()))?;
    let (mut count, mut is_first) = (0, true);
    for token in tokens.iter().filter(|token| !matches!(token, Token::Whitespace(_))) {
        if is_first && matches!(token, Token::Word(word) if word.keyword == Keyword::COPY) {
            return Err(user_error(
                "0A000",
                "COPY is not supported; ask with SELECT, as psql does with --csv",
            ));
        }
        is_first = *token == Token::SemiColon;
        count += 1;
    }
    if count > TOKENS_MAX {
        let text = format!("{count} words and signs are too many, {TOKENS_MAX} are possible; ask in parts");
        return Err(user_error("54001", text));
    }
    DFParser::parse_sql(sql).map_err(explain)
}

/// Begins and ends of transactions, which drivers send around statements: here nothing is written.
pub(super) fn transaction(statement: &SqlStatement) -> Option<Response> {
    let SqlStatement::Statement(statement) = statement else { return None };
    match **statement {
        AstStatement::StartTransaction { .. } => Some(Response::TransactionStart(Tag::new("BEGIN"))),
        AstStatement::Commit { .. } => Some(Response::TransactionEnd(Tag::new("COMMIT"))),
        AstStatement::Rollback { .. } => Some(Response::TransactionEnd(Tag::new("ROLLBACK"))),
        _ => None,
    }
}

/// Refuses plans that write or change what other sessions see.
pub(super) fn check(plan: &LogicalPlan) -> PgWireResult<()> {
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false);
    options.verify_plan(plan).map_err(explain)?;
    if let LogicalPlan::Statement(Statement::SetVariable(set)) = plan
        && set.variable.starts_with("datafusion.runtime")
    {
        return Err(user_error(
            "42501",
            format!("{} is shared by all sessions and cannot be set", set.variable),
        ));
    }
    Ok(())
}

pub(super) fn explain(error: DataFusionError) -> PgWireError {
    let code = match error.find_root() {
        DataFusionError::SQL(..) => "42601",
        DataFusionError::Plan(_) | DataFusionError::SchemaError(..) => "42000",
        DataFusionError::NotImplemented(_) => "0A000",
        _ => "XX000",
    };
    user_error(code, error.strip_backtrace())
}

/// An error of the statement. Codes are those of PostgreSQL 18, appendix A.
pub(super) fn user_error(code: &str, text: impl Into<String>) -> PgWireError {
    PgWireError::UserError(Box::new(ErrorInfo::new("ERROR".to_owned(), code.to_owned(), text.into())))
}

/// A message that breaks the protocol.
pub(super) fn wrong_message(text: impl Into<String>) -> PgWireError {
    user_error("08P01", text)
}

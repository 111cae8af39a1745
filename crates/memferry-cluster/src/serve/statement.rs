//! Statements from their text to a plan: read-only unless the server allows updates.
//!
//! `?` stands for a parameter, as `$1` does: drivers of JDBC and ODBC send it. A statement must not nest so deeply that
//! planning, which is recursive, overflows its stack: that would end the server.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DataFusionError, ParamValues, ScalarValue};
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{DFParser, Statement as SqlStatement};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};
use memferry_session::error::sentence;
use memferry_session::{statement, stores};
use tonic::{Code, Status};

use super::error::{of_query, status};
use super::plain;

/// Operators of a statement. Each may nest the plan once more. With the 64 MiB of a query thread, a sum of 3200 numbers
/// overflows in the development profile.
const OPERATORS_MAX: usize = 1000;

/// A statement that can run.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// One plan, or one for each row of parameters.
    pub(super) plans: Vec<LogicalPlan>,
    /// Of the rows as they are sent.
    pub(super) schema: SchemaRef,
    /// For the log.
    pub(super) text: Arc<str>,
}

/// A statement whose parameters may be missing.
#[derive(Clone, Debug)]
pub(super) struct Parsed {
    plan: LogicalPlan,
    text: Arc<str>,
    /// Names of the parameters with their types, in order.
    parameters: Vec<(String, DataType)>,
}

/// Rules for statements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) updates: bool,
    /// For texts of errors.
    pub(super) memory_bytes: usize,
}

impl Parsed {
    /// Plans the text of a statement. Runs on a thread of planning: it reads directories of tables, and needs stack.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, `PERMISSION_DENIED` for an update that the server does not allow.
    pub(super) async fn of(context: &SessionContext, text: &str, rules: Rules) -> Result<Parsed, Status> {
        let failed = |error| of_query(error, rules.memory_bytes);
        let usable = with_numbered_parameters(text)?;
        let mut statements = DFParser::parse_sql_with_dialect(&usable, &GenericDialect {}).map_err(failed)?;
        let sql = match (statements.pop_front(), statements.len()) {
            (Some(statement), 0) => statement,
            (None, _) => return Err(wrong("the statement is empty; send one such as \"select 1\"")),
            _ => return Err(wrong("the text has several statements; send them one by one")),
        };
        if rules.updates {
            reach(context, &sql)?;
        }
        let plan = context.state().statement_to_plan(sql).await.map_err(failed)?;
        check(&plan, rules)?;
        let mut parameters: Vec<(String, DataType)> = plan
            .get_parameter_types()
            .map_err(failed)?
            .into_iter()
            .map(|(name, data_type)| (name, data_type.map_or(DataType::Utf8, |it| plain::data_type(&it))))
            .collect();
        parameters.sort_by_key(|(name, _)| (number(name), name.clone()));
        Ok(Parsed { plan, text: text.into(), parameters })
    }

    /// The schema of its rows, as they are sent.
    pub(super) fn schema(&self) -> SchemaRef {
        plain::schema(self.plan.schema().as_arrow())
    }

    /// The parameters as columns.
    pub(super) fn parameter_schema(&self) -> Schema {
        let field = |(name, data_type): &(String, DataType)| Field::new(name, data_type.clone(), true);
        Schema::new(self.parameters.iter().map(field).collect::<Vec<_>>())
    }

    /// The statement, once for each row of its parameters.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: parameters are missing, or there are too many.
    pub(super) fn with_parameters(&self, rows: &[RecordBatch], rules: Rules) -> Result<Planned, Status> {
        let failed = |error| of_query(error, rules.memory_bytes);
        let mut plans = Vec::new();
        if self.parameters.is_empty() && rows.iter().all(|batch| batch.num_columns() == 0) {
            plans.push(self.plan.clone());
        } else {
            for batch in rows {
                self.check_columns(batch.num_columns())?;
                for row in 0..batch.num_rows() {
                    let values = self.values(batch, row).map_err(failed)?;
                    let plan = self.plan.clone().replace_params_with_values(&values).map_err(failed)?;
                    plans.push(plan.recompute_schema().map_err(failed)?);
                }
            }
            if plans.is_empty() {
                self.check_columns(0)?;
            }
        }
        let schema = match plans.first() {
            Some(plan) => plain::schema(plan.schema().as_arrow()),
            None => self.schema(),
        };
        Ok(Planned { plans, schema, text: Arc::clone(&self.text) })
    }

    fn check_columns(&self, count: usize) -> Result<(), Status> {
        if count == self.parameters.len() {
            return Ok(());
        }
        Err(wrong(format!(
            "the statement has {} parameters, and {count} were sent; bind a value to each",
            self.parameters.len()
        )))
    }

    /// Values by position for `$1` and so on, by name for `$name`.
    fn values(&self, batch: &RecordBatch, row: usize) -> Result<ParamValues, DataFusionError> {
        let mut values = Vec::with_capacity(self.parameters.len());
        for (index, (name, _)) in self.parameters.iter().enumerate() {
            let value = ScalarValue::try_from_array(batch.column(index), row)?;
            values.push((name.trim_start_matches('$').to_owned(), value));
        }
        let is_numbered = |(index, (name, _)): (usize, &(String, DataType))| number(name) == Some(index + 1);
        if self.parameters.iter().enumerate().all(is_numbered) {
            return Ok(values.into_iter().map(|(_, value)| value).collect::<Vec<_>>().into());
        }
        Ok(values.into())
    }
}

/// The number of a parameter such as `$2`.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix('$')?.parse().ok()
}

fn wrong(text: impl Into<String>) -> Status {
    status(Code::InvalidArgument, text)
}

/// Connects the stores that a statement names.
fn reach(context: &SessionContext, sql: &SqlStatement) -> Result<(), Status> {
    stores::reach_locations(context, sql).map_err(|error| wrong(sentence(&error)))
}

/// Refuses what the server does not do.
fn check(plan: &LogicalPlan, rules: Rules) -> Result<(), Status> {
    let settings = SQLOptions::new().with_allow_statements(false);
    if settings.verify_plan(plan).is_err() {
        return Err(status(
            Code::PermissionDenied,
            "settings, transactions and PREPARE belong to one client, and this session serves all; use the options of \
             memferry serve, and the prepared statements of the client's library",
        ));
    }
    let reading = settings.with_allow_ddl(false).with_allow_dml(false);
    if !rules.updates && reading.verify_plan(plan).is_err() {
        return Err(status(
            Code::PermissionDenied,
            "this server only reads: statements that create, change or write something are refused; start it with \
             --updates to allow them",
        ));
    }
    statement::check(plan).map_err(|error| wrong(sentence(&error)))
}

/// The text with `$1`, `$2` and so on for each `?`.
fn with_numbered_parameters(text: &str) -> Result<Cow<'_, str>, Status> {
    // Text that cannot be cut into tokens is left to the parser, which says why.
    let Ok(tokens) = Tokenizer::new(&GenericDialect {}, text).tokenize_with_location() else {
        return Ok(Cow::Borrowed(text));
    };
    if tokens.iter().filter(|token| nests(&token.token)).count() > OPERATORS_MAX {
        return Err(wrong(format!(
            "the statement has more than {OPERATORS_MAX} operators, and would nest too deeply; write long conditions with IN \
             or a join"
        )));
    }
    let marks = tokens.iter().filter(|it| matches!(&it.token, Token::Placeholder(name) if name == "?"));
    let marks: Vec<Location> = marks.map(|TokenWithSpan { span, .. }| span.start).collect();
    if marks.is_empty() {
        return Ok(Cow::Borrowed(text));
    }
    let has_numbers = |it: &TokenWithSpan| matches!(&it.token, Token::Placeholder(name) if name != "?");
    if tokens.iter().any(has_numbers) {
        return Err(wrong("the statement has parameters with and without names; write ? or $1, not both"));
    }
    let (mut numbered, mut next) = (String::with_capacity(text.len() + 4 * marks.len()), 0);
    let (mut line, mut column) = (1, 1);
    for letter in text.chars() {
        if marks.get(next).is_some_and(|mark| (mark.line, mark.column) == (line, column)) {
            next += 1;
            numbered.push_str(&format!("${next}"));
        } else {
            numbered.push(letter);
        }
        // As the tokenizer counts.
        (line, column) = if letter == '\n' { (line + 1, 1) } else { (line, column + 1) };
    }
    Ok(Cow::Owned(numbered))
}

/// Whether a token may nest the plan once more.
fn nests(token: &Token) -> bool {
    match token {
        Token::Word(word) => matches!(
            word.keyword,
            Keyword::AND
                | Keyword::OR
                | Keyword::NOT
                | Keyword::UNION
                | Keyword::INTERSECT
                | Keyword::EXCEPT
                | Keyword::MINUS
                | Keyword::JOIN
                | Keyword::APPLY
                | Keyword::IS
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::SIMILAR
                | Keyword::BETWEEN
                | Keyword::AT
                | Keyword::COLLATE
                | Keyword::DIV
                | Keyword::XOR
                | Keyword::SELECT
                | Keyword::CASE
                | Keyword::WHEN
        ),
        // Chains of these do not nest: lists, names, statements.
        Token::Comma | Token::Period | Token::SemiColon | Token::RParen | Token::RBracket | Token::RBrace => {
            false
        }
        Token::Whitespace(_)
        | Token::Number(..)
        | Token::Char(_)
        | Token::SingleQuotedString(_)
        | Token::DoubleQuotedString(_)
        | Token::Placeholder(_)
        | Token::EOF => false,
        // A list of rows has one pair for each.
        Token::LParen => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, Int64Array};

    use super::*;

    fn numbered(text: &str) -> String {
        with_numbered_parameters(text).unwrap().into_owned()
    }

    #[test]
    fn question_marks_get_numbers() {
        assert_eq!(numbered("select ? + ?"), "select $1 + $2");
        assert_eq!(numbered("select 'é?' -- ?\n, \"?\", ?"), "select 'é?' -- ?\n, \"?\", $1");
        assert_eq!(numbered("select '''?', ?"), "select '''?', $1");
        assert_eq!(numbered("select $1"), "select $1");
        assert_eq!(numbered("select 'open ?"), "select 'open ?");
        assert!(with_numbered_parameters("select ?, $1").is_err());
    }

    #[test]
    fn deep_statements_are_refused() {
        for (first, more) in [("1", " + 1"), ("true", " and true"), ("1", " || 'x'"), ("1", "::int")] {
            let text = |count| format!("select {first}{}", more.repeat(count));
            assert!(with_numbered_parameters(&text(OPERATORS_MAX - 2)).is_ok(), "{more}");
            assert!(with_numbered_parameters(&text(OPERATORS_MAX + 1)).is_err(), "{more}");
        }
        let unions = vec!["select 1"; OPERATORS_MAX].join(" union all ");
        assert!(with_numbered_parameters(&unions).is_err());
        let rows = vec!["(1, 2)"; 10 * OPERATORS_MAX].join(", ");
        assert!(with_numbered_parameters(&format!("values {rows}")).is_ok());
    }

    const READING: Rules = Rules { updates: false, memory_bytes: 1 << 20 };

    #[tokio::test]
    async fn parameters_have_types_and_rows() {
        let context = SessionContext::new();
        context.sql("create table t as values (1, 'a')").await.unwrap().collect().await.unwrap();
        let text = "select column1 from t where column1 > ? and column2 = ?";
        let parsed = Parsed::of(&context, text, READING).await.unwrap();
        let schema = parsed.parameter_schema();
        let types: Vec<_> =
            schema.fields().iter().map(|it| (it.name().as_str(), it.data_type().clone())).collect();
        assert_eq!((types[0].0, types[1].0), ("$1", "$2"));
        assert_eq!(types[0].1, DataType::Int64);
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let one = RecordBatch::try_from_iter([("a", Arc::clone(&numbers))]).unwrap();
        let error = parsed.with_parameters(&[one], READING).unwrap_err();
        assert!(error.message().contains("has 2 parameters, and 1 were sent"), "{error}");
        assert!(parsed.with_parameters(&[], READING).is_err());
        let two = RecordBatch::try_from_iter([("a", Arc::clone(&numbers)), ("b", numbers)]).unwrap();
        assert_eq!(parsed.with_parameters(&[two], READING).unwrap().plans.len(), 2);
    }

    #[tokio::test]
    async fn updates_are_refused_unless_allowed() {
        let context = SessionContext::new();
        let writing = Rules { updates: true, ..READING };
        for text in ["create table u as values (1)", "explain analyze copy (select 1) to '/tmp/x.parquet'"] {
            let error = Parsed::of(&context, text, READING).await.unwrap_err();
            assert_eq!(error.code(), Code::PermissionDenied, "{text}");
            Parsed::of(&context, text, writing).await.unwrap();
        }
        let error =
            Parsed::of(&context, "set datafusion.execution.batch_size = 1", writing).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied);
        for text in ["", "select 1; select 2", "selec 1", "select a from nowhere"] {
            let error = Parsed::of(&context, text, writing).await.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{text}");
        }
    }
}

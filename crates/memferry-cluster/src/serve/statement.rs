//! Statements from their text to a plan: read-only unless the server allows updates.
//!
//! `?` stands for a parameter, as `$1` does: drivers of JDBC and ODBC send it. A statement must not nest so deeply that
//! planning, which is recursive, overflows its stack, nor read so many tables that its plan takes all memory: that would
//! end the server.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DataFusionError, ParamValues, ScalarValue};
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{CopyToSource, DFParser, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::{Query, TableFactor, Visit, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};
use memferry_session::error::sentence;
use memferry_session::{statement, stores};
use tonic::{Code, Status};

use super::error::{of_query, status};
use super::plain;
use super::proven::Proven;

/// Operators of a statement. Each may nest the plan once more. With the 64 MiB of a query thread, a sum of 3200 numbers
/// overflows in the development profile.
const OPERATORS_MAX: usize = 1000;

/// Tables of a statement. Each join has a schema with the columns of all tables before: with 300 tables of 16 columns,
/// planning takes 30 s and 0.5 GiB on 2 cores.
const TABLES_MAX: usize = 300;

/// A statement that can run.
#[derive(Debug)]
pub(super) struct Planned {
    statement: Arc<Parsed>,
    /// Rows of parameters; empty if the statement has none.
    rows: Vec<RecordBatch>,
    /// Of the rows as they are sent.
    pub(super) schema: SchemaRef,
}

/// A statement whose parameters may be missing.
#[derive(Debug)]
pub(super) struct Parsed {
    plan: Proven<LogicalPlan>,
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
        check_tables(&sql)?;
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
        Ok(Parsed { plan: Proven::new(plan), text: text.into(), parameters })
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

    /// The statement with its rows of parameters. Runs on a thread of planning if there are any: it needs stack.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: parameters are missing, there are too many, or they have wrong types.
    pub(super) fn with_parameters(
        self: Arc<Self>,
        rows: Vec<RecordBatch>,
        rules: Rules,
    ) -> Result<Planned, Status> {
        let schema = self.schema();
        if self.parameters.is_empty() && rows.iter().all(|batch| batch.num_columns() == 0) {
            return Ok(Planned { statement: self, rows: Vec::new(), schema });
        }
        for batch in &rows {
            self.check_columns(batch.num_columns())?;
        }
        let mut planned = Planned { statement: self, rows, schema };
        // All rows have the same types.
        let Some(first) = planned.bound().next() else {
            planned.statement.check_columns(0)?;
            return Ok(planned);
        };
        let first = first.map_err(|error| of_query(error, rules.memory_bytes))?;
        planned.schema = plain::schema(first.schema().as_arrow());
        Ok(planned)
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

impl Planned {
    /// One plan, or one for each row of parameters. Each is made when it is asked for: it may be large.
    pub(super) fn plans(&self) -> impl Iterator<Item = Result<LogicalPlan, DataFusionError>> + Send {
        let without_parameters = self.rows.is_empty().then(|| Ok(LogicalPlan::clone(&self.statement.plan)));
        without_parameters.into_iter().chain(self.bound())
    }

    /// A plan for each row of parameters.
    fn bound(&self) -> impl Iterator<Item = Result<LogicalPlan, DataFusionError>> + Send {
        let statement = &*self.statement;
        self.rows.iter().flat_map(|batch| {
            (0..batch.num_rows()).map(|row| {
                let values = statement.values(batch, row)?;
                LogicalPlan::clone(&statement.plan).replace_params_with_values(&values)?.recompute_schema()
            })
        })
    }

    /// For the log.
    pub(super) fn text(&self) -> &Arc<str> {
        &self.statement.text
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
    if tokens.iter().filter(|token| nests(&token.token)).count() > OPERATORS_MAX
        || brackets_depth(&tokens) > OPERATORS_MAX
    {
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
                | Keyword::RLIKE
                | Keyword::REGEXP
                | Keyword::IN
                | Keyword::BETWEEN
                | Keyword::OVERLAPS
                | Keyword::MEMBER
                | Keyword::OPERATOR
                | Keyword::AT
                | Keyword::COLLATE
                | Keyword::DIV
                | Keyword::XOR
                | Keyword::SELECT
                | Keyword::CASE
                | Keyword::WHEN
                | Keyword::INTERVAL
                | Keyword::EXPLAIN
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

/// How many brackets are open at most: the parser of types follows them without a limit.
fn brackets_depth(tokens: &[TokenWithSpan]) -> usize {
    let (mut depth, mut depth_max) = (0_usize, 0);
    for token in tokens {
        match token.token {
            Token::LParen | Token::LBracket | Token::LBrace => depth += 1,
            Token::RParen | Token::RBracket | Token::RBrace => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth_max = depth_max.max(depth);
    }
    depth_max
}

/// Refuses a statement with too many tables.
fn check_tables(sql: &SqlStatement) -> Result<(), Status> {
    fn visit(sql: &SqlStatement, tables: &mut TablesCount) -> ControlFlow<()> {
        match sql {
            SqlStatement::Statement(sql) => sql.visit(tables),
            SqlStatement::Explain(explain) => visit(&explain.statement, tables),
            SqlStatement::CopyTo(copy) => match &copy.source {
                CopyToSource::Query(query) => query.visit(tables),
                CopyToSource::Relation(_) => ControlFlow::Continue(()),
            },
            SqlStatement::CreateExternalTable(_) | SqlStatement::Reset(_) => ControlFlow::Continue(()),
        }
    }
    match visit(sql, &mut TablesCount::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(wrong(format!(
            "the statement reads more than {TABLES_MAX} tables, with those of each WITH query as often as it is used; split \
             it, or write the tables into one"
        ))),
    }
}

/// Counts the tables of a statement. The planner puts a WITH query wherever it is used.
#[derive(Default)]
struct TablesCount {
    count: usize,
    /// Tables of each WITH query, by its name in lower case. Names are not scoped: the largest query of a name counts.
    of_queries: HashMap<String, usize>,
    /// The names of WITH queries that were not visited yet, by their address.
    names: HashMap<usize, String>,
    /// The count at the begin of each query around.
    begins: Vec<usize>,
}

impl TablesCount {
    fn add(&mut self, count: usize) -> ControlFlow<()> {
        self.count = self.count.saturating_add(count);
        if self.count > TABLES_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Visitor for TablesCount {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.begins.push(self.count);
        let queries = query.with.as_ref().map_or(&[][..], |with| &with.cte_tables);
        for query in queries {
            let name = query.alias.name.value.to_lowercase();
            self.names.insert(std::ptr::from_ref(&*query.query).addr(), name);
        }
        self.add(queries.len())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        let count = self.count - self.begins.pop().unwrap_or_default();
        if let Some(name) = self.names.remove(&std::ptr::from_ref(query).addr()) {
            let largest = self.of_queries.entry(name).or_insert(1);
            *largest = count.max(*largest);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        let name = match factor {
            TableFactor::Table { name, .. } => name.0.first().and_then(|part| part.as_ident()),
            _ => None,
        };
        let of_query = name.and_then(|name| self.of_queries.get(&name.value.to_lowercase()));
        self.add(of_query.copied().unwrap_or(1))
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
        for (first, more) in [
            ("1", " + 1"),
            ("true", " and true"),
            ("1", " || 'x'"),
            ("1", "::int"),
            ("1", " in (1)"),
            ("'a'", " rlike 'a'"),
            ("'a'", " regexp 'a'"),
            ("1", " member of (1)"),
            ("1", " overlaps 1"),
            ("1", " operator(x) 1"),
            ("a", "[1]"),
            ("1", ", interval '1 day'"),
        ] {
            let text = |count| format!("select {first}{}", more.repeat(count));
            assert!(with_numbered_parameters(&text(OPERATORS_MAX - 2)).is_ok(), "{more}");
            assert!(with_numbered_parameters(&text(OPERATORS_MAX + 1)).is_err(), "{more}");
        }
        let unions = vec!["select 1"; OPERATORS_MAX].join(" union all ");
        assert!(with_numbered_parameters(&unions).is_err());
        let rows = vec!["(1, 2)"; 10 * OPERATORS_MAX].join(", ");
        assert!(with_numbered_parameters(&format!("values {rows}")).is_ok());
        let brackets = |count| format!("select {}1{}", "f(".repeat(count), ")".repeat(count));
        assert!(with_numbered_parameters(&brackets(OPERATORS_MAX)).is_ok());
        assert!(with_numbered_parameters(&brackets(OPERATORS_MAX + 1)).is_err());
    }

    #[test]
    fn statements_with_many_tables_are_refused() {
        let check = |text: &str| {
            let mut statements = DFParser::parse_sql_with_dialect(text, &GenericDialect {}).unwrap();
            check_tables(&statements.pop_front().unwrap())
        };
        let tables = |count| vec!["t"; count].join(", ");
        assert!(check(&format!("select 1 from {}", tables(TABLES_MAX))).is_ok());
        for around in ["select 1 from", "explain select 1 from", "insert into t select 1 from"] {
            assert!(check(&format!("{around} {}", tables(TABLES_MAX + 1))).is_err(), "{around}");
        }
        assert!(check(&format!("copy (select 1 from {}) to 'x'", tables(TABLES_MAX + 1))).is_err());
        // Each query has the tables of the one before twice.
        let doubled = |count: usize| {
            let queries = (1..count).map(|it| format!("q{it} as (select 1 from q{}, Q{})", it - 1, it - 1));
            let queries = std::iter::once("q0 as (select 1)".to_owned()).chain(queries);
            format!("with {} select 1 from q{}", queries.collect::<Vec<_>>().join(", "), count - 1)
        };
        assert!(check(&doubled(7)).is_ok());
        assert!(check(&doubled(8)).is_err());
        // A query of the same name further in changes nothing.
        let inner = "with q as (select 1) select 1 from q";
        let text =
            format!("with q as (select 1 from {}) select 1 from ({inner}), q, q", tables(TABLES_MAX / 2));
        assert!(check(&text).is_err());
    }

    const READING: Rules = Rules { updates: false, memory_bytes: 1 << 20 };

    #[tokio::test]
    async fn parameters_have_types_and_rows() {
        let context = SessionContext::new();
        context.sql("create table t as values (1, 'a')").await.unwrap().collect().await.unwrap();
        let text = "select column1 from t where column1 > ? and column2 = ?";
        let parsed = Arc::new(Parsed::of(&context, text, READING).await.unwrap());
        let with = |rows| Arc::clone(&parsed).with_parameters(rows, READING);
        let schema = parsed.parameter_schema();
        let types: Vec<_> =
            schema.fields().iter().map(|it| (it.name().as_str(), it.data_type().clone())).collect();
        assert_eq!((types[0].0, types[1].0), ("$1", "$2"));
        assert_eq!(types[0].1, DataType::Int64);
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let one = RecordBatch::try_from_iter([("a", Arc::clone(&numbers))]).unwrap();
        let error = with(vec![one]).unwrap_err();
        assert!(error.message().contains("has 2 parameters, and 1 were sent"), "{error}");
        assert!(with(vec![]).is_err());
        let two = RecordBatch::try_from_iter([("a", Arc::clone(&numbers)), ("b", numbers)]).unwrap();
        assert!(with(vec![two.slice(0, 0)]).is_err());
        let planned = with(vec![two.clone(), two]).unwrap();
        assert_eq!(planned.plans().map(Result::unwrap).count(), 4);
        let without = Parsed::of(&context, "select 1", READING).await.unwrap();
        assert_eq!(Arc::new(without).with_parameters(vec![], READING).unwrap().plans().count(), 1);
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

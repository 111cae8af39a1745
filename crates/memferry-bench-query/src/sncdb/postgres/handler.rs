//! One connection: its session and its statements.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::LogicalPlan;
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::Statement as AstStatement;
use futures::{Sink, SinkExt, StreamExt};
use pgwire::api::auth::StartupHandler;
use pgwire::api::auth::noop::NoopStartupHandler;
use pgwire::api::cancel::{CancelHandler, DefaultCancelHandler};
use pgwire::api::portal::{Format, Portal, PortalExecutionState};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler, send_partial_query_response};
use pgwire::api::results::{FieldInfo, Response, Tag};
use pgwire::api::stmt::QueryParser;
use pgwire::api::store::{Entry, PortalStore};
use pgwire::api::{
    ClientInfo, ClientPortalStore, ConnectionHandle, ConnectionManager, DEFAULT_NAME, PgWireConnectionState,
    PgWireServerHandlers, Type,
};
use pgwire::error::{PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::extendedquery::Execute;
use pgwire::messages::response::TransactionStatus;
use tokio::net::TcpStream;
use tokio::runtime::Handle;

use super::super::server::{Prepared, Session, Sessions};
use super::catalog;
use super::cursor::{Cursor, CursorStatement, Cursors};
use super::query::{self, Begun, Stop, gone};
use super::statement::{check, explain, parse, transaction, user_error};
use super::values::{fields_of, parameters, type_of};

/// Rows that a client can ask for at once. pgwire allocates a list of as many as it is told.
const ROWS_AT_ONCE_MAX: i32 = 100_000;

/// The connection of one client.
pub(super) struct Handler {
    workers: Handle,
    sessions: Sessions,
    /// Opened by the first statement: a client that sends none, or garbage, needs none.
    session: OnceLock<Session>,
    /// Another descriptor of the socket, to be looked at only.
    watched: Arc<TcpStream>,
    manager: Arc<ConnectionManager>,
    cursors: Mutex<Cursors>,
}

/// What pgwire asks of a connection.
pub(super) struct Handlers(pub(super) Arc<Handler>);

impl PgWireServerHandlers for Handlers {
    fn simple_query_handler(&self) -> Arc<impl SimpleQueryHandler> {
        Arc::clone(&self.0)
    }

    fn extended_query_handler(&self) -> Arc<impl ExtendedQueryHandler> {
        Arc::new(Extended(Arc::clone(&self.0)))
    }

    fn startup_handler(&self) -> Arc<impl StartupHandler> {
        Arc::clone(&self.0)
    }

    fn cancel_handler(&self) -> Arc<impl CancelHandler> {
        Arc::new(DefaultCancelHandler::new(Arc::clone(&self.0.manager)))
    }
}

impl Handler {
    pub(super) fn new(
        workers: Handle,
        sessions: Sessions,
        watched: TcpStream,
        manager: Arc<ConnectionManager>,
    ) -> Handler {
        let (session, watched, cursors) = (OnceLock::new(), Arc::new(watched), Mutex::default());
        Handler { workers, sessions, session, watched, manager, cursors }
    }

    fn cursors(&self) -> MutexGuard<'_, Cursors> {
        // Each change is complete.
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A statement that may run here, prepared.
    async fn prepare(&self, mut statement: SqlStatement) -> PgWireResult<Prepared> {
        if CursorStatement::of(&statement)?.is_some() {
            return Err(user_error(
                "0A000",
                "cursors of SQL need the simple protocol; bind the query itself and fetch its rows in parts",
            ));
        }
        let is_of_catalog = catalog::rewrite(&mut statement)?;
        let session = self.session.get_or_init(|| self.sessions.open()).clone();
        let prepare = async move {
            let plan = session.context.state().statement_to_plan(statement).await;
            let plan = plan.map_err(|error| match is_of_catalog {
                true => catalog::incomplete(&error),
                false => explain(error),
            })?;
            check(&plan)?;
            session.optimise(&plan).map_err(explain)
        };
        query::on(&self.workers, prepare).await
    }

    /// Begins a query, and waits for its first rows as long as the client is there.
    async fn begin(&self, prepared: Prepared, values: Vec<ScalarValue>) -> PgWireResult<Begun> {
        tokio::select! {
            begun = Begun::begin(&self.workers, prepared, values) => begun,
            () = gone(Arc::clone(&self.watched)) => Err(PgWireError::QueryCanceled),
        }
    }

    /// The answers to a simple query; `is_in_transaction` says whether a transaction has begun before.
    async fn answers(&self, query: &str, mut is_in_transaction: bool) -> PgWireResult<Vec<Answer>> {
        let mut answers = Vec::new();
        for statement in parse(query)? {
            answers.push(self.answer(statement, &mut is_in_transaction).await?);
        }
        Ok(answers)
    }

    /// The answer to a statement of a simple query; `is_in_transaction` says whether one has begun.
    async fn answer(&self, statement: SqlStatement, is_in_transaction: &mut bool) -> PgWireResult<Answer> {
        if let Some(response) = transaction(&statement) {
            *is_in_transaction = matches!(response, Response::TransactionStart(_));
            if !*is_in_transaction {
                self.cursors().close(None)?;
            }
            return Ok(Answer::Complete(response));
        }
        match CursorStatement::of(&statement)? {
            None => Ok(Answer::Begun(self.begin(self.prepare(statement).await?, Vec::new()).await?)),
            Some(CursorStatement::Declare { name, query }) => {
                if !*is_in_transaction {
                    let text = "a cursor lives in a transaction; send BEGIN before DECLARE";
                    return Err(user_error("25P01", text));
                }
                self.cursors().check(name)?;
                let query = AstStatement::Query(Box::new(query.clone()));
                let prepared = self.prepare(SqlStatement::Statement(Box::new(query))).await?;
                let begun = self.begin(prepared, Vec::new()).await?;
                let stop = Stop::when(Arc::clone(&self.watched), None);
                let (fields, rows) = begun.rows(&Format::UnifiedText, &stop)?;
                self.cursors().insert(name, fields, rows);
                Ok(Answer::Complete(Response::Execution(Tag::new("DECLARE CURSOR"))))
            }
            Some(CursorStatement::Fetch { name, count }) => {
                Ok(Answer::Fetched(self.cursors().get(name)?, count))
            }
            Some(CursorStatement::Close { name }) => {
                self.cursors().close(name)?;
                let tag = if name.is_some() { "CLOSE CURSOR" } else { "CLOSE CURSOR ALL" };
                Ok(Answer::Complete(Response::Execution(Tag::new(tag))))
            }
        }
    }

    /// Ends the rows of queries that have begun. pgwire itself lets a client cancel a query until its first rows, and forgets
    /// that with the end of `do_query`, which must not wait after this.
    async fn stop<C: ClientInfo>(&self, client: &C) -> Stop {
        let handle = client.session_extensions().get::<Arc<ConnectionHandle>>();
        let cancelled = match handle {
            Some(handle) => Some(handle.start_query().await),
            None => None,
        };
        Stop::when(Arc::clone(&self.watched), cancelled)
    }
}

/// The answer to a statement.
enum Answer {
    Complete(Response),
    Begun(Begun),
    /// So many rows of a cursor, or all that are left.
    Fetched(Arc<Cursor>, Option<usize>),
}

impl NoopStartupHandler for Handler {
    fn connection_manager(&self) -> Option<Arc<ConnectionManager>> {
        Some(Arc::clone(&self.manager))
    }
}

#[async_trait]
impl SimpleQueryHandler for Handler {
    async fn do_query<C>(&self, client: &mut C, query: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let is_in_transaction = client.transaction_status() != TransactionStatus::Idle;
        let answers = self.answers(query, is_in_transaction).await;
        if answers.is_err() && !is_in_transaction {
            // A transaction that began in a query that failed has not begun for the client.
            self.cursors().close(None)?;
        }
        let answers = answers?;
        let stop = self.stop(client).await;
        let response = |answer| match answer {
            Answer::Complete(response) => Ok(response),
            Answer::Begun(begun) => begun.response(&Format::UnifiedText, &stop),
            Answer::Fetched(cursor, count) => Ok(cursor.fetch(count, stop.clone())),
        };
        answers.into_iter().map(response).collect()
    }
}

/// Prepared statements of a connection.
struct Extended(Arc<Handler>);

#[async_trait]
impl ExtendedQueryHandler for Extended {
    type Statement = Prepared;
    type QueryParser = Parser;

    fn query_parser(&self) -> Arc<Parser> {
        Arc::new(Parser(Arc::clone(&self.0)))
    }

    async fn on_execute<C>(&self, client: &mut C, mut message: Execute) -> PgWireResult<()>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        message.max_rows = message.max_rows.clamp(0, ROWS_AT_ONCE_MAX);
        if message.max_rows > 0 {
            return self._on_execute(client, message).await;
        }
        // All rows that are left of a portal of which some were fetched. pgwire would collect them first.
        let name = message.name.as_deref().unwrap_or(DEFAULT_NAME);
        if let Some(Entry::Value(portal)) = client.portal_store().get_portal(name)
            && let state = portal.state()
            && let mut state = state.lock().await
            && let PortalExecutionState::Suspended(rest) = &mut *state
        {
            client.set_state(PgWireConnectionState::QueryInProgress);
            send_partial_query_response(client, rest, 0).await?;
            *state = PortalExecutionState::Finished;
            client.set_state(PgWireConnectionState::ReadyForQuery);
            return Ok(());
        }
        self._on_execute(client, message).await
    }

    async fn do_query<C>(
        &self,
        client: &mut C,
        portal: &Portal<Prepared>,
        max_rows: usize,
    ) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let prepared = &portal.statement.statement;
        let values = parameters(portal, &parameter_types(prepared)?)?;
        let begun = self.0.begin(prepared.clone(), values).await?;
        if max_rows > 0 {
            return begun.response(&portal.result_column_format, &self.0.stop(client).await);
        }
        // All rows, as they come: pgwire would collect them first. It watches for a request to cancel until this returns.
        let stop = Stop::when(Arc::clone(&self.0.watched), None);
        let Response::Query(mut answer) = begun.response(&portal.result_column_format, &stop)? else {
            return Ok(Response::Execution(Tag::new("OK")));
        };
        let mut rows = 0;
        while let Some(row) = answer.data_rows().next().await {
            client.feed(PgWireBackendMessage::DataRow(row?)).await?;
            rows += 1;
        }
        *portal.state().lock().await = PortalExecutionState::Finished;
        Ok(Response::Execution(Tag::new(answer.command_tag()).with_rows(rows)))
    }
}

/// Prepares statements.
pub(super) struct Parser(Arc<Handler>);

#[async_trait]
impl QueryParser for Parser {
    type Statement = Prepared;

    async fn parse_sql<C>(
        &self,
        _client: &C,
        sql: &str,
        _types: &[Option<Type>],
    ) -> PgWireResult<Option<Prepared>>
    where
        C: ClientInfo + Unpin + Send + Sync,
    {
        let mut statements = parse(sql)?;
        match (statements.pop_front(), statements.len()) {
            (None, _) => Ok(None),
            (Some(statement), 0) => Ok(Some(self.0.prepare(statement).await?)),
            _ => Err(user_error("42601", "a prepared statement is one statement; prepare each by itself")),
        }
    }

    fn get_parameter_types(&self, prepared: &Prepared) -> PgWireResult<Vec<Type>> {
        let of_parameter = |wanted: &Option<DataType>| wanted.as_ref().map_or(Type::TEXT, type_of);
        Ok(parameter_types(prepared)?.iter().map(of_parameter).collect())
    }

    fn get_result_schema(
        &self,
        prepared: &Prepared,
        format: Option<&Format>,
    ) -> PgWireResult<Vec<FieldInfo>> {
        // Statements such as SET have no columns, or those that `respond` says.
        if matches!(prepared.plan, LogicalPlan::Statement(_)) {
            return Ok(Vec::new());
        }
        let schema = prepared.plan.schema().as_arrow();
        Ok(fields_of(schema, format.unwrap_or(&Format::UnifiedBinary))?.to_vec())
    }
}

/// The types of the parameters `$1`, `$2` and so on, as far as the statement says them.
fn parameter_types(prepared: &Prepared) -> PgWireResult<Vec<Option<DataType>>> {
    let named = prepared.plan.get_parameter_types().map_err(explain)?;
    let of_parameter = |number: usize| match named.get(&format!("${number}")) {
        Some(data_type) => Ok(data_type.clone()),
        None => Err(user_error("42P02", format!("there is no parameter ${number}; number them from $1 on"))),
    };
    (1..=named.len()).map(of_parameter).collect()
}

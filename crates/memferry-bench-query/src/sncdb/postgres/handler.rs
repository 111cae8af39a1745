//! One connection: its session, its statements, and the end of a query whose client is gone.

use std::fmt::Debug;
use std::future::{Future, pending};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use datafusion::arrow::datatypes::DataType;
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::logical_expr::{LogicalPlan, Statement};
use datafusion::sql::parser::{DFParser, Statement as SqlStatement};
use datafusion::sql::sqlparser::ast::Statement as AstStatement;
use futures::{Sink, StreamExt, stream};
use pgwire::api::auth::StartupHandler;
use pgwire::api::auth::noop::NoopStartupHandler;
use pgwire::api::cancel::{CancelHandler, DefaultCancelHandler};
use pgwire::api::portal::{Format, Portal};
use pgwire::api::query::{ExtendedQueryHandler, SimpleQueryHandler};
use pgwire::api::results::{FieldInfo, QueryResponse, Response, Tag};
use pgwire::api::stmt::QueryParser;
use pgwire::api::store::PortalStore;
use pgwire::api::{ClientInfo, ClientPortalStore, ConnectionManager, PgWireServerHandlers, Type};
use pgwire::error::{ErrorInfo, PgWireError, PgWireResult};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::extendedquery::Execute;
use tokio::net::TcpStream;

use super::super::server::{Prepared, Session, Sessions};
use super::values::{fields_of, parameters, rows_of, type_of};

/// Rows that a client can ask for at once. pgwire allocates a list of as many as it is told.
const ROWS_AT_ONCE_MAX: i32 = 100_000;

/// The connection of one client.
pub(super) struct Handler {
    sessions: Sessions,
    /// Opened by the first statement: a client that sends none, or garbage, needs none.
    session: OnceLock<Session>,
    /// Another descriptor of the socket, to be looked at only.
    watched: Arc<TcpStream>,
    manager: Arc<ConnectionManager>,
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
    pub(super) fn new(sessions: Sessions, watched: TcpStream, manager: Arc<ConnectionManager>) -> Handler {
        Handler { sessions, session: OnceLock::new(), watched: Arc::new(watched), manager }
    }

    fn session(&self) -> &Session {
        self.session.get_or_init(|| self.sessions.open())
    }

    /// A statement that may run here, prepared.
    async fn prepare(&self, statement: SqlStatement) -> PgWireResult<Prepared> {
        let session = self.session();
        let plan = session.context.state().statement_to_plan(statement).await.map_err(explain)?;
        check(&plan)?;
        session.optimise(&plan).map_err(explain)
    }

    /// Begins a statement, and waits for its first rows as long as the client is there.
    async fn respond(
        &self,
        prepared: &Prepared,
        values: Vec<datafusion::scalar::ScalarValue>,
        format: &Format,
    ) -> PgWireResult<Response> {
        let while_there = async {
            let running = prepared.start(values).await.map_err(explain)?;
            let schema = running.schema();
            let mut batches = Box::pin(running.batches());
            let first = batches.next().await.transpose().map_err(explain)?;
            if schema.fields().is_empty() {
                return Ok(Response::Execution(Tag::new("OK")));
            }
            let fields = fields_of(&schema, format)?;
            let of_rows = Arc::clone(&fields);
            let rows = stream::iter(first.map(Ok)).chain(batches).flat_map(move |batch| {
                let rows = batch.map_err(explain).and_then(|batch| rows_of(&batch, &of_rows));
                stream::iter(match rows {
                    Ok(rows) => rows.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error)],
                })
            });
            let rows = rows.take_until(Box::pin(gone(Arc::clone(&self.watched))));
            Ok(Response::Query(QueryResponse::new(fields, rows)))
        };
        tokio::select! {
            response = while_there => response,
            () = gone(Arc::clone(&self.watched)) => Err(PgWireError::QueryCanceled),
        }
    }
}

/// Ends when the client has closed its connection. A client that has sent its next message is there.
fn gone(socket: Arc<TcpStream>) -> impl Future<Output = ()> + Send {
    async move {
        if let Ok(1..) = socket.peek(&mut [0]).await {
            pending::<()>().await;
        }
    }
}

/// Begins and ends of transactions, which drivers send around statements: here nothing is written.
fn transaction(statement: &SqlStatement) -> Option<Response> {
    let SqlStatement::Statement(statement) = statement else { return None };
    match **statement {
        AstStatement::StartTransaction { .. } => Some(Response::TransactionStart(Tag::new("BEGIN"))),
        AstStatement::Commit { .. } => Some(Response::TransactionEnd(Tag::new("COMMIT"))),
        AstStatement::Rollback { .. } => Some(Response::TransactionEnd(Tag::new("ROLLBACK"))),
        _ => None,
    }
}

/// Refuses plans that write or change what other sessions see.
fn check(plan: &LogicalPlan) -> PgWireResult<()> {
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

impl NoopStartupHandler for Handler {
    fn connection_manager(&self) -> Option<Arc<ConnectionManager>> {
        Some(Arc::clone(&self.manager))
    }
}

#[async_trait]
impl SimpleQueryHandler for Handler {
    async fn do_query<C>(&self, _client: &mut C, query: &str) -> PgWireResult<Vec<Response>>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let mut responses = Vec::new();
        for statement in DFParser::parse_sql(query).map_err(explain)? {
            if let Some(response) = transaction(&statement) {
                responses.push(response);
                continue;
            }
            let prepared = self.prepare(statement).await?;
            responses.push(self.respond(&prepared, Vec::new(), &Format::UnifiedText).await?);
        }
        Ok(responses)
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
        self._on_execute(client, message).await
    }

    async fn do_query<C>(
        &self,
        _client: &mut C,
        portal: &Portal<Prepared>,
        _max_rows: usize,
    ) -> PgWireResult<Response>
    where
        C: ClientInfo + ClientPortalStore + Sink<PgWireBackendMessage> + Unpin + Send + Sync,
        C::PortalStore: PortalStore<Statement = Prepared>,
        C::Error: Debug,
        PgWireError: From<<C as Sink<PgWireBackendMessage>>::Error>,
    {
        let prepared = &portal.statement.statement;
        let values = parameters(portal, &parameter_types(prepared)?)?;
        self.0.respond(prepared, values, &portal.result_column_format).await
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
        let mut statements = DFParser::parse_sql(sql).map_err(explain)?;
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

fn explain(error: DataFusionError) -> PgWireError {
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

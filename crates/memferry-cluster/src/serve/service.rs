//! The methods of Flight SQL. Each finds the user, and leaves the work to the other modules.
//!
//! Source: `FlightSql.proto` and `Flight.proto` of Apache Arrow.

use std::pin::Pin;
use std::sync::Arc;

use arrow_flight::decode::FlightRecordBatchStream;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::metadata::{SqlInfoData, XdbcTypeInfoData};
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest,
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any, CommandGetCatalogs,
    CommandGetCrossReference, CommandGetDbSchemas, CommandGetExportedKeys, CommandGetImportedKeys,
    CommandGetPrimaryKeys, CommandGetSqlInfo, CommandGetTableTypes, CommandGetTables, CommandGetXdbcTypeInfo,
    CommandPreparedStatementQuery, CommandPreparedStatementUpdate, CommandStatementQuery,
    CommandStatementUpdate, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo, TicketStatementQuery,
};
use arrow_flight::{
    Action, ActionType, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightDescriptor,
    FlightEndpoint, FlightInfo, HandshakeRequest, HandshakeResponse, IpcMessage, SchemaAsIpc, Ticket,
};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::ipc::writer::IpcWriteOptions;
use datafusion::prelude::SessionContext;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use prost::Message;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

use super::access::User;
use super::error::status;
use super::id::Id;
use super::metadata;
use super::queries::Cancel;
use super::run::{self, Rows};
use super::shared::Shared;
use super::statement::Planned;

/// The action that cancels a query.
const CANCEL_FLIGHT_INFO: &str = "CancelFlightInfo";

/// Rows of parameters of one statement: each is a plan.
const PARAMETER_ROWS_MAX: usize = 1000;

/// The service behind the network.
#[derive(Clone)]
pub(super) struct Service {
    shared: Arc<Shared>,
    sql_info: Arc<SqlInfoData>,
    xdbc_types: Arc<XdbcTypeInfoData>,
}

type DoGet = Result<Response<<Service as FlightService>::DoGetStream>, Status>;
type Info = Result<Response<FlightInfo>, Status>;

impl Service {
    pub(super) fn new(shared: Arc<Shared>) -> Result<Service, FlightError> {
        let sql_info = Arc::new(metadata::sql_info(shared.updates, &shared.limits)?);
        Ok(Service { shared, sql_info, xdbc_types: Arc::new(metadata::xdbc_types()?) })
    }

    /// Keeps a planned query, and says where to fetch it.
    fn planned(&self, user: User, planned: Planned, descriptor: FlightDescriptor) -> Info {
        let schema = Arc::clone(&planned.schema);
        let id = self.shared.queries.plan(user, planned, self.shared.limits.planned)?;
        let ticket = TicketStatementQuery { statement_handle: id.bytes().to_vec().into() };
        info(&ticket.as_any(), &schema, descriptor)
    }

    /// Runs a planned query.
    async fn fetch(&self, user: User, planned: Planned) -> DoGet {
        let id = self.shared.queries.plan(user.clone(), planned, self.shared.limits.planned)?;
        self.fetch_planned(id, user).await
    }

    async fn fetch_planned(&self, id: Id, user: User) -> DoGet {
        let (planned, running) = self.shared.queries.begin(id, &user)?;
        Ok(send(run::start(&self.shared, planned, running, user).await?))
    }

    /// Runs an update to its end. Returns the rows that it has written.
    async fn update(&self, user: User, planned: Planned) -> Result<i64, Status> {
        let running = self.shared.queries.begin_at_once(user.clone())?;
        run::start(&self.shared, planned, running, user).await?.count().await
    }

    /// Cancels the query whose ticket an answer of GetFlightInfo has.
    fn cancel(&self, user: &User, info: &FlightInfo) -> Result<Cancel, Status> {
        let ticket = info.endpoint.iter().find_map(|endpoint| endpoint.ticket.as_ref());
        let query = ticket
            .and_then(|ticket| Any::decode(&*ticket.ticket).ok())
            .and_then(|any| any.unpack::<TicketStatementQuery>().ok().flatten());
        let id = query.and_then(|query| Id::from_bytes(&query.statement_handle));
        let id = id.ok_or_else(|| invalid("the query to cancel is not one of this server"))?;
        Ok(self.shared.queries.cancel(id, user))
    }
}

#[tonic::async_trait]
impl FlightSqlService for Service {
    type FlightService = Service;

    async fn do_handshake(
        &self,
        request: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Pin<Box<dyn Stream<Item = Result<HandshakeResponse, Status>> + Send>>>, Status> {
        let token = self.shared.access.issue(user(&request)?, self.shared.limits.idle_time)?;
        let answer = HandshakeResponse { protocol_version: 0, payload: token.clone().into() };
        let answers: Pin<Box<dyn Stream<Item = _> + Send>> = Box::pin(stream::iter([Ok(answer)]));
        let mut response = Response::new(answers);
        let header = format!("Bearer {token}").parse::<MetadataValue<Ascii>>();
        let header = header.map_err(|_| status(Code::Internal, "the token cannot be a header"))?;
        response.metadata_mut().insert("authorization", header);
        Ok(response)
    }

    async fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Info {
        no_transaction(query.transaction_id.as_deref())?;
        let user = user(&request)?;
        let planned = self.shared.parse(query.query).await?.with_parameters(vec![], self.shared.rules())?;
        self.planned(user, planned, request.into_inner())
    }

    async fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> Info {
        let user = user(&request)?;
        let (parsed, rows) = self.shared.prepared.get(&query.prepared_statement_handle, &user)?;
        let planned = self.shared.with_parameters(parsed, rows).await?;
        self.planned(user, planned, request.into_inner())
    }

    async fn do_get_statement(&self, ticket: TicketStatementQuery, request: Request<Ticket>) -> DoGet {
        let user = user(&request)?;
        let id = Id::from_bytes(&ticket.statement_handle);
        let id = id.ok_or_else(|| invalid("the ticket is not one of this server"))?;
        self.fetch_planned(id, user).await
    }

    async fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<Ticket>,
    ) -> DoGet {
        let user = user(&request)?;
        let (parsed, rows) = self.shared.prepared.get(&query.prepared_statement_handle, &user)?;
        let planned = self.shared.with_parameters(parsed, rows).await?;
        self.fetch(user, planned).await
    }

    async fn do_put_statement_update(
        &self,
        update: CommandStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        no_transaction(update.transaction_id.as_deref())?;
        let user = user(&request)?;
        let planned = self.shared.parse(update.query).await?.with_parameters(vec![], self.shared.rules())?;
        self.update(user, planned).await
    }

    async fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<DoPutPreparedStatementResult, Status> {
        let user = user(&request)?;
        let handle = query.prepared_statement_handle;
        let rows = parameters(request.into_inner(), self.shared.limits.message_bytes).await?;
        self.shared.prepared.bind(&handle, &user, rows)?;
        Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(handle) })
    }

    async fn do_put_prepared_statement_update(
        &self,
        update: CommandPreparedStatementUpdate,
        request: Request<PeekableFlightDataStream>,
    ) -> Result<i64, Status> {
        let user = user(&request)?;
        let rows = parameters(request.into_inner(), self.shared.limits.message_bytes).await?;
        let (parsed, bound) = self.shared.prepared.get(&update.prepared_statement_handle, &user)?;
        let rows = if rows.iter().any(|batch| batch.num_rows() > 0) { rows } else { bound };
        let planned = self.shared.with_parameters(parsed, rows).await?;
        self.update(user, planned).await
    }

    async fn do_action_create_prepared_statement(
        &self,
        query: ActionCreatePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<ActionCreatePreparedStatementResult, Status> {
        no_transaction(query.transaction_id.as_deref())?;
        let user = user(&request)?;
        let parsed = self.shared.parse(query.query).await?;
        let dataset_schema = ipc_bytes(&parsed.schema())?;
        let parameter_schema = ipc_bytes(&parsed.parameter_schema())?;
        let id = self.shared.prepared.add(user, parsed, self.shared.limits.prepared)?;
        Ok(ActionCreatePreparedStatementResult {
            prepared_statement_handle: id.bytes().to_vec().into(),
            dataset_schema: dataset_schema.0,
            parameter_schema: parameter_schema.0,
        })
    }

    async fn do_action_close_prepared_statement(
        &self,
        query: ActionClosePreparedStatementRequest,
        request: Request<Action>,
    ) -> Result<(), Status> {
        self.shared.prepared.close(&query.prepared_statement_handle, &user(&request)?);
        Ok(())
    }

    async fn do_action_cancel_query(
        &self,
        query: ActionCancelQueryRequest,
        request: Request<Action>,
    ) -> Result<ActionCancelQueryResult, Status> {
        let user = user(&request)?;
        let info = FlightInfo::decode(&*query.info).map_err(|error| invalid(error.to_string()))?;
        // The numbers of CancelResult are those of CancelStatus.
        let result = cancel_status(self.cancel(&user, &info)?)? as i32;
        Ok(ActionCancelQueryResult { result })
    }

    async fn do_action_fallback(
        &self,
        request: Request<Action>,
    ) -> Result<Response<<Self as FlightService>::DoActionStream>, Status> {
        let user = user(&request)?;
        let action = request.into_inner();
        if action.r#type != CANCEL_FLIGHT_INFO {
            return Err(status(
                Code::Unimplemented,
                format!(
                    "memferry serve has no action {}; ListActions names those that it has",
                    action.r#type
                ),
            ));
        }
        let query =
            CancelFlightInfoRequest::decode(&*action.body).map_err(|error| invalid(error.to_string()))?;
        let info = query.info.ok_or_else(|| invalid("the request does not say which query to cancel"))?;
        let result = CancelFlightInfoResult::new(cancel_status(self.cancel(&user, &info)?)?);
        let answer = arrow_flight::Result { body: result.encode_to_vec().into() };
        Ok(Response::new(Box::pin(stream::iter([Ok(answer)]))))
    }

    async fn list_custom_actions(&self) -> Option<Vec<Result<ActionType, Status>>> {
        Some(vec![Ok(ActionType {
            r#type: CANCEL_FLIGHT_INFO.to_owned(),
            description: "Cancels a query\nRequest Message: CancelFlightInfoRequest\n\
                          Response Message: CancelFlightInfoResult"
                .to_owned(),
        })])
    }

    async fn get_flight_info_catalogs(
        &self,
        command: CommandGetCatalogs,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &command.into_builder().schema(), request.into_inner())
    }

    async fn do_get_catalogs(&self, command: CommandGetCatalogs, request: Request<Ticket>) -> DoGet {
        user(&request)?;
        let work = move |context: SessionContext| async move { Ok(metadata::catalogs(&context, command)?) };
        answer(self.shared.plan_with(work).await?)
    }

    async fn get_flight_info_schemas(
        &self,
        command: CommandGetDbSchemas,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &command.into_builder().schema(), request.into_inner())
    }

    async fn do_get_schemas(&self, command: CommandGetDbSchemas, request: Request<Ticket>) -> DoGet {
        user(&request)?;
        let work = move |context: SessionContext| async move { Ok(metadata::schemas(&context, command)?) };
        answer(self.shared.plan_with(work).await?)
    }

    async fn get_flight_info_tables(
        &self,
        command: CommandGetTables,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &command.into_builder().schema(), request.into_inner())
    }

    async fn do_get_tables(&self, command: CommandGetTables, request: Request<Ticket>) -> DoGet {
        user(&request)?;
        let work =
            move |context: SessionContext| async move { Ok(metadata::tables(&context, command).await?) };
        answer(self.shared.plan_with(work).await?)
    }

    async fn get_flight_info_table_types(
        &self,
        command: CommandGetTableTypes,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &command.into_builder().schema(), request.into_inner())
    }

    async fn do_get_table_types(&self, command: CommandGetTableTypes, request: Request<Ticket>) -> DoGet {
        user(&request)?;
        answer(metadata::table_types(command)?)
    }

    async fn get_flight_info_sql_info(
        &self,
        command: CommandGetSqlInfo,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &self.sql_info.schema(), request.into_inner())
    }

    async fn do_get_sql_info(&self, command: CommandGetSqlInfo, request: Request<Ticket>) -> DoGet {
        user(&request)?;
        answer(command.into_builder(&self.sql_info).build()?)
    }

    async fn get_flight_info_xdbc_type_info(
        &self,
        command: CommandGetXdbcTypeInfo,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &self.xdbc_types.schema(), request.into_inner())
    }

    async fn do_get_xdbc_type_info(
        &self,
        command: CommandGetXdbcTypeInfo,
        request: Request<Ticket>,
    ) -> DoGet {
        user(&request)?;
        answer(command.into_builder(&self.xdbc_types).build()?)
    }

    async fn get_flight_info_primary_keys(
        &self,
        command: CommandGetPrimaryKeys,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &metadata::primary_keys(), request.into_inner())
    }

    async fn do_get_primary_keys(&self, _command: CommandGetPrimaryKeys, request: Request<Ticket>) -> DoGet {
        user(&request)?;
        answer(RecordBatch::new_empty(metadata::primary_keys()))
    }

    async fn get_flight_info_exported_keys(
        &self,
        command: CommandGetExportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &metadata::foreign_keys(), request.into_inner())
    }

    async fn do_get_exported_keys(
        &self,
        _command: CommandGetExportedKeys,
        request: Request<Ticket>,
    ) -> DoGet {
        user(&request)?;
        answer(RecordBatch::new_empty(metadata::foreign_keys()))
    }

    async fn get_flight_info_imported_keys(
        &self,
        command: CommandGetImportedKeys,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &metadata::foreign_keys(), request.into_inner())
    }

    async fn do_get_imported_keys(
        &self,
        _command: CommandGetImportedKeys,
        request: Request<Ticket>,
    ) -> DoGet {
        user(&request)?;
        answer(RecordBatch::new_empty(metadata::foreign_keys()))
    }

    async fn get_flight_info_cross_reference(
        &self,
        command: CommandGetCrossReference,
        request: Request<FlightDescriptor>,
    ) -> Info {
        user(&request)?;
        info(&command.as_any(), &metadata::foreign_keys(), request.into_inner())
    }

    async fn do_get_cross_reference(
        &self,
        _command: CommandGetCrossReference,
        request: Request<Ticket>,
    ) -> DoGet {
        user(&request)?;
        answer(RecordBatch::new_empty(metadata::foreign_keys()))
    }

    async fn register_sql_info(&self, _id: i32, _result: &SqlInfo) {
        // The facts are made when the server starts.
    }
}

/// The user whom the check before the service has found.
fn user<T>(request: &Request<T>) -> Result<User, Status> {
    let user = request.extensions().get::<User>().cloned();
    user.ok_or_else(|| status(Code::Unauthenticated, "the request names no user"))
}

fn invalid(text: impl Into<String>) -> Status {
    status(Code::InvalidArgument, text)
}

fn no_transaction(id: Option<&[u8]>) -> Result<(), Status> {
    match id {
        Some(id) if !id.is_empty() => Err(status(
            Code::Unimplemented,
            "memferry serve has no transactions; switch the client to autocommit",
        )),
        _ => Ok(()),
    }
}

/// Says where the rows of a command are fetched: here.
fn info(command: &Any, schema: &Schema, descriptor: FlightDescriptor) -> Info {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket::new(command.encode_to_vec()));
    let info = FlightInfo::new().try_with_schema(schema).map_err(|error| {
        status(Code::Internal, format!("the schema of the answer cannot be sent: {error}"))
    })?;
    Ok(Response::new(info.with_endpoint(endpoint).with_descriptor(descriptor)))
}

/// Sends one batch.
fn answer(batch: RecordBatch) -> DoGet {
    let schema = batch.schema();
    Ok(encode(schema, stream::iter([Ok(batch)])))
}

/// Sends the batches of a query.
fn send(rows: Rows) -> Response<<Service as FlightService>::DoGetStream> {
    encode(rows.schema(), rows)
}

fn encode(
    schema: SchemaRef,
    batches: impl Stream<Item = Result<RecordBatch, Status>> + Send + 'static,
) -> Response<BoxStream<'static, Result<arrow_flight::FlightData, Status>>> {
    let batches = batches.map_err(|status| FlightError::Tonic(Box::new(status)));
    let messages = FlightDataEncoderBuilder::new().with_schema(schema).build(batches);
    Response::new(messages.map_err(Status::from).boxed())
}

fn ipc_bytes(schema: &Schema) -> Result<IpcMessage, Status> {
    let message: Result<IpcMessage, ArrowError> =
        SchemaAsIpc::new(schema, &IpcWriteOptions::default()).try_into();
    message.map_err(|error| status(Code::Internal, format!("the schema cannot be sent: {error}")))
}

fn cancel_status(cancel: Cancel) -> Result<CancelStatus, Status> {
    match cancel {
        Cancel::Forgotten => Ok(CancelStatus::Cancelled),
        Cancel::Stopping => Ok(CancelStatus::Cancelling),
        Cancel::Unknown => {
            Err(status(Code::NotFound, "there is no such query: it has ended, or was forgotten"))
        }
    }
}

/// The rows of parameters that a client sends.
async fn parameters(data: PeekableFlightDataStream, bytes_max: usize) -> Result<Vec<RecordBatch>, Status> {
    // The first message of a client may have the command only.
    let data = data.try_filter(|message| std::future::ready(!message.data_header.is_empty()));
    let data = data.map_err(|status| FlightError::Tonic(Box::new(status)));
    let mut batches = FlightRecordBatchStream::new_from_flight_data(data);
    let (mut rows, mut rows_count, mut bytes) = (Vec::new(), 0, 0);
    while let Some(batch) = batches.next().await {
        let batch = batch.map_err(|error| match error {
            FlightError::Tonic(status) => *status,
            error => invalid(format!("the parameters cannot be read: {error}")),
        })?;
        rows_count += batch.num_rows();
        bytes += batch.get_array_memory_size();
        if rows_count > PARAMETER_ROWS_MAX || bytes > bytes_max {
            return Err(invalid(format!(
                "the parameters have more than {PARAMETER_ROWS_MAX} rows or {bytes_max} bytes (--message); send them in \
                 several runs"
            )));
        }
        rows.push(batch);
    }
    Ok(rows)
}

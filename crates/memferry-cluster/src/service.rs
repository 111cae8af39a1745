//! The service of a worker beside its tasks: its report, and reads of single shards. Arrow Flight.

use std::sync::{Arc, OnceLock};

use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest,
    HandshakeResponse, PollInfo, PutResult, SchemaResult, Ticket,
};
use async_trait::async_trait;
use datafusion::common::Result;
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use memferry_query::{SessionOptions, session};
use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use crate::ahead::Budget;
use crate::catalog::ShardCatalog;
use crate::channels::Channels;
use crate::codec::ScanMessage;
use crate::contain::contained;
use crate::description::Description;
use crate::error::ClusterError;
use crate::plan_channel::PlanChannels;
use crate::report::{ACTION, WorkerReport};
use crate::sources::Sources;

/// A worker: its description, and its tables when they are loaded.
#[derive(Debug)]
pub(crate) struct WorkerState {
    pub(crate) address: String,
    /// A random number of this process.
    pub(crate) mark: u64,
    pub(crate) description: Description,
    pub(crate) catalog: OnceLock<Arc<ShardCatalog>>,
    pub(crate) channels: Channels,
    /// The channels of its plans, and one for each read of its shards by others.
    pub(crate) plans: PlanChannels,
    /// Of what its plans read ahead.
    pub(crate) budget: Budget,
    pub(crate) options: SessionOptions,
}

impl WorkerState {
    /// The shards that a query of this worker can read.
    ///
    /// # Errors
    /// If its tables are still loaded.
    pub(crate) fn sources(&self) -> Result<Sources, ClusterError> {
        match self.catalog.get() {
            Some(catalog) => {
                let channels = Arc::new(self.channels.for_plan());
                Ok(Sources::new(Some(Arc::clone(catalog)), channels).within(&self.budget))
            }
            None => {
                let what = String::from("it is still loading its tables");
                Err(ClusterError::Worker { worker: self.address.clone(), what })
            }
        }
    }

    /// That of its report.
    fn mark(&self) -> u64 {
        self.mark.wrapping_add(u64::from(self.catalog.get().is_some()))
    }

    fn report(&self) -> WorkerReport {
        // Before the catalog: a report of loaded tables with the mark from before is only asked for again.
        let mark = self.mark();
        let catalog = self.catalog.get();
        WorkerReport {
            mark,
            description: self.description.clone(),
            is_ready: catalog.is_some(),
            tables: catalog.map(|catalog| catalog.reports()).unwrap_or_default(),
            received_bytes: self.channels.received_bytes(),
            ahead: self.budget.in_use() as u64,
            read_bytes: catalog.map_or(0, |catalog| catalog.read_bytes()),
            planned: OnceLock::new(),
        }
    }

    /// A session for reads of single shards.
    fn session(&self) -> Result<SessionState> {
        let mut state = session(&self.options).state();
        state.config_mut().set_extension(Arc::new(self.sources()?));
        Ok(state)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct ShardService(pub(crate) Arc<WorkerState>);

/// An error of a query, as text: a client reads the status as one of the worker, not of the connection.
fn aborted(error: DataFusionError) -> Status {
    Status::aborted(error.to_string())
}

fn unknown(what: &str) -> Status {
    Status::unimplemented(format!(
        "a worker of memferry has no {what}; ask `memferry serve` for Arrow Flight SQL"
    ))
}

type Answers<T> = BoxStream<'static, Result<T, Status>>;

#[async_trait]
impl FlightService for ShardService {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoExchangeStream = Answers<FlightData>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;

    async fn do_get(&self, request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        let message = ScanMessage::decode(request.into_inner().ticket).map_err(|error| {
            Status::invalid_argument(format!("the ticket is not a read of a shard: {error}"))
        })?;
        let context = self.0.session().map_err(aborted)?.task_ctx();
        let scan = Sources::of(&context).and_then(|sources| message.scan(&sources, &context));
        let scan = scan.and_then(|scan| contained(Arc::new(scan), &self.0.address)).map_err(aborted)?;
        let rows = scan.execute(0, context).map_err(aborted)?;
        let data = FlightDataEncoderBuilder::new()
            .with_schema(scan.schema())
            .build(rows.map_err(|error| FlightError::Tonic(Box::new(aborted(error)))));
        let open = self.0.plans.open();
        let data = data.map_err(move |error| {
            // Until all rows are sent.
            let _ = &open;
            match error {
                FlightError::Tonic(status) => *status,
                error => Status::aborted(error.to_string()),
            }
        });
        Ok(Response::new(data.boxed()))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let action = request.into_inner();
        if action.r#type != ACTION {
            return Err(unknown(&format!("action {}", action.r#type)));
        }
        if WorkerReport::known_mark(&action.body) == Some(self.0.mark()) {
            return Ok(Response::new(stream::empty().boxed()));
        }
        let body =
            serde_json::to_vec(&self.0.report()).map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(stream::iter([Ok(arrow_flight::Result { body: body.into() })]).boxed()))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        let action =
            ActionType { r#type: ACTION.to_owned(), description: "the worker and its tables".to_owned() };
        Ok(Response::new(stream::iter([Ok(action)]).boxed()))
    }

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(unknown("handshake"))
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        Err(unknown("list of flights"))
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        Err(unknown("queries"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(unknown("queries"))
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        Err(unknown("schemas of queries"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        Err(unknown("uploads"))
    }

    async fn do_exchange(
        &self,
        _: Request<Streaming<FlightData>>,
    ) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(unknown("exchanges"))
    }
}

//! A query to a server of Arrow Flight SQL, such as `memferry serve`: `memferry sql --connect`.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use arrow_flight::error::FlightError;
use arrow_flight::sql::{CommandStatementQuery, ProstMessageExt};
use arrow_flight::{FlightDescriptor, FlightEndpoint};
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;

use super::sql::Rows;
use crate::channels::Channels;
use crate::credentials::Credentials;

/// The location of an endpoint whose rows come by the same connection. Source: Arrow Flight RPC, "Connection Reuse".
const SAME_CONNECTION: &str = "arrow-flight-reuse-connection://?";

/// Runs a query on the server at `address`. Its rows come as they are read.
pub(super) async fn query(address: &str, sql: &str, credentials: Credentials) -> Result<Rows<'static>> {
    let channels = Channels::new(credentials);
    let mut client = channels.flight(address)?;
    let failed = {
        let (channels, address) = (channels.clone(), address.to_owned());
        move |error: FlightError| anyhow!("{address}: {}", channels.reason(&error))
    };
    let command = CommandStatementQuery { query: sql.to_owned(), transaction_id: None };
    let command = FlightDescriptor::new_cmd(command.as_any().encode_to_vec());
    let info = client.get_flight_info(command).await.map_err(&failed)?;
    let schema = info.clone().try_decode_schema();
    let schema = schema.with_context(|| format!("{address}: the columns of the answer cannot be read"))?;
    let mut parts = Vec::new();
    for FlightEndpoint { ticket, location, .. } in info.endpoint {
        if let Some(other) = location.iter().find(|location| location.uri != SAME_CONNECTION) {
            bail!(
                "{address}: rows of the answer are on {}; memferry sql reads those of one server only",
                other.uri
            );
        }
        let ticket = ticket.with_context(|| format!("{address}: a part of the answer has no ticket"))?;
        parts.push(client.do_get(ticket).await.map_err(&failed)?);
    }
    let batches = stream::iter(parts).flatten().map_err(failed);
    Ok(Rows { schema: Arc::new(schema), batches: batches.boxed_local() })
}

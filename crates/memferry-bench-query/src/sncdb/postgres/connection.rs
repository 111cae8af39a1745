//! A client of the closed loop that speaks the protocol of PostgreSQL.

use std::net::SocketAddr;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls, Statement};

use super::super::clients::Connection;
use crate::QueryError;

/// A connection with one prepared statement.
pub(in super::super) struct PostgresConnection {
    client: Client,
    statement: Statement,
}

impl PostgresConnection {
    /// Connects and prepares `sql`.
    ///
    /// # Errors
    /// [`QueryError::Peer`] with the server's text.
    pub(in super::super) async fn open(
        address: SocketAddr,
        sql: &str,
    ) -> Result<PostgresConnection, QueryError> {
        let parameters = format!("host={} port={} user=sncdb", address.ip(), address.port());
        let (client, connection) = tokio_postgres::connect(&parameters, NoTls).await.map_err(failed)?;
        // It ends with the client, and its error is that of the client's next statement.
        drop(tokio::spawn(connection));
        let statement = client.prepare(sql).await.map_err(failed)?;
        Ok(PostgresConnection { client, statement })
    }
}

impl Connection for PostgresConnection {
    async fn ask(&mut self, key: Option<i32>) -> Result<Vec<i64>, QueryError> {
        let rows = match &key {
            Some(key) => self.client.query(&self.statement, &[key]).await,
            None => self.client.query(&self.statement, &[]).await,
        };
        let integer = |row: &tokio_postgres::Row| match *row.columns()[0].type_() {
            Type::INT4 => row.try_get::<_, i32>(0).map(i64::from),
            _ => row.try_get::<_, i64>(0),
        };
        let mut integers =
            rows.map_err(failed)?.iter().map(integer).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        integers.sort_unstable();
        Ok(integers)
    }
}

fn failed(error: tokio_postgres::Error) -> QueryError {
    let text = match error.as_db_error() {
        Some(told) => told.message().to_owned(),
        None => error.to_string(),
    };
    QueryError::Peer(format!("a connection to the server has failed: {text}"))
}

//! The server of the study for clients of PostgreSQL: the crate pgwire speaks the protocol, this module has the sessions.
//!
//! ```text
//! threads of the protocol                                                      │ workers of the server
//! Listener ── accepts, a task for each connection ─▶ pgwire ─▶ Handler ────────┼── one session ─▶ Prepared
//!                                                              watches the socket and requests to cancel
//! ```
//!
//! Queries that keep all workers busy delay neither new connections nor cancellations: the protocol has threads of its own, on the
//! same CPUs. A query ends when its client is gone.
//!
//! There is no TLS and no password: it is a server for a benchmark on one machine. Statements that write, and those that read
//! files, are refused.
//!
//! Source: PostgreSQL 18, chapter 54, "Frontend/Backend Protocol".

mod catalog;
mod connection;
mod cursor;
mod handler;
mod query;
mod statement;
#[cfg(test)]
mod tests;
mod values;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pgwire::api::ConnectionManager;
use pgwire::tokio::process_socket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;

pub(super) use self::connection::PostgresConnection;

use self::handler::{Handler, Handlers};
use super::server::{Server, Sessions, confined_runtime};
use crate::QueryError;

/// Connections at a time. Each takes two file descriptors: one is for noticing that the client is gone.
const CONNECTIONS_MAX: usize = 1000;

/// How long a listener waits if it cannot accept, as without a file descriptor: others may end meanwhile.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How long a client that is refused may take to read why.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Listens for clients. Dropping it closes all connections.
pub(super) struct Listener {
    address: SocketAddr,
    /// Threads of the protocol; `None` while it is dropped.
    runtime: Option<Runtime>,
}

impl Listener {
    /// Listens at an address; the port 0 is a free one. Queries run on the workers of `server`.
    ///
    /// # Errors
    /// [`QueryError::Listen`], [`QueryError::Threads`], [`QueryError::DataFusion`].
    pub(super) fn start(server: &Server, address: SocketAddr) -> Result<Listener, QueryError> {
        let failed = |error| QueryError::Listen { address, error };
        let cpus = server.cpus();
        let runtime = confined_runtime("protocol", cpus.len(), Some(cpus.to_vec()))?;
        // All sessions share it.
        runtime.block_on(catalog::register(&server.sessions().open().context))?;
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        drop(runtime.spawn(accept(listener, server.handle(), server.sessions())));
        Ok(Listener { address, runtime: Some(runtime) })
    }

    /// The address with its port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Its tasks end at their next `await`; dropping a runtime would wait for them in any context.
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, workers: Handle, sessions: Sessions) {
    let manager = Arc::new(ConnectionManager::new());
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let (workers, sessions, manager) = (workers.clone(), sessions.clone(), Arc::clone(&manager));
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => drop(tokio::spawn(async move {
                let _place = place;
                // Errors are those of this client, which has been told or is gone.
                let _ = serve(socket, workers, sessions, manager).await;
            })),
            Err(_) => drop(tokio::spawn(refuse(socket))),
        }
    }
}

async fn serve(
    socket: TcpStream,
    workers: Handle,
    sessions: Sessions,
    manager: Arc<ConnectionManager>,
) -> std::io::Result<()> {
    let socket = socket.into_std()?;
    let watched = TcpStream::from_std(socket.try_clone()?)?;
    let handler = Arc::new(Handler::new(workers, sessions, watched, manager));
    process_socket(TcpStream::from_std(socket)?, None, Handlers(handler)).await
}

/// Tells a client that there are too many, as PostgreSQL does.
async fn refuse(mut socket: TcpStream) {
    let mut message = vec![b'E', 0, 0, 0, 0];
    let text = format!("there are {CONNECTIONS_MAX} connections already; close some, or try again later");
    for (field, text) in [(b'S', "FATAL"), (b'V', "FATAL"), (b'C', "53300"), (b'M', &text)] {
        message.push(field);
        message.extend_from_slice(text.as_bytes());
        message.push(0);
    }
    message.push(0);
    let length = message.len() as u32 - 1;
    message[1..5].copy_from_slice(&length.to_be_bytes());
    // It may be gone. A socket that is closed before its bytes were read takes back what it has sent.
    let told = async {
        socket.write_all(&message).await?;
        socket.shutdown().await?;
        while socket.read(&mut [0; 512]).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(REFUSED_FOR, told).await;
}

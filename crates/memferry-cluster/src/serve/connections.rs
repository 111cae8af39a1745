//! Connections of clients: only so many, and none that says nothing. Each takes a file descriptor, which tables need too.

use std::io::{self, ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use futures::{FutureExt, Stream, stream};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::log::{Level, Log};

/// How long a listener waits if it cannot accept, as without a file descriptor: others may end meanwhile.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// A listener. Beyond its limit, connections are closed at once.
pub(super) struct Connections {
    listener: TcpListener,
    connections_max: usize,
    places: Arc<Semaphore>,
    first_bytes: usize,
    time: Duration,
    log: Log,
    /// Since a connection was accepted: a flood of them is one line of the log.
    has_complained: bool,
}

/// A connection, which ends if its first bytes do not come in time.
pub(super) struct Connection {
    socket: TcpStream,
    /// `None` when they have come.
    missing: Option<(usize, Pin<Box<Sleep>>)>,
    _place: OwnedSemaphorePermit,
}

impl Connections {
    /// Accepts `connections_max` connections at the same time. Each must send `first_bytes` within `time`.
    pub(super) fn new(
        listener: TcpListener,
        connections_max: usize,
        first_bytes: usize,
        time: Duration,
        log: Log,
    ) -> Connections {
        let places = Arc::new(Semaphore::new(connections_max));
        Connections { listener, connections_max, places, first_bytes, time, log, has_complained: false }
    }

    /// The connections, one after the other.
    pub(super) fn stream(self) -> impl Stream<Item = io::Result<Connection>> {
        stream::unfold(self, |mut this| async move { Some((Ok(this.accept().await.0), this)) })
    }

    fn complain(&mut self, error: String) {
        if !std::mem::replace(&mut self.has_complained, true) {
            self.log.event(Level::Warning, "connections", json!({ "error": error }));
        }
    }
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let (socket, address) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.complain(format!("cannot accept connections: {error}"));
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                    continue;
                }
            };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                self.complain(format!(
                    "{} connections are open, which is the limit; further ones are closed",
                    self.connections_max
                ));
                continue;
            };
            self.has_complained = false;
            // A socket without it is slower, but works.
            let _ = socket.set_nodelay(true);
            let missing = Some((self.first_bytes, Box::pin(tokio::time::sleep(self.time))));
            return (Connection { socket, missing, _place: place }, address);
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.socket.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        state: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.socket).poll_read(state, buffer);
        if let Some((missing, time)) = &mut self.missing {
            *missing = missing.saturating_sub(buffer.filled().len() - before);
            if *missing == 0 {
                self.missing = None;
            } else if polled.is_pending() && time.poll_unpin(state).is_ready() {
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        state: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(state, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        state: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(state, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, state: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(state)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, state: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(state)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const SHORT: Duration = Duration::from_millis(100);

    async fn listen(connections_max: usize) -> (Connections, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Connections::new(listener, connections_max, 4, SHORT, Log::none()), address)
    }

    #[tokio::test]
    async fn first_bytes_must_come_in_time() {
        let (mut connections, address) = listen(1).await;
        for (bytes, ends) in [("", true), ("123", true), ("1234", false)] {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(bytes.as_bytes()).await.unwrap();
            let (mut connection, _) = connections.accept().await;
            connection.read_exact(&mut vec![0; bytes.len()]).await.unwrap();
            let read = tokio::time::timeout(5 * SHORT, connection.read_u8()).await;
            match read {
                Ok(read) => assert!(ends && read.unwrap_err().kind() == ErrorKind::TimedOut, "{bytes}"),
                Err(_waits) => assert!(!ends, "{bytes}"),
            }
        }
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_are_closed() {
        let (mut connections, address) = listen(1).await;
        let _first = TcpStream::connect(address).await.unwrap();
        let (held, _) = connections.accept().await;
        let mut second = TcpStream::connect(address).await.unwrap();
        tokio::select! {
            _ = connections.accept() => panic!("it was accepted"),
            read = second.read_u8() => assert!(read.is_err()),
        }
        drop(held);
        let _third = TcpStream::connect(address).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), connections.accept()).await.unwrap();
    }
}

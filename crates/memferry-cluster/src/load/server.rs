//! A process of `memferry serve`.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tonic::transport::Endpoint;

/// How long the server may take to generate its tables, and to end.
const STARTING_MAX: Duration = Duration::from_secs(300);
const ENDING_MAX: Duration = Duration::from_secs(20);

/// A server of this program; killed when dropped.
pub(super) struct ServerProcess {
    child: Child,
    address: SocketAddr,
    http: SocketAddr,
}

impl ServerProcess {
    /// Starts it over the TPC-H tables.
    pub(super) async fn start(tpch: &str, clients: u32) -> Result<ServerProcess> {
        let program = std::env::current_exe().context("the path of this program is not known")?;
        let mut child = Command::new(program)
            .args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--tpch", tpch])
            // Copies near, though they do not pay on one node: they must not leak.
            .args(["--prefetch", "always", "--budget", "64MiB", "--memory", "64MiB"])
            // Every client waits for its turn.
            .args(["--wait", "5m", "--grace", &format!("{clients}s")])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start memferry-cluster serve")?;
        let log = child.stderr.take().context("the log of the server is a pipe")?;
        let mut lines = BufReader::new(log).lines();
        let started = async {
            while let Some(line) = lines.next_line().await? {
                let event: Value =
                    serde_json::from_str(&line).with_context(|| format!("the server says: {line}"))?;
                if event["event"] == "start" {
                    return Ok(event);
                }
            }
            bail!("the server has ended before it started to serve")
        };
        let event =
            tokio::time::timeout(STARTING_MAX, started).await.context("the server does not start")??;
        // The log must be read, or the server would wait.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let address = |name: &str| -> Result<SocketAddr> {
            Ok(event[name].as_str().context("the server did not log its addresses")?.parse()?)
        };
        Ok(ServerProcess { child, address: address("address")?, http: address("http")? })
    }

    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address)).expect("an address makes a URL")
    }

    /// A metric of its HTTP port.
    pub(super) async fn metric(&self, name: &str) -> Result<f64> {
        let mut stream = TcpStream::connect(self.http).await.context("the server does not answer")?;
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.http);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(value.with_context(|| format!("the server has no metric {name}"))?.trim().parse()?)
    }

    /// Asks it to end. Whether it does, without an error.
    pub(super) async fn stop(mut self) -> Result<bool> {
        let id = self.child.id().context("the server has ended before it was asked to")?;
        Command::new("kill").args(["-s", "TERM", &id.to_string()]).status().await?;
        Ok(tokio::time::timeout(ENDING_MAX, self.child.wait())
            .await
            .is_ok_and(|ended| ended.is_ok_and(|status| status.success())))
    }
}

//! `memferry serve`: queries of any client over the network, by Arrow Flight SQL.
//!
//! ```text
//! client ─ TLS ─▶ access ─▶ service ─┬▶ metadata      catalogs, schemas, tables, types
//!                 which user?        ├▶ prepared ─┐
//!                                    ├▶ statement ┴▶ queries ─▶ run ─▶ rows to the client
//!                                    │              planned,    place, memory, time;
//!                                    │              running     cancelled when dropped
//!                                    └▶ cancel ──────▲
//! tables: of this process, or of a cluster          connections: how many, how long they may say nothing
//! http: metrics, health       log: JSON lines       server: ports, threads, shutdown
//! ```
//!
//! The network has threads of its own, so that the server answers while queries use all CPUs.
//!
//! Source: `FlightSql.proto` of Apache Arrow.

mod access;
mod arguments;
mod connections;
mod error;
mod files;
mod http;
mod id;
mod limits;
mod log;
mod metadata;
mod metrics;
mod plain;
mod prepared;
mod proven;
mod queries;
mod run;
mod server;
mod service;
mod shared;
mod statement;
mod tables;

use std::sync::Arc;

use anyhow::{Context, Result};
use memferry_session::{Opened, load_tables};
use tokio::signal::unix::{SignalKind, signal};

pub use self::access::Access;
pub use self::arguments::Arguments;
pub use self::limits::Limits;
pub use self::log::Log;
pub use self::server::{QueryThreads, Server, ServerOptions, TlsFiles, panics_become_errors};
pub use self::tables::Tables;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Options that do not go together, tables that cannot be opened, a port that is in use.
pub fn run(arguments: &Arguments) -> Result<()> {
    let given = &arguments.session;
    given.check()?;
    let options = arguments.server()?;
    let opened = memferry_session::open(given, || Box::new(()))?;
    let cluster = arguments.cluster()?.map(Arc::new);
    let threads = QueryThreads::start()?;
    let network = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(NETWORK_THREADS)
        .thread_name("memferry-network")
        .enable_all()
        .build()
        .context("cannot start the threads of the network")?;
    let served: Result<()> = network.block_on(async {
        // From here on, signals no longer end the process by themselves.
        let failed = "cannot receive signals";
        let mut terminate = signal(SignalKind::terminate()).context(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).context(failed)?;
        let preparing = async {
            if let Some(cluster) = &cluster {
                // Workers that are started later are used, too. This one question finds wrong addresses and tokens.
                cluster.session().await?;
                return Ok(());
            }
            Opened::register(opened.context.clone(), given.tables.clone()).await?;
            load_tables(given, arguments.load, &opened).await
        };
        let mut asked = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        {
            let _entered = threads.queries().enter();
            tokio::select! {
                prepared = preparing => prepared?,
                () = asked() => return Ok(()),
            }
        }
        let tiers = Arc::clone(&opened.tiers.tiers);
        let tables = match cluster {
            Some(cluster) => Tables::OfCluster(cluster),
            None => Tables::from(&opened.context),
        };
        let server = Server::start(tables, tiers, &threads, options).await?;
        asked().await;
        tokio::select! {
            stopped = server.stop() => stopped,
            () = asked() => Ok(()),
        }
    });
    // Threads that do not stop are left to the end of the process.
    network.shutdown_background();
    served
}

/// Threads of the network: they encode rows and encrypt, which is a small part of the work of queries.
const NETWORK_THREADS: usize = 2;

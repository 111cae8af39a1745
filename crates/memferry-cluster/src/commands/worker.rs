//! The options of `memferry worker`.

use std::io::{self, Write};
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use memferry::topology::Machine;
use memferry_query::{Prefetch, SessionOptions, Tiers, session};
use memferry_session::error::usage;
use memferry_session::stores;
use tokio::signal::unix::{SignalKind, signal};

use crate::credentials::{Security, SecurityArguments};
use crate::description::Description;
use crate::worker::ClusterWorker;

const AFTER_HELP: &str = "\
The description names the workers and the tables; all workers have the same file. A worker loads its shards of each table
into memory and says so on standard error. It executes the plans that it is sent, which may read and write files as its user
can: on an address that other machines reach it needs --tokens and --tls-certificate, or --insecure on a network of your own.

Example of a description:
  version = 1
  workers = [\"127.0.0.1:7070\", \"127.0.0.1:7071\", \"127.0.0.1:7072\"]

  [[tables]]
  name = \"orders\"
  location = \"/data/orders.parquet\"
  key = \"o_orderkey\"

SIGTERM and SIGINT end the worker when its queries have ended; a second signal ends it at once.";

/// Holds shards of tables in memory and executes parts of queries of `memferry sql --cluster`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Arguments {
    /// The file that describes the cluster.
    #[arg(value_name = "FILE")]
    description: PathBuf,
    /// Address and port of this worker, as in the description.
    #[arg(long, value_name = "HOST:PORT")]
    name: String,
    /// Address and port to listen on, if others reach it as --name [default: --name].
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Threads of queries [default: the number of CPUs].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
    /// When late columns are copied: off, always, or auto (to a faster node, if the copy is known to pay).
    #[arg(long, value_name = "off|always|auto", default_value = "auto")]
    prefetch: Prefetch,
    /// Allows addresses that other machines reach without TLS, or without tokens.
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    security: SecurityArguments,
}

impl Arguments {
    fn listen(&self) -> &str {
        self.listen.as_deref().unwrap_or(&self.name)
    }
}

/// Runs the worker until a signal ends it.
///
/// # Errors
/// Those of the description, of the address and of the tables.
pub fn run(arguments: &Arguments) -> Result<()> {
    let description = Description::read(&arguments.description)?;
    let security = arguments.security.security()?;
    let listen = arguments.listen();
    // A name that is not found is an error of listening.
    let is_reached = listen.to_socket_addrs().is_ok_and(|mut found| found.any(|it| !it.ip().is_loopback()));
    if is_reached && !arguments.insecure && (security.access.is_open() || security.tls.is_none()) {
        return Err(usage(format!(
            "other machines reach {listen}: add --tls-certificate, --tls-key, --tls-ca and --tokens; or say --insecure"
        )));
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.enable_all();
    if let Some(threads) = arguments.threads {
        runtime.worker_threads(usize::from(threads));
    }
    runtime.build().context("cannot start threads")?.block_on(work(arguments, description, security))
}

async fn work(arguments: &Arguments, description: Description, security: Security) -> Result<()> {
    let tiers = Tiers::builder(Arc::new(Machine::discover()?)).build()?;
    let options = SessionOptions {
        prefetch: arguments.prefetch,
        tiers: Some(Arc::clone(&tiers)),
        ..SessionOptions::default()
    };
    let session = session(&options);
    description.tables.iter().try_for_each(|table| stores::reach(&session, &table.location))?;
    let worker =
        ClusterWorker::listen(description, &arguments.name, arguments.listen(), options.clone(), security)
            .await?;
    let began = Instant::now();
    note(&format!("worker {} listens on {}", arguments.name, worker.local_address()?));
    let loaded = |catalog: &crate::ShardCatalog| {
        let tables: Vec<String> =
            catalog.reports().iter().map(|table| format!("{} ({} rows)", table.name, table.rows)).collect();
        let seconds = began.elapsed().as_secs_f64();
        note(&format!(
            "worker {} has loaded its shards of {} in {seconds:.1} s",
            arguments.name,
            tables.join(", ")
        ));
    };
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        note("ends when its queries have ended; a second signal ends it at once");
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(1);
        });
    };
    worker.run(&session, &tiers, loaded, stop).await?;
    Ok(())
}

/// A line on standard error; a closed one is no reason to stop.
fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

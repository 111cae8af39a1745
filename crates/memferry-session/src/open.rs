//! A session as its options describe it.

use std::sync::Arc;

use anyhow::Result;
use datafusion::prelude::SessionContext;
use memferry_bench_query::{NamedTable, QueryTiers, layout, tiered_session, tpch_tables};
use memferry_query::load::Progress;
use memferry_query::schedule::{Binding, Domains};
use memferry_query::{QueryDomains, SessionOptions, Tiers, files};

use crate::arguments::{NamedLocation, SessionArguments};
use crate::error::usage;
use crate::options::session_options;
use crate::query::query_error;
use crate::stores;
use crate::yielding::with_yielding_joins;

/// A session with near memory and the generated tables. [`register`](Opened::register) adds those of files.
pub struct Opened {
    /// The session; its joins can be cancelled.
    pub context: SessionContext,
    /// The near memory.
    pub tiers: QueryTiers,
    /// Number of partitions of tables and queries.
    pub partitions: usize,
    /// Names of the tables of `--tpch`.
    pub generated: Vec<String>,
}

/// Opens near memory, generates the tables of `--tpch`, whose rows `progress` observes, and makes the session.
///
/// # Errors
/// Nodes, engines or a calibration that cannot be used; no room for the tables; two tables of one name.
pub fn open(arguments: &SessionArguments, progress: impl FnOnce() -> Box<dyn Progress>) -> Result<Opened> {
    let tiers = arguments.tiers.open(arguments.binding != Binding::None)?;
    let options = SessionOptions {
        prefetch: arguments.prefetch,
        tiers: Some(Arc::clone(&tiers.tiers)),
        domains: domains(&tiers, arguments)?,
        binding: arguments.binding,
        stealing: arguments.stealing,
        ..session_options(arguments.partitions)
    };
    let generated = match arguments.tpch {
        Some(scale) => tpch(scale, &tiers, options.partitions, &*progress())?,
        None => Vec::new(),
    };
    let context = tiered_session(&generated, &tiers.tiers, &options).map_err(query_error)?;
    let context = with_yielding_joins(&context);
    if let Some(table) = arguments.tables.iter().find(|it| generated.iter().any(|(name, _)| *name == it.name))
    {
        return Err(usage(format!(
            "two tables are called {}; give --table another name than those of TPC-H",
            table.name
        )));
    }
    let generated = generated.into_iter().map(|(name, _)| name).collect();
    Ok(Opened { context, tiers, partitions: options.partitions, generated })
}

impl Opened {
    /// Registers tables of files with `context`, which is that of a session.
    ///
    /// # Errors
    /// A store that cannot be set up, a file that cannot be a table.
    pub async fn register(context: SessionContext, tables: Vec<NamedLocation>) -> Result<()> {
        for table in &tables {
            stores::reach(&context, &table.location)?;
            files::register(&context, &table.name, &table.location).await?;
        }
        Ok(())
    }
}

/// The eight TPC-H tables, generated on the home node.
///
/// # Errors
/// A usage error if the scale is too small, or the tables do not fit.
pub fn tpch(
    scale: f64,
    tiers: &Tiers,
    partitions: usize,
    progress: &dyn Progress,
) -> Result<Vec<NamedTable>> {
    let tables = tpch_tables(scale, &layout(tiers, partitions), progress);
    let tables = tables.map_err(|error| query_error(error.into()))?;
    Ok(tables.into_iter().map(|(name, data)| (name, Arc::new(data))).collect())
}

/// The domains of this machine, each node divided into so many; none of a machine that is only described, and none where
/// they are not known and not asked for.
fn domains(tiers: &QueryTiers, arguments: &SessionArguments) -> Result<Option<Arc<QueryDomains>>> {
    let machine = tiers.machine();
    if !machine.is_this_machine() {
        return Ok(None);
    }
    let domains = match Domains::of(machine) {
        Err(_) if arguments.binding == Binding::None => return Ok(None),
        domains => domains.and_then(|domains| domains.split(arguments.domains_per_node)),
    };
    Ok(Some(QueryDomains::new(domains.map_err(usage)?)))
}

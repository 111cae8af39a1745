//! `--load` and `--place` for programs without a terminal.

use std::sync::Arc;

use anyhow::{Context, Result};
use datafusion::catalog::TableProvider;
use memferry::memory::MemoryError;
use memferry_bench_query::{QueryError, layout};
use memferry_query::load::LoadingTable;
use memferry_query::{Layout, LoadError, PlacementError, TableError, TieredTable};

use crate::arguments::{NamedPlacement, SessionArguments};
use crate::error::usage;
use crate::open::Opened;
use crate::query::{explain_error, query_error};

/// Brings the tables of files into memory if `is_loaded` (`--load`), and moves rows to the nodes that `--place` names.
///
/// # Errors
/// A usage error if `--place` names a table that is not in memory; a table that cannot be loaded or placed.
pub async fn load_tables(arguments: &SessionArguments, is_loaded: bool, opened: &Opened) -> Result<()> {
    for NamedPlacement { name, placement } in &arguments.places {
        if opened.generated.contains(name) {
            let provider = opened.context.table_provider(name.as_str()).await.map_err(explain_error)?;
            let table = provider.downcast_ref::<TieredTable>().context("a generated table is in memory")?;
            table.place(placement, Arc::new(())).await.map_err(explain_placement)?;
        } else if !arguments.tables.iter().any(|it| it.name == *name) {
            return Err(usage(format!(
                "--place names the table {name}, which neither --table nor --tpch makes"
            )));
        } else if !is_loaded {
            return Err(usage(format!("--place {name} is about rows in memory; add --load")));
        }
    }
    if !is_loaded {
        return Ok(());
    }
    for table in &arguments.tables {
        let placed = arguments.places.iter().find(|place| place.name == table.name);
        let placement = placed.map(|place| place.placement.clone()).unwrap_or_default();
        load(opened, &table.name, Layout { placement, ..layout(&opened.tiers, opened.partitions) }).await?;
    }
    Ok(())
}

/// Replaces a table of files by one in memory.
async fn load(opened: &Opened, name: &str, layout: Layout) -> Result<()> {
    let (context, tiers) = (&opened.context, &opened.tiers.tiers);
    let source = context.table_provider(name).await.map_err(explain_error)?;
    let loading = Arc::new(LoadingTable::try_new(source, None, Arc::clone(tiers)).map_err(explain_load)?);
    let data = loading.load(context, &layout, Arc::new(())).await.map_err(explain_load)?;
    let table = TieredTable::try_new(Arc::new(data), Arc::clone(tiers));
    let table: Arc<dyn TableProvider> = Arc::new(table.map_err(QueryError::from).map_err(query_error)?);
    context.deregister_table(name).map_err(explain_error)?;
    context.register_table(name, table).map_err(explain_error)?;
    Ok(())
}

/// The error of a load as a sentence.
pub fn explain_load(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Plan(error) => explain_error(error),
        LoadError::Table(TableError::Placement(error)) => explain_placement(error),
        LoadError::Table(error @ (TableError::NoColumnToPack { .. } | TableError::NotPackable { .. })) => {
            usage(error)
        }
        error => error.into(),
    }
}

/// Errors in a placement are usage errors; a node without room is not.
pub fn explain_placement(error: PlacementError) -> anyhow::Error {
    match error {
        PlacementError::Full { .. }
        | PlacementError::Copy(_)
        | PlacementError::BeingMoved { .. }
        | PlacementError::UnknownBandwidth { .. } => error.into(),
        PlacementError::Memory(
            MemoryError::Topology(_) | MemoryError::NodeWithoutMemory { .. } | MemoryError::NotAllowed { .. },
        ) => usage(error),
        PlacementError::Memory(_) => error.into(),
        _ => usage(error),
    }
}

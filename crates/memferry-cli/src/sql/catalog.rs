//! The tables of a session: registering files, and lists for `\d` and completion.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::datasource::{MemTable, TableType};
use datafusion::prelude::SessionContext;
use memferry_query::TieredTable;

use crate::output::{Table, printable};
use crate::query::explain_error;

/// Registers the files at `location` as a table, without reading their rows.
pub(super) async fn register(context: &SessionContext, name: &str, location: &str) -> Result<()> {
    let failed = || format!("cannot register table {name}");
    // The object store names only the root of what it misses.
    let is_glob = location.contains(['*', '?', '[']);
    if !location.contains("://") && !is_glob {
        readable(Path::new(location)).with_context(|| {
            format!(
                "cannot read {location}, the location of table {name}; check the path and its permissions"
            )
        })?;
    }
    let url = ListingTableUrl::parse(location).map_err(explain_error).with_context(failed)?;
    let options = ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension("");
    let not_parquet = || {
        format!(
            "cannot use {location} as table {name}; name Parquet files, and convert others first, for example with DuckDB"
        )
    };
    let state = context.state();
    let schema = options.infer_schema(&state, &url).await.with_context(not_parquet)?;
    if schema.fields().is_empty() {
        anyhow::bail!("there are no Parquet files at {location}, the location of table {name}");
    }
    let config = ListingTableConfig::new(url).with_listing_options(options).with_schema(schema);
    let table = ListingTable::try_new(config).map_err(explain_error).with_context(failed)?;
    context.register_table(name, Arc::new(table)).map_err(explain_error).with_context(failed)?;
    Ok(())
}

fn readable(path: &Path) -> io::Result<()> {
    if path.is_dir() { fs::read_dir(path).map(|_| ()) } else { fs::File::open(path).map(|_| ()) }
}

/// A table and where its rows are.
#[derive(Debug)]
pub(super) struct Described {
    /// As SQL names it: with its schema, unless that is the default schema.
    pub(super) name: String,
    pub(super) provider: Arc<dyn TableProvider>,
}

impl Described {
    /// Where the rows are, in a few words.
    pub(super) fn kind(&self) -> String {
        if self.provider.table_type() == TableType::View {
            return "view".to_owned();
        }
        if let Some(table) = self.provider.downcast_ref::<TieredTable>() {
            return format!("memory of node {}", table.data().home());
        }
        let in_memory = self.provider.downcast_ref::<MemTable>().is_some();
        if in_memory { "memory" } else { "files" }.to_owned()
    }
}

/// All tables but those of the information schema, by name.
pub(super) async fn tables(context: &SessionContext) -> Vec<Described> {
    let state = context.state();
    let defaults = &state.config().options().catalog;
    let mut tables = Vec::new();
    for catalog_name in context.catalog_names() {
        let Some(catalog) = context.catalog(&catalog_name) else { continue };
        for schema_name in catalog.schema_names() {
            if schema_name == "information_schema" {
                continue;
            }
            let Some(schema) = catalog.schema(&schema_name) else { continue };
            for table in schema.table_names() {
                // A table that cannot be opened can still be dropped; its error appears when it is used.
                let Ok(Some(provider)) = schema.table(&table).await else { continue };
                let name = match (&catalog_name, &schema_name) {
                    (c, s) if *c == defaults.default_catalog && *s == defaults.default_schema => table,
                    (c, s) if *c == defaults.default_catalog => format!("{s}.{table}"),
                    (c, s) => format!("{c}.{s}.{table}"),
                };
                tables.push(Described { name, provider });
            }
        }
    }
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    tables
}

/// The tables as text.
pub(super) fn list(tables: &[Described]) -> String {
    if tables.is_empty() {
        return "there are no tables; CREATE EXTERNAL TABLE makes one of files\n".to_owned();
    }
    let mut text = Table::new("table | columns: | rows are in");
    for table in tables {
        let columns = table.provider.schema().fields().len();
        text.row(vec![printable(&table.name), columns.to_string(), table.kind()]);
    }
    text.to_string()
}

/// The columns of a table as text.
pub(super) fn list_columns(schema: &SchemaRef) -> String {
    let mut text = Table::new("column | type | nullable");
    for field in schema.fields() {
        let nullable = if field.is_nullable() { "yes" } else { "no" };
        text.row(vec![printable(field.name()), field.data_type().to_string(), nullable.to_owned()]);
    }
    text.to_string()
}

//! The tables of a session: lists for `\d` and completion.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::datasource::{MemTable, TableType};
use datafusion::prelude::SessionContext;
use memferry_query::TieredTable;

use super::placement::nodes_of;
use crate::output::{Table, printable};

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
            return format!("memory of {}", nodes_of(&table.data()));
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

//! Tables whose file has vanished. DataFusion lists a missing path as an empty one, and would answer without rows.

use std::io::{Error, ErrorKind};
use std::path::Path;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;

/// Checks that the tables of a plan that are one file of this machine have it.
///
/// # Errors
/// [`DataFusionError::IoError`]: a file has vanished or cannot be read, or is empty.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(table) = provider.downcast_ref::<ListingTable>()
        {
            for url in table.table_paths() {
                if url.scheme() == "file"
                    && !url.is_collection()
                    && url.get_glob().is_none()
                    && let Ok(file) = url.get_url().to_file_path()
                {
                    check_file(&file, scan.table_name.table())?;
                }
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn check_file(file: &Path, table: &str) -> Result<()> {
    let failed = |kind, why: &str| {
        DataFusionError::IoError(Error::new(
            kind,
            format!("{}, the file of the table {table}, {why}", file.display()),
        ))
    };
    match std::fs::metadata(file) {
        Ok(found) if found.len() == 0 => Err(failed(ErrorKind::InvalidData, "is empty")),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(failed(ErrorKind::NotFound, "has vanished")),
        Err(error) => Err(failed(error.kind(), &format!("cannot be read: {error}"))),
    }
}

//! Tables whose file has vanished or was cut off. DataFusion lists a missing path as an empty one, and would answer without
//! rows; its error of a cut file does not name the file.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::ListingTable;
use datafusion::datasource::source_as_provider;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::LogicalPlan;

/// Checks that the tables of a plan that are one file of this machine have it.
///
/// # Errors
/// [`DataFusionError::IoError`]: a file has vanished, cannot be read, is empty or has no end.
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
        Ok(_) if file.extension().is_some_and(|it| it == "parquet") => match ends_as_parquet(file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(failed(ErrorKind::InvalidData, "is cut off or damaged")),
            Err(error) => Err(failed(error.kind(), &format!("cannot be read: {error}"))),
        },
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(failed(ErrorKind::NotFound, "has vanished")),
        Err(error) => Err(failed(error.kind(), &format!("cannot be read: {error}"))),
    }
}

/// Whether the last bytes are those of Apache Parquet: `PAR1`, or `PARE` with an encrypted footer.
fn ends_as_parquet(file: &Path) -> std::io::Result<bool> {
    let mut file = File::open(file)?;
    if file.metadata()?.len() < 4 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-4))?;
    let mut end = [0; 4];
    file.read_exact(&mut end)?;
    Ok(end == *b"PAR1" || end == *b"PARE")
}

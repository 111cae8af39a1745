//! `COPY ... TO 'FILE'`: the file gets its name when it is complete. DataFusion leaves what it has written if the query
//! fails.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use datafusion::logical_expr::LogicalPlan;

/// A file that COPY writes under another name. Dropped before [`keep`](CopiedFile::keep), it is removed.
pub(super) struct CopiedFile {
    part: PathBuf,
    target: PathBuf,
}

impl CopiedFile {
    /// Makes a COPY to one local file write to another name. Directories and object stores are left alone.
    pub(super) fn redirect(plan: LogicalPlan) -> (LogicalPlan, Option<CopiedFile>) {
        let LogicalPlan::Copy(mut copy) = plan else { return (plan, None) };
        let options = ["single_file_output", "format.single_file_output"];
        let may_be_directory =
            !copy.partition_by.is_empty() || options.iter().any(|option| copy.options.contains_key(*option));
        let file = if may_be_directory { None } else { CopiedFile::at(&copy.output_url) };
        if let Some(file) = &file {
            copy.output_url = file.part.display().to_string();
        }
        (LogicalPlan::Copy(copy), file)
    }

    fn at(location: &str) -> Option<CopiedFile> {
        let path = location.strip_prefix("file://").unwrap_or(location);
        let path = Path::new(path);
        // Without an extension DataFusion makes a directory.
        let extension = path.extension()?.to_str()?;
        if path.to_str()?.contains("://") || location.ends_with('/') || path.is_dir() {
            return None;
        }
        // Follow a symbolic link, which the rename would replace.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let name = format!(".{}.{}.partial.{extension}", path.file_stem()?.to_str()?, std::process::id());
        Some(CopiedFile { part: target.with_file_name(name), target })
    }

    /// Gives the file its name.
    pub(super) fn keep(&self) -> Result<()> {
        fs::rename(&self.part, &self.target).with_context(|| {
            format!(
                "cannot write {}; choose a file in a directory that you can write to",
                self.target.display()
            )
        })
    }
}

impl Drop for CopiedFile {
    fn drop(&mut self) {
        // Fails after `keep`, and if nothing was written.
        let _ = fs::remove_file(&self.part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_local_file_is_redirected() {
        let file = CopiedFile::at("/nowhere/v.parquet").unwrap();
        assert_eq!(file.target, Path::new("/nowhere/v.parquet"));
        let part = file.part.to_str().unwrap();
        assert!(part.starts_with("/nowhere/.v.") && part.ends_with(".partial.parquet"), "{part}");
        assert_eq!(CopiedFile::at("file:///a/v.csv").unwrap().target, Path::new("/a/v.csv"));
        for left_alone in ["/a/directory", "/a/v.parquet/", "s3://bucket/v.parquet"] {
            assert!(CopiedFile::at(left_alone).is_none(), "{left_alone}");
        }
    }
}

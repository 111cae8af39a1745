//! `cargo xtask lines`: lines of code by crate, without tests, examples, comments and blank lines.
//!
//! cargo-warloc counts; it knows modules under `#[cfg(test)]`.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;

use crate::shell::{self, Failure};

pub(crate) fn run() -> Result<(), Failure> {
    let report = shell::tool("cargo-warloc")?.args(["warloc", "--by-file", "-o", "json"]).output()?;
    let crates = by_crate(&report)?;
    for (name, lines) in &crates {
        println!("{lines:>7}  {name}");
    }
    println!("{:>7}  sum", crates.values().sum::<u64>());
    Ok(())
}

#[derive(Deserialize)]
struct Report {
    files: HashMap<String, File>,
}

#[derive(Deserialize)]
struct File {
    main: Counts,
}

#[derive(Deserialize)]
struct Counts {
    code: u64,
}

fn by_crate(report: &str) -> Result<BTreeMap<String, u64>, Failure> {
    let report: Report = serde_json::from_str(report)
        .map_err(|error| Failure(format!("cannot read the output of cargo-warloc: {error}")))?;
    let mut crates = BTreeMap::new();
    for (path, file) in report.files {
        let path = path.trim_start_matches("./");
        let name = path.strip_prefix("crates/").unwrap_or(path).split('/').next().unwrap_or(path);
        *crates.entry(name.to_owned()).or_default() += file.main.code;
    }
    Ok(crates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_add_up_by_crate() {
        let file = |code: u64| serde_json::json!({"main": {"code": code, "docs": 9}, "tests": {"code": 100}});
        let report = serde_json::json!({"file_count": 3, "files": {
            "./crates/memferry/src/lib.rs": file(1),
            "./crates/memferry/src/cache/mod.rs": file(2),
            "./xtask/src/main.rs": file(4),
        }});
        let crates = by_crate(&report.to_string()).unwrap();
        assert_eq!(crates, [("memferry".to_owned(), 3), ("xtask".to_owned(), 4)].into());
        assert!(by_crate("").unwrap_err().0.contains("cargo-warloc"));
    }
}

//! `memferry report --add FILE`: the records of a collection, for reports about its machine.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::collection::Collection;
use super::run::Outcome;
use super::steps::PROFILE;
use crate::output::{Part, count};
use crate::report::records;

pub(in crate::report) fn add(file: &Path, results: &Path, out: &mut dyn Write) -> Result<()> {
    let collection = Collection::read(file)?;
    let machines: Vec<&str> = collection.records().map(|(machine, _, _)| machine).collect();
    let Some((&machine, others)) = machines.split_first() else {
        bail!("{} has no record; nothing was added", file.display());
    };
    if let Some(other) = others.iter().find(|other| **other != machine) {
        bail!("{} has records of two machines, {machine} and {other}; nothing was added", file.display());
    }
    let directory = results.join(machine);
    let day = collection.state.started.get(..10).unwrap_or("unknown");
    let about = directory.join(format!("collected-{day}"));
    let mut files: Vec<(PathBuf, String)> = Vec::new();
    for (_, name, text) in collection.records() {
        let is_record = !name.ends_with(".json") || records::is_record(text);
        if !is_record {
            bail!("{name} in {} is not a record of a benchmark; nothing was added", file.display());
        }
        files.push((directory.join(name), text.to_owned()));
    }
    files.extend(collection.described().map(|(name, text)| (about.join(name), text.to_owned())));
    files.push((about.join("steps.json"), serde_json::to_string_pretty(&collection.state)? + "\n"));
    if let Some((path, _)) = files.iter().find(|(path, text)| is_other(path, text)) {
        bail!(
            "{} exists with other content; move it away, or choose another directory with --results; nothing was added",
            path.display()
        );
    }
    let write = || {
        fs::create_dir_all(&about)?;
        let parts = files.iter().map(|(path, text)| Part::write(path, text.as_bytes()));
        parts.collect::<std::io::Result<Vec<_>>>()?.into_iter().try_for_each(Part::keep)
    };
    write().with_context(|| {
        format!(
            "cannot write the records to {}; make room there, or choose --results DIR",
            directory.display()
        )
    })?;
    if collection.state.quick {
        writeln!(out, "note: taken with --quick, so that its numbers are not accurate")?;
    }
    if let Some(change) = &collection.change {
        writeln!(out, "note: on that machine {change}")?;
    }
    for step in collection.state.steps.iter().filter(|step| step.outcome != Outcome::Skipped) {
        writeln!(out, "{step}")?;
    }
    collection.state.print_skipped(out)?;
    let records = count(collection.records_count(), "record");
    writeln!(out, "added {records} to {}", directory.display())?;
    let profile = about.join(PROFILE);
    if profile.exists() {
        writeln!(
            out,
            "for their page: memferry report --machine {} --results {} --out DIR",
            profile.display(),
            results.display()
        )?;
    }
    Ok(())
}

/// Whether a file of this path has other content. A file that cannot be read is another one.
fn is_other(path: &Path, text: &str) -> bool {
    path.exists() && fs::read(path).map_or(true, |old| old != text.as_bytes())
}

//! The file of a collection: one JSON object with the texts of its files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::run::{Run, State};
use super::steps::{Gives, PROFILE, RECORDS, STEPS};

/// The version of the format. Another one is refused.
const FORMAT: u32 = 1;

/// What was found out about a machine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Collection {
    /// [`FORMAT`].
    memferry_collection: u32,
    #[serde(flatten)]
    pub(super) state: State,
    /// What has changed on the machine meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) change: Option<String>,
    /// Texts by name: `topology.json`, `records/MACHINE/2026-11-25-submit.csv` and so on. As texts, so that no number
    /// changes on its way.
    pub(super) files: BTreeMap<String, String>,
}

impl Collection {
    /// What a run has left in its directory.
    pub(super) fn of(run: &Run, change: Option<String>) -> Result<Collection> {
        let mut files = BTreeMap::new();
        for name in described() {
            let path = run.directory.join(&name);
            if path.exists() {
                files.insert(name, read(&path)?);
            }
        }
        let records = run.directory.join(RECORDS);
        for machine in entries(&records)? {
            for file in entries(&records.join(&machine))? {
                // Of a benchmark that was stopped and can continue.
                if !file.ends_with(".unfinished.json") {
                    let path = records.join(&machine).join(&file);
                    files.insert(format!("{RECORDS}/{machine}/{file}"), read(&path)?);
                }
            }
        }
        Ok(Collection { memferry_collection: FORMAT, state: run.state.clone(), change, files })
    }

    /// Reads a collection and checks its names: the file is from another machine.
    pub(super) fn read(file: &Path) -> Result<Collection> {
        let text =
            fs::read(file).with_context(|| format!("cannot read the collection {}", file.display()))?;
        #[derive(Deserialize)]
        struct Format {
            memferry_collection: u32,
        }
        let name = file.display();
        let is_none = || format!("{name} is no collection; --add takes a file of memferry report --collect");
        let format: Format = serde_json::from_slice(&text).with_context(is_none)?;
        if format.memferry_collection != FORMAT {
            bail!(
                "{name} is a collection of format {}, and this version of memferry reads format {FORMAT}; update memferry",
                format.memferry_collection
            );
        }
        let collection: Collection = serde_json::from_slice(&text).with_context(is_none)?;
        let described = described();
        for file in collection.files.keys() {
            if !described.contains(file) && record_path(file).is_none() {
                bail!("{name} has a file with the name {file:?}, which no collection has; nothing was added");
            }
        }
        Ok(collection)
    }

    /// Machine, name of the file and text of each file of a record.
    pub(super) fn records(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.files.iter().filter_map(|(path, text)| {
            let (machine, name) = record_path(path)?;
            Some((machine, name, text.as_str()))
        })
    }

    /// A record is two files.
    pub(super) fn records_count(&self) -> usize {
        self.records().filter(|(_, name, _)| name.ends_with(".json")).count()
    }

    /// Name and text of each file that describes the machine.
    pub(super) fn described(&self) -> impl Iterator<Item = (&str, &str)> {
        let is_record = |path: &str| record_path(path).is_some();
        let others = self.files.iter().filter(move |(path, _)| !is_record(path));
        others.map(|(name, text)| (name.as_str(), text.as_str()))
    }
}

/// Names of the files that describe the machine.
fn described() -> Vec<String> {
    let outputs = STEPS.iter().filter(|step| step.gives == Gives::Output);
    outputs.map(|step| format!("{}.json", step.name)).chain([PROFILE.to_owned()]).collect()
}

/// Machine and name of `records/MACHINE/NAME.json` or `.csv`; `None` for any other path.
fn record_path(path: &str) -> Option<(&str, &str)> {
    let (machine, name) = path.strip_prefix(RECORDS)?.strip_prefix('/')?.split_once('/')?;
    let is_plain = |text: &str, more: &str| {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || more.contains(c);
        !text.is_empty() && text.chars().all(allowed)
    };
    let (stem, extension) = name.rsplit_once('.')?;
    let is_machine = is_plain(machine, "") && is_plain(stem, "_") && ["json", "csv"].contains(&extension);
    is_machine.then_some((machine, name))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Sorted names in a directory; none if it does not exist.
fn entries(directory: &Path) -> Result<Vec<String>> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let read = || {
        let entries = fs::read_dir(directory)?;
        let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        names.collect::<std::io::Result<Vec<String>>>()
    };
    let mut names = read().with_context(|| format!("cannot read {}", directory.display()))?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_directory_of_results_are_refused() {
        let machine = "intel-xeon-max-9468-96cpu";
        let good =
            [format!("records/{machine}/2026-11-25-submit.json"), format!("records/{machine}/a_b.csv")];
        for path in &good {
            assert_eq!(record_path(path).unwrap().0, machine);
        }
        for path in [
            "records/../x.json",
            "records/m/../../x.json",
            "records/m/x.sh",
            "records//x.json",
            "records/m/.json",
            "records/m/..json",
            "records/m/a/b.json",
            "/etc/passwd",
            "topology.json",
        ] {
            assert_eq!(record_path(path), None, "{path}");
        }
    }
}

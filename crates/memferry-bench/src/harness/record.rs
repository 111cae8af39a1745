//! Records: one JSON object, and the same rows as CSV beside it.
//!
//! `results/<machine>/<date>-<bench>.json` names the machine, the commit and the options; the report reads it. The CSV beside
//! it is for other plots. A second run on the same day replaces the first. See results/README.md, and
//! docs/common-changes.md for a new field.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memferry::topology::Machine;
use serde::Serialize;
use serde_json::Value;
use tempfile::NamedTempFile;

use super::{Row, UnequalWork, check_equal_work};

/// One run of one benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Record<R = Row> {
    /// Name of the benchmark.
    pub bench: &'static str,
    /// Version of memferry.
    pub version: &'static str,
    /// Commit of memferry.
    pub commit: &'static str,
    /// The machine that was measured or modelled.
    pub machine: Machine,
    /// Start in UTC, as in RFC 3339.
    pub started: String,
    /// Seed of the run.
    pub seed: u64,
    /// Options of the benchmark.
    pub options: Value,
    /// The numbers.
    pub rows: Vec<R>,
}

/// A row that a CSV file can hold, by the fields of its JSON object.
pub trait CsvRow: Serialize {
    /// Names of the columns, in order.
    fn columns() -> Vec<&'static str>;

    /// One field per column; an absent value is empty.
    fn fields(&self) -> Vec<String> {
        let row = serde_json::to_value(self).unwrap_or_default();
        let field = |column: &str| match &row[column] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            // JSON has `1e3` and `2.0` where CSV has `1000` and `2`.
            Value::Number(number) => match number.as_u64() {
                Some(whole) => whole.to_string(),
                None => number.as_f64().map_or(String::new(), |number| number.to_string()),
            },
            other => other.to_string(),
        };
        Self::columns().into_iter().map(field).collect()
    }
}

/// A record that cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The directory or a file cannot be written.
    #[error(
        "the results cannot be written to {}; make room there or choose another directory (--out, --results)",
        directory.display()
    )]
    Io {
        /// The directory of the record.
        directory: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A row has a peer of other work.
    #[error(transparent)]
    UnequalWork(#[from] UnequalWork),
}

impl RecordError {
    fn at(directory: &Path) -> impl Fn(io::Error) -> RecordError {
        move |source| RecordError::Io { directory: directory.to_owned(), source }
    }
}

impl<R> Record<R> {
    /// An empty record of a run that starts now, by a program built from `commit`.
    pub fn start(
        bench: &'static str,
        commit: &'static str,
        machine: Machine,
        seed: u64,
        options: Value,
    ) -> Record<R> {
        let started = rfc3339(SystemTime::now());
        let version = env!("CARGO_PKG_VERSION");
        Record { bench, version, commit, machine, started, seed, options, rows: Vec::new() }
    }

    /// The directory of the record's machine below `directory`.
    pub fn directory(&self, directory: &Path) -> PathBuf {
        directory.join(machine_slug(&self.machine))
    }
}

impl<R: CsvRow> Record<R> {
    /// The rows as CSV, with a line of column names.
    pub fn csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let lines = [R::columns().into_iter().map(str::to_owned).collect()];
        for fields in lines.into_iter().chain(self.rows.iter().map(CsvRow::fields)) {
            writer.write_record(fields).expect("every row has a field per column");
        }
        let bytes = writer.into_inner().expect("memory takes all bytes");
        String::from_utf8(bytes).expect("the fields are UTF-8")
    }

    /// Writes both files below `directory` and returns the path of the CSV. `name` replaces the benchmark's in their
    /// names.
    ///
    /// # Errors
    /// [`RecordError`], also for a peer of other work without a label. Neither file exists in part, and an older one of the
    /// same name is unchanged.
    pub fn write_as(&self, name: &str, directory: &Path) -> Result<PathBuf, RecordError> {
        let directory = self.directory(directory);
        let failed = RecordError::at(&directory);
        for row in &self.rows {
            check_equal_work(&serde_json::to_value(row).map_err(io::Error::from).map_err(&failed)?)?;
        }
        fs::create_dir_all(&directory).map_err(&failed)?;
        let stem = format!("{}-{name}", &self.started[..10]);
        let csv = directory.join(format!("{stem}.csv"));
        let json = directory.join(format!("{stem}.json"));
        let text = serde_json::to_string_pretty(self).map_err(io::Error::from).map_err(&failed)? + "\n";
        // Both are whole on the disk before either gets its name.
        let files = [(json, text), (csv.clone(), self.csv())];
        let files = files.map(|(path, text)| Ok((synced(&directory, text.as_bytes())?, path)));
        let files = files.into_iter().collect::<io::Result<Vec<_>>>().map_err(&failed)?;
        for (file, path) in files {
            file.persist(path).map_err(io::Error::from).map_err(&failed)?;
        }
        Ok(csv)
    }
}

impl<R: Serialize> Record<R> {
    /// Replaces `path` by this record as one line of JSON.
    ///
    /// # Errors
    /// [`RecordError`]; an older file is unchanged.
    pub fn write_json(&self, path: &Path) -> Result<(), RecordError> {
        let directory = path.parent().unwrap_or(Path::new("."));
        let write = || {
            fs::create_dir_all(directory)?;
            let text = serde_json::to_string(self)? + "\n";
            synced(directory, text.as_bytes())?.persist(path)?;
            Ok(())
        };
        write().map_err(RecordError::at(directory))
    }
}

/// A temporary file of this content, on the disk.
fn synced(directory: &Path, content: &[u8]) -> io::Result<NamedTempFile> {
    // Readable by others as far as the umask allows, as if it were created under its name.
    let mut file =
        tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(directory)?;
    file.write_all(content)?;
    // Some file systems report a full disk only here.
    file.as_file().sync_all()?;
    Ok(file)
}

/// Checks that records can be written below `directory`, before they are taken.
///
/// # Errors
/// [`RecordError`].
pub fn check_writable(directory: &Path) -> Result<(), RecordError> {
    let probe = || fs::create_dir_all(directory).and_then(|()| synced(directory, b"probe"));
    probe().map(drop).map_err(RecordError::at(directory))
}

/// The directory name of a machine: CPU model, family and model number if known, and number of CPUs, in lower case. The
/// model name alone does not tell generations of CPUs apart.
pub fn machine_slug(machine: &Machine) -> String {
    let cpus: usize = machine.nodes().iter().map(|node| node.cpus.len()).sum();
    let cpu = machine.cpu().unwrap_or("unknown cpu").replace("(R)", "").replace("(TM)", "").to_lowercase();
    let words: Vec<&str> =
        cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let generation = machine.cpu_family_and_model();
    let generation =
        generation.map(|(family, model)| format!("-family{family}-model{model}")).unwrap_or_default();
    format!("{}{generation}-{cpus}cpu", words.join("-"))
}

/// A time in UTC, such as `2026-11-21T21:26:45Z`.
pub fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Estimate, Peer, Provenance};

    fn record() -> Record {
        let options = serde_json::json!({ "scale": 1.0 });
        let mut record = Record::start("query", "commit", Machine::two_tiers().unwrap(), 1, options);
        let ratio = Estimate { value: 1.5, low: 1.25, high: 2.0 };
        let compared = Row::median("geomean, all", "ms", Provenance::Measured, &[1.0, 2.0, 4.0]);
        record.rows.push(Row { peer: Some(Peer::new("datafusion", 3.0, ratio)), ..compared });
        record.rows.push(Row::median("rss_peak_bytes", "bytes", Provenance::Emulated, &[1e9]));
        record
    }

    #[test]
    fn rows_as_csv() {
        let expected = "\
name,value,unit,how,samples,min,max,peer,peer_value,ratio,ratio_low,ratio_high
\"geomean, all\",2,ms,measured,3,1,4,datafusion,3,1.5,1.25,2
rss_peak_bytes,1000000000,bytes,emulated,1,1000000000,1000000000,,,,,
";
        assert_eq!(record().csv(), expected);
    }

    #[test]
    fn rows_as_json() {
        let json = serde_json::to_value(record()).unwrap();
        assert_eq!(json["rows"][0]["ratio"], 1.5, "{json}");
        assert_eq!(json["rows"][0]["peer_value"], 3.0, "{json}");
        assert_eq!(json["rows"][1]["how"], "emulated", "{json}");
        assert!(json["rows"][1].get("peer").is_none(), "{json}");
        assert!(json["machine"]["nodes"].is_array(), "{json}");
    }

    #[test]
    fn written_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let csv = record().write_as("query", directory.path()).unwrap();
        assert_eq!(fs::read_to_string(&csv).unwrap(), record().csv());
        let names = |path: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let kept = names(csv.parent().unwrap());
        assert_eq!(kept.len(), 2, "{kept:?}");

        // The JSON cannot replace a directory. The CSV, written before the error, must not stay.
        let other = tempfile::tempdir().unwrap();
        let below = other.path().join(machine_slug(&record().machine));
        let json = csv.with_extension("json");
        fs::create_dir_all(below.join(json.file_name().unwrap())).unwrap();
        let error = record().write_as("query", other.path()).unwrap_err();
        assert!(error.to_string().contains("cannot be written"), "{error}");
        assert_eq!(names(&below), [json.file_name().unwrap()]);
    }

    #[test]
    fn a_peer_of_other_work_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut record = record();
        let peer = record.rows[0].peer.take().unwrap();
        record.rows[0].peer = Some(Peer { provenance: Some(Provenance::Published), ..peer.clone() });
        let error = record.write_as("query", directory.path()).unwrap_err();
        assert!(matches!(error, RecordError::UnequalWork(_)), "{error}");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        record.rows[0].peer = Some(peer.obtained(Provenance::Published));
        record.write_as("query", directory.path()).unwrap();
    }

    /// Records of two generations that are both called "AMD EPYC" replaced each other.
    #[test]
    fn a_machine_is_named_by_the_generation_of_its_cpu() {
        let recorded =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../memferry/tests/recorded/firecracker-one-node.json");
        let machine = Machine::discover_at(recorded).unwrap();
        assert_eq!(machine_slug(&machine), "amd-epyc-family25-model17-2cpu");
        assert_eq!(machine_slug(&Machine::two_tiers().unwrap()), "made-up-2cpu");
    }
}

//! What a benchmark leaves behind: one JSON object, and the same rows as CSV with the object next to it.
//!
//! `results/<machine>/<date>-<bench>.csv` is what plots are drawn from; `<date>-<bench>.json` says on which machine, from
//! which commit and with which options it was taken. A second run on the same day replaces the first. See
//! results/README.md.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use memferry::topology::Machine;
use serde::Serialize;

use super::stats::{Estimate, Pairs, geomean_ratio, median};
use crate::output::Part;
use crate::output::csv_field;
use crate::provenance::Provenance;

/// The profile that this command was built with: numbers of another one are not compared with its own.
pub(crate) const BUILD_PROFILE: &str = if cfg!(debug_assertions) { "dev" } else { "release" };

/// One number.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// The median where there are several samples.
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) how: Provenance,
    pub(crate) samples: usize,
    pub(crate) min: f64,
    pub(crate) max: f64,
    #[serde(flatten)]
    pub(crate) comparison: Option<Comparison>,
}

impl Row {
    /// The middle of these values, which are compared with nothing. Panics without values.
    pub(crate) fn median(name: String, unit: &'static str, how: Provenance, values: &[f64]) -> Row {
        let (min, max) = (values.iter().copied())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| (min.min(value), max.max(value)));
        Row { name, value: median(values), unit, how, samples: values.len(), min, max, comparison: None }
    }

    /// Measured next to a peer, in pairs. `seed` is that of the confidence interval.
    pub(crate) fn compared(times: memferry_bench::cache::Comparison, seed: u64) -> Row {
        let row = Row::median(times.name, times.unit, Provenance::Measured, &times.ours);
        let peer_value = median(&times.peer);
        let ratio = geomean_ratio([&Pairs { ours_ms: times.ours, peer_ms: times.peer }], seed);
        Row { comparison: Some(Comparison::new(&times.peer_name, peer_value, ratio)), ..row }
    }
}

/// What the number is compared with. Both were taken in the same run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    pub(crate) peer: String,
    pub(crate) peer_value: f64,
    /// Above 1: memferry is better.
    pub(crate) ratio: f64,
    /// Ends of the ratio's 95 % confidence interval.
    pub(crate) ratio_low: f64,
    pub(crate) ratio_high: f64,
}

impl Comparison {
    pub(crate) fn new(peer: &str, peer_value: f64, ratio: Estimate) -> Comparison {
        let Estimate { value, low, high } = ratio;
        Comparison { peer: peer.to_owned(), peer_value, ratio: value, ratio_low: low, ratio_high: high }
    }
}

/// One run of one benchmark. Models have rows of their own.
#[derive(Debug, Serialize)]
pub(crate) struct Record<R = Row> {
    pub(crate) bench: &'static str,
    pub(crate) version: &'static str,
    pub(crate) commit: &'static str,
    pub(crate) machine: Machine,
    /// UTC, as in RFC 3339.
    pub(crate) started: String,
    pub(crate) seed: u64,
    pub(crate) options: serde_json::Value,
    pub(crate) rows: Vec<R>,
}

impl<R> Record<R> {
    /// An empty record of a run that starts now.
    pub(crate) fn start(
        bench: &'static str,
        machine: Machine,
        seed: u64,
        options: serde_json::Value,
    ) -> Record<R> {
        Record {
            bench,
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("MEMFERRY_COMMIT"),
            machine,
            started: rfc3339(SystemTime::now()),
            seed,
            options,
            rows: Vec::new(),
        }
    }
}

/// A row as a line of CSV.
pub(crate) trait Line {
    /// The names of the columns.
    fn heading() -> String;
    /// Their values. An empty field is a figure that the row does not have.
    fn line(&self) -> String;
}

impl Line for Row {
    fn heading() -> String {
        "name,value,unit,how,samples,min,max,peer,peer_value,ratio,ratio_low,ratio_high".to_owned()
    }

    fn line(&self) -> String {
        let Row { name, value, unit, how, samples, min, max, .. } = self;
        let comparison = match &self.comparison {
            None => ",,,,".to_owned(),
            Some(Comparison { peer, peer_value, ratio, ratio_low, ratio_high }) => {
                format!("{},{peer_value},{ratio},{ratio_low},{ratio_high}", csv_field(peer))
            }
        };
        format!("{},{value},{unit},{how},{samples},{min},{max},{comparison}", csv_field(name))
    }
}

impl<R: Serialize + Line> Record<R> {
    /// The rows with a line of headings.
    pub(crate) fn csv(&self) -> String {
        let lines = self.rows.iter().map(Line::line);
        [R::heading()].into_iter().chain(lines).map(|line| line + "\n").collect()
    }

    /// The directory of the record's machine below that of all records.
    pub(crate) fn directory(&self, directory: &Path) -> PathBuf {
        directory.join(machine_slug(&self.machine))
    }

    /// Writes both files below `directory` and returns the path of the CSV.
    ///
    /// # Errors
    /// As [`write_as`](Record::write_as).
    pub(crate) fn write(&self, directory: &Path) -> Result<PathBuf> {
        self.write_as(self.bench, directory)
    }

    /// The same, with `name` in the place of the benchmark's.
    ///
    /// # Errors
    /// The sentence names the file; neither file is there in part, and an older one of the same name is untouched.
    pub(crate) fn write_as(&self, name: &str, directory: &Path) -> Result<PathBuf> {
        let directory = self.directory(directory);
        let advice = || advice(&directory);
        fs::create_dir_all(&directory).with_context(advice)?;
        let stem = format!("{}-{name}", &self.started[..10]);
        let csv = directory.join(format!("{stem}.csv"));
        let json = directory.join(format!("{stem}.json"));
        let text = serde_json::to_string_pretty(self)? + "\n";
        // Both are whole on the disk before either gets its name.
        let parts = [Part::write(&json, text.as_bytes()), Part::write(&csv, self.csv().as_bytes())];
        for part in parts.into_iter().collect::<io::Result<Vec<_>>>().with_context(advice)? {
            part.keep().with_context(advice)?;
        }
        Ok(csv)
    }
}

/// Finds out whether records can be written below `directory` before they are taken.
pub(crate) fn check_writable(directory: &Path) -> Result<()> {
    let probe = directory.join("probe");
    let written = fs::create_dir_all(directory).and_then(|()| Part::write(&probe, b"probe"));
    written.map(drop).with_context(|| advice(directory))
}

pub(crate) fn advice(directory: &Path) -> String {
    format!(
        "the results cannot be written to {}; make room there or choose another directory (--out, --results)",
        directory.display()
    )
}

/// A directory name for a machine: CPU model, the CPU's family and model if they are known, and number of CPUs, in lower
/// case. The model alone does not name a generation of CPUs.
pub(crate) fn machine_slug(machine: &Machine) -> String {
    let cpus: usize = machine.nodes().iter().map(|node| node.cpus.len()).sum();
    let cpu = machine.cpu().unwrap_or("unknown cpu").replace("(R)", "").replace("(TM)", "").to_lowercase();
    let words: Vec<&str> =
        cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let generation = machine.cpu_family_and_model();
    let generation =
        generation.map(|(family, model)| format!("-family{family}-model{model}")).unwrap_or_default();
    format!("{}{generation}-{cpus}cpu", words.join("-"))
}

/// `2026-11-21T21:26:45Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of the `days`-th day after 1 January 1970.
///
/// Source: Howard Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`: years begin in March, so
/// that the leap day is their last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record() -> Record {
        let mut record =
            Record::start("query", Machine::two_tiers().unwrap(), 1, serde_json::json!({ "scale": 1.0 }));
        let ratio = Estimate { value: 1.5, low: 1.25, high: 2.0 };
        record.rows.push(Row {
            name: "geomean, all".to_owned(),
            value: 2.0,
            unit: "ms",
            how: Provenance::Measured,
            samples: 11,
            min: 1.0,
            max: 4.0,
            comparison: Some(Comparison::new("datafusion", 3.0, ratio)),
        });
        record.rows.push(Row {
            name: "rss_peak_bytes".to_owned(),
            value: 1e9,
            unit: "bytes",
            how: Provenance::Emulated,
            samples: 1,
            min: 1e9,
            max: 1e9,
            comparison: None,
        });
        record
    }

    #[test]
    fn rows_as_csv() {
        let expected = "\
name,value,unit,how,samples,min,max,peer,peer_value,ratio,ratio_low,ratio_high
\"geomean, all\",2,ms,measured,11,1,4,datafusion,3,1.5,1.25,2
rss_peak_bytes,1000000000,bytes,emulated,1,1000000000,1000000000,,,,,
";
        assert_eq!(record().csv(), expected);
    }

    #[test]
    fn rows_as_json() {
        let json = serde_json::to_value(record()).unwrap();
        assert_eq!(json["rows"][0]["ratio"], 1.5, "{json}");
        assert_eq!(json["rows"][1]["how"], "emulated", "{json}");
        assert!(json["rows"][1].get("peer").is_none(), "{json}");
        assert!(json["machine"]["nodes"].is_array(), "{json}");
    }

    #[test]
    fn dates() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_200), "2024-03-01T00:00:00Z");
        assert_eq!(at(1_795_296_405), "2026-11-21T21:26:45Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn written_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let csv = record().write(directory.path()).unwrap();
        assert_eq!(fs::read_to_string(&csv).unwrap(), record().csv());
        let names = |path: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let kept = names(csv.parent().unwrap());
        assert_eq!(kept.len(), 2, "{kept:?}");

        // A directory where the JSON must go: the CSV, written before the trouble shows, must not stay.
        let other = tempfile::tempdir().unwrap();
        let below = other.path().join(machine_slug(&record().machine));
        let json = csv.with_extension("json");
        fs::create_dir_all(below.join(json.file_name().unwrap())).unwrap();
        let error = record().write(other.path()).unwrap_err();
        assert!(format!("{error:#}").contains("cannot be written"), "{error:#}");
        assert_eq!(names(&below), [json.file_name().unwrap()]);
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

    #[test]
    fn a_full_disk_leaves_nothing() {
        // Every write to /dev/full fails with ENOSPC. The partial file is a link to it.
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("r.csv");
        std::os::unix::fs::symlink(
            "/dev/full",
            directory.path().join(format!("r.csv.{}.partial", std::process::id())),
        )
        .unwrap();
        let error = Part::write(&target, b"name,value\n").map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}

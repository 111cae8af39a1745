//! Descriptions of PMUs in sysfs: the type, the CPUs to count on, and how the terms of an event become bits.
//!
//! ```text
//! /sys/bus/event_source/devices/uncore_imc_0/type                          24
//!                                            cpumask                       0,28
//!                                            format/event                  config:0-7
//!                                            events/cas_count_read         event=0x05,umask=0xcf
//!                                            events/cas_count_read.scale   6.103515625e-5
//!                                            events/cas_count_read.unit    MiB
//! ```
//!
//! Source: Linux `Documentation/ABI/testing/sysfs-bus-event_source-devices-{format,events}`; `tools/perf/util/pmu.c`.

use std::collections::BTreeMap;

use memferry_dsa::internals::system::Files;

use super::error::{Absent, Tree};

/// Directory of all PMUs.
pub(super) const PMUS: &str = "sys/bus/event_source/devices";

/// An event as perf_event_open(2) takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Encoding {
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// `config`, `config1`, `config2`.
    pub config: [u64; 3],
}

/// The bits of a term: a mask in one of the three words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    word: usize,
    mask: u64,
}

impl Format {
    /// Parses `config1:1,6-10,44`.
    fn parse(text: &str) -> Option<Format> {
        let (word, ranges) = text.split_once(':')?;
        let word = ["config", "config1", "config2"].iter().position(|name| *name == word)?;
        let mut mask = 0;
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || last >= u64::BITS {
                return None;
            }
            mask |= (u64::MAX >> (u64::BITS - 1 - (last - first))) << first;
        }
        Some(Format { word, mask })
    }

    /// Distributes the bits of `value`, lowest first, over those of the mask. `None` if they do not fit.
    fn deposit(self, mut value: u64) -> Option<u64> {
        let mut deposited = 0;
        for bit in (0..u64::BITS).filter(|bit| self.mask >> bit & 1 == 1) {
            deposited |= (value & 1) << bit;
            value >>= 1;
        }
        (value == 0).then_some(deposited)
    }
}

/// A PMU.
#[derive(Clone, Debug)]
pub(super) struct Pmu {
    pub(super) name: String,
    kind: u32,
    /// The CPUs to count on: one for each socket, or the one that a device is bound to.
    pub(super) cpus: Vec<u32>,
    formats: BTreeMap<String, Format>,
    /// How each term is written in `format`.
    texts: BTreeMap<String, String>,
}

/// A named event of a PMU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Event {
    pub(super) name: String,
    /// Its terms.
    pub(super) text: String,
    /// By which a count is multiplied to have the unit.
    pub(super) scale: f64,
    /// As in sysfs; empty if it has none.
    pub(super) unit: String,
}

/// The names of the PMUs that consist of `stem` and a number, or of the stem alone.
pub(super) fn names(files: &dyn Files, stem: &str) -> Vec<String> {
    let is_wanted = |name: &str| {
        let rest = name.strip_prefix(stem).map(|rest| rest.trim_start_matches('_'));
        rest.is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    Tree(files).entries(PMUS).into_iter().filter(|name| is_wanted(name)).collect()
}

impl Pmu {
    pub(super) fn read(files: &dyn Files, name: &str) -> Result<Pmu, Absent> {
        let tree = Tree(files);
        let directory = format!("{PMUS}/{name}");
        let kind = tree.parsed(&format!("{directory}/type"), "a number", |text| text.parse().ok())?;
        let is_list = |text: &str| parse_list(text).filter(|cpus| !cpus.is_empty());
        let cpus = tree.parsed(&format!("{directory}/cpumask"), "a list of CPUs such as 0,28", is_list)?;
        let (mut formats, mut texts) = (BTreeMap::new(), BTreeMap::new());
        for term in tree.entries(&format!("{directory}/format")) {
            let text = tree.text(&format!("{directory}/format/{term}"))?;
            // One of a later kernel matters only to an event that uses it.
            formats.extend(Format::parse(&text).map(|format| (term.clone(), format)));
            texts.insert(term, text);
        }
        Ok(Pmu { name: name.to_owned(), kind, cpus, formats, texts })
    }

    /// How a term is written in `format`.
    pub(super) fn format(&self, term: &str) -> Option<&str> {
        self.texts.get(term).map(String::as_str)
    }

    /// The named events.
    pub(super) fn events(&self, files: &dyn Files) -> Result<Vec<Event>, Absent> {
        let tree = Tree(files);
        let directory = format!("{PMUS}/{}/events", self.name);
        let mut events = Vec::new();
        for name in tree.entries(&directory) {
            if name.contains('.') {
                continue;
            }
            let text = tree.text(&format!("{directory}/{name}"))?;
            let scale = match tree.optional(&format!("{directory}/{name}.scale"))? {
                None => 1.0,
                Some(_) => tree.parsed(&format!("{directory}/{name}.scale"), "a number", |text| {
                    text.parse().ok().filter(|scale: &f64| scale.is_finite() && *scale > 0.0)
                })?,
            };
            let unit = tree.optional(&format!("{directory}/{name}.unit"))?.unwrap_or_default();
            events.push(Event { name, text, scale, unit });
        }
        Ok(events)
    }

    /// The terms of an event, such as `event=0x423,inv,cmask=0x3`, as bits.
    pub(super) fn encode(&self, terms: &str) -> Result<Encoding, Absent> {
        let mut config = [0; 3];
        for term in terms.split(',') {
            let (name, value) = term.trim().split_once('=').unwrap_or((term.trim(), "1"));
            let place = self.formats.get(name).and_then(|format| {
                let bits = format.deposit(parse_value(value)?)?;
                Some((format.word, bits))
            });
            let Some((word, bits)) = place else {
                return Err(Absent::NotUnderstood {
                    file: format!("{PMUS}/{}", self.name),
                    text: terms.to_owned(),
                    expected: "an event of the terms in its directory format",
                });
            };
            config[word] |= bits;
        }
        Ok(Encoding { kind: self.kind, config })
    }
}

fn parse_value(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a list of CPUs such as `0-1,28`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // A cpumask of a PMU has a CPU for each socket or die.
        if first > last || last - first > 1024 || cpus.len() > 1024 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::FakeKernel;
    use crate::telemetry::Kernel as _;

    #[test]
    fn formats_have_ranges_in_one_of_three_words() {
        assert_eq!(Format::parse("config:0-7"), Some(Format { word: 0, mask: 0xff }));
        assert_eq!(Format::parse("config:0-7,32-35"), Some(Format { word: 0, mask: 0xf_0000_00ff }));
        let bits = (1 << 1) | (0x1f << 6) | (1 << 44);
        assert_eq!(Format::parse("config1:1,6-10,44"), Some(Format { word: 1, mask: bits }));
        assert_eq!(Format::parse("config2:0-63"), Some(Format { word: 2, mask: u64::MAX }));
        for broken in ["config3:0", "config", "config:", "config:7-0", "config:0-64", "config:a"] {
            assert_eq!(Format::parse(broken), None, "{broken}");
        }
    }

    /// AMD's data fabric has events of 14 bits: 8 of them low, 4 at 32, 2 at 59.
    #[test]
    fn values_are_split_over_ranges() {
        let format = Format::parse("config:0-7,32-35,59-60").unwrap();
        assert_eq!(format.deposit(0x07), Some(0x07));
        assert_eq!(format.deposit(0x1c7), Some(0x1_0000_00c7));
        assert_eq!(format.deposit(0x3fff), Some((3 << 59) | (0xf << 32) | 0xff));
        assert_eq!(format.deposit(0x4000), None, "it has 15 bits");
    }

    fn fake() -> FakeKernel {
        let kernel = FakeKernel::new();
        let pmu = "sys/bus/event_source/devices/uncore_imc_0";
        for (file, text) in [
            ("type", "24\n"),
            ("cpumask", "0,28\n"),
            ("format/event", "config:0-7\n"),
            ("format/umask", "config:8-15\n"),
            ("format/inv", "config:23\n"),
            ("format/filter", "config1:0-31\n"),
            ("format/future", "config9:0-31\n"),
            ("events/cas_count_read", "event=0x05,umask=0xcf\n"),
            ("events/cas_count_read.scale", "6.103515625e-5\n"),
            ("events/cas_count_read.unit", "MiB\n"),
            ("events/clockticks", "event=0x01\n"),
        ] {
            kernel.write(&format!("{pmu}/{file}"), text);
        }
        kernel
    }

    #[test]
    fn a_pmu_as_the_kernel_documents_it() {
        let kernel = fake();
        let pmu = Pmu::read(kernel.files(), "uncore_imc_0").unwrap();
        assert_eq!(pmu.cpus, [0, 28]);
        let events = pmu.events(kernel.files()).unwrap();
        let read = Event {
            name: "cas_count_read".to_owned(),
            text: "event=0x05,umask=0xcf".to_owned(),
            scale: 6.103515625e-5,
            unit: "MiB".to_owned(),
        };
        assert_eq!(events[0], read);
        assert_eq!((events.len(), events[1].scale, events[1].unit.as_str()), (2, 1.0, ""));
        assert_eq!(pmu.encode(&read.text).unwrap(), Encoding { kind: 24, config: [0xcf05, 0, 0] });
        let all = pmu.encode("event=5,inv,filter=0x10").unwrap();
        assert_eq!(all.config, [5 | 1 << 23, 0x10, 0]);
        for broken in ["event=0x100", "other=1", "future=1", "event=?", "event=", ""] {
            let error = pmu.encode(broken).unwrap_err().to_string();
            assert!(error.contains("uncore_imc_0") && error.contains(broken), "{error}");
        }
    }

    #[test]
    fn a_broken_description_is_named() {
        for (file, text, expected) in [
            ("cpumask", "", "uncore_imc_0/cpumask has \"\""),
            ("type", "x", "uncore_imc_0/type has \"x\", which is not a number"),
            ("events/cas_count_read.scale", "-1", "cas_count_read.scale has \"-1\""),
        ] {
            let kernel = fake();
            kernel.write(&format!("{PMUS}/uncore_imc_0/{file}"), text);
            let events = Pmu::read(kernel.files(), "uncore_imc_0").and_then(|pmu| pmu.events(kernel.files()));
            let error = events.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn pmus_are_found_by_stem_and_sorted_by_number() {
        let kernel = FakeKernel::new();
        for name in ["dsa10", "dsa2", "dsax", "iax1", "amd_df", "uncore_imc_1", "uncore_imc_free_running_0"] {
            kernel.write(&format!("{PMUS}/{name}/type"), "1");
        }
        assert_eq!(names(kernel.files(), "dsa"), ["dsa2", "dsa10"]);
        assert_eq!(names(kernel.files(), "uncore_imc"), ["uncore_imc_1"]);
        assert_eq!(names(kernel.files(), "amd_df"), ["amd_df"]);
    }
}

//! Monitors that count by perf: DSA devices and memory controllers.
//!
//! Events of the kernel's description are used where it has them (`events/cas_count_read` of Intel's memory controllers). The
//! others are not described by the kernel; their codes have a source below.

use std::time::Duration;

use memferry_dsa::internals::system::Files;

use super::error::{Absent, Tree};
use super::kernel::{Counter, Kernel, Reading};
use super::pmu::{Encoding, Pmu, names};
use super::{Count, Monitor, MonitorKind};

/// A counter to open.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wanted {
    /// The quantity: counters of one name and place are added.
    pub(super) name: &'static str,
    pub(super) place: String,
    pub(super) unit: String,
    /// By which a count is multiplied.
    scale: f64,
    /// As perf(1) writes it.
    event: String,
    encoding: Encoding,
    cpu: u32,
}

/// Events of a DSA: name, terms, unit, scale. 1.0 devices have four counters, one for each.
/// Source: Intel PCM 202302, `opCode-143-accel.txt` (inbound and outbound in units of 32 bytes; requests to shared and dedicated
/// queues); the terms: Linux `Documentation/ABI/testing/sysfs-bus-event_source-devices-dsa`.
const DSA_EVENTS: [(&str, &str, &str, f64); 4] = [
    ("inbound", "event_category=0x1,event=0x1", "bytes", 32.0),
    ("outbound", "event_category=0x1,event=0x2", "bytes", 32.0),
    ("shared_requests", "event_category=0x0,event=0x5", "requests", 1.0),
    ("dedicated_requests", "event_category=0x0,event=0x10", "requests", 1.0),
];

/// Bytes of a transfer that DDR controllers count. Source: the scale of `cas_count_read`, and the metrics of AMD's events, in
/// Linux `tools/perf/pmu-events/arch/x86`.
const TRANSFER_BYTES: f64 = 64.0;

/// Events of controllers that the kernel does not name: PMU, name, terms, unit, scale. Commands to HBM are not converted to
/// bytes, because no source says how many a command moves.
/// Source: Linux `tools/perf/pmu-events/arch/x86/{sapphirerapids/uncore-memory,amdzen4/memory-controller}.json`
/// (`UNC_MCHBM_CAS_COUNT`, `umc_cas_cmd`).
const CONTROLLER_EVENTS: [(&str, &str, &str, &str, f64); 4] = [
    ("uncore_hbm", "hbm_read", "event=0x5,umask=0xcf", "commands", 1.0),
    ("uncore_hbm", "hbm_write", "event=0x5,umask=0xf0", "commands", 1.0),
    ("amd_umc", "read", "event=0xa,rdwrmask=0x1", "bytes", TRANSFER_BYTES),
    ("amd_umc", "write", "event=0xa,rdwrmask=0x2", "bytes", TRANSFER_BYTES),
];

/// Requests with data of the eight memory channels, by the data fabric of AMD families 17h and 19h before Zen 4, both
/// directions. The fabric has four counters, so that the events take turns.
/// Source: Linux `tools/perf/pmu-events/arch/x86/amdzen2/data-fabric.json`, `dram_channel_data_controller_*`.
const FABRIC_EVENTS: [u32; 8] = [0x07, 0x47, 0x87, 0xc7, 0x107, 0x147, 0x187, 0x1c7];
/// The format of `event` of these fabrics. That of Zen 4 has other events.
const FABRIC_FORMAT: &str = "config:0-7,32-35,59-60";

/// Prefixes of events that count transfers, and their quantity. Those with the name of a scheduler at the end are added.
/// Source: Linux `arch/x86/events/intel/uncore_snb{,ep}.c`.
const NAMED_EVENTS: [(&str, &str); 4] = [
    ("cas_count_read", "read"),
    ("cas_count_write", "write"),
    ("data_read", "read"),
    ("data_write", "write"),
];

/// The counters of all DSA devices.
pub(super) fn find_dsa(files: &dyn Files) -> Result<Vec<Wanted>, Absent> {
    let mut wanted = Vec::new();
    for name in names(files, "dsa") {
        let pmu = Pmu::read(files, &name)?;
        for (quantity, terms, unit, scale) in DSA_EVENTS {
            wanted.extend(counters(&pmu, quantity, terms, unit, scale, |_| name.clone())?);
        }
    }
    if wanted.is_empty() {
        return Err(Absent::NotHere(
            "there is no PMU dsa* in /sys/bus/event_source/devices: no DSA with performance monitors is bound to the driver \
             idxd",
        ));
    }
    Ok(wanted)
}

/// The counters of all memory controllers.
pub(super) fn find_memory(files: &dyn Files) -> Result<Vec<Wanted>, Absent> {
    let socket = |cpu: u32| {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        Tree(files).number(&file).map_or_else(|_| format!("cpu {cpu}"), |socket| format!("socket {socket}"))
    };
    let mut wanted = Vec::new();
    // The free-running counters count the same bytes; not every kernel and CPU has both.
    for stem in ["uncore_imc", "uncore_imc_free_running"] {
        if !wanted.is_empty() {
            break;
        }
        for name in names(files, stem) {
            let pmu = Pmu::read(files, &name)?;
            for event in pmu.events(files)? {
                let Some(&(_, quantity)) = NAMED_EVENTS.iter().find(|it| event.name.starts_with(it.0)) else {
                    continue;
                };
                let (scale, unit) = in_bytes(event.scale, &event.unit);
                wanted.extend(counters(&pmu, quantity, &event.text, unit, scale, socket)?);
            }
        }
    }
    for (stem, quantity, terms, unit, scale) in CONTROLLER_EVENTS {
        for name in names(files, stem) {
            wanted.extend(counters(&Pmu::read(files, &name)?, quantity, terms, unit, scale, socket)?);
        }
    }
    if wanted.is_empty() {
        for name in names(files, "amd_df") {
            let pmu = Pmu::read(files, &name)?;
            if pmu.format("event") != Some(FABRIC_FORMAT) {
                continue;
            }
            for event in FABRIC_EVENTS {
                let terms = format!("event={event:#x},umask=0x38");
                wanted.extend(counters(&pmu, "read_and_write", &terms, "bytes", TRANSFER_BYTES, socket)?);
            }
        }
    }
    if wanted.is_empty() {
        return Err(Absent::NotHere(
            "there is no PMU of a memory controller with known events (uncore_imc*, uncore_hbm*, amd_umc*, amd_df) in \
             /sys/bus/event_source/devices; virtual machines have none",
        ));
    }
    Ok(wanted)
}

/// A counter on each CPU of the PMU.
fn counters(
    pmu: &Pmu,
    name: &'static str,
    terms: &str,
    unit: &str,
    scale: f64,
    place: impl Fn(u32) -> String,
) -> Result<Vec<Wanted>, Absent> {
    let encoding = pmu.encode(terms)?;
    let event = format!("{}/{terms}/", pmu.name);
    let counter = |&cpu: &u32| Wanted {
        name,
        place: place(cpu),
        unit: unit.to_owned(),
        scale,
        event: event.clone(),
        encoding,
        cpu,
    };
    Ok(pmu.cpus.iter().map(counter).collect())
}

/// A scale and its unit; bytes in place of their multiples.
fn in_bytes(scale: f64, unit: &str) -> (f64, &str) {
    let factor = match unit {
        "Bytes" | "bytes" => 1.0,
        "KiB" => f64::from(1 << 10),
        "MiB" => f64::from(1 << 20),
        "GiB" => f64::from(1 << 30),
        "" => return (scale, "1"),
        unit => return (scale, unit),
    };
    (scale * factor, "bytes")
}

/// The distinct texts, in the order of their first appearance.
pub(super) fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut distinct = Vec::new();
    for text in texts {
        if !distinct.contains(&text) {
            distinct.push(text);
        }
    }
    distinct
}

/// Open counters.
pub(super) struct PerfMonitor {
    kind: MonitorKind,
    counters: Vec<(Wanted, Box<dyn Counter>, Option<Reading>)>,
}

impl PerfMonitor {
    /// Opens all counters.
    pub(super) fn open(
        kernel: &dyn Kernel,
        kind: MonitorKind,
        wanted: Vec<Wanted>,
    ) -> Result<PerfMonitor, Absent> {
        let mut counters = Vec::new();
        for it in wanted {
            let counter =
                kernel.open_counter(&it.encoding, it.cpu).map_err(|source| match source.raw_os_error() {
                    Some(libc::EACCES | libc::EPERM) => Absent::NotPermitted {
                        paranoid: Tree(kernel.files())
                            .text("proc/sys/kernel/perf_event_paranoid")
                            .unwrap_or_else(|_| "unknown".to_owned()),
                    },
                    _ => Absent::Refused { event: it.event.clone(), cpu: it.cpu, source },
                })?;
            counters.push((it, counter, None));
        }
        Ok(PerfMonitor { kind, counters })
    }
}

impl Monitor for PerfMonitor {
    fn begin(&mut self) {
        for (_, counter, start) in &mut self.counters {
            *start = counter.read().ok();
        }
    }

    /// The sums of the counters of each quantity at each place. A quantity is left out if one of them failed or never counted: a
    /// sum of the others would be too small.
    fn end(&mut self, _at: Duration) -> Vec<Count> {
        let mut sums: Vec<(Count, f64, bool)> = Vec::new();
        for (it, counter, start) in &self.counters {
            let counted = (*start).and_then(|start| counter.read().ok()?.since(start));
            let index = sums.iter().position(|(sum, ..)| {
                sum.name == it.name && sum.place.as_ref() == Some(&it.place) && sum.unit == it.unit
            });
            let index = index.unwrap_or_else(|| {
                let sum = Count::new(self.kind, it.name, Some(it.place.clone()), &it.unit, 0.0);
                sums.push((sum, 1.0, true));
                sums.len() - 1
            });
            let (sum, share_min, is_whole) = &mut sums[index];
            match counted {
                Some((counted, share)) => {
                    sum.value += counted * it.scale;
                    *share_min = share_min.min(share);
                }
                None => *is_whole = false,
            }
        }
        let whole = sums.into_iter().filter(|(.., is_whole)| *is_whole);
        whole.map(|(sum, share, _)| Count { counted_share: (share < 1.0).then_some(share), ..sum }).collect()
    }
}

#[cfg(test)]
mod tests;

//! The monitor of energy: RAPL zones of the powercap class.
//!
//! A zone has a counter of micro-joules that begins again at its range, for a package every minute to every hour. So it is
//! read every 10 s at least, not only at the ends of a window.
//!
//! Source: Linux `Documentation/power/powercap/powercap.rst`, `Documentation/ABI/testing/sysfs-class-powercap`,
//! `drivers/powercap/powercap_sys.c` (`energy_uj` is readable by root only).

use std::sync::Arc;
use std::time::Duration;

use memferry_dsa::internals::system::Files;

use super::error::{Absent, Tree};
use super::kernel::Kernel;
use super::{Count, Monitor, MonitorKind};

const ZONES: &str = "sys/class/powercap";

/// The smallest range is 2^32 units of 15.3 uJ (Intel SDM 16.10.1), which lasts 10 s at 6.5 kW.
const PERIOD: Duration = Duration::from_secs(10);

/// A part of the machine with a counter of energy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Zone {
    /// `package-0`, `dram`.
    pub(super) name: String,
    /// The name of the zone around it.
    pub(super) parent: Option<String>,
    file: String,
    range_uj: u64,
}

/// The zones that this user can read. `intel-rapl` is also the name on AMD CPUs; `intel-rapl-mmio` repeats zones.
pub(super) fn find(files: &dyn Files) -> Result<Vec<Zone>, Absent> {
    let tree = Tree(files);
    let name_of = |id: &str| tree.text(&format!("{ZONES}/{id}/name"));
    let mut ids = tree.entries(ZONES);
    ids.retain(|id| id.starts_with("intel-rapl:"));
    // A zone comes before those in it.
    let numbers =
        |id: &String| id.split(':').map(|part| part.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>();
    ids.sort_by_key(numbers);
    let mut zones = Vec::new();
    for id in &ids {
        let parent = match id.rsplit_once(':') {
            Some((parent, _)) if parent.contains(':') => Some(name_of(parent)?),
            _ => None,
        };
        let file = format!("{ZONES}/{id}/energy_uj");
        tree.number(&file)?;
        let range_uj = tree.number(&format!("{ZONES}/{id}/max_energy_range_uj"))?;
        zones.push(Zone { name: name_of(id)?, parent, file, range_uj });
    }
    if zones.is_empty() {
        return Err(Absent::NotHere(
            "there is no zone intel-rapl:* in /sys/class/powercap; virtual machines have none, others need the module \
             intel_rapl_msr",
        ));
    }
    Ok(zones)
}

/// The zones, and the energy since the start of the window.
pub(super) struct RaplMonitor {
    kernel: Arc<dyn Kernel>,
    zones: Vec<(Zone, Option<Energy>)>,
}

/// `None` in its place: the zone could not be read once in this window.
#[derive(Clone, Copy, Debug)]
struct Energy {
    last_uj: u64,
    total_uj: u64,
}

impl RaplMonitor {
    pub(super) fn new(kernel: Arc<dyn Kernel>, zones: Vec<Zone>) -> RaplMonitor {
        RaplMonitor { kernel, zones: zones.into_iter().map(|zone| (zone, None)).collect() }
    }
}

impl Monitor for RaplMonitor {
    fn begin(&mut self) {
        let tree = Tree(self.kernel.files());
        for (zone, energy) in &mut self.zones {
            *energy = tree.number(&zone.file).ok().map(|now_uj| Energy { last_uj: now_uj, total_uj: 0 });
        }
    }

    fn sample(&mut self, _at: Duration) {
        let tree = Tree(self.kernel.files());
        for (zone, energy) in &mut self.zones {
            let now_uj = tree.number(&zone.file).ok();
            *energy = energy.zip(now_uj).map(|(Energy { last_uj, total_uj }, now_uj)| {
                let wrapped_uj = if now_uj < last_uj { zone.range_uj } else { 0 };
                let since_uj = (now_uj + wrapped_uj).saturating_sub(last_uj);
                Energy { last_uj: now_uj, total_uj: total_uj + since_uj }
            });
        }
    }

    fn end(&mut self, at: Duration) -> Vec<Count> {
        self.sample(at);
        let zones = self.zones.iter().filter_map(|(zone, energy)| Some((zone, (*energy)?)));
        let count = |(zone, energy): (&Zone, Energy)| {
            let joules = energy.total_uj as f64 / 1e6;
            Count::new(MonitorKind::Energy, &zone.name, zone.parent.clone(), "J", joules)
        };
        zones.map(count).collect()
    }

    fn period(&self) -> Option<Duration> {
        Some(PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::FakeKernel;

    fn fake() -> FakeKernel {
        let kernel = FakeKernel::new();
        for (zone, name, range_uj) in [
            ("intel-rapl:0", "package-0", 1000),
            ("intel-rapl:0:0", "dram", 500),
            ("intel-rapl:1", "package-1", 1000),
        ] {
            kernel.write(&format!("{ZONES}/{zone}/name"), &format!("{name}\n"));
            kernel.write(&format!("{ZONES}/{zone}/max_energy_range_uj"), &format!("{range_uj}\n"));
            energy(&kernel, zone, 100);
        }
        // The control type itself, and the same package by another interface.
        kernel.write(&format!("{ZONES}/intel-rapl/enabled"), "1\n");
        kernel.write(&format!("{ZONES}/intel-rapl-mmio:0/name"), "package-0\n");
        kernel
    }

    fn energy(kernel: &FakeKernel, zone: &str, energy_uj: u64) {
        kernel.write(&format!("{ZONES}/{zone}/energy_uj"), &format!("{energy_uj}\n"));
    }

    fn monitor(kernel: &FakeKernel) -> RaplMonitor {
        let zones = find(kernel.files()).unwrap();
        let mut monitor = RaplMonitor::new(Arc::new(kernel.clone()), zones);
        monitor.begin();
        monitor
    }

    fn joules(counts: &[Count]) -> Vec<(String, Option<&str>, f64)> {
        counts.iter().map(|it| (it.name.clone(), it.place.as_deref(), (it.value * 1e6).round())).collect()
    }

    #[test]
    fn zones_have_a_name_and_the_one_around_them() {
        let zones = find(fake().files()).unwrap();
        let names: Vec<_> = zones.iter().map(|it| (it.name.as_str(), it.parent.as_deref())).collect();
        assert_eq!(names, [("package-0", None), ("dram", Some("package-0")), ("package-1", None)]);
        let error = find(FakeKernel::new().files()).unwrap_err().to_string();
        assert!(error.contains("no zone intel-rapl:* in /sys/class/powercap"), "{error}");
    }

    /// A counter begins again at its range, several times in a long window, so that the samples between its ends count.
    #[test]
    fn energy_adds_up_over_wrap_around() {
        let kernel = fake();
        let mut monitor = monitor(&kernel);
        energy(&kernel, "intel-rapl:0", 900);
        energy(&kernel, "intel-rapl:0:0", 50);
        monitor.sample(Duration::from_secs(10));
        energy(&kernel, "intel-rapl:0", 300);
        monitor.sample(Duration::from_secs(20));
        energy(&kernel, "intel-rapl:0", 200);
        let counts = monitor.end(Duration::from_secs(30));
        let expected = [
            ("package-0".to_owned(), None, 800.0 + 400.0 + 900.0),
            ("dram".to_owned(), Some("package-0"), 450.0),
            ("package-1".to_owned(), None, 0.0),
        ];
        assert_eq!(joules(&counts), expected);
        assert!(counts.iter().all(|count| count.unit == "J" && count.monitor == MonitorKind::Energy));
        // The next window begins at zero.
        monitor.begin();
        energy(&kernel, "intel-rapl:0", 201);
        assert_eq!(joules(&monitor.end(Duration::from_secs(1)))[0].2, 1.0);
    }

    #[test]
    fn a_zone_that_fails_in_a_window_has_no_count() {
        let kernel = fake();
        let mut monitor = monitor(&kernel);
        kernel.remove(&format!("{ZONES}/intel-rapl:0/energy_uj"));
        monitor.sample(Duration::from_secs(10));
        energy(&kernel, "intel-rapl:0", 900);
        assert_eq!(monitor.end(Duration::from_secs(20)).len(), 2, "its energy in between is unknown");
        monitor.begin();
        assert_eq!(monitor.end(Duration::from_secs(1)).len(), 3);
    }

    #[test]
    fn unreadable_energy_says_who_may_read_it() {
        let kernel = fake();
        kernel.refuse_reading(&format!("{ZONES}/intel-rapl:0/energy_uj"));
        let error = find(kernel.files()).unwrap_err().to_string();
        let expected =
            "/sys/class/powercap/intel-rapl:0/energy_uj cannot be read: permission denied; run as root";
        assert_eq!(error, expected);
    }
}

//! Telemetry: what monitors of the machine count while a benchmark measures.
//!
//! ```text
//! perf     dsaN                      bytes and requests of DSA devices       ┐
//! resctrl  mon_data/mon_L3_*         occupancy over time, traffic to memory  ├─▶ Telemetry::watch ──▶ Counts beside rows
//! perf     uncore_imc*, amd_umc* ... bytes of memory controllers             │
//! RAPL     powercap/intel-rapl:*     energy                                  ┘
//! ```
//!
//! Each monitor is found in the kernel's files, and is absent with a reason ([`survey`]). A machine without any costs nothing and
//! its rows have no counts. Monitors count the whole machine, except those of the caches, which count this process and those
//! that it starts. docs/decisions/telemetry.md has the reasons.

mod counts;
mod error;
mod fake;
mod kernel;
mod perf;
#[allow(unsafe_code)]
mod perf_event;
mod pmu;
mod rapl;
mod resctrl;

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use memferry_dsa::internals::system::Files;

pub use counts::{Count, Counts, MonitorKind};
pub use error::Absent;
pub use fake::FakeKernel;
pub use kernel::{Counter, Kernel, Reading, SystemKernel};
pub use pmu::Encoding;

use crate::harness::{Provenance, Row};
use perf::PerfMonitor;
use rapl::RaplMonitor;
use resctrl::ResctrlMonitor;

/// A monitor that works.
trait Monitor: Send {
    /// Begins a window.
    fn begin(&mut self);

    /// Looks at values that change, `at` after the begin. Called every [`period`](Monitor::period) or more often.
    fn sample(&mut self, _at: Duration) {}

    /// Ends the window, which took `at`.
    fn end(&mut self, at: Duration) -> Vec<Count>;

    /// How often it must be sampled.
    fn period(&self) -> Option<Duration> {
        None
    }
}

/// The monitors of a machine. Clones share them.
#[derive(Clone)]
pub struct Telemetry {
    monitors: Arc<Mutex<Vec<Box<dyn Monitor>>>>,
    period: Option<Duration>,
    is_empty: bool,
}

impl Telemetry {
    /// No monitors.
    pub fn none() -> Telemetry {
        Telemetry::of(Vec::new())
    }

    /// The monitors that can be opened; [`survey`] says why the others are absent. Threads of this process are in a monitoring
    /// group of resctrl until it is dropped.
    pub fn open(kernel: &Arc<dyn Kernel>) -> Telemetry {
        let open = |kind| Found::look(kernel.files(), kind)?.open(kernel);
        Telemetry::of(MonitorKind::ALL.into_iter().filter_map(|kind| open(kind).ok()).collect())
    }

    fn of(monitors: Vec<Box<dyn Monitor>>) -> Telemetry {
        let period = monitors.iter().filter_map(|monitor| monitor.period()).min();
        let is_empty = monitors.is_empty();
        Telemetry { monitors: Arc::new(Mutex::new(monitors)), period, is_empty }
    }

    /// Runs `work` in a window, and returns what was counted meanwhile; `None` if there is nothing to count with. Windows do not
    /// nest.
    pub fn watch<T>(&self, work: impl FnOnce() -> T) -> (T, Option<Counts>) {
        if self.is_empty {
            return (work(), None);
        }
        locked(&self.monitors).iter_mut().for_each(|monitor| monitor.begin());
        let start = Instant::now();
        let sampler = self.period.map(|period| Sampler::start(Arc::clone(&self.monitors), start, period));
        let result = work();
        let elapsed = start.elapsed();
        // Without samples, an occupancy has no course and an energy may have wrapped.
        if sampler.is_some_and(|sampler| sampler.is_err()) {
            return (result, None);
        }
        let counts: Vec<Count> =
            locked(&self.monitors).iter_mut().flat_map(|monitor| monitor.end(elapsed)).collect();
        let is_counted = !counts.is_empty();
        (result, is_counted.then_some(Counts { seconds: elapsed.as_secs_f64(), rows_count: 1, counts }))
    }

    /// Takes rows in a window. Each measured or emulated row gets the counts; modelled and published ones have nothing to do with
    /// this machine.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn rows<E>(&self, work: impl FnOnce() -> Result<Vec<Row>, E>) -> Result<Vec<Row>, E> {
        let (rows, counts) = self.watch(work);
        Ok(beside(rows?, counts))
    }
}

/// Rows with the counts of the window in which they were taken: the measured and emulated ones.
pub fn beside(mut rows: Vec<Row>, counts: Option<Counts>) -> Vec<Row> {
    if let Some(counts) = counts {
        let is_taken_here = |row: &Row| matches!(row.provenance, Provenance::Measured | Provenance::Emulated);
        let rows_count = rows.iter().filter(|row| is_taken_here(row)).count();
        for row in rows.iter_mut().filter(|row| is_taken_here(row)) {
            row.telemetry = Some(Counts { rows_count, ..counts.clone() });
        }
    }
    rows
}

fn locked(monitors: &Mutex<Vec<Box<dyn Monitor>>>) -> MutexGuard<'_, Vec<Box<dyn Monitor>>> {
    // A monitor has no state that a panic could leave half done.
    monitors.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that samples during a window. It ends when it is dropped.
struct Sampler {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    fn start(
        monitors: Arc<Mutex<Vec<Box<dyn Monitor>>>>,
        start: Instant,
        period: Duration,
    ) -> std::io::Result<Sampler> {
        let (stop, stopped) = mpsc::channel();
        let sample = move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                locked(&monitors).iter_mut().for_each(|monitor| monitor.sample(start.elapsed()));
            }
        };
        let thread = thread::Builder::new().name("telemetry".to_owned()).spawn(sample)?;
        Ok(Sampler { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already printed.
            let _panic = thread.join();
        }
    }
}

/// A monitor according to files.
enum Found {
    Perf(MonitorKind, Vec<perf::Wanted>),
    Cache(resctrl::Plan),
    Energy(Vec<rapl::Zone>),
}

impl Found {
    fn look(files: &dyn Files, kind: MonitorKind) -> Result<Found, Absent> {
        Ok(match kind {
            MonitorKind::Dsa => Found::Perf(kind, perf::find_dsa(files)?),
            MonitorKind::Memory => Found::Perf(kind, perf::find_memory(files)?),
            MonitorKind::Cache => Found::Cache(resctrl::find(files)?),
            MonitorKind::Energy => Found::Energy(rapl::find(files)?),
        })
    }

    fn open(self, kernel: &Arc<dyn Kernel>) -> Result<Box<dyn Monitor>, Absent> {
        Ok(match self {
            Found::Perf(kind, wanted) => Box::new(PerfMonitor::open(&**kernel, kind, wanted)?),
            Found::Cache(plan) => Box::new(ResctrlMonitor::open(Arc::clone(kernel), &plan)?),
            Found::Energy(zones) => Box::new(RaplMonitor::new(Arc::clone(kernel), zones)),
        })
    }

    /// The quantities and where they are counted, in words.
    fn describe(&self) -> String {
        match self {
            Found::Perf(_, wanted) => {
                let names = perf::distinct(wanted.iter().map(|it| it.name)).join(", ");
                let places = perf::distinct(wanted.iter().map(|it| it.place.as_str())).join(", ");
                format!("{names} of {places}")
            }
            Found::Cache(plan) => format!("{} of {}", plan.events.join(", "), plan.domains.join(", ")),
            Found::Energy(zones) => {
                let name = |zone: &rapl::Zone| match &zone.parent {
                    Some(parent) => format!("{} of {parent}", zone.name),
                    None => zone.name.clone(),
                };
                zones.iter().map(name).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// For each kind of monitor what it counts here, or why it is absent. With a `kernel` the counters of perf are opened once; no
/// monitoring group is made, so that whether this user may make one is not known.
pub fn survey(
    files: &dyn Files,
    kernel: Option<&Arc<dyn Kernel>>,
) -> Vec<(MonitorKind, Result<String, Absent>)> {
    let look = |kind| {
        let found = Found::look(files, kind)?;
        let text = found.describe();
        match (found, kernel) {
            (found @ Found::Perf(..), Some(kernel)) => found.open(kernel).map(|_| text),
            _ => Ok(text),
        }
    };
    MonitorKind::ALL.into_iter().map(|kind| (kind, look(kind))).collect()
}

#[cfg(test)]
mod tests;

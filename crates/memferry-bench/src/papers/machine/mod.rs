//! Points on this machine, in threads: on the cores themselves or through its DSA queues.

mod home;
mod pollution;
mod queues;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::thread;

use memferry::topology::Machine;
use memferry_dsa::system::{Device, SystemState};
use memferry_dsa::{Portal, SleepState, Wait};

use self::home::Home;
use super::load::{endpoints, load_of, metrics_of};
use super::{Backend, Data, Measurement, Metric, Pages, Point, RunLength, Skipped, Way};
use crate::dsa::load::{self, Load, LoadOperation, SubmitterTimes, threads};
use crate::dsa::waiting;
use crate::harness::median;

/// The cores of this machine, and its DSA queues.
#[derive(Debug)]
pub struct OnMachine {
    machine: Machine,
    state: SystemState,
    is_emulated: bool,
}

/// Memory for absent pages per thread.
const ABSENT_BYTES_MAX: u64 = 64 << 20;

/// Times of each iteration, the number of submissions, and their place.
struct Ran {
    seen: Vec<Vec<SubmitterTimes>>,
    repetitions: usize,
    place: Option<String>,
}

impl OnMachine {
    /// `machine` is this machine and `state` its DSA devices, which may be emulated.
    pub fn new(machine: Machine, state: SystemState, is_emulated: bool) -> OnMachine {
        OnMachine { machine, state, is_emulated }
    }

    /// Refuses points that this machine cannot run, and options that it would ignore.
    fn check(&self, point: &Point, metrics: &[Metric]) -> Result<(), Skipped> {
        let is_device = point.way != Way::Core;
        Skipped::cannot(match point {
            Point { data, .. }
                if !matches!(data, Data::Any | Data::Memory) && is_device && self.is_emulated =>
            {
                "the emulated device has no caches"
            }
            Point { read_buffers: Some(_), .. } if self.is_emulated => {
                "the emulated device has as many read buffers as its rate takes, whatever its groups may use"
            }
            Point { working_set_bytes: Some(_), .. } if !metrics.contains(&Metric::LOAD) => {
                "working sets are of the reader in pollution"
            }
            Point { way: Way::Write, batch: 2.., .. } => "the kernel submits no batches by write(2)",
            Point { data, .. } if is_absent(point) && *data != Data::Any => {
                "absent pages are in no cache: leave out data"
            }
            Point { route: Some(_), .. } if is_absent(point) => {
                "a routed copy comes to the same target again, whose pages are there then: leave out the route"
            }
            _ if is_absent(point) && metrics.contains(&Metric::LOAD) => {
                "copies beside a reader come to the same target again, whose pages are there then: leave out pages"
            }
            _ => return Ok(()),
        })
    }

    /// Runs the submitters. Absent pages are present after a run, so that each iteration has new lanes then.
    fn ran(
        &self,
        point: &Point,
        load: Load,
        (executors, home): (&[load::Executor], &Home),
        metrics: &[Metric],
        effort: RunLength,
    ) -> Result<Ran, Skipped> {
        let fitting = (ABSENT_BYTES_MAX / point.size_bytes.max(1)).max(1) as usize;
        let (repetitions, runs, iterations) = match is_absent(point) {
            true => (fitting.min(load.repetitions), effort.iterations, 1),
            false => (load.repetitions, 1, effort.iterations),
        };
        let load = Load { repetitions, ..load };
        let mut ran = Ran { seen: Vec::new(), repetitions, place: None };
        for _ in 0..runs {
            let mut lanes = self.lanes(point, load, executors, home)?;
            lanes.iter_mut().for_each(|lane| lane.times_submissions = is_timed(metrics));
            let (seen, lanes) = threads(lanes, iterations)?;
            ran.seen.extend(seen);
            ran.place = self.place(home, &lanes);
        }
        Ok(ran)
    }

    /// The metrics of a run, with its overhead and remarks.
    fn taken(
        &self,
        point: &Point,
        load: Load,
        metrics: &[Metric],
        home: &Home,
        ran: &Ran,
    ) -> Result<Vec<Measurement>, Skipped> {
        let overhead = self.overhead(point, load, metrics, home, ran)?;
        let mut taken = metrics_of(point, metrics, ran.repetitions, &ran.seen);
        for taken in taken.iter_mut().filter(|taken| !taken.values.is_empty()) {
            taken.overhead = Some(overhead);
            match (point.route, point.way) {
                (None, _) => {}
                (Some(_), Way::Core) => {
                    taken.add_note("by the mover's workers, one for each CPU of the node");
                }
                _ => taken.add_note("by the mover, whose CPU workers take what devices refuse"),
            }
            add_remarks(taken, point, ran);
        }
        Ok(taken)
    }

    /// Time of the same run without work, as a share of the run.
    fn overhead(
        &self,
        point: &Point,
        load: Load,
        metrics: &[Metric],
        home: &Home,
        ran: &Ran,
    ) -> Result<f64, Skipped> {
        // The memory is not accessed and can be small.
        let nothing = Load {
            work: LoadOperation::Nothing,
            size_bytes: 1,
            repetitions: ran.repetitions,
            pages: load::PageState::Touched,
            ..load
        };
        let touched = Point { data: Data::Any, pages: Pages::Touched, ..point.clone() };
        let mut lanes = self.lanes(&touched, nothing, &[load::Executor::Core], home)?;
        let is_timed = is_timed(metrics) && point.way != Way::Core;
        lanes.iter_mut().for_each(|lane| lane.times_submissions = is_timed);
        let (empty, _) = threads(lanes, ran.seen.len())?;
        let slowest =
            |seen: &Vec<SubmitterTimes>| seen.iter().map(|seen| seen.elapsed_ns).fold(0.0, f64::max);
        let shares: Vec<f64> =
            empty.iter().zip(&ran.seen).map(|(empty, seen)| slowest(empty) / slowest(seen)).collect();
        Ok(median(&shares))
    }

    /// The share of the time in UMWAIT; without this instruction, the share of a core that a sleeping waiter leaves idle.
    fn asleep(
        &self,
        point: &Point,
        portal: &dyn Portal,
        home: &Home,
        effort: RunLength,
    ) -> Result<Vec<Measurement>, Skipped> {
        let (Ok(size_bytes), true) = (u32::try_from(point.size_bytes), is_plain(point)) else {
            return Skipped::cannot(
                "waiting is measured of copies, one submission at a time by one thread, of memory near the device: \
                 leave out operations, submitters, depths, sources, targets, pages and data",
            );
        };
        let umwait = Wait::Umwait(SleepState::Deep);
        let has_umwait = umwait.effective() == umwait;
        let wait = if has_umwait { umwait } else { Wait::Block };
        let costs = thread::scope(|scope| {
            let costs = scope.spawn(|| {
                home.pin();
                waiting::costs(portal, &[wait], size_bytes, point.batch, effort.iterations)
            });
            costs.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let costs = costs.map_err(|error| Skipped::Failed(error.into()))?;
        let asleep = costs.into_iter().flat_map(|cost| match has_umwait {
            true => cost.wait_shares,
            false => cost.core_shares.into_iter().map(|share| 1.0 - share).collect(),
        });
        let mut taken = Measurement::new(Metric::ASLEEP, asleep.collect());
        taken.is_other_work = !has_umwait;
        taken.add_note(match has_umwait {
            true => "waits in UMWAIT, which keeps the core",
            false => "without UMWAIT: sleeps between polls of the completion record",
        });
        home.words().into_iter().for_each(|words| taken.add_note(&words));
        Ok(vec![taken])
    }
}

fn is_absent(point: &Point) -> bool {
    matches!(point.pages, Pages::AbsentBlock | Pages::AbsentResume)
}

/// Whether the metrics need each submission timed.
fn is_timed(metrics: &[Metric]) -> bool {
    metrics.contains(&Metric::SUBMIT)
}

/// Whether it is one submission of copies at a time, without options of memory.
fn is_plain(point: &Point) -> bool {
    let Point { operation, submitters, depth, source, target, pages, data, .. } = *point;
    (operation, submitters, depth) == (LoadOperation::Copy, 1, 1)
        && source.or(target).is_none()
        && (pages, data) == (Pages::Touched, Data::Any)
}

/// Executors of the submitters: queues, or the cores without queues.
fn executors(portals: Vec<Arc<dyn Portal>>) -> Vec<load::Executor> {
    match portals.is_empty() {
        true => vec![load::Executor::Core],
        false => portals.into_iter().map(load::Executor::Queue).collect(),
    }
}

impl Backend for OnMachine {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn ways(&self, wanted: &[Way]) -> Vec<Way> {
        wanted.to_vec()
    }

    fn run(&self, point: &Point, metrics: &[Metric], effort: RunLength) -> Result<Vec<Measurement>, Skipped> {
        self.check(point, metrics)?;
        let load = load_of(point, effort)?;
        endpoints(&self.machine, point)?;
        let mut chosen = if point.way == Way::Core { Vec::new() } else { self.chosen(point)? };
        if point.route.is_none() {
            chosen.truncate(1);
        }
        let devices: Vec<&Device> = chosen.iter().map(|chosen| chosen.device).collect();
        let home = self.home(point, &devices);
        if let Some(route) = point.route {
            let ran = self.routed((point, route), load, &chosen, &home, effort)?;
            return self.taken(point, load, metrics, &home, &ran);
        }
        let opened = chosen.first().map_or(Ok(Vec::new()), |chosen| chosen.open(point.way))?;
        let by_write =
            opened.iter().find_map(|portal| portal.write_reason()).filter(|_| point.way != Way::Write);
        let portals: Vec<Arc<dyn Portal>> =
            opened.into_iter().map(|portal| portal as Arc<dyn Portal>).collect();
        let mut taken = if metrics == [Metric::ASLEEP] {
            match portals.first() {
                Some(portal) => self.asleep(point, &**portal, &home, effort)?,
                None => return Skipped::cannot("a core that copies does not wait"),
            }
        } else if metrics.contains(&Metric::LOAD) {
            self.pollution(point, load, &executors(portals), home, effort)?
        } else {
            let ran = self.ran(point, load, (&executors(portals), &home), metrics, effort)?;
            self.taken(point, load, metrics, &home, &ran)?
        };
        if let Some(why) = by_write {
            taken.iter_mut().for_each(|taken| taken.add_note(&format!("submitted by write(2): {why}")));
        }
        Ok(taken)
    }
}

/// Adds remarks about a run.
fn add_remarks(taken: &mut Measurement, point: &Point, ran: &Ran) {
    if point.pages == Pages::Huge {
        taken.add_note("huge pages are asked for; the kernel gives what it has");
    }
    if point.pages == Pages::AbsentResume {
        let faults_count: u64 = ran.seen.iter().flatten().map(|seen| seen.faults_count).sum();
        taken.add_note(&format!("software resumed after {faults_count} page faults"));
    }
    if let Some(place) = &ran.place {
        taken.add_note(place);
    }
}

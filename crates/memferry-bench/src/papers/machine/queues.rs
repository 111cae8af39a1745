//! Selection of this machine's queues for a point, and copies that several queues share.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use memferry::mover::{CopyOptions, DsaEngine, DsaOptions, Mover, MoverError, Route};
use memferry_dsa::internals::portal;
use memferry_dsa::internals::software::{Flush, flush};
use memferry_dsa::system::{Device, Group, Queue, QueueFilter};
use memferry_dsa::{DevicePortal, OpenError, OpenOptions, OperationSet, Portal, QueueMode};

use super::home::Home;
use super::{OnMachine, Ran};
use crate::dsa::load::{Load, LoadOperation, SubmitterTimes};
use crate::papers::{Data, Pages, Point, RunLength, Skipped, Way};

/// Queues of a device that a point uses.
pub(super) struct Chosen<'a> {
    pub(super) device: &'a Device,
    queues: Vec<&'a Queue>,
}

impl Chosen<'_> {
    pub(super) fn open(&self, way: Way) -> Result<Vec<Arc<DevicePortal>>, Skipped> {
        let way = if way == Way::Write { portal::SubmitMethod::Write } else { portal::SubmitMethod::Any };
        self.queues.iter().map(|queue| open(self.device, queue, way)).collect()
    }
}

impl OnMachine {
    /// The queues of a point on each device that has enough of them, the device of its source first.
    pub(super) fn chosen<'a>(&'a self, point: &Point) -> Result<Vec<Chosen<'a>>, Skipped> {
        let mode = mode(point.way)?;
        let operations = OperationSet::of(&[point.operation.opcode()]);
        let wanted = QueueFilter { mode, operations, ..QueueFilter::default() };
        let diagnosis = self.state.diagnose(&wanted);
        let is_meant = |(device, queue): &&(&Device, &Queue)| {
            point.entries.is_none_or(|entries| queue.size == Some(entries))
                && point.engines.is_none_or(|engines| engines_count(device, queue) == engines as usize)
        };
        let usable: Vec<_> = diagnosis.usable.iter().filter(is_meant).copied().collect();
        let of = |device: &'a Device| {
            let own: Vec<&Queue> = usable.iter().filter(|it| it.0.id == device.id).map(|it| it.1).collect();
            Some(Chosen { device, queues: chosen(device, &own, point)? })
        };
        let mut all: Vec<Chosen<'_>> = self.state.devices.iter().filter_map(of).collect();
        let source = point.source.and_then(|node| self.machine.node(node).ok()).map(|node| node.cpu_node.0);
        all.sort_by_key(|chosen| source.is_none() || chosen.device.node != source);
        if !all.is_empty() {
            return Ok(all);
        }
        let mut kind = String::new();
        for (what, value) in [
            ("entries", point.entries.map(|entries| entries.to_string())),
            ("engines", point.engines.map(|engines| engines.to_string())),
            ("priorities", point.priorities.map(|(first, second)| format!("{first} and {second}"))),
            ("read buffers", point.read_buffers.map(|(first, second)| format!("{first} and {second}"))),
        ] {
            kind += &value.map_or(String::new(), |value| format!(", {what} {value}"));
        }
        let diagnostics: Vec<String> = diagnosis.diagnostics.iter().map(ToString::to_string).collect();
        Skipped::cannot(format!(
            "no device of this machine has work queues that can be used like this (mode {}, {} of them{kind}, for {}); \
             see memferry configure{}{}",
            mode.map_or("any", QueueMode::as_str),
            point.queues,
            point.operation,
            if diagnostics.is_empty() { "" } else { ". " },
            diagnostics.join("; ")
        ))
    }

    /// Copies that engines share: by the mover, with the chosen queues of all devices or with its CPU workers.
    pub(super) fn routed(
        &self,
        (point, route): (&Point, Route),
        load: Load,
        chosen: &[Chosen<'_>],
        home: &Home,
        effort: RunLength,
    ) -> Result<Ran, Skipped> {
        if load.work != LoadOperation::Copy || load.batch > 1 || load.depth > 1 || point.submitters > 1 {
            return Skipped::cannot("routes are for copies, one at a time");
        }
        if point.data != Data::Any {
            return Skipped::cannot(
                "which caches hold a routed copy is up to who shares in it: leave out data",
            );
        }
        let failed = |error: MoverError| Skipped::Failed(error.into());
        let mut builder = Mover::builder(Arc::new(self.machine.clone())).route(route);
        if chosen.is_empty() {
            builder = builder.cpu_workers(home.cpus.len().max(1));
        }
        for chosen in chosen {
            let portals = chosen.open(point.way)?.into_iter().map(|portal| portal as Arc<dyn Portal>);
            let engine = DsaEngine::new(portals.collect(), DsaOptions::default()).map_err(failed)?;
            builder = builder.engine(Arc::new(engine));
        }
        let mover = builder.build().map_err(failed)?;
        let options =
            CopyOptions { source_node: home.source, target_node: home.target, ..CopyOptions::default() };
        let mut source = self.region(load.size_bytes as usize, home.source, Pages::Touched)?;
        let mut target = self.region(load.size_bytes as usize, home.target, point.pages)?;
        let mut seen = Vec::with_capacity(effort.iterations);
        // Pin a separate thread, not the caller's.
        let run = || {
            home.pin();
            for _ in 0..effort.iterations {
                flush(&source, Flush::Invalidate);
                flush(&target, Flush::Invalidate);
                let begin = Instant::now();
                for _ in 0..load.repetitions {
                    let outcome = mover.copy(source, target, options).wait();
                    (source, target, _) = outcome.map_err(|failed| Skipped::Failed(failed.error.into()))?;
                }
                seen.push(vec![SubmitterTimes {
                    elapsed_ns: begin.elapsed().as_nanos() as f64,
                    ..SubmitterTimes::default()
                }]);
            }
            Ok::<_, Skipped>((source, target))
        };
        let ran = thread::scope(|scope| scope.spawn(run).join());
        let (source, target) = ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let place = self.place_of(home, &source, &target);
        Ok(Ran { seen, repetitions: load.repetitions, place })
    }
}

/// Mode of the queues that a way uses; `None`: any.
fn mode(way: Way) -> Result<Option<QueueMode>, Skipped> {
    match way {
        Way::Shared => Ok(Some(QueueMode::Shared)),
        Way::Dedicated => Ok(Some(QueueMode::Dedicated)),
        Way::Write => Ok(None),
        Way::Core | Way::Any => {
            Skipped::cannot("a machine has queues; ask for the ways core, shared, dedicated or write")
        }
    }
}

/// As many queues of a device as a point needs: with its priorities in one group, with its read buffers in two groups.
fn chosen<'a>(device: &Device, queues: &[&'a Queue], point: &Point) -> Option<Vec<&'a Queue>> {
    if point.priorities.is_none() && point.read_buffers.is_none() {
        return queues.get(..point.queues).map(<[_]>::to_vec);
    }
    let has_priority = |queue: &Queue, priority: Option<u8>| {
        priority.is_none_or(|priority| queue.priority == Some(priority.into()))
    };
    let has_buffers = |queue: &Queue, buffers: Option<u32>| {
        buffers.is_none() || group_of(device, queue).and_then(|group| group.read_buffers_allowed) == buffers
    };
    let of = |queue: &Queue, priority, buffers| has_priority(queue, priority) && has_buffers(queue, buffers);
    let (priorities, buffers) = (point.priorities.unzip(), point.read_buffers.unzip());
    let is_meant = |(one, other): &(&Queue, &Queue)| {
        // Each group has its own buffers; priorities apply within a group.
        let is_one_group = one.group == other.group;
        one.id != other.id
            && of(one, priorities.0, buffers.0)
            && of(other, priorities.1, buffers.1)
            && is_one_group == point.read_buffers.is_none()
    };
    let pairs = queues.iter().flat_map(|one| queues.iter().map(|other| (*one, *other)));
    pairs.into_iter().find(is_meant).filter(|_| point.queues == 2).map(|(one, other)| vec![one, other])
}

fn group_of<'a>(device: &'a Device, queue: &Queue) -> Option<&'a Group> {
    device.groups.iter().find(|group| queue.group == Some(group.id.index))
}

/// Engines of a queue's group.
fn engines_count(device: &Device, queue: &Queue) -> usize {
    group_of(device, queue).map_or(0, |group| group.engines.len())
}

fn open(device: &Device, queue: &Queue, way: portal::SubmitMethod) -> Result<Arc<DevicePortal>, Skipped> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| Skipped::Failed(error);
    let Some(file) = &queue.file else {
        return Skipped::cannot(format!("{} has no file in /dev/dsa; see memferry configure", queue.id));
    };
    let info = queue.info(device).map_err(|error| failed(error.into()))?;
    let options = OpenOptions { method: way, ..OpenOptions::default() };
    match DevicePortal::open(Path::new(&file.path), info, options) {
        Ok(portal) => Ok(portal),
        Err(error @ OpenError::NoWrite(_)) => Skipped::cannot(error.to_string()),
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use memferry_dsa::system::{ApplyOptions, Config, DeviceId, Plan, SystemState, UnknownKeys};
    use memferry_dsa_emulator::{FakeDevice, FakeDriver};

    use super::*;
    use crate::papers::Axes;

    /// Queues 0 and 1 in a group with all read buffers and priorities 15 and 1; queue 2 in one with 16.
    fn state() -> SystemState {
        let queue = |number: u32, group: u32, priority: u32| {
            format!(
                r#"{{"dev": "wq0.{number}", "mode": "dedicated", "size": 16, "group_id": {group}, "name": "q",
                    "priority": {priority}, "type": "user", "driver_name": "user"}}"#
            )
        };
        let group = |number: u32, buffers: u32, queues: &[String]| {
            let queues = queues.join(", ");
            format!(
                r#"{{"dev": "group0.{number}", "read_buffers_allowed": {buffers}, "grouped_workqueues": [{queues}],
                    "grouped_engines": [{{"dev": "engine0.{number}", "group_id": {number}}}]}}"#
            )
        };
        let groups =
            [group(0, 96, &[queue(0, 0, 15), queue(1, 0, 1)]), group(1, 16, &[queue(2, 1, 15)])].join(", ");
        let text = format!(r#"[{{"dev": "dsa0", "groups": [{groups}]}}]"#);
        let config = Config::parse(&text, UnknownKeys::Refuse).unwrap();
        let driver = FakeDriver::new(&[FakeDevice::sapphire_rapids(DeviceId(0), 0)]);
        let options = ApplyOptions { disable_first: false, enable: true };
        let plan = Plan::new(&config, &SystemState::read(&driver).unwrap(), options).unwrap();
        plan.apply_to(&driver).unwrap();
        SystemState::read(&driver).unwrap()
    }

    #[test]
    fn tenants_get_the_queues_that_were_asked_for() {
        let state = state();
        let device = &state.devices[0];
        let queues: Vec<&Queue> = device.queues.iter().filter(|queue| queue.size == Some(16)).collect();
        let axes = Axes { ways: vec![Way::Dedicated], queues: vec![2], ..Axes::default() };
        let one = axes.points().remove(0);
        let numbers = |point: Point| {
            let found = chosen(device, &queues, &point)?;
            Some(found.iter().map(|queue| queue.id.index).collect::<Vec<_>>())
        };
        let by_priority = |priorities| numbers(Point { priorities: Some(priorities), ..one.clone() });
        assert_eq!(by_priority((15, 1)), Some(vec![0, 1]));
        assert_eq!(by_priority((1, 15)), Some(vec![1, 0]));
        assert_eq!(by_priority((15, 15)), None, "the other one is in another group");
        let by_buffers = |buffers| numbers(Point { read_buffers: Some(buffers), ..one.clone() });
        assert_eq!(by_buffers((96, 16)), Some(vec![0, 2]));
        assert_eq!(by_buffers((16, 96)), Some(vec![2, 0]));
        assert_eq!(by_buffers((96, 96)), None, "groups have read buffers, not queues");
        let both = Point { read_buffers: Some((96, 16)), priorities: Some((1, 15)), ..one.clone() };
        assert_eq!(numbers(both), Some(vec![1, 2]));
        assert_eq!(numbers(Point { queues: 3, priorities: Some((15, 1)), ..one.clone() }), None);
        assert_eq!(numbers(Point { queues: 3, ..one.clone() }), Some(vec![0, 1, 2]));
        assert_eq!(numbers(Point { queues: 4, ..one }), None);
        assert_eq!(queues.iter().map(|queue| engines_count(device, queue)).collect::<Vec<_>>(), [1, 1, 1]);
    }
}

//! The queues of this machine: which ones a point has, and copies that all of them share.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use memferry_dsa::measure::load::{Load, Seen, Work};
use memferry_dsa::portal::OpenOptions;
use memferry_dsa::system::{Device, Queue, Wanted};
use memferry_dsa::{DevicePortal, Portal, QueueMode};

use super::OnMachine;
use crate::bench::{Data, Effort, Pages, Point, Unrun, Way};
use crate::mover::{CopyOptions, DsaEngine, DsaOptions, Mover, MoverError, Route};

impl OnMachine {
    /// The queues of a point, all of one device.
    pub(super) fn portals(&self, point: &Point, mode: QueueMode) -> Result<Vec<Arc<dyn Portal>>, Unrun> {
        let wanted = Wanted { mode: Some(mode), ..Wanted::default() };
        let diagnosis = self.state.diagnose(&wanted);
        let is_meant = |(device, queue): &&(&Device, &Queue)| {
            point.entries.is_none_or(|entries| queue.size == Some(entries))
                && point.engines.is_none_or(|engines| engines_count(device, queue) == engines as usize)
        };
        let usable: Vec<_> = diagnosis.usable.iter().filter(is_meant).copied().collect();
        for device in self.state.devices.iter() {
            let own: Vec<&Queue> = usable.iter().filter(|it| it.0.id == device.id).map(|it| it.1).collect();
            if let Some(chosen) = chosen(&own, point) {
                return chosen.into_iter().map(|queue| open(device, queue)).collect();
            }
        }
        let mut kind = String::new();
        for (what, value) in [
            ("entries", point.entries.map(|entries| entries.to_string())),
            ("engines", point.engines.map(|engines| engines.to_string())),
            ("priorities", point.priorities.map(|(first, second)| format!("{first} and {second}"))),
        ] {
            kind += &value.map_or(String::new(), |value| format!(", {what} {value}"));
        }
        let troubles: Vec<String> = diagnosis.troubles.iter().map(ToString::to_string).collect();
        Unrun::cannot(format!(
            "no device of this machine has work queues that can be used like this (mode {}, {} of them{kind}); see \
             memferry configure{}{}",
            mode.as_str(),
            point.queues,
            if troubles.is_empty() { "" } else { ". " },
            troubles.join("; ")
        ))
    }

    /// Copies that engines share: those of the mover, with the queues of all devices or with its CPU workers.
    pub(super) fn routed(
        &self,
        point: &Point,
        route: Route,
        load: Load,
        effort: Effort,
    ) -> Result<Vec<Vec<Seen>>, Unrun> {
        if load.work != Work::Copy || load.batch > 1 || load.depth > 1 || point.submitters > 1 {
            return Unrun::cannot("routes are for copies, one at a time");
        }
        if point.data != Data::Any || point.priorities.is_some() {
            return Unrun::cannot(
                "whoever shares in a routed copy is the mover's choice; leave out data and priorities",
            );
        }
        let failed = |error: MoverError| Unrun::Failed(error.into());
        let mut builder = Mover::builder(Arc::new(self.machine.clone())).route(route);
        if point.way == Way::Core {
            builder = builder.cpu_workers(self.cpus(point).len().max(1));
        } else {
            let mode = if point.way == Way::Shared { QueueMode::Shared } else { QueueMode::Dedicated };
            // Says what is missing if there is no queue at all.
            self.portals(point, mode)?;
            let wanted = Wanted { mode: Some(mode), ..Wanted::default() };
            let diagnosis = self.state.diagnose(&wanted);
            for device in &self.state.devices {
                let own = diagnosis.usable.iter().filter(|it| it.0.id == device.id);
                let portals =
                    own.map(|(device, queue)| open(device, queue)).collect::<Result<Vec<_>, _>>()?;
                if !portals.is_empty() {
                    let engine = DsaEngine::new(portals, DsaOptions::default()).map_err(failed)?;
                    builder = builder.engine(Arc::new(engine));
                }
            }
        }
        let mover = builder.build().map_err(failed)?;
        let options =
            CopyOptions { source_node: point.source, target_node: point.target, ..CopyOptions::default() };
        let mut source = self.region(load.size_bytes as usize, point.source, Pages::Touched)?;
        let mut target = self.region(load.size_bytes as usize, point.target, point.pages)?;
        let mut seen = Vec::with_capacity(effort.iterations);
        for _ in 0..effort.iterations {
            let begin = Instant::now();
            for _ in 0..load.repetitions {
                let outcome = mover.copy(source, target, options).wait();
                (source, target, _) = outcome.map_err(|failed| Unrun::Failed(failed.error.into()))?;
            }
            seen.push(vec![Seen { elapsed_ns: begin.elapsed().as_nanos() as f64, submitting_ns: None }]);
        }
        Ok(seen)
    }
}

/// As many of these queues of a device as a point has; with its priorities in one group, if it has some.
fn chosen<'a>(queues: &[&'a Queue], point: &Point) -> Option<Vec<&'a Queue>> {
    let Some((first, second)) = point.priorities else {
        return queues.get(..point.queues).map(<[_]>::to_vec);
    };
    let with = |priority: u8| queues.iter().filter(move |queue| queue.priority == Some(priority.into()));
    let pairs = with(first).flat_map(|one| with(second).map(move |other| (*one, *other)));
    let found = pairs.into_iter().find(|(one, other)| one.id != other.id && one.group == other.group);
    found.filter(|_| point.queues == 2).map(|(one, other)| vec![one, other])
}

/// Engines of a queue's group.
fn engines_count(device: &Device, queue: &Queue) -> usize {
    let group = device.groups.iter().find(|group| queue.group == Some(group.id.index));
    group.map_or(0, |group| group.engines.len())
}

fn open(device: &Device, queue: &Queue) -> Result<Arc<dyn Portal>, Unrun> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| Unrun::Failed(error);
    let Some(file) = &queue.file else {
        return Unrun::cannot(format!("{} has no file in /dev/dsa; see memferry configure", queue.id));
    };
    let info = queue.info(device).map_err(|error| failed(error.into()))?;
    let portal = DevicePortal::open(Path::new(&file.path), info, OpenOptions::default());
    Ok(portal.map_err(|error| failed(error.into()))?)
}

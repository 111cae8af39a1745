//! Points, and the values of their axes.

use std::fmt;

use memferry::mover::Route;
use memferry::topology::NodeId;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::axis::Axis;
use crate::dsa::load::LoadOperation;

/// The executor of the work, and the way of submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The submitting core itself.
    Core,
    /// A device, through a shared queue.
    Shared,
    /// A device, through a dedicated queue.
    Dedicated,
    /// A device, through write(2) to the file of a queue, which the kernel offers to unprivileged processes.
    Write,
    /// A device; the way makes no difference in the model.
    Any,
}

/// State of the pages of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// Present: touched before.
    Touched,
    /// Present and huge.
    Huge,
    /// Absent; the device waits for each page, as a core does.
    AbsentBlock,
    /// Absent; software touches the page at which the device stopped, and submits the rest.
    AbsentResume,
}

/// Place of source and target when an iteration begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Data {
    /// Flushed from all caches; later repetitions find them where earlier ones have left them.
    Any,
    /// Neither is in a cache in any repetition: a core accesses other bytes each time.
    Memory,
    /// The source is in a cache.
    CachedSource,
    /// The target is in a cache.
    CachedTarget,
    /// Both are.
    Cached,
}

/// A complete description of one run.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Executor and way of submission.
    pub way: Way,
    /// The operation.
    pub operation: LoadOperation,
    /// Size of one descriptor.
    pub size_bytes: u64,
    /// Descriptors of a submission; 1: no batch.
    pub batch: u32,
    /// Threads that submit.
    pub submitters: usize,
    /// Submissions in flight per submitter.
    pub depth: usize,
    /// Work queues that the submitters are spread over.
    pub queues: usize,
    /// Entries of each queue; `None`: as configured.
    pub entries: Option<u32>,
    /// Engines behind the queues; `None`: as configured.
    pub engines: Option<u32>,
    /// For copies between nodes: the devices that share in each.
    pub route: Option<Route>,
    /// Node of sources; `None`: the node of the device, or of the core.
    pub source: Option<NodeId>,
    /// Node of targets; `None`: as above.
    pub target: Option<NodeId>,
    /// State of the pages of targets.
    pub pages: Pages,
    /// Place of source and target.
    pub data: Data,
    /// Priorities of two queues of one group, each with a tenant; `None`: as configured.
    pub priorities: Option<(u8, u8)>,
    /// Read buffers that two groups of a device may use, each with a tenant; `None`: as configured.
    pub read_buffers: Option<(u32, u32)>,
}

/// The values of all axes; points are their combinations.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct Axes {
    pub ways: Vec<Way>,
    pub operations: Vec<LoadOperation>,
    pub sizes_bytes: Vec<u64>,
    pub batches: Vec<u32>,
    pub submitters: Vec<usize>,
    pub depths: Vec<usize>,
    pub queues: Vec<usize>,
    pub entries: Vec<Option<u32>>,
    pub engines: Vec<Option<u32>>,
    pub routes: Vec<Option<Route>>,
    pub sources: Vec<Option<NodeId>>,
    pub targets: Vec<Option<NodeId>>,
    pub pages: Vec<Pages>,
    pub data: Vec<Data>,
    pub priorities: Vec<Option<(u8, u8)>>,
    pub read_buffers: Vec<Option<(u32, u32)>>,
}

impl Default for Axes {
    /// One value each: a copy of 4 KiB at a time, by one thread.
    fn default() -> Axes {
        Axes {
            ways: vec![Way::Core, Way::Shared, Way::Dedicated],
            operations: vec![LoadOperation::Copy],
            sizes_bytes: vec![4096],
            batches: vec![1],
            submitters: vec![1],
            depths: vec![1],
            queues: vec![1],
            entries: vec![None],
            engines: vec![None],
            routes: vec![None],
            sources: vec![None],
            targets: vec![None],
            pages: vec![Pages::Touched],
            data: vec![Data::Any],
            priorities: vec![None],
            read_buffers: vec![None],
        }
    }
}

impl Axes {
    /// All combinations; the first axis varies slowest. A core has no queue: it has one point for all values of the axes of
    /// queues.
    pub fn points(&self) -> Vec<Point> {
        let mut of_cores: Vec<Point> = Vec::new();
        let mut points = self.combinations();
        points.retain_mut(|point| {
            if point.way != Way::Core {
                return true;
            }
            *point = point.without_queue();
            let is_new = !of_cores.contains(point);
            if is_new {
                of_cores.push(point.clone());
            }
            is_new
        });
        points
    }

    /// The values of an axis that no point has, as in records.
    pub fn unused(&self, axis: Axis, points: &[Point]) -> Vec<Value> {
        let mut unused = Vec::new();
        let is_used = |value: &Value| points.iter().any(|point| axis.value(point) == *value);
        for value in self.combinations().iter().map(|point| axis.value(point)) {
            if !unused.contains(&value) && !is_used(&value) {
                unused.push(value);
            }
        }
        unused
    }

    fn combinations(&self) -> Vec<Point> {
        let first = Point {
            way: Way::Any,
            operation: LoadOperation::Copy,
            size_bytes: 0,
            batch: 1,
            submitters: 1,
            depth: 1,
            queues: 1,
            entries: None,
            engines: None,
            route: None,
            source: None,
            target: None,
            pages: Pages::Touched,
            data: Data::Any,
            priorities: None,
            read_buffers: None,
        };
        let mut points = vec![first];
        each(&mut points, &self.ways, |point, &way| point.way = way);
        each(&mut points, &self.operations, |point, &operation| point.operation = operation);
        each(&mut points, &self.routes, |point, &route| point.route = route);
        each(&mut points, &self.sources, |point, &source| point.source = source);
        each(&mut points, &self.targets, |point, &target| point.target = target);
        each(&mut points, &self.pages, |point, &pages| point.pages = pages);
        each(&mut points, &self.data, |point, &data| point.data = data);
        each(&mut points, &self.priorities, |point, &priorities| point.priorities = priorities);
        each(&mut points, &self.read_buffers, |point, &buffers| point.read_buffers = buffers);
        each(&mut points, &self.queues, |point, &queues| point.queues = queues);
        each(&mut points, &self.entries, |point, &entries| point.entries = entries);
        each(&mut points, &self.engines, |point, &engines| point.engines = engines);
        each(&mut points, &self.submitters, |point, &submitters| point.submitters = submitters);
        each(&mut points, &self.depths, |point, &depth| point.depth = depth);
        each(&mut points, &self.batches, |point, &batch| point.batch = batch);
        each(&mut points, &self.sizes_bytes, |point, &size_bytes| point.size_bytes = size_bytes);
        points
    }

    /// The axes with more than one value.
    pub fn varied(&self) -> Vec<Axis> {
        let count = |axis: &Axis| match axis {
            Axis::Way => self.ways.len(),
            Axis::Operation => self.operations.len(),
            Axis::SizeBytes => self.sizes_bytes.len(),
            Axis::Batch => self.batches.len(),
            Axis::Submitters => self.submitters.len(),
            Axis::Depth => self.depths.len(),
            Axis::Queues => self.queues.len(),
            Axis::Entries => self.entries.len(),
            Axis::Engines => self.engines.len(),
            Axis::Route => self.routes.len(),
            Axis::Source => self.sources.len(),
            Axis::Target => self.targets.len(),
            Axis::Pages => self.pages.len(),
            Axis::Data => self.data.len(),
            Axis::Priorities => self.priorities.len(),
            Axis::ReadBuffers => self.read_buffers.len(),
        };
        Axis::ALL.into_iter().filter(|axis| count(axis) > 1).collect()
    }
}

/// Replaces each point by one per value.
pub(super) fn each<P: Clone, T>(points: &mut Vec<P>, values: &[T], set: impl Fn(&mut P, &T)) {
    let with = |point: &P, value: &T| {
        let mut point = point.clone();
        set(&mut point, value);
        point
    };
    *points = points
        .iter()
        .flat_map(|point| values.iter().map(move |value| (point, value)))
        .map(|(point, value)| with(point, value))
        .collect();
}

impl Point {
    /// The point with the minimum of every axis of queues.
    pub(super) fn without_queue(&self) -> Point {
        let none = Point { batch: 1, depth: 1, queues: 1, entries: None, engines: None, ..self.clone() };
        Point { priorities: None, read_buffers: None, ..none }
    }

    /// The columns of a record.
    pub fn columns(&self) -> Map<String, Value> {
        Axis::ALL.into_iter().map(|axis| (axis.column().to_owned(), axis.value(self))).collect()
    }

    /// The values of these axes as a name, such as `shared_64KiB_batch8`.
    pub fn name(&self, axes: &[Axis]) -> String {
        let words: Vec<String> =
            axes.iter().map(|axis| axis.word(self)).filter(|word| !word.is_empty()).collect();
        words.join("_")
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::Core => "core",
            Way::Shared => "shared",
            Way::Dedicated => "dedicated",
            Way::Write => "write",
            Way::Any => "any",
        })
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Pages::Touched => "touched",
            Pages::Huge => "huge",
            Pages::AbsentBlock => "absent-block",
            Pages::AbsentResume => "absent-resume",
        })
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Data::Any => "any",
            Data::Memory => "memory",
            Data::CachedSource => "cached-source",
            Data::CachedTarget => "cached-target",
            Data::Cached => "cached",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::axis::size_name;
    use super::*;

    #[test]
    fn points_are_combinations() {
        let axes = Axes { sizes_bytes: vec![1024, 1 << 20], batches: vec![1, 8], ..Axes::default() };
        let points = axes.points();
        assert_eq!(points.len(), 2 + 2 * 2 * 2, "cores have no batches");
        assert_eq!(axes.varied(), [Axis::Way, Axis::SizeBytes, Axis::Batch]);
        assert_eq!(points[5].name(&axes.varied()), "shared_1MiB_batch8");
        let mut names: Vec<String> = points.iter().map(|point| point.name(&axes.varied())).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 10, "names tell points apart");
    }

    #[test]
    fn unused_values_are_found() {
        let axes =
            Axes { ways: vec![Way::Core], depths: vec![1, 4], entries: vec![Some(16)], ..Axes::default() };
        let points = axes.points();
        assert_eq!(points.len(), 1);
        assert_eq!(axes.unused(Axis::Depth, &points), [4]);
        assert_eq!(axes.unused(Axis::Entries, &points), [16]);
        assert!(axes.unused(Axis::SizeBytes, &points).is_empty());
        let both = Axes { ways: vec![Way::Core, Way::Shared], ..axes };
        assert!(both.unused(Axis::Depth, &both.points()).is_empty());
    }

    #[test]
    fn sizes_and_columns() {
        assert_eq!([1, 1536, 65536, 1 << 30].map(size_name), ["1B", "1536B", "64KiB", "1GiB"]);
        let columns = Axes::default().points()[0].columns();
        assert_eq!(
            (&columns["way"], &columns["size_bytes"], &columns["route"]),
            (&"core".into(), &4096.into(), &Value::Null)
        );
    }
}

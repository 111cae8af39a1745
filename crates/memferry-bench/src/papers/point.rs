//! Points, and the values of their axes.

use std::fmt::Display;

use memferry::mover::Route;
use memferry::topology::NodeId;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::columns::{Columns, word};
use crate::dsa::load::LoadOperation;
use crate::harness::display_by_serde;

/// The executor of the work, and the way of submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
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

/// Declares the axes once, the slowest first: each is a field of [`Point`], a list of values in [`Axes`] with its
/// default, and a column of records.
macro_rules! axes {
    (
        columns: $($column:ident)*;
        $($(#[$meta:meta])* $field:ident: $type:ty, $values:ident = [$first:expr $(, $more:expr)*];)*
    ) => {
        /// A complete description of one run.
        #[derive(Clone, PartialEq, Debug, Serialize)]
        pub struct Point {
            $($(#[$meta])* pub $field: $type,)*
        }

        impl Columns for Point {
            const COLUMNS: &'static [&'static str] = &[$(stringify!($column)),*];
        }

        /// The values of all axes; points are their combinations.
        #[derive(Clone, PartialEq, Debug)]
        #[allow(missing_docs)]
        pub struct Axes {
            $(pub $values: Vec<$type>,)*
        }

        impl Default for Axes {
            /// One value each: a copy of 4 KiB at a time, by one thread.
            fn default() -> Axes {
                Axes { $($values: vec![$first $(, $more)*],)* }
            }
        }

        impl Axes {
            fn combinations(&self) -> Vec<Point> {
                let mut points = vec![Point { $($field: $first,)* }];
                $(each(&mut points, &self.$values, |point, value| point.$field = *value);)*
                points
            }

            /// The columns of the axes with more than one value.
            pub fn varied(&self) -> Vec<&'static str> {
                let varied = [$((stringify!($field), self.$values.len() > 1)),*];
                let is_varied = |column: &&str| varied.contains(&(*column, true));
                Point::COLUMNS.iter().copied().filter(is_varied).collect()
            }
        }
    };
}

axes! {
    columns: way operation size_bytes batch submitters depth queues entries engines route source target pages data
             priorities read_buffers working_set_bytes;
    /// Executor and way of submission.
    way: Way, ways = [Way::Core, Way::Shared, Way::Dedicated];
    /// The operation.
    operation: LoadOperation, operations = [LoadOperation::Copy];
    /// For copies between nodes: the devices that share in each.
    #[serde(serialize_with = "route_name")]
    route: Option<Route>, routes = [None];
    /// Node of sources; `None`: the node of the device, or of the core.
    source: Option<NodeId>, sources = [None];
    /// Node of targets; `None`: as above.
    target: Option<NodeId>, targets = [None];
    /// State of the pages of targets.
    pages: Pages, pages = [Pages::Touched];
    /// Place of source and target.
    #[serde(serialize_with = "data_name")]
    data: Data, data = [Data::Any];
    /// Priorities of two queues of one group, each with a tenant; `None`: as configured.
    #[serde(serialize_with = "pair")]
    priorities: Option<(u8, u8)>, priorities = [None];
    /// Read buffers that two groups of a device may use, each with a tenant; `None`: as configured.
    #[serde(serialize_with = "pair")]
    read_buffers: Option<(u32, u32)>, read_buffers = [None];
    /// Bytes that a reader beside the copies reads again and again; `None`: no reader, or one with 4 MiB.
    working_set_bytes: Option<u64>, working_sets_bytes = [None];
    /// Work queues that the submitters are spread over.
    queues: usize, queues = [1];
    /// Entries of each queue; `None`: as configured.
    entries: Option<u32>, entries = [None];
    /// Engines behind the queues; `None`: as configured.
    engines: Option<u32>, engines = [None];
    /// Threads that submit.
    submitters: usize, submitters = [1];
    /// Submissions in flight per submitter.
    depth: usize, depths = [1];
    /// Descriptors of a submission; 1: no batch.
    batch: u32, batches = [1];
    /// Size of one descriptor.
    size_bytes: u64, sizes_bytes = [4096];
}

fn route_name<S: Serializer>(route: &Option<Route>, serializer: S) -> Result<S::Ok, S::Error> {
    route.map(Route::name).serialize(serializer)
}

fn data_name<S: Serializer>(data: &Data, serializer: S) -> Result<S::Ok, S::Error> {
    Some(data).filter(|data| **data != Data::Any).serialize(serializer)
}

/// Such as `15-1`.
fn pair<T: Display, S: Serializer>(values: &Option<(T, T)>, serializer: S) -> Result<S::Ok, S::Error> {
    values.as_ref().map(|(first, second)| format!("{first}-{second}")).serialize(serializer)
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

    /// The columns with values that no point has, and the first of these values in each.
    pub fn unused(&self, points: &[Point]) -> Vec<(&'static str, Value)> {
        let all: Vec<_> = self.combinations().iter().map(Columns::columns).collect();
        let points: Vec<_> = points.iter().map(Columns::columns).collect();
        let unused = |column: &&'static str| {
            let is_used = |value: &Value| points.iter().any(|point| point[*column] == *value);
            Some((*column, all.iter().map(|all| &all[*column]).find(|value| !is_used(value))?.clone()))
        };
        Point::COLUMNS.iter().filter_map(unused).collect()
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

    /// The values of these columns as a name, such as `shared_64KiB_batch8`.
    pub fn name(&self, columns: &[&str]) -> String {
        let values = self.columns();
        let words: Vec<String> = columns
            .iter()
            .map(|column| word(column, &values[*column]))
            .filter(|word| !word.is_empty())
            .collect();
        words.join("_")
    }
}

display_by_serde!(Way, Pages, Data);

#[cfg(test)]
mod tests {
    use super::super::columns::size_name;
    use super::*;

    #[test]
    fn points_are_combinations() {
        let axes = Axes { sizes_bytes: vec![1024, 1 << 20], batches: vec![1, 8], ..Axes::default() };
        let points = axes.points();
        assert_eq!(points.len(), 2 + 2 * 2 * 2, "cores have no batches");
        assert_eq!(axes.varied(), ["way", "size_bytes", "batch"]);
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
        assert_eq!(axes.unused(&points), [("depth", 4.into()), ("entries", 16.into())]);
        let both = Axes { ways: vec![Way::Core, Way::Shared], ..axes };
        assert!(both.unused(&both.points()).is_empty());
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

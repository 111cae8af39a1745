//! Axes in records: one column each, and words in the names of rows.

use std::fmt::Display;

use serde_json::Value;

use super::point::{Data, Point};

/// An axis, by the name of its column in records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Axis {
    Way,
    Operation,
    SizeBytes,
    Batch,
    Submitters,
    Depth,
    Queues,
    Entries,
    Engines,
    Route,
    Source,
    Target,
    Pages,
    Data,
    Priorities,
    ReadBuffers,
}

impl Axis {
    /// All axes, in the order of columns.
    pub const ALL: [Axis; 16] = [
        Axis::Way,
        Axis::Operation,
        Axis::SizeBytes,
        Axis::Batch,
        Axis::Submitters,
        Axis::Depth,
        Axis::Queues,
        Axis::Entries,
        Axis::Engines,
        Axis::Route,
        Axis::Source,
        Axis::Target,
        Axis::Pages,
        Axis::Data,
        Axis::Priorities,
        Axis::ReadBuffers,
    ];

    /// Its column in records.
    pub fn column(self) -> &'static str {
        match self {
            Axis::Way => "way",
            Axis::Operation => "operation",
            Axis::SizeBytes => "size_bytes",
            Axis::Batch => "batch",
            Axis::Submitters => "submitters",
            Axis::Depth => "depth",
            Axis::Queues => "queues",
            Axis::Entries => "entries",
            Axis::Engines => "engines",
            Axis::Route => "route",
            Axis::Source => "source",
            Axis::Target => "target",
            Axis::Pages => "pages",
            Axis::Data => "data",
            Axis::Priorities => "priorities",
            Axis::ReadBuffers => "read_buffers",
        }
    }

    /// The value of a point in records; null if it has none.
    pub fn value(self, point: &Point) -> Value {
        let optional = |number: Option<u32>| number.map_or(Value::Null, Value::from);
        match self {
            Axis::Way => point.way.to_string().into(),
            Axis::Operation => point.operation.name().into(),
            Axis::SizeBytes => point.size_bytes.into(),
            Axis::Batch => point.batch.into(),
            Axis::Submitters => point.submitters.into(),
            Axis::Depth => point.depth.into(),
            Axis::Queues => point.queues.into(),
            Axis::Entries => optional(point.entries),
            Axis::Engines => optional(point.engines),
            Axis::Route => point.route.map_or(Value::Null, |route| route.name().into()),
            Axis::Source => optional(point.source.map(|node| node.0)),
            Axis::Target => optional(point.target.map(|node| node.0)),
            Axis::Pages => point.pages.to_string().into(),
            Axis::Data if point.data == Data::Any => Value::Null,
            Axis::Data => point.data.to_string().into(),
            Axis::Priorities => pair(point.priorities),
            Axis::ReadBuffers => pair(point.read_buffers),
        }
    }

    /// The value as a word of a row's name; empty if it has none.
    pub(super) fn word(self, point: &Point) -> String {
        match (self, self.value(point)) {
            (_, Value::Null) => String::new(),
            (Axis::SizeBytes, _) => size_name(point.size_bytes),
            (Axis::Priorities, Value::String(word)) => format!("priorities{word}"),
            (Axis::ReadBuffers, Value::String(word)) => format!("buffers{word}"),
            (_, Value::String(word)) => word,
            (Axis::Source, value) => format!("from{value}"),
            (Axis::Target, value) => format!("to{value}"),
            (axis, value) => format!("{}{value}", axis.column()),
        }
    }
}

fn pair<T: Display>(values: Option<(T, T)>) -> Value {
    values.map_or(Value::Null, |(first, second)| format!("{first}-{second}").into())
}

/// `65536` as `64KiB`.
pub(in crate::papers) fn size_name(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let whole = units.into_iter().find(|(_, shift)| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift));
    whole.map_or_else(|| format!("{bytes}B"), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

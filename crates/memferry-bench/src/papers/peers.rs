//! The published number that a point repeats.

use memferry::mover::Route;
use serde_json::{Value, json};

use super::{Data, Metric, Point, Way};
use crate::dsa::load::LoadOperation;
use crate::model::figures;

/// A published number that a point can be compared with.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    /// The publication and the row of `published/*.csv`.
    pub name: String,
    /// Value in the unit of its work.
    pub value: f64,
    /// The printed conditions, by columns of rows; those that are not printed are left out.
    pub work: Vec<(&'static str, Value)>,
}

const GIB: f64 = (1 << 30) as f64;

const GB: f64 = 1e9;

/// The published number for a metric of a point of a benchmark.
pub fn published(benchmark: &str, point: &Point, metric: Metric) -> Option<Published> {
    if !matches!(point.data, Data::Any | Data::Memory) {
        return None; // the papers flush caches
    }
    let row = match (metric, point.way) {
        // Four processes that copy 4 KB beside a reader of 4 MB.
        (Metric::SLOWDOWN, Way::Core) if benchmark == "pollution" => {
            let is_published = point.working_set_bytes.is_none_or(|bytes| bytes == 4 << 20);
            (is_published && (point.size_bytes, point.submitters) == (4096, 4)).then_some("K057")?
        }
        // "4 KB or higher, the majority of cycles".
        (Metric::ASLEEP, way) if benchmark == "wait" && way != Way::Core => {
            (point.size_bytes >= 4096 && point.batch == 1).then_some("K056")?
        }
        (Metric::THROUGHPUT, way) if way != Way::Core => throughput_row(benchmark, point)?,
        _ => return None,
    };
    let figure = figures().into_iter().find(|figure| figure.id == row)?;
    let number = figure.number()?;
    let (value, unit) = match figure.unit.as_str() {
        "GiB/s" => (number * GIB, "bytes/s"),
        "GB/s" => (number * GB, "bytes/s"),
        "%" => (1.0 + number / 100.0, "1"),
        "fraction" => (number, "1"),
        _ => return None,
    };
    let publication = if row.starts_with('K') { "Kuper 2024" } else { "Fürst 2024" };
    let mut work = vec![("operation", json!("copy")), ("unit", json!(unit)), ("how", json!("published"))];
    let size_bytes = match row {
        "F021" | "F048" | "F049" => Some(1 << 30),
        "K057" => Some(4096),
        // From a size on.
        _ => None,
    };
    work.extend(size_bytes.map(|bytes| ("size_bytes", json!(bytes))));
    Some(Published { name: format!("published ({publication}, {row})"), value, work })
}

/// The published row for the throughput of one or several devices.
fn throughput_row(benchmark: &str, point: &Point) -> Option<&'static str> {
    let target = point.target.map(|node| node.0);
    let is_from_first = point.source.is_some_and(|node| node.0 == 0);
    let is_largest = point.size_bytes == 1 << 30;
    // A device is busy from 4 KB on with 32 in flight, in batches or through a dedicated queue (K035 to K037).
    let is_busy = point.size_bytes >= 4096 && point.depth >= 32;
    match (benchmark, point.route) {
        // "Close to 30 GiB/s" with the largest copies.
        ("submit" | "threads", None) if is_largest => Some("F021"),
        ("routes", Some(Route::Single)) if is_largest && is_from_first => {
            matches!(target, Some(8 | 11 | 12 | 15)).then_some("F049")
        }
        // Reached by four devices within the socket, and by eight to node 15.
        ("routes", Some(Route::Socket)) if is_largest && is_from_first => {
            matches!(target, Some(8 | 11)).then_some("F048")
        }
        ("routes", Some(Route::All)) if is_largest && is_from_first => (target == Some(15)).then_some("F048"),
        ("operations" | "depth" | "engines", None)
            if is_busy && point.operation == LoadOperation::Copy && point.way != Way::Shared =>
        {
            Some("K032")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use memferry::topology::NodeId;

    use super::*;
    use crate::papers::Axes;

    #[test]
    fn figures_of_the_thesis() {
        let axes = Axes { ways: vec![Way::Any], sizes_bytes: vec![1 << 30], ..Axes::default() };
        let point = axes.points().remove(0);
        let one = published("submit", &point, Metric::THROUGHPUT).unwrap();
        assert_eq!((one.value, one.name.as_str()), (30.0 * GIB, "published (Fürst 2024, F021)"));
        let socket = |target| Point {
            route: Some(Route::Socket),
            source: Some(NodeId(0)),
            target: Some(NodeId(target)),
            ..point.clone()
        };
        let of = |point: &Point| published("routes", point, Metric::THROUGHPUT).map(|it| it.value / GIB);
        assert_eq!([of(&socket(8)), of(&socket(15))], [Some(64.0), None]);
        let polluting = Point { way: Way::Core, size_bytes: 4096, submitters: 4, ..point.clone() };
        assert_eq!(
            published("pollution", &polluting.clone(), Metric::SLOWDOWN).map(|it| it.value),
            Some(1.43)
        );
        let other = Point { working_set_bytes: Some(1 << 20), ..polluting };
        assert_eq!(published("pollution", &other, Metric::SLOWDOWN), None);
        assert_eq!(published("submit", &Point { size_bytes: 4096, ..point }, Metric::THROUGHPUT), None);
    }

    #[test]
    fn figures_of_kuper() {
        let axes = Axes { ways: vec![Way::Dedicated], depths: vec![32], ..Axes::default() };
        let busy = axes.points().remove(0);
        let of = |benchmark, point: &Point, metric| published(benchmark, point, metric).map(|it| it.value);
        assert_eq!(of("operations", &busy, Metric::THROUGHPUT), Some(30e9));
        assert_eq!(of("operations", &Point { data: Data::Cached, ..busy.clone() }, Metric::THROUGHPUT), None);
        assert_eq!(of("depth", &Point { depth: 16, ..busy.clone() }, Metric::THROUGHPUT), None);
        let filling = Point { operation: LoadOperation::Fill, ..busy.clone() };
        assert_eq!(of("operations", &filling, Metric::THROUGHPUT), None);
        assert_eq!(of("wait", &busy, Metric::ASLEEP), Some(0.5));
        assert_eq!(of("wait", &Point { size_bytes: 1024, ..busy }, Metric::ASLEEP), None);
    }
}

//! Which published figure a point repeats.

use super::{Figure, Point, Way};
use crate::model::figures;
use crate::mover::Route;

/// A published number that a point can be compared with.
#[derive(Clone, PartialEq, Debug)]
pub struct Published {
    /// The publication and the row of `published/*.csv`.
    pub name: String,
    /// In the figure's unit.
    pub value: f64,
}

const GIB: f64 = (1 << 30) as f64;

/// What was published of this figure of this point of a benchmark, as a number.
pub fn published(benchmark: &str, point: &Point, figure: Figure) -> Option<Published> {
    if (benchmark, figure, point.way) == ("pollution", Figure::Slowdown, Way::Core)
        && (point.size_bytes, point.submitters) == (4096, 4)
    {
        let percent = figures().into_iter().find(|figure| figure.id == "K057")?.number()?;
        return Some(Published {
            name: "published (Kuper 2024, K057)".to_owned(),
            value: 1.0 + percent / 100.0,
        });
    }
    if figure != Figure::Throughput || point.way == Way::Core || point.size_bytes != 1 << 30 {
        return None;
    }
    let target = point.target.map(|node| node.0);
    let is_from_first = point.source.is_some_and(|node| node.0 == 0);
    let row = match (benchmark, point.route) {
        // "Close to 30 GiB/s": what a device reaches with the largest copies.
        ("submit", None) => "F021",
        ("routes", Some(Route::Single)) if is_from_first && matches!(target, Some(8 | 11 | 12 | 15)) => {
            "F049"
        }
        // Reached by four devices within the socket, and by eight to node 15.
        ("routes", Some(Route::Socket)) if is_from_first && matches!(target, Some(8 | 11)) => "F048",
        ("routes", Some(Route::All)) if is_from_first && target == Some(15) => "F048",
        _ => return None,
    };
    let figure = figures().into_iter().find(|figure| figure.id == row)?;
    let value = figure.number()? * if figure.unit == "GiB/s" { GIB } else { return None };
    Some(Published { name: format!("published (Fürst 2024, {row})"), value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Axes;
    use crate::topology::NodeId;

    #[test]
    fn figures_of_the_thesis() {
        let axes = Axes { ways: vec![Way::Any], sizes_bytes: vec![1 << 30], ..Axes::default() };
        let point = axes.points().remove(0);
        let one = published("submit", &point, Figure::Throughput).unwrap();
        assert_eq!((one.value, one.name.as_str()), (30.0 * GIB, "published (Fürst 2024, F021)"));
        let socket = |target| Point {
            route: Some(Route::Socket),
            source: Some(NodeId(0)),
            target: Some(NodeId(target)),
            ..point.clone()
        };
        let of = |point: &Point| published("routes", point, Figure::Throughput).map(|it| it.value / GIB);
        assert_eq!([of(&socket(8)), of(&socket(15))], [Some(64.0), None]);
        let polluting = Point { way: Way::Core, size_bytes: 4096, submitters: 4, ..point.clone() };
        assert_eq!(published("pollution", &polluting, Figure::Slowdown).map(|it| it.value), Some(1.43));
        assert_eq!(published("submit", &Point { size_bytes: 4096, ..point }, Figure::Throughput), None);
    }
}

//! Points in the model.

use memferry_dsa::measure::load::Work;

use super::emulated::journey;
use super::{Backend, Data, Effort, Figure, Pages, Point, Taken, Unrun, Way};
use crate::model::{Hardware, ModelError, Offload, copy_s};
use crate::topology::Machine;

/// [`crate::model`] on a machine that need not be here.
#[derive(Debug)]
pub struct OnModel {
    machine: Machine,
    hardware: Hardware,
}

impl OnModel {
    /// # Errors
    /// [`ModelError`]: the machine's parameters are none.
    pub fn new(machine: Machine) -> Result<OnModel, ModelError> {
        let hardware = Hardware::of(&machine)?;
        Ok(OnModel { machine, hardware })
    }

    /// Seconds of one submission, alone, and of it those spent submitting.
    fn waited_for_s(&self, point: &Point) -> Result<(f64, Option<f64>), Unrun> {
        let costs = self.costs()?;
        let bytes = point.size_bytes as f64;
        if point.way == Way::Core {
            return Ok((costs.core_s(bytes) * f64::from(point.batch), None));
        }
        let all_s = costs.waited_for_s(bytes, point.batch as usize);
        Ok((all_s, Some(costs.submit_s())))
    }

    fn costs(&self) -> Result<Offload, Unrun> {
        Offload::of(&self.hardware).map_err(cannot)
    }

    fn throughput(&self, point: &Point) -> Result<f64, Unrun> {
        let bytes = point.size_bytes as f64;
        if let Some(route) = point.route {
            if (point.batch, point.submitters, point.depth) != (1, 1, 1) {
                return Unrun::cannot("the model computes routed copies one at a time");
            }
            let seconds = copy_s(&self.machine, &self.hardware, route, journey(&self.machine, point)?);
            return Ok(bytes / seconds.map_err(cannot)?);
        }
        if point.source.or(point.target).is_some() && point.way != Way::Core {
            return Unrun::cannot("in the model nodes are for routes and cores; add a route");
        }
        if point.way == Way::Core {
            if point.submitters > 1 {
                return Unrun::cannot("the model does not know how cores share a memory when they copy");
            }
            if point.source != point.target {
                return Unrun::cannot("the model does not know what a core copies between nodes");
            }
            return Ok(bytes / self.costs()?.core_s(bytes));
        }
        let under_way = point.submitters.saturating_mul(point.depth);
        Ok(self.costs()?.rate(bytes, point.batch as usize, under_way))
    }
}

impl Backend for OnModel {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Queues are one way here.
    fn ways(&self, wanted: &[Way]) -> Vec<Way> {
        let core = wanted.iter().copied().filter(|way| *way == Way::Core);
        let is_any = wanted.iter().any(|way| *way != Way::Core);
        core.chain(is_any.then_some(Way::Any)).collect()
    }

    fn run(&self, point: &Point, figures: &[Figure], _effort: Effort) -> Result<Vec<Taken>, Unrun> {
        let is_alone = point.depth == 1 && point.submitters == 1 && point.route.is_none();
        match point {
            Point { way: Way::Shared | Way::Dedicated, .. } => {
                return Unrun::cannot("the model does not tell queues apart; ask for the way any");
            }
            Point { size_bytes: 0, .. } | Point { batch: 0, .. } => {
                return Unrun::cannot("sizes and counts begin at 1");
            }
            Point { operation, .. } if *operation != Work::Copy => {
                return Unrun::cannot("the model knows copies only");
            }
            Point { data, .. } if *data != Data::Any => return Unrun::cannot("the model has no caches"),
            Point { priorities: Some(_), .. } => {
                return Unrun::cannot("the model knows no priorities of queues");
            }
            Point { way: Way::Core, route: Some(_), .. } => {
                return Unrun::cannot("in the model routes are of devices, not of cores");
            }
            Point { pages, .. } if *pages != Pages::Touched => {
                return Unrun::cannot("the model knows no pages and no page faults");
            }
            Point { engines: Some(engines), .. } if *engines != 1 => {
                return Unrun::cannot("the model knows no engines: a device has its rate by one of them");
            }
            Point { entries: Some(entries), depth, .. } if *depth > *entries as usize => {
                return Unrun::cannot("more cannot be under way than the queue has entries");
            }
            _ => {}
        }
        let mut taken = Vec::with_capacity(figures.len());
        // Computing takes no time of what is computed.
        for &figure in figures.iter().filter(|figure| **figure != Figure::Overhead) {
            let value = match figure {
                Figure::Throughput => Some(self.throughput(point)?),
                Figure::Load | Figure::Slowdown => return Unrun::cannot("the model has no caches"),
                Figure::Tenant1 | Figure::Tenant2 => {
                    return Unrun::cannot("the model does not tell submitters apart");
                }
                _ if !is_alone => return Unrun::cannot("the model has latencies of single submissions only"),
                Figure::Latency => Some(self.waited_for_s(point)?.0 * 1e9),
                Figure::Submit => self.waited_for_s(point)?.1.map(|submit_s| submit_s * 1e9),
                Figure::Wait => {
                    let (all_s, submit_s) = self.waited_for_s(point)?;
                    submit_s.map(|submit_s| (all_s - submit_s) * 1e9)
                }
                Figure::Asleep | Figure::Overhead => {
                    let (all_s, submit_s) = self.waited_for_s(point)?;
                    submit_s.map(|submit_s| 1.0 - submit_s / all_s)
                }
            };
            taken.push(match value {
                Some(value) => Taken::new(figure, vec![value]),
                None => Taken::missing(figure, "a core that works itself neither submits nor waits"),
            });
        }
        Ok(taken)
    }
}

fn cannot(error: ModelError) -> Unrun {
    Unrun::Cannot(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Axes;
    use crate::mover::Route;
    use crate::topology::NodeId;

    fn run(point: &Point, figure: Figure) -> Result<f64, Unrun> {
        let backend = OnModel::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap();
        backend.run(point, &[figure], Effort::QUICK).map(|taken| taken[0].values[0])
    }

    fn point() -> Point {
        Axes { ways: vec![Way::Any], sizes_bytes: vec![1 << 30], ..Axes::default() }.points().remove(0)
    }

    #[test]
    fn the_rates_of_the_thesis() {
        let gib = f64::from(1 << 30);
        let one = run(&point(), Figure::Throughput).unwrap() / gib;
        assert!((one / 30.0 - 1.0).abs() < 0.01, "{one} GiB/s");
        let four =
            Point { route: Some(Route::Socket), source: Some(NodeId(0)), target: Some(NodeId(8)), ..point() };
        let four = run(&four, Figure::Throughput).unwrap() / gib;
        assert!((four / 64.0 - 1.0).abs() < 0.05, "{four} GiB/s");
        let small = Point { size_bytes: 4096, ..point() };
        let many = run(&Point { depth: 32, ..small.clone() }, Figure::Throughput).unwrap();
        assert!(many > 2.0 * run(&small, Figure::Throughput).unwrap());
    }

    #[test]
    fn parts_of_a_latency() {
        let small = Point { size_bytes: 4096, ..point() };
        let [all, submit, wait, asleep] = [Figure::Latency, Figure::Submit, Figure::Wait, Figure::Asleep]
            .map(|figure| run(&small, figure).unwrap());
        assert!(
            (all - submit - wait).abs() < 1e-6 && (asleep - wait / all).abs() < 1e-9,
            "{all} {submit} {wait}"
        );
    }

    #[test]
    fn what_it_does_not_know_it_refuses() {
        for (point, word) in [
            (Point { way: Way::Shared, ..point() }, "way any"),
            (Point { operation: Work::Crc, ..point() }, "copies only"),
            (Point { engines: Some(2), ..point() }, "engines"),
            (Point { entries: Some(4), depth: 8, ..point() }, "entries"),
            (Point { pages: Pages::Huge, ..point() }, "pages"),
            (Point { data: Data::Cached, ..point() }, "caches"),
            (Point { priorities: Some((1, 2)), ..point() }, "priorities"),
            (Point { way: Way::Core, route: Some(Route::All), ..point() }, "of devices"),
            (Point { way: Way::Core, submitters: 2, ..point() }, "share a memory"),
            (Point { target: Some(NodeId(8)), ..point() }, "add a route"),
        ] {
            let error = run(&point, Figure::Throughput).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(run(&Point { depth: 2, ..point() }, Figure::Asleep).is_err());
    }
}

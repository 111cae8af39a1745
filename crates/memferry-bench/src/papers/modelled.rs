//! Points in the model.

use memferry::internals::{Hardware, Offload, copies_s, copy_s};
use memferry::model::ModelError;
use memferry::topology::Machine;

use super::load::{check_ways, endpoints};
use super::{Backend, Data, Measurement, Metric, Pages, Point, RunLength, Skipped, Way};
use crate::dsa::load::LoadOperation;

/// Runs points in the model of a machine.
#[derive(Debug)]
pub struct OnModel {
    machine: Machine,
    hardware: Hardware,
}

impl OnModel {
    /// # Errors
    /// [`ModelError`]: the machine lacks parameters.
    pub fn new(machine: Machine) -> Result<OnModel, ModelError> {
        let hardware = Hardware::of(&machine)?;
        Ok(OnModel { machine, hardware })
    }

    /// Seconds of one submission alone, and of its submitting part.
    fn waited_for_s(&self, point: &Point) -> Result<(f64, Option<f64>), Skipped> {
        if point.way == Way::Core {
            return Ok((self.core_s(point)?, None));
        }
        let costs = self.costs()?;
        Ok((costs.waited_for_s(point.size_bytes as f64, point.batch as usize), Some(costs.submit_s())))
    }

    fn costs(&self) -> Result<Offload, Skipped> {
        Offload::of(&self.hardware).map_err(cannot)
    }

    /// Seconds of a copy by each submitter itself. Submitters run on the node of the source, of the target, or on the first
    /// one with CPUs, which is the default node of the data.
    fn core_s(&self, point: &Point) -> Result<f64, Skipped> {
        let nodes = self.machine.nodes();
        let first = nodes.iter().find(|node| !node.cpus.is_empty() && node.has_memory()).map(|node| node.id);
        let Some(node) = point.source.or(point.target).or(first) else {
            return Skipped::cannot(format!("{} has no node with CPUs and memory", self.machine.name()));
        };
        let cpus = self.machine.node(node).map_err(|error| Skipped::Cannot(error.to_string()))?.cpu_node;
        let (source, target) = (point.source.unwrap_or(cpus), point.target.unwrap_or(cpus));
        let bytes = point.size_bytes as f64;
        copies_s(&self.hardware, cpus, (source, target), point.submitters, bytes).map_err(cannot)
    }

    fn throughput(&self, point: &Point) -> Result<f64, Skipped> {
        let bytes = point.size_bytes as f64;
        if let Some(route) = point.route {
            if (point.batch, point.submitters, point.depth) != (1, 1, 1) {
                return Skipped::cannot("the model computes routed copies one at a time");
            }
            let seconds = copy_s(&self.machine, &self.hardware, route, endpoints(&self.machine, point)?);
            return Ok(bytes / seconds.map_err(cannot)?);
        }
        if point.way == Way::Core {
            return Ok(point.submitters as f64 * bytes / self.core_s(point)?);
        }
        let under_way = point.submitters.saturating_mul(point.depth);
        Ok(self.costs()?.rate(bytes, point.batch as usize, under_way))
    }

    /// Refuses points that the model does not cover.
    fn check(&self, point: &Point) -> Result<(), Skipped> {
        let under_way = point.submitters.saturating_mul(point.depth);
        Skipped::cannot(match point {
            Point { way: Way::Shared | Way::Dedicated | Way::Write, .. } => {
                "the model does not tell queues apart; ask for the way any"
            }
            Point { size_bytes: 0, .. } | Point { batch: 0, .. } | Point { depth: 0, .. } => {
                "sizes and counts begin at 1"
            }
            Point { operation, .. } if *operation != LoadOperation::Copy => "the model knows copies only",
            Point { data, .. } if *data != Data::Any => "the model has no caches",
            Point { priorities: Some(_), .. } => "the model knows no priorities of queues",
            Point { read_buffers: Some(_), .. } => "the model knows no groups and no read buffers",
            Point { way: Way::Core, route: Some(_), .. } => {
                "in the model routes are of devices, not of cores"
            }
            Point { pages, .. } if *pages != Pages::Touched => "the model knows no pages and no page faults",
            Point { engines: Some(engines), .. } if *engines != 1 => {
                "the model knows no engines: a device has its rate by one of them"
            }
            Point { queues, .. } if *queues > 1 => "the model knows one queue of a device: leave out queues",
            Point { entries: Some(entries), .. } if under_way > *entries as usize => {
                "all submitters together cannot have more in flight than the queue has entries"
            }
            Point { way: Way::Any, route: None, source, target, .. } if source.or(*target).is_some() => {
                "in the model nodes are for routes and cores; add a route"
            }
            _ => return check_ways(point),
        })
    }
}

impl Backend for OnModel {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    /// All queues are one way in the model.
    fn ways(&self, wanted: &[Way]) -> Vec<Way> {
        let core = wanted.iter().copied().filter(|way| *way == Way::Core);
        let is_any = wanted.iter().any(|way| *way != Way::Core);
        core.chain(is_any.then_some(Way::Any)).collect()
    }

    fn run(
        &self,
        point: &Point,
        metrics: &[Metric],
        _effort: RunLength,
    ) -> Result<Vec<Measurement>, Skipped> {
        self.check(point)?;
        let is_alone = point.depth == 1 && point.submitters == 1 && point.route.is_none();
        let note = (point.way == Way::Core && point.source.or(point.target).is_some())
            .then(|| "a core has one rate for all memories, unless one of them has less".to_owned());
        let mut taken = Vec::with_capacity(metrics.len());
        for &metric in metrics {
            let value = match metric {
                Metric::THROUGHPUT => Some(self.throughput(point)?),
                Metric::LOAD | Metric::SLOWDOWN => return Skipped::cannot("the model has no caches"),
                Metric::TENANT1 | Metric::TENANT2 => {
                    return Skipped::cannot("the model does not tell submitters apart");
                }
                _ if !is_alone => {
                    return Skipped::cannot("the model has latencies of single submissions only");
                }
                // The model has a single cost for all of a core's work per submission.
                Metric::ALLOCATE | Metric::PREPARE => None,
                _ => {
                    let (all_s, submit_s) = self.waited_for_s(point)?;
                    match metric {
                        Metric::LATENCY => Some(all_s * 1e9),
                        Metric::SUBMIT => submit_s.map(|submit_s| submit_s * 1e9),
                        Metric::WAIT => submit_s.map(|submit_s| (all_s - submit_s) * 1e9),
                        Metric::ASLEEP => submit_s.map(|submit_s| 1.0 - submit_s / all_s),
                        _ => None,
                    }
                }
            };
            taken.push(match value {
                // A computed result has no measuring overhead.
                Some(value) => Measurement {
                    overhead: Some(0.0),
                    ..Measurement::new(metric, vec![value]).with_note(note.clone())
                },
                None if point.way == Way::Core => {
                    Measurement::missing(metric, "a core that works itself neither submits nor waits")
                }
                None => {
                    Measurement::missing(metric, "the model has one cost for all that a core does to submit")
                }
            });
        }
        Ok(taken)
    }
}

fn cannot(error: ModelError) -> Skipped {
    Skipped::Cannot(error.to_string())
}

#[cfg(test)]
mod tests {
    use memferry::mover::Route;
    use memferry::topology::NodeId;

    use super::*;
    use crate::papers::Axes;

    fn run(point: &Point, metric: Metric) -> Result<f64, Skipped> {
        let backend = OnModel::new(Machine::from_profile("xeon-max-9468-2s-flat").unwrap()).unwrap();
        backend.run(point, &[metric], RunLength::QUICK).map(|taken| taken[0].values[0])
    }

    fn point() -> Point {
        Axes { ways: vec![Way::Any], sizes_bytes: vec![1 << 30], ..Axes::default() }.points().remove(0)
    }

    #[test]
    fn the_rates_of_the_thesis() {
        let gib = f64::from(1 << 30);
        let one = run(&point(), Metric::THROUGHPUT).unwrap() / gib;
        assert!((one / 30.0 - 1.0).abs() < 0.01, "{one} GiB/s");
        let four =
            Point { route: Some(Route::Socket), source: Some(NodeId(0)), target: Some(NodeId(8)), ..point() };
        let four = run(&four, Metric::THROUGHPUT).unwrap() / gib;
        assert!((four / 64.0 - 1.0).abs() < 0.05, "{four} GiB/s");
        let small = Point { size_bytes: 4096, ..point() };
        let many = run(&Point { depth: 32, ..small.clone() }, Metric::THROUGHPUT).unwrap();
        assert!(many > 2.0 * run(&small, Metric::THROUGHPUT).unwrap());
    }

    /// The rate of a core: its own, or its share of a memory or link if that is less.
    #[test]
    fn cores_share_memories() {
        let by = |submitters, source, target| {
            let nodes = (Some(NodeId(source)), Some(NodeId(target)));
            let point = Point { way: Way::Core, submitters, source: nodes.0, target: nodes.1, ..point() };
            run(&point, Metric::THROUGHPUT).unwrap()
        };
        let plain = run(&Point { way: Way::Core, ..point() }, Metric::THROUGHPUT).unwrap();
        assert_eq!(by(1, 0, 0), plain);
        assert!(by(12, 0, 0) < 11.0 * plain, "12 cores on two channels: {}", by(12, 0, 0));
        assert!(by(12, 8, 8) > 1.2 * by(12, 0, 0), "HBM has more for them: {}", by(12, 8, 8));
    }

    #[test]
    fn parts_of_a_latency() {
        let small = Point { size_bytes: 4096, ..point() };
        let [all, submit, wait, asleep] = [Metric::LATENCY, Metric::SUBMIT, Metric::WAIT, Metric::ASLEEP]
            .map(|metric| run(&small, metric).unwrap());
        assert!(
            (all - submit - wait).abs() < 1e-6 && (asleep - wait / all).abs() < 1e-9,
            "{all} {submit} {wait}"
        );
    }

    #[test]
    fn what_it_does_not_know_it_refuses() {
        for (point, word) in [
            (Point { way: Way::Shared, ..point() }, "way any"),
            (Point { way: Way::Write, ..point() }, "way any"),
            (Point { operation: LoadOperation::Crc, ..point() }, "copies only"),
            (Point { engines: Some(2), ..point() }, "engines"),
            (Point { entries: Some(4), depth: 8, ..point() }, "entries"),
            (Point { pages: Pages::Huge, ..point() }, "pages"),
            (Point { data: Data::Cached, ..point() }, "caches"),
            (Point { priorities: Some((1, 2)), ..point() }, "priorities"),
            (Point { read_buffers: Some((96, 4)), ..point() }, "read buffers"),
            (Point { way: Way::Core, route: Some(Route::All), ..point() }, "of devices"),
            (Point { submitters: 4, depth: 8, entries: Some(16), ..point() }, "all submitters"),
            (Point { submitters: 2, queues: 2, ..point() }, "one queue"),
            (Point { way: Way::Core, depth: 2, ..point() }, "about queues"),
            (Point { way: Way::Core, submitters: 99, ..point() }, "99 cores"),
            (Point { target: Some(NodeId(8)), ..point() }, "add a route"),
        ] {
            let error = run(&point, Metric::THROUGHPUT).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(run(&Point { depth: 2, ..point() }, Metric::ASLEEP).is_err());
        assert!(run(&Point { source: Some(NodeId(0)), ..point() }, Metric::LATENCY).is_err());
        let backend = OnModel::new(Machine::from_profile("spr-56c").unwrap()).unwrap();
        let taken = backend.run(&point(), &[Metric::PREPARE], RunLength::QUICK).unwrap();
        assert!(
            taken[0].values.is_empty() && taken[0].note.as_ref().is_some_and(|it| it.contains("one cost"))
        );
    }
}

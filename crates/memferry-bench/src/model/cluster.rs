//! TPC-H on many machines, on paper: the work of each query, as measured on small clusters of this machine, in the model.
//!
//! ```text
//! clusters of processes here ─▶ ClusterWork   bytes by column and exchange, seconds of cores; at two scales
//!                                    │ straight lines through both scales, and through two numbers of workers
//!                                    ▼
//!                  Machine ─▶ memferry's model of a cluster ─▶ rows by workers, with near memory and without
//! ```

pub use memferry::internals::{ClusterLimit, ExchangeKind, Network};
use memferry::internals::{ClusterQuery, ClusterRun, Exchange, Workers};
use memferry::model::ModelError;
use memferry::topology::Machine;
use serde::{Deserialize, Serialize};

use crate::harness::Row;

/// The work of queries on clusters of this machine. `memferry-cluster work` measures it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterWork {
    /// Two scales of the tables, the smaller first.
    pub scales: [f64; 2],
    /// Two numbers of workers, the smaller first.
    pub workers: [usize; 2],
    /// Shards of each table of the larger cluster.
    pub shards: usize,
    /// By how much its largest shard of the largest table exceeds the mean at the larger scale, in parts of the mean.
    pub shard_skew: f64,
    /// The queries.
    pub queries: Vec<QueryWork>,
}

/// The work of a query. Pairs are of the two scales, on the larger cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryWork {
    /// Its number.
    pub query: usize,
    /// Bytes of the columns that it reads, of all rows.
    pub scanned_bytes: [f64; 2],
    /// Its exchanges, in the order of the plan.
    pub exchanges: Vec<ExchangeWork>,
    /// Seconds of CPUs of all workers.
    pub workers_cpu_s: [f64; 2],
    /// Seconds of CPUs of the coordinator at the smaller scale, with the two numbers of workers.
    pub coordinator_cpu_s: [f64; 2],
}

/// An exchange, as the messages of its receivers were counted.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExchangeWork {
    /// Its receivers.
    pub kind: ExchangeKind,
    /// Bytes of messages between processes, at the two scales.
    pub sent_bytes: [f64; 2],
}

/// A prediction.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Scale of the tables; 1000 is about a terabyte.
    pub scale: f64,
    /// The network between workers.
    pub network: Network,
    /// Shards of each table for each worker; one for each core of the machine if `None`.
    pub shards_per_worker: Option<usize>,
}

/// Numbers of workers of a prediction.
pub const WORKERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The value at `x` of the line through two points. Work does not shrink as data grow, and has no negative part: where noise says so,
/// the later point holds.
fn on_line([x0, x1]: [f64; 2], [y0, y1]: [f64; 2], x: f64) -> (f64, f64) {
    let slope = ((y1 - y0) / (x1 - x0)).clamp(0.0, y1 / x1);
    (y1 - slope * x1, slope * x)
}

impl QueryWork {
    /// The work at a scale.
    fn at(&self, work: &ClusterWork, scale: f64) -> ClusterQuery {
        let whole = |(fixed, growing): (f64, f64)| fixed + growing;
        let [few, many] = work.workers.map(|count| count as f64);
        // What crossed between the processes, as the model has it for so many workers.
        let crossing = |kind| match kind {
            ExchangeKind::Shuffle => (many - 1.0) / many,
            ExchangeKind::Broadcast => many - 1.0,
            ExchangeKind::Gather => 1.0,
        };
        let exchange = |exchange: &ExchangeWork| Exchange {
            kind: exchange.kind,
            bytes: whole(on_line(work.scales, exchange.sent_bytes, scale)) / crossing(exchange.kind),
        };
        let (each_core_s, divided_core_s) = on_line(work.scales, self.workers_cpu_s, scale);
        let (coordinator_s, coordinator_worker_s) = on_line([few, many], self.coordinator_cpu_s, 1.0);
        ClusterQuery {
            scanned_bytes: whole(on_line(work.scales, self.scanned_bytes, scale)),
            exchanges: self.exchanges.iter().map(exchange).collect(),
            divided_core_s,
            each_core_s: each_core_s / many,
            coordinator_s,
            coordinator_worker_s,
        }
    }
}

/// Queries of a prediction on so many workers.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterPoint {
    /// Number of workers.
    pub workers: usize,
    /// Whether columns are near, as far as they fit.
    pub is_near: bool,
    /// The number and the time of each query, and its time on one worker of the same kind.
    pub queries: Vec<(usize, ClusterRun, f64)>,
}

impl ClusterPoint {
    /// Geometric mean of the queries' speed-ups against one worker.
    pub fn speed_up(&self) -> f64 {
        let sum: f64 = self.queries.iter().map(|(_, run, alone_s)| (alone_s / run.seconds).ln()).sum();
        (sum / self.queries.len() as f64).exp()
    }

    /// How many queries a resource limits.
    pub fn limited_by(&self, limit: ClusterLimit) -> usize {
        self.queries.iter().filter(|(_, run, _)| run.limit == limit).count()
    }

    /// Its part in names of rows.
    fn name(&self) -> String {
        format!("w{:02}_{}", self.workers, if self.is_near { "near" } else { "far" })
    }
}

impl ClusterWork {
    /// Predicts the queries on [`WORKERS`] machines, with near memory and without.
    ///
    /// # Errors
    /// [`ModelError`] if rates of the machine are not known, or the numbers are impossible.
    pub fn predict(
        &self,
        machine: &Machine,
        prediction: &Prediction,
    ) -> Result<Vec<ClusterPoint>, ModelError> {
        let [small, large] = self.scales;
        let [few, many] = self.workers;
        if !(0.0 < small && small < large && large.is_finite()) || few == 0 || few >= many {
            let what = "its work was not measured at two scales and with two numbers of workers".into();
            return Err(ModelError::Scenario { what });
        }
        let cores: usize = machine.nodes().iter().map(|node| node.cpus.len()).sum();
        let shards_per_worker = prediction.shards_per_worker.unwrap_or(cores);
        let mut points: Vec<ClusterPoint> = Vec::new();
        for is_near in [false, true] {
            let mut alone = Vec::new();
            for count in WORKERS {
                let shards_count = shards_per_worker * count;
                // The deviation of a sum of independent sizes: the more keys in a shard, the more even.
                let keys = (large / self.shards as f64) / (prediction.scale / shards_count as f64);
                let shard_skew = self.shard_skew * keys.sqrt();
                let workers =
                    Workers { count, shards_count, shard_skew, is_near, network: prediction.network };
                let run = |query: &QueryWork| {
                    let run = workers.run(machine, &query.at(self, prediction.scale))?;
                    Ok::<_, ModelError>((query.query, run))
                };
                let runs = self.queries.iter().map(run).collect::<Result<Vec<_>, _>>()?;
                if count == 1 {
                    alone = runs.iter().map(|(_, run)| run.seconds).collect();
                }
                let queries =
                    runs.into_iter().zip(&alone).map(|((query, run), &alone_s)| (query, run, alone_s));
                points.push(ClusterPoint { workers: count, is_near, queries: queries.collect() });
            }
        }
        Ok(points)
    }
}

/// The rows of a prediction.
///
/// - `cluster_model_speed_up_wNN_far`, `_near`: geometric mean of the queries, against one worker of the same kind.
/// - `cluster_model_near_gain_wNN`: geometric mean of the times without near memory divided by those with it.
/// - `cluster_model_wNN_far_by_memory` and so on: queries that the resource limits.
/// - `cluster_model_wNN_far_q01` and so on: a query, beside its time on one worker.
pub fn cluster_rows(points: &[ClusterPoint]) -> Vec<Row> {
    let mut rows = Vec::new();
    let row = |name: String, value: f64, unit| Row::modelled(format!("cluster_model_{name}"), value, unit);
    for point in points {
        rows.push(row(format!("speed_up_{}", point.name()), point.speed_up(), "x"));
    }
    for far in points.iter().filter(|point| !point.is_near) {
        let Some(near) = points.iter().find(|it| it.is_near && it.workers == far.workers) else { continue };
        let gains = far.queries.iter().zip(&near.queries);
        let sum: f64 = gains.map(|((_, far, _), (_, near, _))| (far.seconds / near.seconds).ln()).sum();
        let gain = (sum / far.queries.len() as f64).exp();
        rows.push(row(format!("near_gain_w{:02}", far.workers), gain, "x"));
    }
    for point in points {
        for limit in LIMITS {
            let name = format!("{}_by_{}", point.name(), limit.name());
            rows.push(row(name, point.limited_by(limit) as f64, "queries"));
        }
    }
    for point in points {
        for (query, run, alone_s) in &point.queries {
            let name = format!("{}_q{query:02}", point.name());
            let row = row(name, run.seconds, "s");
            rows.push(row.against("one worker", *alone_s, alone_s / run.seconds));
        }
    }
    rows
}

/// The limits, in the order of tables.
pub const LIMITS: [ClusterLimit; 4] =
    [ClusterLimit::Memory, ClusterLimit::Cores, ClusterLimit::Network, ClusterLimit::Coordinator];

#[cfg(test)]
mod tests {
    use super::*;

    fn xeon_max() -> Machine {
        Machine::from_profile("xeon-max-9468-2s-flat").unwrap()
    }

    /// One query that reads 1 GB for each unit of scale, and sends a tenth of that.
    fn work() -> ClusterWork {
        let query = QueryWork {
            query: 6,
            scanned_bytes: [1e8, 2e8],
            // Half of the rows cross between two workers, and three quarters between four.
            exchanges: vec![ExchangeWork { kind: ExchangeKind::Shuffle, sent_bytes: [7.5e6, 15e6] }],
            workers_cpu_s: [0.03, 0.05],
            coordinator_cpu_s: [0.012, 0.014],
        };
        ClusterWork {
            scales: [0.1, 0.2],
            workers: [2, 4],
            shards: 32,
            shard_skew: 0.04,
            queries: vec![query],
        }
    }

    fn prediction(gbits_per_s: f64) -> Prediction {
        let network = Network::ethernet(gbits_per_s, 1, 0.0);
        Prediction { scale: 1000.0, network, shards_per_worker: None }
    }

    #[test]
    fn work_is_on_straight_lines() {
        let work = work();
        let query = work.queries[0].at(&work, 1000.0);
        let near = |value: f64, wanted: f64| (value / wanted - 1.0).abs() < 1e-9;
        assert!(near(query.scanned_bytes, 1e12), "{query:?}");
        assert!(near(query.exchanges[0].bytes, 1e11), "{query:?}");
        // 10 ms at scale 0, divided by four workers, and 0.2 s for each unit.
        assert!(near(query.each_core_s, 0.0025) && near(query.divided_core_s, 200.0), "{query:?}");
        assert!(near(query.coordinator_s, 0.010) && near(query.coordinator_worker_s, 0.001), "{query:?}");
    }

    /// Noise in small measurements may neither shrink work as data grow, nor make it negative at scale 0.
    #[test]
    fn noise_makes_no_negative_work() {
        assert_eq!(on_line([1.0, 2.0], [5.0, 4.0], 100.0), (4.0, 0.0));
        let (fixed, growing) = on_line([1.0, 2.0], [1.0, 4.0], 100.0);
        assert_eq!((fixed, growing), (0.0, 200.0));
    }

    #[test]
    fn a_scan_grows_with_workers_until_the_coordinator_or_the_network_limits() {
        let mut work = work();
        work.queries[0].workers_cpu_s = [0.0, 0.0];
        work.queries[0].coordinator_cpu_s = [0.0, 0.0];
        work.shard_skew = 0.0;
        let points = work.predict(&xeon_max(), &prediction(f64::INFINITY)).unwrap();
        assert_eq!(points.len(), 2 * WORKERS.len());
        for point in points.iter().filter(|point| !point.is_near) {
            assert!((point.speed_up() / point.workers as f64 - 1.0).abs() < 1e-9, "{point:?}");
            assert_eq!(point.limited_by(ClusterLimit::Memory), 1);
        }
        let slow = work.predict(&xeon_max(), &prediction(0.1)).unwrap();
        for point in slow.iter().filter(|point| point.workers > 1) {
            assert_eq!(point.limited_by(ClusterLimit::Network), 1, "{point:?}");
        }
        assert!(slow[1].speed_up() < 0.1, "two workers: {}", slow[1].speed_up());
        work.queries[0].coordinator_cpu_s = [0.0, 10.0];
        let planned = work.predict(&xeon_max(), &prediction(f64::INFINITY)).unwrap();
        assert_eq!(planned[6].limited_by(ClusterLimit::Coordinator), 1);
        assert!(planned[6].speed_up() < planned[0].speed_up());
    }

    #[test]
    fn shards_are_more_even_the_more_keys_they_have() {
        let skew = |scale: f64, shards_per_worker| {
            let prediction =
                Prediction { scale, shards_per_worker: Some(shards_per_worker), ..prediction(1e9) };
            let mut work = work();
            work.queries[0].workers_cpu_s = [0.0, 0.0];
            work.queries[0].coordinator_cpu_s = [0.0, 0.0];
            let two = &work.predict(&xeon_max(), &prediction).unwrap()[1];
            2.0 / two.speed_up() - 1.0
        };
        // 16 shards for each of two workers, as measured.
        assert!((skew(0.2, 16) - 0.04).abs() < 1e-6, "{}", skew(0.2, 16));
        assert!((skew(20.0, 16) - 0.004).abs() < 1e-6, "a hundred times the keys: {}", skew(20.0, 16));
        assert!((skew(20.0, 64) - 0.008).abs() < 1e-6, "a quarter of them: {}", skew(20.0, 64));
    }

    #[test]
    fn rows_name_workers_memory_and_queries() {
        let rows = cluster_rows(&work().predict(&xeon_max(), &prediction(200.0)).unwrap());
        let row = |name: &str| rows.iter().find(|row| row.name == format!("cluster_model_{name}")).unwrap();
        assert_eq!(row("speed_up_w01_far").value, 1.0);
        let query = row("w16_near_q06");
        let ratio = query.peer.as_ref().unwrap().ratio.unwrap();
        assert!((ratio - row("speed_up_w16_near").value).abs() < 1e-9);
        let by: f64 = LIMITS.iter().map(|it| row(&format!("w16_near_by_{}", it.name())).value).sum();
        assert_eq!(by, 1.0, "each query has one limit");
        assert!(row("near_gain_w16").value >= 1.0);
    }

    #[test]
    fn one_scale_is_no_line() {
        let mut work = work();
        work.scales = [0.1, 0.1];
        let error = work.predict(&xeon_max(), &prediction(200.0)).unwrap_err().to_string();
        assert!(error.contains("two scales"), "{error}");
    }
}

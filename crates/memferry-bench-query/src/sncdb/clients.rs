//! A closed loop: each connection sends its next statement when it has the answer to the one before. A monitor counts the answers
//! of all connections each second.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use datafusion::scalar::ScalarValue;
use memferry_bench::harness::Random;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::server::{Prepared, integers};
use super::tables::Values;
use crate::QueryError;
use crate::process::status_bytes;

/// A connection.
pub(super) trait Connection: Send + 'static {
    /// Sends the statement, with a key if it has a parameter, and waits for its integers in ascending order.
    fn ask(&mut self, key: Option<i32>) -> impl Future<Output = Result<Vec<i64>, QueryError>> + Send;
}

/// A connection to a server in the same process: the statement runs on the server's workers.
pub(super) struct LocalConnection {
    pub(super) server: Handle,
    pub(super) prepared: Prepared,
}

impl Connection for LocalConnection {
    async fn ask(&mut self, key: Option<i32>) -> Result<Vec<i64>, QueryError> {
        let prepared = self.prepared.clone();
        let values = key.map(|key| ScalarValue::Int32(Some(key))).into_iter().collect();
        let answered = self.server.spawn(async move { prepared.execute(values).await }).await;
        let batches = answered
            .map_err(|error| QueryError::Invalid(format!("the server's task has ended: {error}")))??;
        integers(&batches)
    }
}

/// The answers that are right.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// Those of random accesses, by their keys.
    Random(Values),
    /// Always the same.
    Counts(Vec<i64>),
}

/// The length of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Before the first second that counts.
    pub(super) warm_up: Duration,
    /// Seconds that count.
    pub(super) seconds: u32,
    /// The seconds, shorter in tests.
    pub(super) second: Duration,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    /// Answers per second, in each second.
    pub(super) per_second: Vec<f64>,
    /// Answers of each connection over all seconds.
    pub(super) per_connection: Vec<f64>,
    /// Answers of all connections, those before the first second and after the last among them.
    pub(super) answers: u64,
    /// Resident memory of the process, after each second.
    pub(super) rss_bytes: Vec<f64>,
}

/// Figures that connections share with the monitor.
struct Shared {
    /// Answers of each connection. Relaxed: they are counts.
    answers: Vec<AtomicU64>,
    /// No connection sends another statement. Relaxed: it may send one more.
    is_over: AtomicBool,
    /// A connection has failed. Relaxed: the error is returned by its task.
    has_failed: AtomicBool,
}

/// Runs a closed loop of `connections` on `clients`, and calls `at_start` when the seconds begin that count.
///
/// # Errors
/// The first one of a connection; [`QueryError::Invalid`] for a wrong answer.
pub(super) fn run<C: Connection>(
    connections: Vec<C>,
    clients: &Handle,
    expected: &Expected,
    times: Times,
    seed: u64,
    at_start: impl FnOnce(),
) -> Result<Counted, QueryError> {
    let shared = Arc::new(Shared {
        answers: connections.iter().map(|_| AtomicU64::new(0)).collect(),
        is_over: AtomicBool::new(false),
        has_failed: AtomicBool::new(false),
    });
    let mut tasks = JoinSet::new();
    let mut seeds = Random(seed);
    for (index, connection) in connections.into_iter().enumerate() {
        let (shared, expected, random) = (Arc::clone(&shared), expected.clone(), Random(seeds.next_u64()));
        tasks.spawn_on(
            async move {
                let ended = ask_until_over(connection, index, &expected, random, &shared).await;
                if ended.is_err() {
                    shared.has_failed.store(true, Ordering::Relaxed);
                }
                ended
            },
            clients,
        );
    }
    let counted = monitor(&shared, times, at_start);
    shared.is_over.store(true, Ordering::Relaxed);
    clients.block_on(async {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|error| QueryError::Invalid(format!("a client has ended: {error}")))??;
        }
        let answers = shared.answers.iter().map(|answers| answers.load(Ordering::Relaxed)).sum();
        Ok(Counted { answers, ..counted? })
    })
}

async fn ask_until_over(
    mut connection: impl Connection,
    index: usize,
    expected: &Expected,
    mut random: Random,
    shared: &Shared,
) -> Result<(), QueryError> {
    while !shared.is_over.load(Ordering::Relaxed) {
        let of_key;
        let (key, right) = match expected {
            Expected::Random(values) => {
                let row = random.below(values.rows as usize) as u64;
                of_key = [i64::from(values.value(0, row))];
                (Some(row as i32 + 1), &of_key[..])
            }
            Expected::Counts(counts) => (None, &counts[..]),
        };
        let answer = connection.ask(key).await?;
        if answer != right {
            let key = key.map_or(String::new(), |key| format!(" for the key {key}"));
            return Err(QueryError::Invalid(format!(
                "connection {index} has the answer {answer:?}{key}, and {right:?} is right; please report this"
            )));
        }
        shared.answers[index].fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn monitor(shared: &Shared, times: Times, at_start: impl FnOnce()) -> Result<Counted, QueryError> {
    let answers =
        || -> Vec<u64> { shared.answers.iter().map(|answers| answers.load(Ordering::Relaxed)).collect() };
    thread::sleep(times.warm_up);
    at_start();
    let first = answers();
    let (mut then, mut before) = (Instant::now(), first.iter().sum::<u64>());
    let (mut per_second, mut rss_bytes) = (Vec::new(), Vec::new());
    for _ in 0..times.seconds {
        if shared.has_failed.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(times.second);
        let (now, sum) = (Instant::now(), answers().iter().sum::<u64>());
        // Sleeping may take longer than it should; the rate is that of the time that it took.
        per_second.push((sum - before) as f64 / (now - then).as_secs_f64());
        rss_bytes.push(status_bytes("VmRSS")? as f64);
        (then, before) = (now, sum);
    }
    let per_connection = answers().iter().zip(&first).map(|(now, then)| (now - then) as f64).collect();
    Ok(Counted { per_second, per_connection, answers: 0, rss_bytes })
}

/// Jain's index of fairness: 1 if all have the same share, `1 / n` if one of `n` has all.
///
/// Source: R. Jain, D. Chiu, W. Hawe, A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
/// Computer Systems, DEC TR-301, 1984.
pub(super) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// The standard deviation of samples, divided by their number less one; 0 for a single one.
pub(super) fn deviation(samples: &[f64]) -> f64 {
    let count = samples.len() as f64;
    if samples.len() < 2 {
        return 0.0;
    }
    let mean = samples.iter().sum::<f64>() / count;
    (samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_between_one_of_all_and_all() {
        assert_eq!(jain(&[7.0; 56]), 1.0);
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0, 0.0]), 1.0);
        assert!((jain(&[1.0, 2.0, 3.0]) - 36.0 / 42.0).abs() < 1e-12);
    }

    #[test]
    fn deviations_are_those_of_samples() {
        assert_eq!(deviation(&[3.0]), 0.0);
        assert!(
            (deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]) - (32.0_f64 / 7.0).sqrt()).abs() < 1e-12
        );
    }

    /// Answers after a time of its own.
    struct Slow(Duration, Vec<i64>);

    impl Connection for Slow {
        async fn ask(&mut self, _key: Option<i32>) -> Result<Vec<i64>, QueryError> {
            tokio::time::sleep(self.0).await;
            Ok(self.1.clone())
        }
    }

    fn run_slow(connections: Vec<Slow>) -> Result<Counted, QueryError> {
        let runtime = super::super::server::confined_runtime("clients", 2, None).unwrap();
        let second = Duration::from_millis(200);
        let times = Times { warm_up: Duration::from_millis(10), seconds: 4, second };
        run(connections, runtime.handle(), &Expected::Counts(vec![1, 2]), times, 1, || ())
    }

    #[test]
    fn a_slow_connection_does_not_slow_the_others() {
        let slow = |ms| Slow(Duration::from_millis(ms), vec![1, 2]);
        let counted = run_slow(vec![slow(2), slow(2), slow(60)]).unwrap();
        assert_eq!((counted.per_second.len(), counted.per_connection.len()), (4, 3));
        let [first, _, last] = counted.per_connection[..] else { panic!("{counted:?}") };
        assert!(first > 3.0 * last.max(1.0), "{counted:?}");
        assert!(jain(&counted.per_connection) < 0.9, "{counted:?}");
        let sum: f64 = counted.per_connection.iter().sum();
        // Four seconds of 200 ms and a little more each.
        let mean = counted.per_second.iter().sum::<f64>() / 4.0;
        assert!((sum / 0.8 / mean - 1.0).abs() < 0.3, "{sum} answers and {mean} a second");
    }

    #[test]
    fn a_wrong_answer_ends_the_run() {
        let right = Slow(Duration::from_millis(1), vec![1, 2]);
        let error =
            run_slow(vec![right, Slow(Duration::from_millis(1), vec![1, 3])]).unwrap_err().to_string();
        assert!(error.contains("connection 1 has the answer [1, 3]") && error.contains("[1, 2]"), "{error}");
    }
}

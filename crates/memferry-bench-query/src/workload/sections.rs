//! Sections: all sessions of one way run queries until a deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use memferry_bench::harness::Random;
use memferry_query::Tiers;
use memferry_query::files::FileReport;
use tokio::runtime::Runtime;

use crate::process::status_bytes;
use crate::{QueryError, answers_equal};

/// The queries and their answers.
pub(super) struct Expected {
    pub(super) queries: Vec<String>,
    pub(super) answers: Vec<Vec<RecordBatch>>,
}

/// One query of one session.
pub(super) struct Run {
    /// The section in which it began, by the time that the way has run.
    pub(super) section: usize,
    /// Session, and position in its sequence: the same query in each way.
    pub(super) place: (usize, usize),
    pub(super) query: usize,
    pub(super) started: Instant,
    pub(super) ms: f64,
    pub(super) report: FileReport,
    /// Resident memory of the process afterwards.
    pub(super) rss_bytes: u64,
}

/// The sessions of one way, and what they have done.
pub(super) struct Way {
    pub(super) name: &'static str,
    sessions: Vec<(SessionContext, Order)>,
    pub(super) tiers: Option<Arc<Tiers>>,
    pub(super) runs: Vec<Run>,
    /// The time that its sections have taken.
    clock: Duration,
}

/// The sections of a way: equal parts of its time.
#[derive(Clone, Copy)]
pub(super) struct Sections {
    pub(super) count: usize,
    pub(super) each: Duration,
}

impl Sections {
    /// The section at this time; the last one also after its end.
    fn at(self, clock: Duration) -> usize {
        let passed = clock.as_secs_f64() / self.each.as_secs_f64();
        (passed as usize).min(self.count - 1)
    }
}

/// The sequence of a session: all queries in random order, then again in another one.
#[derive(Clone)]
pub(super) struct Order {
    random: Random,
    left: Vec<usize>,
    taken: usize,
}

impl Order {
    pub(super) fn new(seed: u64, session: usize) -> Order {
        let mut seeds = Random(seed);
        let random = (0..=session).map(|_| Random(seeds.next_u64())).last();
        Order { random: random.unwrap_or(seeds), left: Vec::new(), taken: 0 }
    }

    /// The next query of `count`, and its position in the sequence.
    pub(super) fn next(&mut self, count: usize) -> (usize, usize) {
        if self.left.is_empty() {
            self.left = (0..count).collect();
        }
        let drawn = self.random.below(self.left.len());
        self.taken += 1;
        (self.left.swap_remove(drawn), self.taken - 1)
    }
}

impl Way {
    pub(super) fn new(
        name: &'static str,
        contexts: Vec<SessionContext>,
        tiers: Option<Arc<Tiers>>,
        seed: u64,
    ) -> Way {
        let orders = (0..contexts.len()).map(|session| Order::new(seed, session));
        Way {
            name,
            sessions: contexts.into_iter().zip(orders).collect(),
            tiers,
            runs: Vec::new(),
            clock: Duration::ZERO,
        }
    }

    /// Runs queries in all sessions until the end of `section`, and at least one in each; those that have begun by then are
    /// finished, and take their time from the next section.
    pub(super) fn run_section(
        &mut self,
        section: usize,
        sections: Sections,
        expected: &Arc<Expected>,
        runtime: &Runtime,
    ) -> Result<(), QueryError> {
        let (begun, clock, name) = (Instant::now(), self.clock, self.name);
        let deadline = begun + (sections.each * (section as u32 + 1)).saturating_sub(clock);
        let tasks: Vec<_> = self
            .sessions
            .drain(..)
            .enumerate()
            .map(|(session, (context, mut order))| {
                let expected = Arc::clone(expected);
                runtime.spawn(async move {
                    let mut runs = Vec::new();
                    loop {
                        let (query, position) = order.next(expected.queries.len());
                        let run = run(&context, &expected, query, name).await?;
                        let section = sections.at(clock + run.started.duration_since(begun));
                        runs.push(Run { section, place: (session, position), query, ..run });
                        if Instant::now() >= deadline {
                            return Ok::<_, QueryError>(((context, order), runs));
                        }
                    }
                })
            })
            .collect();
        // All are waited for, so that none goes on beside the next section.
        let results: Vec<_> = tasks.into_iter().map(|task| runtime.block_on(task)).collect();
        for result in results {
            let (session, runs) = result.map_err(|error| {
                QueryError::Invalid(format!("a session of {name} failed: {error}; please report this"))
            })??;
            self.sessions.push(session);
            self.runs.extend(runs);
        }
        self.clock += begun.elapsed();
        for usage in self.tiers.iter().flat_map(|tiers| tiers.cache().stats().nodes) {
            if usage.peak_bytes > usage.budget_bytes {
                return Err(QueryError::Invalid(format!(
                    "{name} used {} bytes of node {}, of a budget of {}; please report this",
                    usage.peak_bytes, usage.node, usage.budget_bytes
                )));
            }
        }
        Ok(())
    }
}

/// Runs a query and compares its answer.
async fn run(
    context: &SessionContext,
    expected: &Expected,
    query: usize,
    name: &str,
) -> Result<Run, QueryError> {
    let started = Instant::now();
    let plan = context.sql(&expected.queries[query]).await?.create_physical_plan().await?;
    let answer = collect(Arc::clone(&plan), context.task_ctx()).await?;
    let ms = started.elapsed().as_secs_f64() * 1e3;
    answers_equal(&expected.answers[query], &answer).map_err(|difference| {
        QueryError::Invalid(format!(
            "Q{}: {name} answers differently from DataFusion ({difference}); please report this",
            query + 1
        ))
    })?;
    let report = FileReport::of(plan.as_ref());
    Ok(Run { section: 0, place: (0, 0), query, started, ms, report, rss_bytes: status_bytes("VmRSS")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_its_section_and_late_runs_the_last() {
        let sections = Sections { count: 10, each: Duration::from_secs(60) };
        for (second, section) in [(0, 0), (59, 0), (60, 1), (145, 2), (599, 9), (600, 9), (700, 9)] {
            assert_eq!(sections.at(Duration::from_secs(second)), section, "{second}");
        }
    }

    #[test]
    fn sequences_are_permutations_and_differ_by_session_and_seed() {
        let sequence = |seed, session| {
            let mut order = Order::new(seed, session);
            (0..44).map(|_| order.next(22)).collect::<Vec<_>>()
        };
        let first = sequence(1, 0);
        assert!(first.iter().map(|(_, position)| *position).eq(0..44));
        for half in [&first[..22], &first[22..]] {
            let mut queries: Vec<usize> = half.iter().map(|(query, _)| *query).collect();
            queries.sort_unstable();
            assert!(queries.into_iter().eq(0..22));
        }
        assert_eq!(first, sequence(1, 0));
        assert!(first != sequence(1, 1) && first != sequence(2, 0) && sequence(1, 1) != sequence(2, 0));
    }
}

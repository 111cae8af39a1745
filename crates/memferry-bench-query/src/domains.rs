//! TPC-H on domains beside the same tables without binding: answers, times, and the time that planning takes longer.

use std::sync::Arc;
use std::time::Instant;

use memferry_bench::harness::{Provenance, Row, median};
use memferry_query::schedule::{Binding, Stealing};
use memferry_query::{Prefetch, QueryDomains, SessionOptions, Tiers};

use crate::{
    Answers, Dsa, NamedTable, QueryBenchmark, QueryError, QueryRunner, QueryTiers, answers_equal, tpch,
};

const BINDINGS: [Binding; 4] = [Binding::None, Binding::Preferred, Binding::Opportunistic, Binding::Always];
const STEALING: [Stealing; 4] = [Stealing::Off, Stealing::Neighbour, Stealing::Any, Stealing::Bulk(4)];

/// How often each plan is placed.
const PLACED: usize = 21;

impl QueryBenchmark {
    /// Compares the answers of all 22 queries with each binding and each way of stealing with plain DataFusion's.
    ///
    /// # Errors
    /// As the queries.
    pub fn domains_answers(&self, scale: f64, domains: &Arc<QueryDomains>) -> Result<Answers, QueryError> {
        let tiers = QueryTiers::build(Tiers::builder(Arc::clone(&self.machine)), Dsa::None)?;
        let tables = self.load(scale, &tiers)?;
        let plain = QueryRunner::plain(&tables, &self.options)?;
        let queries: Vec<String> = tpch::QUERIES.map(|number| tpch::query(number, scale)).collect();
        let expected = queries.iter().map(|sql| Ok(self.run(&plain, sql)?.batches));
        let expected = expected.collect::<Result<Vec<_>, QueryError>>()?;
        let bar = self.steps("comparing answers", BINDINGS.len() * STEALING.len() * queries.len());
        let (mut equal, mut differences) = (0_u32, Vec::new());
        for (binding, stealing) in BINDINGS.iter().flat_map(|&it| STEALING.map(|stealing| (it, stealing))) {
            let way = self.on_domains("domains", &tables, &tiers, domains, (binding, stealing))?;
            for ((number, sql), expected) in tpch::QUERIES.zip(&queries).zip(&expected) {
                match answers_equal(expected, &self.run(&way, sql)?.batches) {
                    Ok(()) => equal += 1,
                    Err(difference) => {
                        differences.push(format!("Q{number} {binding}, {stealing}: {difference}"))
                    }
                }
                bar.advance(1);
            }
        }
        let row = Row::median("domains_answers_equal", "answers", Provenance::Measured, &[f64::from(equal)]);
        Ok(Answers { rows: vec![row], differences })
    }

    /// Times of all 22 queries with the binding `opportunistic` and stealing `any` beside those without binding, and how
    /// much longer planning takes.
    ///
    /// # Errors
    /// As the queries.
    pub fn domains_times(&self, scale: f64, domains: &Arc<QueryDomains>) -> Result<Vec<Row>, QueryError> {
        let tiers = QueryTiers::build(Tiers::builder(Arc::clone(&self.machine)), Dsa::None)?;
        let tables = self.load(scale, &tiers)?;
        let bound = (Binding::Opportunistic, Stealing::Any);
        let ours = self.on_domains("domains", &tables, &tiers, domains, bound)?;
        let peer = self.on_domains("unbound", &tables, &tiers, domains, (Binding::None, Stealing::Off))?;
        let bar = self.steps("timing queries", tpch::QUERIES.count() * self.pairs_count);
        let (mut timed, mut rows_by_query) = (Vec::new(), Vec::new());
        for number in tpch::QUERIES {
            let sql = tpch::query(number, scale);
            let (pairs, counts) = self.watched_pairs(&ours, &peer, &sql, &*bar)?;
            let row = Row::over_queries(format!("domains_q{number:02}"), "unbound", [&pairs], self.seed);
            rows_by_query.push(Row { telemetry: counts, ..row });
            timed.push(pairs);
        }
        let mut rows = vec![Row::over_queries("domains_geomean", "unbound", &timed, self.seed)];
        rows.push(self.placing(scale, &ours, &peer)?);
        rows.append(&mut rows_by_query);
        Ok(rows)
    }

    /// The time of the rule that places a plan on domains, of the query that takes longest.
    fn placing(&self, scale: f64, ours: &QueryRunner, peer: &QueryRunner) -> Result<Row, QueryError> {
        let state = ours.context.state();
        let rule = state.physical_optimizers().last().expect("a session has rules");
        let mut longest = vec![0.0];
        for number in tpch::QUERIES {
            let sql = tpch::query(number, scale);
            let plan = self
                .runtime
                .block_on(async { peer.context.sql(&sql).await?.create_physical_plan().await })?;
            let us = (0..PLACED).map(|_| {
                let (plan, begin) = (Arc::clone(&plan), Instant::now());
                rule.optimize(plan, state.config_options())?;
                Ok(begin.elapsed().as_secs_f64() * 1e6)
            });
            let us = us.collect::<Result<Vec<f64>, QueryError>>()?;
            if median(&us) > median(&longest) {
                longest = us;
            }
        }
        Ok(Row::median("domains_planning_us", "us", Provenance::Measured, &longest))
    }

    fn on_domains(
        &self,
        name: &'static str,
        tables: &[NamedTable],
        tiers: &QueryTiers,
        domains: &Arc<QueryDomains>,
        (binding, stealing): (Binding, Stealing),
    ) -> Result<QueryRunner, QueryError> {
        let domains = Some(Arc::clone(domains));
        let options = SessionOptions { domains, binding, stealing, ..self.options.clone() };
        QueryRunner::tiered(name, tables, tiers, &options, Prefetch::Auto)
    }
}

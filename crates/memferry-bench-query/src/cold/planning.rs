//! The time that memferry's optimizer rules add to the planning of a query over files.

use std::sync::Arc;
use std::time::Instant;

use memferry_bench::harness::{Provenance, Row, median};

use super::ColdBenchmark;
use crate::QueryError;

/// How often the rules are applied to each plan.
const TIMES: usize = 21;

impl ColdBenchmark {
    /// The median over the TPC-H queries, and the query that takes longest.
    pub(super) fn planning_rows(&self, queries: &[(String, String)]) -> Result<Vec<Row>, QueryError> {
        let tiers = self.tiers()?;
        let tables = self.tables();
        let ours = self.our_session(&tiers, "memferry.read_files = true", &tables)?;
        // Its plans are those that the rules get.
        let before = self.our_session(&tiers, "memferry.read_files = false", &tables)?;
        let state = ours.state();
        let rules = state.physical_optimizers().iter().filter(|rule| rule.name().starts_with("memferry_"));
        let rules: Vec<_> = rules.collect();
        let mut medians = Vec::new();
        for (_, sql) in queries.iter().filter(|(name, _)| name.starts_with('q')) {
            let plan =
                self.runtime.block_on(async { before.sql(sql).await?.create_physical_plan().await })?;
            let us = (0..TIMES).map(|_| {
                let (mut plan, begin) = (Arc::clone(&plan), Instant::now());
                for rule in &rules {
                    plan = rule.optimize(plan, state.config_options())?;
                }
                Ok(begin.elapsed().as_secs_f64() * 1e6)
            });
            medians.push(median(&us.collect::<Result<Vec<f64>, QueryError>>()?));
        }
        let Some(longest) = medians.iter().copied().reduce(f64::max) else { return Ok(Vec::new()) };
        Ok(vec![
            Row::median("planning_us", "us", Provenance::Measured, &medians),
            Row::median("planning_us_max", "us", Provenance::Measured, &[longest]),
        ])
    }
}

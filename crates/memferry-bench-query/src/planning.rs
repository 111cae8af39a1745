//! The time from the text of a query to its physical plan, over tiered tables and in plain DataFusion.

use std::time::Instant;

use memferry_bench::harness::{Pairs, Provenance, Row, median, try_alternate};

use crate::benchmark::Query;
use crate::{QueryBenchmark, QueryError, QueryRunner};

/// How often each query is planned in each way.
const TIMES: usize = 21;

impl QueryBenchmark {
    /// Planning of all queries in `ours` beside `plain`, and the difference: its median over the queries, and that of the query with
    /// the largest.
    pub(crate) fn planning_rows(
        &self,
        scale: f64,
        ours: &QueryRunner,
        plain: &QueryRunner,
        queries: &[Query],
    ) -> Result<Vec<Row>, QueryError> {
        let bar = self.steps("planning queries", queries.len());
        let (mut pairs, mut longer_us) = (Vec::new(), Vec::new());
        for query in queries {
            let plan_ms = |way: &QueryRunner| {
                let begin = Instant::now();
                self.runtime
                    .block_on(async { way.context.sql(&query.sql).await?.create_physical_plan().await })?;
                Ok::<_, QueryError>(begin.elapsed().as_secs_f64() * 1e3)
            };
            plan_ms(ours)?;
            plan_ms(plain)?;
            let (ours, peer) = try_alternate(TIMES, || plan_ms(ours), || plan_ms(plain))?;
            longer_us.push((median(&ours) - median(&peer)) * 1e3);
            pairs.push(Pairs { ours, peer });
            bar.advance(1);
        }
        let Some(longest) = longer_us.iter().copied().reduce(f64::max) else { return Ok(Vec::new()) };
        Ok(vec![
            Row::over_queries(format!("sf{scale}_planning"), "datafusion", &pairs, self.seed),
            Row::median("planning_us", "us", Provenance::Measured, &longer_us),
            Row::median("planning_us_max", "us", Provenance::Measured, &[longest]),
        ])
    }
}

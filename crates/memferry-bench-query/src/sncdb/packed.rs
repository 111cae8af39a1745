//! Scans of bit-packed columns beside the same columns of 32 bits, by one connection.

use std::sync::Arc;
use std::time::Instant;

use memferry_bench::harness::{Comparison, Pairs, Row, try_alternate};
use memferry_query::PackedColumns;

use super::SncdbBenchmark;
use super::server::{Prepared, Server, integers};
use super::tables::{VALUES, Values};
use super::workload::{PREDICATES, RANGE_PREDS, Statement, Workload};
use crate::QueryError;

/// Rows of the tables that are compared: columns of 12 and of 16 MB, which few caches hold six of.
const ROWS_MAX: u64 = 4_000_000;

impl SncdbBenchmark {
    /// The time of a scan of six columns with workers as in `workload`, for each selectivity, beside columns that are not packed.
    ///
    /// # Errors
    /// As [`run`](SncdbBenchmark::run).
    pub fn packed_rows(&self, workload: &Workload, pairs_count: usize) -> Result<Vec<Row>, QueryError> {
        let values = Values { rows: self.values.rows.min(ROWS_MAX), ..self.values };
        let server = |packed| -> Result<Server, QueryError> {
            let table = self.maker.table(values, self.places.nodes[0], packed, &())?;
            Server::start(&self.places, workload, &[Arc::clone(&table), table])
        };
        let packed = server(PackedColumns::Named(VALUES.map(str::to_owned).to_vec()))?;
        let plain = server(PackedColumns::None)?;
        let row = |range_pred: u64| {
            let statement = Statement::Scan { on_first: PREDICATES, range_pred };
            let sql = statement.sql(values.rows);
            let expected = values.counts(&statement);
            let prepared = |server: &Server| server.handle().block_on(server.sessions().open().prepare(&sql));
            let (of_packed, of_plain) = (prepared(&packed)?, prepared(&plain)?);
            let (ours, peer) = try_alternate(
                pairs_count,
                || timed(&packed, &of_packed, &expected),
                || timed(&plain, &of_plain, &expected),
            )?;
            let pairs = Pairs { ours, peer };
            let name = format!("packed_scan_{range_pred}");
            let comparison = Comparison::new(name, "ms", "columns of 32 bits", pairs);
            Ok(Row::compared(comparison, self.values.seed))
        };
        RANGE_PREDS.into_iter().map(row).collect()
    }
}

/// Milliseconds of an execution on the server's workers.
fn timed(server: &Server, prepared: &Prepared, expected: &[i64]) -> Result<f64, QueryError> {
    let prepared = prepared.clone();
    let begin = Instant::now();
    let handle = server.handle();
    let answered = handle.block_on(handle.spawn(async move { prepared.execute(Vec::new()).await }));
    let batches =
        answered.map_err(|error| QueryError::Invalid(format!("the server's task has ended: {error}")))??;
    let ms = begin.elapsed().as_secs_f64() * 1e3;
    let found = integers(&batches)?;
    if found != expected {
        return Err(QueryError::Invalid(format!(
            "a scan counts {found:?}, and {expected:?} is right; please report this"
        )));
    }
    Ok(ms)
}

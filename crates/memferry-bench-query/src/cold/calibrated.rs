//! What the calibration of a storage gains: queries over cold files with it, without it, and in plain DataFusion, in turns.

use std::sync::Arc;

use memferry::topology::Machine;
use memferry_bench::harness::{Pairs, Row, geomean_ratio};
use memferry_bench::telemetry::beside;
use memferry_query::Tiers;
use memferry_query::load::Progress;

use super::{ColdBenchmark, FileCache, Temperature, extreme};
use crate::QueryError;

/// Ways by position.
const CALIBRATED: usize = 0;
const UNCALIBRATED: usize = 1;
const PLAIN: usize = 2;

impl ColdBenchmark {
    /// The rows of calibration. `progress` counts queries.
    ///
    /// # Errors
    /// [`QueryError::UnknownQuery`] before anything runs; [`QueryError::Invalid`]: the calibration has no storage, nothing here
    /// is cold, or answers differ. Others as the queries.
    pub fn calibrated_rows(&self, progress: &dyn Progress) -> Result<Vec<Row>, QueryError> {
        let queries = self.queries()?;
        if self.machine.storage().is_empty() {
            return Err(QueryError::Invalid(format!(
                "the calibration has no storage; make one with memferry calibrate --storage {} --out FILE",
                self.files.display()
            )));
        }
        let files = FileCache::open(&self.files, Temperature::Cold)?;
        self.disk_rate()?;
        progress.total(queries.len() as u64);
        let plain_machine = Machine::discover().map_err(|error| {
            QueryError::Invalid(format!("cannot discover this machine without its calibration: {error}"))
        })?;
        let uncalibrated = Tiers::builder(Arc::new(plain_machine)).build()?;
        let mut ways = [
            self.our_way("memferry calibrated", &self.tiers()?, true),
            self.our_way("memferry without calibration", &uncalibrated, true),
            self.plain_way("DataFusion", false),
        ];
        let mut samples = Vec::new();
        for (name, sql) in &queries {
            samples.push(self.sample(name, sql, &mut ways, &files)?);
            progress.advance(1);
        }
        let names = ways.each_ref().map(|way| way.name());
        let of = |way: usize, peer: usize| -> Vec<Pairs> {
            samples.iter().filter_map(|query| query.pairs_of(way, peer)).collect()
        };
        let row = |name: String, peer: usize, pairs: &[Pairs]| {
            Row::over_queries(name, names[peer], pairs, self.seed)
        };
        let mut rows = vec![
            row("calibrated_geomean".to_owned(), UNCALIBRATED, &of(CALIBRATED, UNCALIBRATED)),
            row("calibrated_datafusion_geomean".to_owned(), PLAIN, &of(CALIBRATED, PLAIN)),
            row("uncalibrated_datafusion_geomean".to_owned(), PLAIN, &of(UNCALIBRATED, PLAIN)),
        ];
        let highs = of(CALIBRATED, UNCALIBRATED);
        let highs = highs.iter().map(|pairs| geomean_ratio([pairs], self.seed).high);
        rows.extend(extreme("calibrated_min", highs, f64::min));
        for query in samples {
            if let Some(pairs) = query.pairs_of(CALIBRATED, UNCALIBRATED) {
                let of_query = row(format!("calibrated_{}", query.name), UNCALIBRATED, &[pairs]);
                rows.extend(beside(vec![of_query], query.counts));
            }
        }
        Ok(rows)
    }
}

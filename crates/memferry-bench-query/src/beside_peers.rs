//! Queries over tables in memory beside other engines with tables of their own in memory.
//!
//! The rows go through Parquet files into the engines, so that all have the same values and types. Each run of memferry is paired
//! with one of the engine, and the engine measures its own time: from the text of the statement to the last row.

use std::path::Path;

use datafusion::arrow::array::RecordBatchIterator;
use memferry_bench::harness::{Pairs, Row, median, try_alternate};
use memferry_query::ROW_GROUP_ROWS;

use crate::benchmark::{PAPER, Query};
use crate::peers::{ENGINES, Peer, PeerTables};
use crate::tpch_files::{write_error, write_parquet};
use crate::{NamedTable, QueryBenchmark, QueryError, QueryRunner, tpch_file};

/// Queries with a row of their own against the fastest other engine: their names, and those of their rows.
const VS_BEST: [(&str, &str); 2] = [("q06", "q6_vs_best"), (PAPER, "paper_vs_best")];

/// Rows of a batch on its way into a file.
const BATCH_ROWS: usize = 8192;

/// The pairs of one engine.
struct Timed<'a> {
    engine: &'static str,
    /// Its name and version.
    peer: String,
    pairs: Vec<(&'a Query, Pairs)>,
}

impl QueryBenchmark {
    /// Times of the queries in `ours` beside DuckDB and Polars of a Python. An engine that cannot run a query has no row for it.
    pub(crate) fn peer_rows(
        &self,
        python: &Path,
        scale: f64,
        tables: &[NamedTable],
        ours: &QueryRunner,
        queries: &[Query],
    ) -> Result<Vec<Row>, QueryError> {
        let bar = self.steps("timing other engines", queries.len() * ENGINES.len());
        let mut timed: Vec<Timed<'_>> = Vec::new();
        for engine in ENGINES {
            // One at a time, because each has a copy of the tables.
            let mut peer = self.loaded_peer(python, engine, tables)?;
            let mut pairs = Vec::new();
            for query in queries {
                if let Some(of_query) = self.pairs_with(&mut peer, ours, query)? {
                    pairs.push((query, of_query));
                }
                bar.advance(1);
            }
            timed.push(Timed { engine: engine.0, peer: peer.name.clone(), pairs });
        }
        drop(bar);
        let mut rows = Vec::new();
        for (query, name) in VS_BEST {
            let of_query = timed.iter().flat_map(|timed| &timed.pairs).filter(|(it, _)| it.name == query);
            let best = of_query.min_by(|(_, a), (_, b)| median(&a.peer).total_cmp(&median(&b.peer)));
            if let Some((_, best)) = best {
                rows.push(Row::over_queries(name, "the faster of the other engines", [best], self.seed));
            }
        }
        for Timed { engine, peer, pairs } in &timed {
            let prefix = format!("tpch_sf{scale}_{engine}");
            let tpch: Vec<&Pairs> =
                pairs.iter().filter(|(query, _)| query.tpch).map(|(_, pairs)| pairs).collect();
            if !tpch.is_empty() {
                rows.push(Row::over_queries(format!("{prefix}_geomean"), peer.as_str(), tpch, self.seed));
            }
            rows.extend(pairs.iter().map(|(query, pairs)| {
                Row::over_queries(format!("{prefix}_{}", query.name), peer.as_str(), [pairs], self.seed)
            }));
        }
        Ok(rows)
    }

    /// An engine that has loaded the tables.
    fn loaded_peer(
        &self,
        python: &Path,
        engine: (&str, &str),
        tables: &[NamedTable],
    ) -> Result<Peer, QueryError> {
        let files = tempfile::tempdir().map_err(write_error(&std::env::temp_dir()))?;
        for (name, data) in tables {
            let batches = data.batches(BATCH_ROWS).into_iter().flatten().map(Ok);
            let reader = RecordBatchIterator::new(batches, data.schema().clone());
            write_parquet(&tpch_file(files.path(), name), reader, ROW_GROUP_ROWS, &())?;
        }
        Peer::start(python, engine, files.path(), PeerTables::Memory, self.options.partitions)
    }

    /// Pairs of times after one run of each, whose answers have as many rows; `None` if the engine cannot run the query.
    fn pairs_with(
        &self,
        peer: &mut Peer,
        ours: &QueryRunner,
        query: &Query,
    ) -> Result<Option<Pairs>, QueryError> {
        let expected: usize = self.run(ours, &query.sql)?.batches.iter().map(|batch| batch.num_rows()).sum();
        match peer.run(&query.sql)? {
            Ok(run) if run.rows == expected => {}
            Ok(run) => {
                return Err(QueryError::Invalid(format!(
                    "{}: {} answers with {} rows and memferry with {expected}; please report this",
                    query.name, peer.name, run.rows
                )));
            }
            Err(_) => return Ok(None),
        }
        let ours_ms = || Ok::<_, QueryError>(self.run(ours, &query.sql)?.elapsed.as_secs_f64() * 1e3);
        let peer_ms = || match peer.run(&query.sql)? {
            Ok(run) => Ok(run.ms),
            Err(error) => Err(QueryError::Peer(format!("{} failed at {}: {error}", peer.name, query.name))),
        };
        let (ours, peer) = try_alternate(self.pairs_count, ours_ms, peer_ms)?;
        Ok(Some(Pairs { ours, peer }))
    }
}

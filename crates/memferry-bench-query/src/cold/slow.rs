//! Queries over an object store that takes 30 ms for each request.
//!
//! The files are in the page cache, so that the requests are all that takes time. memferry merges its ranges and sends one
//! request for each merged range, several at a time; each waits 30 ms. Plain DataFusion passes the ranges of a row group to
//! `get_ranges` in one call, which waits 30 ms once. A store in the cloud merges ranges with gaps below 1 MiB there and sends
//! up to 10 of the requests that remain at a time: 30 ms too, unless more than 10 remain. So this store never takes more
//! time than a real one for DataFusion, and exactly as much for memferry.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::object_store::chunked::ChunkedStore;
use datafusion::object_store::local::LocalFileSystem;
use datafusion::object_store::throttle::{ThrottleConfig, ThrottledStore};
use datafusion::prelude::{SessionConfig, SessionContext};
use memferry_bench::harness::{Pairs, Row};
use memferry_query::load::Progress;
use memferry_query::{files, session};

use super::io::FileCache;
use super::way::{Session, Way, register_plain};
use super::{ColdBenchmark, FLOOR, SELECTIVE};
use crate::{QueryError, tpch_file, tpch_table_names};

/// As common stores.
const LATENCY: Duration = Duration::from_millis(30);
const URL: &str = "slow://files";
/// The throttled store takes streams only, not files. A stream is one piece, that is, it costs no copy: no request of
/// memferry is longer.
const PIECE_BYTES: usize = 8 << 20;

impl ColdBenchmark {
    /// Some of `queries` over the slow store, against plain DataFusion, and joins against memferry with plan-ahead: all
    /// of them would take as long as the rest of the benchmark.
    pub(super) fn slow_store_rows(
        &self,
        queries: &[(String, String)],
        files: &FileCache,
        progress: &dyn Progress,
    ) -> Result<Vec<Row>, QueryError> {
        // Near memory is for files of this machine only.
        let ours = |plan_ahead: bool| {
            let context = with_store(session(&self.options))?;
            let setting = format!("set memferry.plan_ahead = {plan_ahead}");
            self.runtime.block_on(async { context.sql(&setting).await?.collect().await })?;
            for table in tpch_table_names() {
                self.runtime.block_on(files::register(&context, table, &self.slow_url(table)))?;
            }
            Ok(context)
        };
        let plain = || {
            let config = SessionConfig::new().with_target_partitions(self.options.partitions);
            let context = with_store(SessionContext::new_with_config(config))?;
            register_plain(&self.runtime, &context, |table| self.slow_url(table))?;
            Ok(context)
        };
        let way =
            |name: &str, open| Way::Session(Session { name: name.to_owned(), runtime: &self.runtime, open });
        let sampled = |row: &str, peer: Way<'_>, is_sampled: fn(&str) -> bool| {
            let name = peer.name().to_owned();
            let mut ways = [way("memferry", Box::new(|| ours(false))), peer];
            let mut pairs: Vec<Pairs> = Vec::new();
            for (name, sql) in queries.iter().filter(|(name, _)| is_sampled(name)) {
                pairs.extend(self.sample(name, sql, &mut ways, files)?.pairs(1));
                progress.advance(1);
            }
            let row = || Row::over_queries(row, name, &pairs, self.seed);
            Ok::<_, QueryError>((!pairs.is_empty()).then(row))
        };
        let plain = way("DataFusion", Box::new(plain));
        let with = way("memferry with plan-ahead", Box::new(|| ours(true)));
        let mut rows = Vec::new();
        rows.extend(sampled("cold_30ms_store", plain, is_sampled)?);
        rows.extend(sampled("cold_30ms_store_plan_ahead", with, is_join)?);
        Ok(rows)
    }

    fn slow_url(&self, table: &str) -> String {
        format!("{URL}{}", tpch_file(&self.files, table).display())
    }
}

/// Joins of three tables and more: each scan waits for the build sides before it.
const JOINS: [&str; 3] = ["q03", "q05", "q10"];

/// How often a query is sampled over the slow store.
pub(super) fn samples_count(name: &str) -> usize {
    usize::from(is_sampled(name)) + usize::from(is_join(name))
}

fn is_sampled(name: &str) -> bool {
    FLOOR.contains(&name) || SELECTIVE.contains(&name)
}

fn is_join(name: &str) -> bool {
    JOINS.contains(&name)
}

fn with_store(context: SessionContext) -> Result<SessionContext, QueryError> {
    let config = ThrottleConfig { wait_get_per_call: LATENCY, ..ThrottleConfig::default() };
    let store = ChunkedStore::new(Arc::new(LocalFileSystem::new()), PIECE_BYTES);
    let url = ObjectStoreUrl::parse(URL)?;
    context.register_object_store(url.as_ref(), Arc::new(ThrottledStore::new(store, config)));
    Ok(context)
}

//! Loading a table into memory, beside pyarrow.

use std::sync::Arc;
use std::time::Instant;

use memferry_bench::harness::{Comparison, Pairs, Provenance, Row};
use memferry_query::{Layout, load};

use super::ColdBenchmark;
use super::io::FileCache;
use super::way::run_peer;
use crate::QueryError;
use crate::process::status_bytes;

const TABLE: &str = "lineitem";

impl ColdBenchmark {
    /// The time to load the largest table from the page cache, and the memory that it then takes.
    pub(super) fn load_rows(&self, files: &FileCache) -> Result<[Row; 2], QueryError> {
        let tiers = self.tiers()?;
        let layout = Layout {
            partitions: self.options.partitions,
            ..Layout::new(Arc::clone(&self.machine), tiers.home())
        };
        let mut ratios = Vec::new();
        let ours = || {
            let context = self.our_session(&tiers, "memferry.read_ahead = true", &self.tables())?;
            files.prepare()?;
            let before = status_bytes("VmRSS")?;
            let started = Instant::now();
            let data = self.runtime.block_on(async {
                let plan = context.table(TABLE).await?.create_physical_plan().await?;
                Ok::<_, QueryError>(load::from_plan(plan, &context.task_ctx(), &layout, Arc::new(())).await?)
            })?;
            let ms = started.elapsed().as_secs_f64() * 1e3;
            ratios.push(status_bytes("VmRSS")?.saturating_sub(before) as f64 / data.size_bytes() as f64);
            Ok(ms)
        };
        let row = match &self.python {
            None => {
                let row = Row::median("load_lineitem", "ms", Provenance::Measured, &self.rounds_alone(ours)?);
                row.without_peer("pyarrow: not run, see --peers")
            }
            Some(python) => {
                let engine = ("pyarrow", "pyarrow");
                let mut peer = self.peer(python, engine)?;
                let name = peer.name.clone();
                let theirs = || match run_peer(&mut peer, TABLE, files)? {
                    Ok(run) => Ok(run.ms),
                    Err(error) => Err(QueryError::Peer(format!("pyarrow cannot read {TABLE}: {error}"))),
                };
                let (ours, peer) = self.rounds_beside(ours, theirs)?;
                Row::compared(Comparison::new("load_lineitem", "ms", name, Pairs { ours, peer }), self.seed)
            }
        };
        // Later loads may use memory that an earlier one left to the allocator.
        Ok([row, Row::median("load_memory_ratio", "ratio", Provenance::Measured, &ratios[..1])])
    }
}

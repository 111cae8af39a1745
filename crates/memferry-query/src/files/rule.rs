//! The optimizer rule that gives scans of Parquet files memferry's reader, decides whether their decoder evaluates the
//! filter, evaluates filters above them by conjunct, contains the panics of the decoder, and tells each scan its turn in the
//! order of the plan. It changes nothing else of a plan.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use object_store::local::LocalFileSystem;

use super::contain::ContainExec;
use super::factory::Readers;
use super::filter::{ConjunctsExec, JoinFilters};
use super::metrics::parquet_scan;
use super::pushdown::Decision;
use super::store::StoreLimits;
use super::{Demand, plan_ahead};
use crate::options::MemferryOptions;
use crate::tiers::Tiers;

/// Gives each scan of Parquet files a reader with the demand of the scan.
///
/// It must be the last rule: the demand is that of the final plan.
pub(crate) struct ReadFiles {
    /// Of the session: its stores and its cache of metadata.
    runtime: Arc<RuntimeEnv>,
    /// Near memory for files of this machine.
    tiers: Option<Arc<Tiers>>,
}

impl ReadFiles {
    pub(crate) fn new(runtime: Arc<RuntimeEnv>, tiers: Option<Arc<Tiers>>) -> Self {
        Self { runtime, tiers }
    }

    fn annotate(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        options: &MemferryOptions,
        joins: &JoinFilters,
        batch_rows: usize,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            let conjuncts = ConjunctsExec::of(filter, joins, options)?;
            return Ok(conjuncts.map(|filter| Arc::new(filter) as Arc<dyn ExecutionPlan>));
        }
        let Some((config, source)) = parquet_scan(plan.as_ref()) else { return Ok(None) };
        if source.parquet_file_reader_factory().is_some_and(|factory| !is_default(factory.as_ref())) {
            return Ok(None);
        }
        let pushdown = Decision::of(options.pushdown, config, source);
        // Without a filter above the scan, the decoder must evaluate it.
        let has_filter_above = !source.table_parquet_options().global.pushdown_filters;
        let is_pushed = pushdown.as_ref().is_some_and(|decision| decision.is_pushed);
        let source = source.clone().with_pushdown_filters(is_pushed);
        let store = self.runtime.object_store(&config.object_store_url)?;
        let is_local = store.to_string() == LocalFileSystem::new().to_string();
        let readers = Readers {
            store,
            tiers: self.tiers.clone().filter(|_| is_local),
            cache: self.runtime.cache_manager.get_file_metadata_cache(),
            demand: Arc::new(Demand::of(config, &source)?),
            limits: StoreLimits {
                time_out: Duration::from_millis(options.store_timeout_ms),
                window_bytes: options.read_ahead_bytes as u64,
            },
            window_bytes: if options.read_ahead { options.read_ahead_bytes as u64 } else { 0 },
            keep: true,
            keep_decoded: options.keep_decoded && has_filter_above && is_local && self.tiers.is_some(),
            places: Arc::default(),
            next: Arc::default(),
            in_plan: Arc::default(),
            forecast: Arc::default(),
        };
        let scan = ContainExec::over(config, source, readers, pushdown).in_place_of(plan.as_ref());
        let scan: Arc<dyn ExecutionPlan> = Arc::new(scan);
        let conjuncts = ConjunctsExec::above(&scan, joins, options, batch_rows)?;
        Ok(Some(conjuncts.map_or(scan, |filter| Arc::new(filter) as Arc<dyn ExecutionPlan>)))
    }
}

impl PhysicalOptimizerRule for ReadFiles {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = MemferryOptions::of(config);
        if !options.read_files {
            return Ok(plan);
        }
        let joins = JoinFilters::of(&plan, &options)?;
        let batch_rows = config.execution.batch_size;
        let annotated = plan.transform_up(|plan| {
            Ok(match self.annotate(&plan, &options, &joins, batch_rows.into())? {
                Some(annotated) => Transformed::yes(annotated),
                None => Transformed::no(plan),
            })
        });
        let plan = annotated?.data;
        plan_ahead::annotate(&plan, options.plan_ahead && options.read_ahead);
        Ok(plan)
    }

    fn name(&self) -> &str {
        "memferry_read_files"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl fmt::Debug for ReadFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadFiles").finish_non_exhaustive()
    }
}

/// Whether a factory is one of DataFusion's own. One that the program brought stays.
///
/// Factories cannot be downcast; the name is the first thing that a derived `Debug` writes, and writing stops after it.
fn is_default(factory: &dyn ParquetFileReaderFactory) -> bool {
    struct Start(String);
    impl fmt::Write for Start {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.push_str(text);
            if self.0.len() < 64 && !self.0.contains([' ', '{']) { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut start = Start(String::new());
    let _stopped = write!(start, "{factory:?}");
    let name = start.0.split([' ', '{']).next();
    matches!(name, Some("CachedParquetFileReaderFactory" | "DefaultParquetFileReaderFactory"))
}

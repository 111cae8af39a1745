//! A DataFusion session with memferry's settings.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use memferry_schedule::{Binding, Stealing};

use crate::domains::{PlaceOnDomains, QueryDomains};
use crate::files::{NamedFormatFactory, PlanAgain, ReadFiles};
use crate::limits::CountLimits;
use crate::options::{MemferryOptions, Prefetch, Setting};
use crate::tiers::Tiers;

/// Options of a session.
#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// When late columns are copied near.
    pub prefetch: Prefetch,
    /// Target number of partitions of a plan; the tables should have as many.
    pub partitions: usize,
    /// Rows of a batch.
    pub batch_rows: usize,
    /// Near memory that keeps what scans read of local files; without it each query reads its files.
    pub tiers: Option<Arc<Tiers>>,
    /// Domains on which queries may run; without them, and with one domain of all CPUs, the binding has no effect. Domains of a
    /// part of the CPUs ([`Domains::on`](memferry_schedule::Domains::on)) confine queries to it, unless the binding is none.
    pub domains: Option<Arc<QueryDomains>>,
    /// Where queries run.
    pub binding: Binding,
    /// Which row groups a scan claims after those of its own domain. The default reaches the socket of the rows only: for
    /// tables with one home on a machine with several sockets, choose [`Stealing::Any`].
    ///
    /// The partitions of a plan share row groups if they are executed with one `TaskContext`. Each further context reads all
    /// rows again, up to the whole table in one partition.
    pub stealing: Stealing,
}

impl Default for SessionOptions {
    /// `auto`, a partition for each CPU that this process may use, batches of 8192 rows (DataFusion's default), no
    /// domains.
    fn default() -> Self {
        let partitions = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            prefetch: Prefetch::Auto,
            partitions,
            batch_rows: 8192,
            tiers: None,
            domains: None,
            binding: Binding::default(),
            stealing: Stealing::default(),
        }
    }
}

/// A session whose scans of tiered tables follow `options`. SQL can change them: `SET memferry.prefetch = 'off'`.
pub fn session(options: &SessionOptions) -> SessionContext {
    let memferry = MemferryOptions {
        prefetch: options.prefetch,
        binding: Setting(options.binding),
        stealing: Setting(options.stealing),
        ..MemferryOptions::default()
    };
    let config = SessionConfig::new()
        .with_target_partitions(options.partitions)
        .with_batch_size(options.batch_rows)
        .with_information_schema(true)
        .set_bool("datafusion.execution.listing_table_ignore_subdirectory", false)
        .with_option_extension(memferry);
    let runtime = RuntimeEnvBuilder::new()
        // A cached list of files would hide files that were added, replaced or removed since.
        .with_object_list_cache_limit(0)
        .build_arc()
        .expect("neither a disk nor a memory limit is set up, which could fail");
    let mut state = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_runtime_env(Arc::clone(&runtime))
        .with_query_planner(Arc::new(PlanAgain))
        .with_physical_optimizer_rule(Arc::new(CountLimits))
        .with_physical_optimizer_rule(Arc::new(ReadFiles::new(runtime, options.tiers.clone())));
    if let Some(domains) = &options.domains {
        state = state.with_physical_optimizer_rule(Arc::new(PlaceOnDomains::new(Arc::clone(domains))));
    }
    let mut state = state.build();
    state
        .register_file_format(Arc::new(NamedFormatFactory::default()), true)
        .expect("a format may take the place of another");
    SessionContext::new_with_state(state)
}

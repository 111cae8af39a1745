//! The session of one plan: tables of the workers that are alive, tasks where the shards are.

use std::sync::Arc;

use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemoryCatalogProvider, MemoryCatalogProviderList,
    MemorySchemaProvider,
};
use datafusion::common::Result;
use datafusion::common::config::CatalogOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::DataFusionError;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedExt, DistributedLeafExec,
    RouteTasksEvent, RouteTasksEventResponse, ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse,
    SessionStateBuilderExt, WorkerResolver,
};
use url::Url;

use crate::broadcast::{BYTES_MAX, BroadcastOptions, ChooseBroadcasts, LimitBeforeBroadcast};
use crate::channels::{Channels, url};
use crate::codec::ShardCodec;
use crate::colocate::JoinInPlace;
use crate::description::TableDescription;
use crate::error::ClusterError;
use crate::reduce::ReduceGroups;
use crate::replicate::ReadReplicas;
use crate::report::WorkerReport;
use crate::scan::ShardScanExec;
use crate::shards::Members;
use crate::sources::Sources;
use crate::table::ShardedTable;

/// Techniques of plans; each can be switched off to measure its gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Workers begin to read what a plan announces when it arrives, before its stage starts.
    pub announce: bool,
    /// Joins and TopK tell scans of their stage which rows they need.
    pub dynamic_filters: bool,
    /// Most rows and bytes of a table that is sent to all workers; if `None`, DataFusion's limits, and beyond them as many as are
    /// cheaper than an exchange.
    pub broadcast_max: Option<(usize, usize)>,
    /// Tasks send their metrics at their end.
    pub are_tasks_counted: bool,
}

impl Default for PlanOptions {
    fn default() -> PlanOptions {
        PlanOptions { announce: true, dynamic_filters: true, broadcast_max: None, are_tasks_counted: false }
    }
}

/// The workers of a plan, in the order of tasks.
struct AliveWorkers(Vec<Url>);

impl WorkerResolver for AliveWorkers {
    fn get_urls(&self) -> Result<Vec<Url>> {
        Ok(self.0.clone())
    }
}

/// What the sessions of all plans share. Its functions and rules take longer to make than many plans.
pub(crate) fn template() -> SessionState {
    let config = SessionConfig::new()
        .with_information_schema(true)
        // Each plan has its own.
        .with_create_default_catalog_and_schema(false);
    let mut builder = SessionStateBuilder::new()
        .with_default_features()
        .with_config(config)
        .with_optimizer_rule(Arc::new(ReduceGroups))
        .with_physical_optimizer_rules(rules())
        .with_distributed_planner();
    if let Some(distributed) = builder.query_planner().take() {
        builder = builder.with_query_planner(Arc::new(ReadReplicas { distributed }));
    }
    builder.build()
}

/// DataFusion's rules, and those that know where rows are.
fn rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    let selection = rules.iter().position(|rule| rule.name() == "join_selection");
    rules.insert(selection.map_or(0, |index| index + 1), Arc::new(ChooseBroadcasts));
    rules.push(Arc::new(JoinInPlace));
    rules.push(Arc::new(LimitBeforeBroadcast));
    rules
}

/// An empty catalog, as a session makes it by default.
fn catalogs(options: &CatalogOptions) -> Result<Arc<dyn CatalogProviderList>> {
    let (catalogs, catalog) = (MemoryCatalogProviderList::new(), MemoryCatalogProvider::new());
    catalog.register_schema(&options.default_schema, Arc::new(MemorySchemaProvider::new()))?;
    catalogs.register_catalog(options.default_catalog.clone(), Arc::new(catalog));
    Ok(Arc::new(catalogs))
}

/// A session of `template` whose tables are those of `report`, on the workers of `members` that are not lost.
pub(crate) fn session(
    template: &SessionState,
    report: &WorkerReport,
    members: &Arc<Members>,
    channels: &Channels,
    partitions: usize,
    options: PlanOptions,
) -> Result<SessionContext, ClusterError> {
    let workers = members.map().workers();
    let urls: Vec<Url> =
        members.alive().into_iter().map(|worker| url(&workers[worker])).collect::<Result<_, _>>()?;
    let mut state = template.clone();
    let config = state.config_mut();
    config.options_mut().execution.target_partitions = partitions;
    let mut broadcasts = BroadcastOptions { tasks: urls.len(), bytes_max: BYTES_MAX };
    if let Some((rows, bytes)) = options.broadcast_max {
        broadcasts.bytes_max = bytes;
        let optimizer = &mut config.options_mut().optimizer;
        optimizer.hash_join_single_partition_threshold_rows = rows;
        optimizer.hash_join_single_partition_threshold = bytes;
    }
    config.options_mut().extensions.insert(broadcasts);
    if !options.dynamic_filters {
        let optimizer = &mut config.options_mut().optimizer;
        optimizer.enable_dynamic_filter_pushdown = false;
        optimizer.enable_join_dynamic_filter_pushdown = false;
        optimizer.enable_topk_dynamic_filter_pushdown = false;
        optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    }
    config.set_distributed_worker_resolver(AliveWorkers(urls.clone()));
    config.set_distributed_channel_resolver(channels.clone());
    config.set_distributed_user_codec(ShardCodec);
    config.set_distributed_desired_task_count_handler(tasks_of(urls.len()));
    config.set_distributed_scale_up_leaf_node_handler(variants_of(Arc::clone(members)));
    config.set_distributed_route_tasks_handler(routes_to(urls));
    // Networks of clusters are about as fast as one core compresses, and the cores have queries to run.
    config.set_distributed_compression(None)?;
    // Each task would send them at its end.
    config.set_distributed_metrics_collection(options.are_tasks_counted)?;
    config.set_extension(Arc::new(Sources::new(None, Arc::new(channels.clone()))));
    let catalogs = catalogs(&state.config_options().catalog)?;
    state.register_catalog_list(catalogs);
    let context = SessionContext::new_with_state(state);
    let id = report.description.id();
    let planned = report.planned().map_err(DataFusionError::from)?;
    for (table, planned) in report.tables.iter().zip(planned) {
        let key = report.description.table(&table.name).and_then(TableDescription::key);
        let sharded = ShardedTable::new(id, table, planned.clone(), key, Arc::clone(members));
        context.register_table(table.name.as_str(), Arc::new(sharded.announced(options.announce)))?;
    }
    Ok(context)
}

/// A task for each worker, in stages that read shards; one for a table that one worker can read alone.
fn tasks_of(
    workers: usize,
) -> impl Fn(DesiredTaskCountEvent<'_>) -> Option<Result<DesiredTaskCountEventResponse>> + Send + Sync {
    move |event| {
        let scan = event.plan.downcast_ref::<ShardScanExec>()?;
        let tasks = if scan.read().key.is_some() { workers } else { 1 };
        Some(Ok(DesiredTaskCountEventResponse::desired(tasks)))
    }
}

/// The shards of each task.
fn variants_of(
    members: Arc<Members>,
) -> impl Fn(ScaleUpLeafNodeEvent<'_>) -> Option<Result<ScaleUpLeafNodeEventResponse>> + Send + Sync {
    move |event| {
        let scan = event.plan.downcast_ref::<ShardScanExec>()?;
        Some(variants(scan, event.plan, &members, event.task_count))
    }
}

fn variants(
    scan: &ShardScanExec,
    original: &Arc<dyn ExecutionPlan>,
    members: &Members,
    tasks: usize,
) -> Result<ScaleUpLeafNodeEventResponse> {
    let assignment =
        members.assign(tasks).map_err(|source| ClusterError::Lost { source, reasons: reasons(members) })?;
    let partitions = scan.partitions().len();
    let variant = |task| -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(scan.of_shards(scan.with_rows(assignment.partitions(task, partitions)))?))
    };
    let variants = (0..tasks).map(variant).collect::<Result<Vec<_>>>()?;
    let leaf = DistributedLeafExec::try_new(Arc::clone(original), variants)?;
    Ok(ScaleUpLeafNodeEventResponse::new(Arc::new(leaf)))
}

/// The reasons for which workers are lost.
pub(crate) fn reasons(members: &Members) -> Vec<String> {
    let workers = members.map().workers();
    members
        .lost()
        .iter()
        .map(|(&worker, what)| format!("worker {} failed: {what}", workers[worker]))
        .collect()
}

/// Task `i` on the `i`-th worker, as [`Members::assign`] divides the shards. A single task without shards goes where its input
/// is, which is the default.
fn routes_to(
    urls: Vec<Url>,
) -> impl Fn(RouteTasksEvent<'_>) -> Option<Result<RouteTasksEventResponse>> + Send + Sync {
    move |event| {
        if event.task_count == 1 && !reads_shards(event.plan) {
            return None;
        }
        let routed = (0..event.task_count).map(|task| urls[task % urls.len()].clone()).collect();
        Some(Ok(RouteTasksEventResponse::new(routed)))
    }
}

fn reads_shards(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut found = false;
    let visited = plan.apply(|node| {
        found |= node.is::<DistributedLeafExec>();
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    visited.is_ok() && found
}

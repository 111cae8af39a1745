//! Planning over files that change. A scan lists its files and then reads their footers, for statistics. A file that is replaced
//! in between has another footer in another place, so the plan is made again. So it is if two scans of a query have listed two
//! versions of a file: each scan checks its own version only, and a file can be replaced by an older version again.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::physical_plan::FileGroup;
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

use super::error::FileError;
use super::metrics::parquet_scan;
use super::store::difference;

/// Plans made for a query, at most. A file that is damaged fails all of them.
const PLANS_MAX: usize = 3;

/// DataFusion's planner; it begins again if a file cannot be read.
#[derive(Debug)]
pub(crate) struct PlanAgain;

#[async_trait]
impl QueryPlanner for PlanAgain {
    async fn create_physical_plan(
        &self,
        query: &LogicalPlan,
        session: &dyn Session,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut plan = plan_once(query, session).await;
        for _ in 1..PLANS_MAX {
            match &plan {
                Err(error) if is_of_file(error) => plan = plan_once(query, session).await,
                _ => break,
            }
        }
        plan
    }
}

async fn plan_once(query: &LogicalPlan, session: &dyn Session) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = DefaultPhysicalPlanner::default().create_physical_plan(query, session).await?;
    check_versions(&plan)?;
    Ok(plan)
}

/// Checks that all scans of a file are of the same version.
fn check_versions(plan: &Arc<dyn ExecutionPlan>) -> Result<()> {
    let mut versions = HashMap::new();
    plan.apply(|plan| {
        let Some((config, _)) = parquet_scan(plan.as_ref()) else { return Ok(TreeNodeRecursion::Continue) };
        for file in config.file_groups.iter().flat_map(FileGroup::files) {
            let version = &file.object_meta;
            let first = *versions.entry((&config.object_store_url, &version.location)).or_insert(version);
            if let Some(what) = difference(first, version) {
                let changed = FileError::Changed { file: version.location.to_string(), what };
                return Err(DataFusionError::External(Box::new(changed)));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Whether the content of a file, its length, or its version is not as expected.
fn is_of_file(error: &DataFusionError) -> bool {
    match error.find_root() {
        DataFusionError::ParquetError(_) | DataFusionError::ObjectStore(_) => true,
        DataFusionError::External(error) => matches!(error.downcast_ref(), Some(FileError::Changed { .. })),
        _ => false,
    }
}

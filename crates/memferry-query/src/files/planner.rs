//! Planning over files that change. A scan lists its files and then reads their footers, for statistics. A file that is replaced
//! in between has another footer in another place, so the plan is made again.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::context::QueryPlanner;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};

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
        let planner = DefaultPhysicalPlanner::default();
        for _ in 1..PLANS_MAX {
            match planner.create_physical_plan(query, session).await {
                Err(error) if is_of_file(&error) => {}
                answer => return answer,
            }
        }
        planner.create_physical_plan(query, session).await
    }
}

/// Whether the content of a file, or its length, is not as expected.
fn is_of_file(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ParquetError(_) | DataFusionError::ObjectStore(_))
}

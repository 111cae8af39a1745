//! Joins that can be cancelled.
//!
//! Tokio cancels a task when it yields. DataFusion's sources yield now and then, but a join can make millions of batches
//! of a single one from its source. So joins yield as well, by DataFusion's own operator for that.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::execution::SessionStateBuilder;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::prelude::SessionContext;

/// A session with the tables and settings of `context`, whose joins yield.
pub(crate) fn session(context: &SessionContext) -> SessionContext {
    let state = SessionStateBuilder::new_from_existing(context.state());
    SessionContext::new_with_state(state.with_physical_optimizer_rule(Arc::new(CooperativeJoins)).build())
}

#[derive(Debug)]
struct CooperativeJoins;

impl PhysicalOptimizerRule for CooperativeJoins {
    fn name(&self) -> &str {
        "CooperativeJoins"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let wrapped = plan.transform_up(|node| {
            // The names of all joins: `HashJoinExec`, `CrossJoinExec` and others.
            Ok(if node.name().ends_with("JoinExec") {
                Transformed::yes(Arc::new(CooperativeExec::new(node)) as Arc<dyn ExecutionPlan>)
            } else {
                Transformed::no(node)
            })
        });
        wrapped.map(|wrapped| wrapped.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

//! The tables that a server answers from: its own, or those of a cluster.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionContext;
use futures::StreamExt;
use futures::stream::BoxStream;
use memferry_session::with_yielding_joins;

use super::files;
use crate::cluster::Cluster;
use crate::error::ClusterError;

/// The tables that a server answers from.
#[derive(Clone)]
pub enum Tables {
    /// Those of a session of this process.
    Own(SessionContext),
    /// Those of the workers of a cluster.
    OfCluster(Arc<Cluster>),
}

impl From<&SessionContext> for Tables {
    fn from(context: &SessionContext) -> Tables {
        Tables::Own(with_yielding_joins(context))
    }
}

impl Tables {
    /// A session with the tables as they are now, to plan statements.
    ///
    /// # Errors
    /// No worker answers, or two of them contradict each other.
    pub(super) async fn session(&self) -> Result<SessionContext, DataFusionError> {
        match self {
            Tables::Own(context) => Ok(context.clone()),
            Tables::OfCluster(cluster) => cluster.session().await.map_err(typed),
        }
    }

    /// Runs a plan of [`session`](Tables::session). Its joins, groups and sorts in this process take memory from `pool`.
    ///
    /// # Errors
    /// Those of the query and of the cluster.
    pub(super) async fn run(
        &self,
        plan: LogicalPlan,
        pool: &Arc<dyn MemoryPool>,
    ) -> Result<BoxStream<'static, Result<RecordBatch, DataFusionError>>, DataFusionError> {
        match self {
            Tables::Own(context) => run_here(context, plan, pool).await,
            Tables::OfCluster(cluster) => {
                let environment = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(pool)).build_arc()?;
                let answer = cluster.query_plan(&plan, environment).await.map_err(typed)?;
                let rows = futures::stream::unfold(answer, |mut answer| async move {
                    let batch = answer.next().await?;
                    Some((batch.map_err(typed), answer))
                });
                Ok(rows.boxed())
            }
        }
    }
}

/// The error with its type, which tells a failure of the cluster from one of the query.
fn typed(error: ClusterError) -> DataFusionError {
    match error {
        ClusterError::Query(error) => error,
        error => DataFusionError::External(Box::new(error)),
    }
}

async fn run_here(
    context: &SessionContext,
    plan: LogicalPlan,
    pool: &Arc<dyn MemoryPool>,
) -> Result<BoxStream<'static, Result<RecordBatch, DataFusionError>>, DataFusionError> {
    let environment = RuntimeEnvBuilder::from_runtime_env(context.runtime_env().as_ref())
        .with_memory_pool(Arc::clone(pool))
        .build_arc()?;
    // The session of this query has the tables of all, and memory of its own.
    let state = SessionStateBuilder::new_from_existing(context.state()).with_runtime_env(environment).build();
    files::check(&plan)?;
    let plan = match plan {
        // DataFusion does these when it makes the frame.
        LogicalPlan::Ddl(_) => {
            let context = SessionContext::new_with_state(state.clone());
            context.execute_logical_plan(plan).await?.into_unoptimized_plan()
        }
        plan => plan,
    };
    let plan = state.create_physical_plan(&plan).await?;
    Ok(execute_stream(plan, Arc::new(TaskContext::from(&state)))?.boxed())
}

//! The batches of a file from DataFusion's planner of it, which separates reading from decoding.

use std::collections::VecDeque;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion_datasource::morsel::{Morsel, MorselPlanner, PendingMorselPlanner};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

/// What is left of a file.
struct Left {
    stream: Option<BoxStream<'static, Result<RecordBatch>>>,
    morsels: VecDeque<Box<dyn Morsel>>,
    /// The next one first: what a planner yields comes before what follows it.
    planners: VecDeque<Planner>,
}

enum Planner {
    Ready(Box<dyn MorselPlanner>),
    Pending(PendingMorselPlanner),
}

/// All batches, in the order of the file.
pub(super) fn batches(planner: Box<dyn MorselPlanner>) -> BoxStream<'static, Result<RecordBatch>> {
    let left =
        Left { stream: None, morsels: VecDeque::new(), planners: VecDeque::from([Planner::Ready(planner)]) };
    stream::try_unfold(left, async |mut left| {
        Ok::<_, DataFusionError>(left.next().await?.map(|batch| (batch, left)))
    })
    .boxed()
}

impl Left {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(stream) = &mut self.stream {
                if let Some(batch) = stream.try_next().await? {
                    return Ok(Some(batch));
                }
                self.stream = None;
            }
            if let Some(morsel) = self.morsels.pop_front() {
                self.stream = Some(morsel.into_stream());
                continue;
            }
            match self.planners.pop_front() {
                None => return Ok(None),
                Some(Planner::Pending(planner)) => {
                    let planner = planner.await?;
                    self.planners.push_front(Planner::Ready(planner));
                }
                Some(Planner::Ready(planner)) => {
                    let Some(mut plan) = planner.plan()? else { continue };
                    self.morsels.extend(plan.take_morsels());
                    if let Some(pending) = plan.take_pending_planner() {
                        self.planners.push_front(Planner::Pending(pending));
                    }
                    for ready in plan.take_ready_planners().into_iter().rev() {
                        self.planners.push_front(Planner::Ready(ready));
                    }
                }
            }
        }
    }
}

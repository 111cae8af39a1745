//! The places that a scan of shards reads from: the tables of this worker, and other workers.

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;

use crate::ahead::Budget;
use crate::catalog::{PlannedScan, ShardCatalog};
use crate::channels::Channels;
use crate::description::MapId;
use crate::error::{ClusterError, refusal};
use crate::plan_channel::Reads;
use crate::scan::ShardRead;
use crate::shards::ShardMap;

/// The shards that a session can reach: an extension of its configuration.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The tables of this worker; none in a coordinator.
    catalog: Option<Arc<ShardCatalog>>,
    channels: Arc<Channels>,
    budget: Budget,
    /// Reads that a plan announces; without a channel that owns them, nothing is read ahead.
    reads: Option<Arc<Reads>>,
}

impl Sources {
    /// The shards of `catalog`, and those of the workers that `channels` reach.
    pub fn new(catalog: Option<Arc<ShardCatalog>>, channels: Arc<Channels>) -> Sources {
        Sources { catalog, channels, budget: Budget::default(), reads: None }
    }

    /// These, with a budget that all plans of a worker share.
    pub(crate) fn within(self, budget: &Budget) -> Sources {
        Sources { budget: budget.clone(), ..self }
    }

    /// These, for the plan of a channel.
    pub(crate) fn of_plan(self, reads: Option<Arc<Reads>>) -> Sources {
        Sources { reads, ..self }
    }

    pub(crate) fn reads(&self) -> Option<&Arc<Reads>> {
        self.reads.as_ref()
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(crate) fn of(context: &TaskContext) -> Result<Sources> {
        match context.session_config().get_extension::<Sources>() {
            Some(sources) => Ok(Sources::clone(&sources)),
            None => internal_err!("this session has no shards; use the session of a worker or of a cluster"),
        }
    }

    /// The schema of a table and the map, for plans with the same description and files.
    pub(crate) fn table(&self, id: MapId, table: &str, files: u64) -> Result<(SchemaRef, Arc<ShardMap>)> {
        let Some(catalog) = &self.catalog else {
            return internal_err!("a plan of shards was sent to a process that is not a worker");
        };
        catalog.check(id, table, files)
    }
}

/// Opens shards for one scan of one task.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) sources: Sources,
    /// Of this worker's shards.
    pub(crate) planned: Arc<PlannedScan>,
    pub(crate) context: Arc<TaskContext>,
}

impl Opening {
    /// The rows of one shard. Filters of `dynamic` save reads of this worker's shards only: others do not learn of them.
    pub(crate) async fn open(
        &self,
        read: &Arc<ShardRead>,
        shard: usize,
        dynamic: &[Arc<dyn PhysicalExpr>],
    ) -> Result<SendableRecordBatchStream> {
        if let Some(catalog) = &self.sources.catalog {
            if catalog.id() != read.id {
                return Err(refusal(catalog.address(), catalog.id(), read.id).into());
            }
            if let Some(stream) = catalog.read(read, shard, dynamic, &self.planned, &self.context)? {
                return Ok(stream);
            }
        }
        let holders = read.map.replicas(shard);
        let Some(&holder) = holders.iter().find(|holder| !read.lost.contains(holder)) else {
            let workers = holders.iter().map(|&holder| read.map.workers()[holder].clone()).collect();
            let shards_count = read.map.shards_count();
            let source = crate::shards::ShardsLost { shard, workers, lost_count: 1, shards_count };
            return Err(ClusterError::Lost { source, reasons: vec![] }.into());
        };
        self.sources.channels.read_shard(&read.map.workers()[holder], read, shard).await
    }
}

//! Shard scans as bytes, for plans and for reads of single shards over the network.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::from_proto::parse_physical_expr;
use datafusion_proto::physical_plan::to_proto::serialize_physical_expr;
use datafusion_proto::physical_plan::{
    DefaultPhysicalExtensionCodec, PhysicalExtensionCodec, PhysicalPlanDecodeContext,
    PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::PhysicalExprNode;
use prost::Message;

use crate::description::MapId;
use crate::scan::{ShardRead, ShardScanExec};
use crate::sources::Sources;

/// A [`ShardScanExec`] on its way. The receiver knows the schema: it refuses other descriptions and files.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ScanMessage {
    #[prost(uint64, tag = "1")]
    version: u64,
    #[prost(fixed64, tag = "2")]
    digest: u64,
    #[prost(string, tag = "3")]
    pub(crate) table: String,
    #[prost(fixed64, tag = "4")]
    pub(crate) files: u64,
    #[prost(uint64, repeated, tag = "5")]
    projection: Vec<u64>,
    #[prost(message, optional, tag = "6")]
    predicate: Option<PhysicalExprNode>,
    #[prost(uint64, optional, tag = "7")]
    fetch: Option<u64>,
    #[prost(uint64, repeated, tag = "8")]
    lost: Vec<u64>,
    #[prost(message, repeated, tag = "9")]
    partitions: Vec<PartitionMessage>,
    /// Over the output; only in plans, where their operators are.
    #[prost(message, repeated, tag = "10")]
    dynamic: Vec<PhysicalExprNode>,
    #[prost(bool, tag = "11")]
    announced: bool,
}

#[derive(Clone, PartialEq, Message)]
struct PartitionMessage {
    #[prost(uint64, repeated, tag = "1")]
    shards: Vec<u64>,
}

impl ScanMessage {
    pub(crate) fn new(read: &ShardRead, partitions: &[Vec<usize>]) -> Result<ScanMessage> {
        let predicate = read
            .predicate
            .as_ref()
            .map(|predicate| serialize_physical_expr(predicate, &DefaultPhysicalExtensionCodec {}))
            .transpose()?;
        Ok(ScanMessage {
            version: read.id.version,
            digest: read.id.digest,
            table: read.table.clone(),
            files: read.files,
            projection: numbers(&read.projection),
            predicate,
            fetch: read.fetch.map(|rows| rows as u64),
            lost: numbers(&read.lost),
            partitions: partitions
                .iter()
                .map(|shards| PartitionMessage { shards: numbers(shards) })
                .collect(),
            dynamic: vec![],
            announced: read.announced,
        })
    }

    pub(crate) fn id(&self) -> MapId {
        MapId { version: self.version, digest: self.digest }
    }

    /// The scan, by the tables of `sources`.
    pub(crate) fn scan(&self, sources: &Sources, context: &TaskContext) -> Result<ShardScanExec> {
        let (schema, map) = sources.table(self.id(), &self.table, self.files)?;
        let predicate = self
            .predicate
            .as_ref()
            .map(|node| parse_physical_expr(node, context, &schema, &DefaultPhysicalExtensionCodec {}))
            .transpose()?;
        let read = ShardRead {
            id: self.id(),
            table: self.table.clone(),
            files: self.files,
            key: None,
            schema,
            projection: indices(&self.projection),
            predicate,
            fetch: self.fetch.map(|rows| rows as usize),
            announced: self.announced,
            lost: indices(&self.lost),
            map,
        };
        let partitions: Vec<Vec<usize>> =
            self.partitions.iter().map(|partition| indices(&partition.shards)).collect();
        if let Some(shard) = partitions.iter().flatten().find(|&&shard| shard >= read.map.shards_count()) {
            return internal_err!("the plan names shard {shard}, and the map has fewer");
        }
        ShardScanExec::try_new(Arc::new(read), partitions, None)
    }
}

fn numbers(indices: &[usize]) -> Vec<u64> {
    indices.iter().map(|&index| index as u64).collect()
}

fn indices(numbers: &[u64]) -> Vec<usize> {
    numbers.iter().map(|&number| number as usize).collect()
}

/// The codec of [`ShardScanExec`]; all other operators are encoded by DataFusion.
#[derive(Clone, Copy, Debug)]
pub struct ShardCodec;

impl PhysicalExtensionCodec for ShardCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        _inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let message =
            ScanMessage::decode(bytes).map_err(|error| DataFusionError::External(Box::new(error)))?;
        let scan = message.scan(&Sources::of(context)?, context)?;
        let (schema, codec) = (scan.schema(), DefaultPhysicalExtensionCodec {});
        let decoding = PhysicalPlanDecodeContext::new(context, &codec);
        // By this converter, the filter is the same object as that of its operator.
        let dynamic = message
            .dynamic
            .iter()
            .map(|filter| converter.proto_to_physical_expr(filter, &schema, &decoding))
            .collect::<Result<_>>()?;
        Ok(Arc::new(scan.with_dynamic(dynamic)))
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(scan) = node.downcast_ref::<ShardScanExec>() else {
            return internal_err!("{} cannot be sent to a worker", node.name());
        };
        let mut message = ScanMessage::new(scan.read(), scan.partitions())?;
        let codec = DefaultPhysicalExtensionCodec {};
        message.dynamic = scan
            .dynamic()
            .iter()
            .map(|filter| converter.physical_expr_to_proto(filter, &codec))
            .collect::<Result<_>>()?;
        message.encode(bytes).map_err(|error| DataFusionError::External(Box::new(error)))
    }
}

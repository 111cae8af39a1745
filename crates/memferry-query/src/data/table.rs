//! A table in memory: partitions of row groups, and their statistics.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use memferry::topology::NodeId;

use super::{Layout, RowGroup, TableError, group};
use crate::placement::GroupMove;

/// All rows of a table, in memory of the nodes of its columns. Made by a [`TableWriter`](super::TableWriter).
#[derive(Clone, Debug)]
pub struct TableData {
    schema: SchemaRef,
    partitions: Vec<Vec<RowGroup>>,
    home: NodeId,
    /// The answers of [`integers`](TableData::integers): few columns are asked for, and each costs a look at all its rows.
    integers: Vec<OnceLock<Option<RangeInclusive<i64>>>>,
}

/// A row group of which some columns were moved.
pub(crate) struct MovedGroup {
    pub(crate) partition: usize,
    /// Its index in the partition.
    pub(crate) index: usize,
    pub(crate) group: RowGroup,
    /// The columns that were moved.
    pub(crate) columns: Vec<usize>,
}

impl TableData {
    pub(crate) fn new(schema: SchemaRef, partitions: Vec<Vec<RowGroup>>, home: NodeId) -> TableData {
        let integers = vec![OnceLock::new(); schema.fields().len()];
        let home = node_of_most(&partitions, home);
        TableData { schema, partitions, home, integers }
    }

    /// A table that was loaded with `layout`, after a copy of the row groups that its clauses with rows place elsewhere.
    pub(crate) fn placed(
        schema: SchemaRef,
        mut partitions: Vec<Vec<RowGroup>>,
        layout: &Layout,
    ) -> Result<TableData, TableError> {
        let placement = layout.placement.resolve(&schema, &layout.machine)?;
        if placement.names_rows() {
            let targets = placement.of_table(schema.fields().len(), &partitions)?;
            for (group, targets) in partitions.iter_mut().flatten().zip(targets.iter().flatten()) {
                let strays = group.strays(targets);
                if !strays.is_empty() {
                    *group = GroupMove::start(group, strays, &layout.machine)?.copy();
                }
            }
        }
        Ok(TableData::new(schema, partitions, layout.home))
    }

    /// The same rows after moves: `moved` are row groups by partition and index, in which these columns come from.
    pub(crate) fn with_columns(&self, moved: &[MovedGroup]) -> TableData {
        let mut table = self.clone();
        for MovedGroup { partition, index, group, columns } in moved {
            let arrays =
                columns.iter().map(|&column| (column, group.column(column).clone(), group.node(column)));
            let current = &mut table.partitions[*partition][*index];
            *current = current.with_columns(arrays.collect());
        }
        table.home = node_of_most(&table.partitions, table.home);
        table
    }

    /// Names and types of the columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The row groups of each partition; a partition without rows has none.
    pub fn partitions(&self) -> &[Vec<RowGroup>] {
        &self.partitions
    }

    /// The node of most of its bytes: that of the layout unless a placement says otherwise. [`places`](TableData::places) has
    /// all nodes.
    pub fn home(&self) -> NodeId {
        self.home
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.groups().map(RowGroup::rows).sum()
    }

    /// Bytes on all nodes, before the kernel rounds them to pages.
    pub fn size_bytes(&self) -> usize {
        self.groups().map(RowGroup::size_bytes).sum()
    }

    /// The rows as batches of `batch_size`, for tables without groups: `MemTable::try_new(schema, batches)`.
    /// They are slices of the groups, not copies; no batch spans two groups.
    ///
    /// # Panics
    /// If `batch_size` is 0.
    pub fn batches(&self, batch_size: usize) -> Vec<Vec<RecordBatch>> {
        let batches =
            |groups: &Vec<RowGroup>| groups.iter().flat_map(|group| group.batches(batch_size)).collect();
        self.partitions.iter().map(batches).collect()
    }

    /// The statistics of DataFusion's `MemorySourceConfig` over [`batches`](TableData::batches), for the columns `projection`
    /// (`None`: all) of one partition (`None`: the table): exact numbers of rows, nulls and bytes. As there, the bytes of a
    /// group count once per batch: a planner must see no difference. The bytes of encoded columns are those of their values.
    ///
    /// Cost: no row is read.
    ///
    /// # Panics
    /// If `batch_size` is 0 or `projection` names a missing column.
    pub fn statistics(
        &self,
        partition: Option<usize>,
        projection: Option<&[usize]>,
        batch_size: usize,
    ) -> Statistics {
        let columns: Vec<usize> = match projection {
            Some(projection) => projection.to_vec(),
            None => (0..self.schema.fields().len()).collect(),
        };
        let groups: Vec<&RowGroup> = match partition {
            None => self.groups().collect(),
            Some(partition) => match self.partitions.get(partition) {
                Some(groups) => groups.iter().collect(),
                None => {
                    let column_statistics = vec![ColumnStatistics::new_unknown(); columns.len()];
                    return Statistics {
                        num_rows: Precision::Absent,
                        total_byte_size: Precision::Absent,
                        column_statistics,
                    };
                }
            },
        };
        // A batch keeps the whole buffers of its row group alive, but has its own values of an encoded column.
        let bytes = |group: &RowGroup| -> usize {
            let of_column = |&column: &usize| match group.encoding(column) {
                Some(encoding) if encoding.is_chosen() => {
                    group.rows() * encoding.value_bytes() * group.batches_count(batch_size)
                }
                Some(encoding) => group.rows() * encoding.value_bytes(),
                None => group.facts(column).memory_bytes * group.batches_count(batch_size),
            };
            columns.iter().map(of_column).sum()
        };
        let is_encoded = |group: &&RowGroup| columns.iter().any(|&column| group.encoding(column).is_some());
        let size_bytes = groups.iter().map(|group| bytes(group)).sum();
        let column_statistics = columns.iter().map(|&column| {
            let nulls = groups.iter().map(|group| group.facts(column).null_count).sum();
            ColumnStatistics::new_unknown().with_null_count(Precision::Exact(nulls))
        });
        Statistics {
            num_rows: Precision::Exact(groups.iter().map(|group| group.rows()).sum()),
            total_byte_size: match groups.iter().any(is_encoded) {
                true => Precision::Inexact(size_bytes),
                false => Precision::Exact(size_bytes),
            },
            column_statistics: column_statistics.collect(),
        }
    }

    /// Smallest and largest value of a column of integers up to `i64`; `None` for other types, and with nulls.
    ///
    /// Cost: the first call for a column reads all its rows.
    pub(crate) fn integers(&self, column: usize) -> Option<RangeInclusive<i64>> {
        let join = |a: RangeInclusive<i64>, b: RangeInclusive<i64>| {
            *a.start().min(b.start())..=*a.end().max(b.end())
        };
        let found = || {
            let ranges = self.groups().map(|rows| group::integers(rows, column));
            ranges.reduce(|a, b| Some(join(a?, b?))).flatten()
        };
        self.integers[column].get_or_init(found).clone()
    }

    fn groups(&self) -> impl Iterator<Item = &RowGroup> {
        self.partitions.iter().flatten()
    }
}

/// The node with most bytes of these row groups; of equals `home`, and without bytes, too.
fn node_of_most(partitions: &[Vec<RowGroup>], home: NodeId) -> NodeId {
    let mut by_node: BTreeMap<NodeId, usize> = BTreeMap::from([(home, 0)]);
    for group in partitions.iter().flatten() {
        for column in 0..group.batch().num_columns() {
            *by_node.entry(group.node(column)).or_default() += group.column_size_bytes(column);
        }
    }
    let most = by_node.into_iter().max_by_key(|&(node, bytes)| (bytes, node == home));
    most.map_or(home, |(node, _)| node)
}

//! Where the rows of a table are.

use std::collections::BTreeMap;
use std::ops::Range;

use memferry::topology::NodeId;

use crate::data::TableData;

/// The rows of a column on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ColumnPlace {
    /// Name of the column.
    pub column: String,
    /// The node.
    pub node: NodeId,
    /// Number of row groups of the column there.
    pub row_groups: usize,
    /// Their bytes.
    pub size_bytes: u64,
    /// Their rows, ascending. Neighbours are joined.
    pub rows: Vec<Range<usize>>,
}

impl TableData {
    /// Where the columns are: a place for each node that has rows of a column, by column and node.
    pub fn places(&self) -> Vec<ColumnPlace> {
        let of_column = |(column, field): (usize, &std::sync::Arc<arrow::datatypes::Field>)| {
            let mut by_node: BTreeMap<NodeId, ColumnPlace> = BTreeMap::new();
            let mut start = 0;
            for group in self.partitions().iter().flatten() {
                let (node, rows) = (group.node(column), start..start + group.rows());
                start = rows.end;
                let place = by_node.entry(node).or_insert_with(|| ColumnPlace {
                    column: field.name().clone(),
                    node,
                    row_groups: 0,
                    size_bytes: 0,
                    rows: Vec::new(),
                });
                place.row_groups += 1;
                place.size_bytes += group.column_size_bytes(column) as u64;
                match place.rows.last_mut() {
                    Some(last) if last.end == rows.start => last.end = rows.end,
                    _ => place.rows.push(rows),
                }
            }
            by_node.into_values()
        };
        self.schema().fields().iter().enumerate().flat_map(of_column).collect()
    }
}

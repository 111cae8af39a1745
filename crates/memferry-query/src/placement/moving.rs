//! Columns of row groups in memory of other nodes.

use arrow::array::{Array, ArrayRef, make_array};
use arrow::buffer::Buffer;
use memferry::memory::MemoryError;
use memferry::mover::{CopyError, CopyOptions, Mover};
use memferry::topology::{Machine, NodeId};

use super::Targets;
use crate::buffers::{NewBuffer, allocate, rebuild, visit};
use crate::data::RowGroup;

/// A row group with new memory for the columns that come to other nodes. The row group keeps its own until the end.
pub(crate) struct GroupMove {
    group: RowGroup,
    /// The columns and their nodes.
    columns: Vec<(usize, NodeId)>,
    /// The buffers of each column, and their memory.
    buffers: Vec<Vec<(Buffer, NewBuffer)>>,
}

impl RowGroup {
    /// The columns of this group that are not on their targets.
    pub(crate) fn strays(&self, targets: &Targets) -> Vec<(usize, NodeId)> {
        let targets = targets.iter().enumerate().filter_map(|(column, node)| Some((column, (*node)?)));
        targets.filter(|&(column, node)| self.node(column) != node).collect()
    }
}

impl GroupMove {
    /// Allocates the memory, which takes about as long as filling it.
    pub(crate) fn start(
        group: &RowGroup,
        columns: Vec<(usize, NodeId)>,
        machine: &Machine,
    ) -> Result<GroupMove, MemoryError> {
        let sources: Vec<Vec<Buffer>> =
            columns.iter().map(|&(column, _)| buffers(group.column(column))).collect();
        let sizes = |buffers: &Vec<Buffer>| buffers.iter().map(Buffer::len).collect();
        let wanted: Vec<_> =
            columns.iter().zip(&sources).map(|(&(_, node), buffers)| (node, sizes(buffers))).collect();
        let new = allocate(machine, &wanted)?;
        let buffers =
            sources.into_iter().zip(new).map(|(sources, new)| sources.into_iter().zip(new).collect());
        Ok(GroupMove { group: group.clone(), columns, buffers: buffers.collect() })
    }

    /// Copies on this thread.
    pub(crate) fn copy(self) -> RowGroup {
        let copied = |(source, mut new): (Buffer, NewBuffer)| {
            new.as_mut().copy_from_slice(&source);
            new.freeze()
        };
        let copied =
            self.buffers.into_iter().map(|buffers| buffers.into_iter().map(copied).collect()).collect();
        finish(&self.group, &self.columns, copied)
    }

    /// Copies by `mover`. Dropping the future ends nothing that was submitted, and the memory is freed after that.
    pub(crate) async fn copy_by(self, mover: &Mover) -> Result<RowGroup, CopyError> {
        let GroupMove { group, columns, buffers } = self;
        let transfers: Vec<Vec<_>> = columns
            .iter()
            .zip(buffers)
            .map(|(&(column, node), buffers)| {
                let options = CopyOptions {
                    source_node: Some(group.node(column)),
                    target_node: Some(node),
                    ..CopyOptions::default()
                };
                let copy = |(source, new)| mover.copy(Source(source), new, options);
                buffers.into_iter().map(copy).collect()
            })
            .collect();
        let mut copied = Vec::with_capacity(transfers.len());
        for transfers in transfers {
            let mut of_column = Vec::with_capacity(transfers.len());
            for transfer in transfers {
                let (_, new, _) = transfer.await.map_err(|failed| failed.error)?;
                of_column.push(new.freeze());
            }
            copied.push(of_column);
        }
        Ok(finish(&group, &columns, copied))
    }
}

/// The row group over the copies of these columns.
fn finish(group: &RowGroup, columns: &[(usize, NodeId)], copied: Vec<Vec<Buffer>>) -> RowGroup {
    let array = |(&(column, node), copied): (&(usize, NodeId), Vec<Buffer>)| {
        let mut copied = copied.into_iter();
        let mut next = |_: &Buffer| copied.next().expect("there is a copy of each buffer");
        let array: ArrayRef = make_array(rebuild(&group.column(column).to_data(), &mut next));
        (column, array, node)
    };
    group.with_columns(columns.iter().zip(copied).map(array).collect())
}

/// A buffer as source of a copy.
struct Source(Buffer);

impl AsRef<[u8]> for Source {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn buffers(array: &ArrayRef) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    visit(&array.to_data(), &mut |buffer| buffers.push(buffer.clone()));
    buffers
}

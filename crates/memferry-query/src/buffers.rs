//! The buffers of columns: new ones in memory of a node, and the replacement of those of an array.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use memferry::memory::{Binding, Mapping, MemoryError};
use memferry::topology::{Machine, NodeId};

/// Alignment of every buffer: Arrow's recommendation, a cache line, and the widest vector register.
const ALIGNMENT_BYTES: usize = 64;

/// The size of a buffer with what is left free behind it.
pub(crate) fn rounded(size_bytes: usize) -> usize {
    size_bytes.next_multiple_of(ALIGNMENT_BYTES)
}

/// New buffers for columns, given by their nodes and the sizes of their buffers.
///
/// Columns on one node share a mapping, so that a row group has huge pages although its columns are smaller than one.
///
/// Cost: a mapping for each node, none for buffers without bytes.
pub(crate) fn allocate(
    machine: &Machine,
    columns: &[(NodeId, Vec<usize>)],
) -> Result<Vec<Vec<NewBuffer>>, MemoryError> {
    let size_bytes = |sizes: &[usize]| sizes.iter().map(|&size_bytes| rounded(size_bytes)).sum::<usize>();
    let mut by_node: BTreeMap<NodeId, usize> = BTreeMap::new();
    for (node, sizes) in columns {
        *by_node.entry(*node).or_default() += size_bytes(sizes);
    }
    let new = |(node, size_bytes)| -> Result<_, MemoryError> {
        let mapping = Mapping::new(machine, size_bytes, Binding::Bind(node))?;
        Ok((node, (Arc::new(mapping), 0_usize)))
    };
    let with_bytes = by_node.into_iter().filter(|&(_, size_bytes)| size_bytes > 0);
    let mut mappings = with_bytes.map(new).collect::<Result<BTreeMap<_, _>, MemoryError>>()?;
    let of_column = |(node, sizes): &(NodeId, Vec<usize>)| -> Vec<NewBuffer> {
        let Some((mapping, end)) = mappings.get_mut(node) else {
            return sizes.iter().map(|_| NewBuffer { memory: None, bytes: 0..0 }).collect();
        };
        let mut start = *end;
        *end += size_bytes(sizes);
        let memory = Arc::new(ColumnMemory { mapping: Arc::clone(mapping), bytes: start..*end });
        let of_buffer = |&size_bytes: &usize| {
            let bytes = start..start + size_bytes;
            start += rounded(size_bytes);
            NewBuffer { memory: (size_bytes > 0).then(|| Arc::clone(&memory)), bytes }
        };
        sizes.iter().map(of_buffer).collect()
    };
    Ok(columns.iter().map(of_column).collect())
}

/// The memory of a column in a mapping that it shares with other columns. Its pages are freed when no buffer refers to it
/// any more, so that a column that was moved elsewhere takes no memory here.
#[derive(Debug)]
struct ColumnMemory {
    mapping: Arc<Mapping>,
    /// Those of no other column.
    bytes: Range<usize>,
}

impl Drop for ColumnMemory {
    fn drop(&mut self) {
        // The last column unmaps everything.
        if Arc::strong_count(&self.mapping) > 1 {
            // SAFETY: each buffer of the column keeps this value, so none is left; and `allocate` gave the bytes to no other
            // column. If the pages stay, they are freed with the mapping.
            let _ = unsafe { self.mapping.discard(self.bytes.clone()) };
        }
    }
}

/// A buffer to be filled: the only access to its bytes.
#[derive(Debug)]
pub(crate) struct NewBuffer {
    /// `None` without bytes.
    memory: Option<Arc<ColumnMemory>>,
    /// In the mapping; those of no other buffer.
    bytes: Range<usize>,
}

impl NewBuffer {
    /// The buffer, which is not written any more.
    pub(crate) fn freeze(self) -> Buffer {
        let all = 0..self.bytes.len();
        self.freeze_parts()(all)
    }

    /// Buffers of parts of it, which is not written any more: each is as large as its part.
    pub(crate) fn freeze_parts(self) -> impl Fn(Range<usize>) -> Buffer {
        move |part| {
            let Some(memory) = &self.memory else { return Buffer::default() };
            assert!(part.start <= part.end && part.end <= self.bytes.len(), "{part:?} of {:?}", self.bytes);
            // SAFETY: the part lies within the bytes, and these within the mapping, which the buffer owns a share of, so they
            // stay mapped, and are initialised. Only this value could write them, and their pages are discarded when no
            // buffer of the column is left.
            unsafe {
                let start = self.start().add(part.start);
                Buffer::from_custom_allocation(start, part.len(), Arc::clone(memory) as _)
            }
        }
    }

    fn start(&self) -> NonNull<u8> {
        let Some(memory) = &self.memory else { return NonNull::dangling() };
        let start = memory.mapping.as_ptr().cast_mut().wrapping_add(self.bytes.start);
        NonNull::new(start).expect("no mapping contains address 0")
    }
}

impl AsMut<[u8]> for NewBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes lie within the mapping, initialised by the kernel, and `allocate` gave them to this value alone,
        // which is borrowed exclusively; it makes no slices of a mapping that it has shared.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.bytes.len()) }
    }
}

/// Calls `each` for every buffer of an array in a fixed order: buffers, validity, children.
pub(crate) fn visit(data: &ArrayData, each: &mut impl FnMut(&Buffer)) {
    data.buffers().iter().for_each(&mut *each);
    if let Some(nulls) = data.nulls() {
        each(nulls.inner().inner());
    }
    for child in data.child_data() {
        visit(child, each);
    }
}

/// The array over other buffers, requested in the order of [`visit`]. Each must hold the bytes of the one it replaces.
pub(crate) fn rebuild(data: &ArrayData, replace: &mut impl FnMut(&Buffer) -> Buffer) -> ArrayData {
    let buffers = data.buffers().iter().map(&mut *replace).collect();
    let nulls = data.nulls().map(|nulls| {
        let bits = nulls.inner();
        let moved = BooleanBuffer::new(replace(bits.inner()), bits.offset(), bits.len());
        // SAFETY: the bits are those of `nulls`, so their null count is the same.
        unsafe { NullBuffer::new_unchecked(moved, nulls.null_count()) }
    });
    let children = data.child_data().iter().map(|child| rebuild(child, replace)).collect();
    let builder = ArrayData::builder(data.data_type().clone())
        .len(data.len())
        .offset(data.offset())
        .buffers(buffers)
        .nulls(nulls)
        .child_data(children);
    // SAFETY: type, length and offset are those of a valid array, and every buffer holds the same bytes as the one it
    // replaces, in memory that is aligned at least as strictly (cache blocks and columns are 64-byte aligned).
    unsafe { builder.build_unchecked() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_without_buffers_has_no_memory() {
        let machine = Machine::discover().unwrap();
        let node = machine.nodes()[0].id;
        let half = 512 << 10;
        let new = allocate(&machine, &[(node, vec![64, half - 64]), (node, vec![0, half])]).unwrap();
        let buffers: Vec<Buffer> = new
            .into_iter()
            .flatten()
            .map(|mut buffer| {
                buffer.as_mut().fill(3);
                buffer.freeze()
            })
            .collect();
        let [one, other, empty, kept]: [_; 4] = buffers.try_into().unwrap();
        assert_eq!((one.len(), empty.len()), (64, 0));
        assert_eq!(kept.as_ptr().addr(), one.as_ptr().addr() + half, "they share a mapping");
        // SAFETY: `kept` keeps the mapping, in which this column lies before it. Nobody writes to it.
        let column = unsafe { slice::from_raw_parts(kept.as_ptr().sub(half), half) };
        let zeros = || column.iter().filter(|&&byte| byte == 0).count();
        drop(one);
        assert_eq!((zeros(), other[0]), (0, 3), "a buffer refers to it");
        drop(other);
        assert_eq!(zeros(), half, "its pages are new ones");
        assert!(kept.iter().all(|&byte| byte == 3));
    }
}

//! A decoded column in the memory of a node, as an entry of the cache: it may be evicted, and is then decoded again.
//!
//! The form of the array is kept here, its bytes are in the cache. They are written once, joined and without what the pieces
//! had beside them: the size of the entry is that of the values.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use memferry::cache::{Cache, Entry, Keep, MadeRegion};
use memferry::topology::NodeId;

use super::draft::{Draft, Shape};

/// Maximum of 32-bit offsets.
const OFFSET_MAX: usize = i32::MAX as usize;

/// Whether columns of this type can be kept.
pub(crate) fn is_keepable(data_type: &DataType) -> bool {
    super::draft::is_supported(data_type)
}

/// A column that was kept. Each array of it holds the entry, which is not evicted meanwhile.
#[derive(Debug)]
pub(crate) struct KeptArray {
    shape: Shape,
    /// The group and the name of the entry. `None` for an array without bytes.
    entry: Option<(Arc<MadeRegion>, Range<usize>)>,
    node: NodeId,
    size_bytes: usize,
}

/// Why a column was not kept.
#[derive(Debug)]
pub(crate) enum NotKept {
    /// There is no room for that many bytes.
    NoRoom { size_bytes: usize },
    /// Its values are too long for one array, or the node has no budget.
    Unsuitable,
}

impl KeptArray {
    /// Keeps `pieces`, at least one, of one keepable type, as one array.
    pub(crate) fn keep(
        cache: &Cache,
        made: &Arc<MadeRegion>,
        pieces: &[ArrayRef],
        how: Keep,
    ) -> Result<KeptArray, NotKept> {
        let draft = Draft::new(pieces, OFFSET_MAX).map_err(|_| NotKept::Unsuitable)?;
        let mut size_bytes = 0;
        let shape = draft.shape(&mut size_bytes);
        let node = how.node;
        if size_bytes == 0 {
            return Ok(KeptArray { shape, entry: None, node, size_bytes });
        }
        let write = |memory: &mut [u8]| draft.write(&shape, memory);
        match cache.keep(made, size_bytes, how, write) {
            Ok(Some(entry)) => {
                Ok(KeptArray { shape, entry: Some((Arc::clone(made), entry.range())), node, size_bytes })
            }
            Ok(None) => Err(NotKept::NoRoom { size_bytes }),
            Err(_) => Err(NotKept::Unsuitable),
        }
    }

    /// Its bytes in the cache.
    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The column, without a copy; `None` if it was evicted.
    pub(crate) fn array(&self, cache: &Cache) -> Option<ArrayRef> {
        let Some((made, name)) = &self.entry else {
            // SAFETY: the draft had no bytes, so no buffer is asked for.
            return Some(unsafe { self.shape.array(&|_| Buffer::default()) });
        };
        let entry = cache.kept(made, name.clone(), self.node).ok()??;
        // SAFETY: names are given out once, so these are the bytes that `keep` wrote for this shape.
        Some(unsafe { self.shape.array(&|range| buffer(&entry, range)) })
    }
}

/// Holds an entry as long as Arrow refers to it.
struct Held {
    _entry: Entry,
}

// Arrow requires this of owners of foreign memory. The owner is only dropped.
impl std::panic::RefUnwindSafe for Held {}

fn buffer(entry: &Entry, range: Range<usize>) -> Buffer {
    let bytes = &entry.as_slice()[range];
    let (address, len) = (NonNull::from(bytes).cast::<u8>(), bytes.len());
    // SAFETY: the entry is ready, which is final: its bytes stay where they are and are not written while a clone of the
    // entry lives, and the buffer owns one. `len` bytes from `address` are within that slice. Blocks begin at a page, and
    // places at a multiple of 64 bytes.
    unsafe { Buffer::from_custom_allocation(address, len, Arc::new(Held { _entry: entry.clone() })) }
}

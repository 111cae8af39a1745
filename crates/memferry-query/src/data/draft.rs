//! Joins pieces of columns to the arrays of one row group: a draft computes all sizes, then memory of exactly that size is
//! allocated, then each byte is copied once.
//!
//! A draft normalises: arrays start at offset 0, offsets at value 0, a list's values hold only those of its
//! rows, long strings of views lie in one buffer that holds nothing else, and validity exists only with
//! nulls. A dictionary is kept whole; pieces with different dictionaries get a common one. The buffers of views are kept
//! whole, too, if they are smaller than the strings one after the other: many rows then share a string.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, GenericByteArray, GenericListArray, OffsetSizeTrait, make_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, OffsetBuffer};
use arrow::compute::concat;
use arrow::datatypes::{
    BinaryType, BinaryViewType, ByteArrayType, ByteViewType, DataType, LargeBinaryType, LargeUtf8Type,
    StringViewType, Utf8Type,
};
use memferry::memory::MemoryError;
use memferry::topology::{Machine, NodeId};

use super::source::{Offset, Source, ViewPiece};
use crate::buffers::{allocate, rounded};

/// More values or bytes than the offsets of the type can count.
#[derive(Debug)]
pub(super) struct TooLong;

/// Whether drafts support arrays of this type.
pub(super) fn is_supported(data_type: &DataType) -> bool {
    match data_type {
        DataType::Union(..)
        | DataType::RunEndEncoded(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_) => false,
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => is_supported(field.data_type()),
        DataType::Struct(fields) => fields.iter().all(|field| is_supported(field.data_type())),
        DataType::Dictionary(_, values) => is_supported(values),
        _ => true,
    }
}

/// A future array: its pieces, sorted by target buffer.
pub(super) struct Draft {
    data_type: DataType,
    rows: usize,
    nulls: Option<Source>,
    null_count: usize,
    buffers: Vec<Source>,
    children: Vec<Draft>,
}

impl Draft {
    /// A draft of `pieces` joined; nothing is copied yet.
    ///
    /// Shapes: at least one piece, all of one [supported](is_supported) type. No more than `offset_max` bytes or
    /// values in one buffer that 32-bit offsets point into.
    pub(super) fn new(pieces: &[ArrayRef], offset_max: usize) -> Result<Draft, TooLong> {
        let mut draft = Draft {
            data_type: pieces[0].data_type().clone(),
            rows: pieces.iter().map(|piece| piece.len()).sum(),
            nulls: None,
            null_count: pieces.iter().map(|piece| piece.null_count()).sum(),
            buffers: Vec::new(),
            children: Vec::new(),
        };
        match draft.data_type.clone() {
            DataType::Null => {}
            DataType::Boolean => {
                let bits = pieces.iter().map(|piece| piece.as_boolean().values().clone()).collect();
                draft.buffers.push(Source::Bits(bits));
            }
            DataType::Utf8 => draft.add_bytes::<Utf8Type>(pieces, offset_max)?,
            DataType::LargeUtf8 => draft.add_bytes::<LargeUtf8Type>(pieces, offset_max)?,
            DataType::Binary => draft.add_bytes::<BinaryType>(pieces, offset_max)?,
            DataType::LargeBinary => draft.add_bytes::<LargeBinaryType>(pieces, offset_max)?,
            DataType::Utf8View => draft.add_views::<StringViewType>(pieces, offset_max)?,
            DataType::BinaryView => draft.add_views::<BinaryViewType>(pieces, offset_max)?,
            DataType::List(_) => draft.add_list::<i32>(pieces, offset_max)?,
            DataType::LargeList(_) => draft.add_list::<i64>(pieces, offset_max)?,
            DataType::Map(..) => {
                let maps = pieces.iter().map(|piece| piece.as_map());
                let entries = maps
                    .clone()
                    .map(|map| referred(map.offsets(), &(Arc::new(map.entries().clone()) as ArrayRef)));
                draft.add_child(&entries.collect::<Vec<_>>(), offset_max)?;
                draft.add_offsets(maps.map(|map| map.offsets().clone()).collect(), offset_max)?;
            }
            DataType::FixedSizeList(..) => {
                let values = pieces.iter().map(|piece| piece.as_fixed_size_list().values().clone());
                draft.add_child(&values.collect::<Vec<_>>(), offset_max)?;
            }
            DataType::Struct(fields) => {
                for field in 0..fields.len() {
                    let values = pieces.iter().map(|piece| piece.as_struct().column(field).clone());
                    draft.add_child(&values.collect::<Vec<_>>(), offset_max)?;
                }
            }
            DataType::Dictionary(..) => draft.add_dictionary(&with_one_dictionary(pieces)?, offset_max)?,
            _ => draft.buffers.push(fixed_width(pieces)),
        }
        if draft.null_count > 0 {
            let bits = pieces.iter().map(|piece| match piece.nulls() {
                Some(nulls) => nulls.inner().clone(),
                None => BooleanBuffer::new_set(piece.len()),
            });
            draft.nulls = Some(Source::Bits(bits.collect()));
        }
        Ok(draft)
    }

    fn add_child(&mut self, pieces: &[ArrayRef], offset_max: usize) -> Result<(), TooLong> {
        self.children.push(Draft::new(pieces, offset_max)?);
        Ok(())
    }

    fn add_offsets<O: Offset>(
        &mut self,
        pieces: Vec<OffsetBuffer<O>>,
        offset_max: usize,
    ) -> Result<(), TooLong> {
        let end: usize = pieces.iter().map(|piece| range(piece).len()).sum();
        if !O::IS_LARGE && end > offset_max {
            return Err(TooLong);
        }
        self.buffers.push(O::source(pieces));
        Ok(())
    }

    fn add_bytes<T: ByteArrayType<Offset: Offset>>(
        &mut self,
        pieces: &[ArrayRef],
        offset_max: usize,
    ) -> Result<(), TooLong> {
        let arrays = pieces.iter().map(|piece| piece.as_bytes::<T>());
        self.add_offsets(arrays.clone().map(|array| array.offsets().clone()).collect(), offset_max)?;
        let bytes = |array: &GenericByteArray<T>| {
            let Range { start, end } = range(array.offsets());
            array.values().slice_with_length(start, end - start)
        };
        self.buffers.push(Source::Bytes(arrays.map(bytes).collect()));
        Ok(())
    }

    fn add_views<T: ByteViewType>(&mut self, pieces: &[ArrayRef], offset_max: usize) -> Result<(), TooLong> {
        let views = pieces.iter().map(|piece| piece.as_byte_view::<T>());
        let mut pieces: Vec<ViewPiece> = views.map(ViewPiece::new).collect();
        let strings_bytes: usize = pieces.iter().map(|piece| piece.strings_bytes).sum();
        let mut buffers: Vec<Buffer> = Vec::new();
        let mut places = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let place = |buffer: &Buffer| {
                let known =
                    buffers.iter().position(|known| known.ptr_eq(buffer) && known.len() == buffer.len());
                known.unwrap_or_else(|| {
                    buffers.push(buffer.clone());
                    buffers.len() - 1
                }) as u32
            };
            places.push(piece.buffers.iter().map(place).collect::<Vec<_>>());
        }
        let is_shared = buffers.iter().map(Buffer::len).sum::<usize>() < strings_bytes;
        if is_shared {
            pieces.iter_mut().zip(places).for_each(|(piece, places)| piece.places = Some(places));
            self.buffers.push(Source::Views(pieces));
            self.buffers.extend(buffers.into_iter().map(|buffer| Source::Bytes(vec![buffer])));
            return Ok(());
        }
        if strings_bytes > offset_max {
            return Err(TooLong);
        }
        self.buffers.push(Source::Views(pieces.clone()));
        if strings_bytes > 0 {
            self.buffers.push(Source::Strings(pieces));
        }
        Ok(())
    }

    fn add_list<O: Offset>(&mut self, pieces: &[ArrayRef], offset_max: usize) -> Result<(), TooLong> {
        let lists = pieces.iter().map(|piece| piece.as_list::<O>());
        let values = |list: &GenericListArray<O>| referred(list.offsets(), list.values());
        self.add_child(&lists.clone().map(values).collect::<Vec<_>>(), offset_max)?;
        self.add_offsets(lists.map(|list| list.offsets().clone()).collect(), offset_max)
    }

    /// Shapes: all pieces have the same dictionary.
    fn add_dictionary(&mut self, pieces: &[ArrayRef], offset_max: usize) -> Result<(), TooLong> {
        let keys = pieces.iter().map(|piece| make_array(piece.as_any_dictionary().keys().to_data()));
        self.buffers.push(fixed_width(&keys.collect::<Vec<_>>()));
        self.add_child(&[pieces[0].as_any_dictionary().values().clone()], offset_max)
    }

    /// Places its buffers one after the other, the first one at `end`, which moves behind the last one.
    pub(super) fn shape(&self, end: &mut usize) -> Shape {
        let mut range = |source: &Source| {
            let start = *end;
            let size_bytes = source.size_bytes();
            *end = rounded(start + size_bytes);
            start..start + size_bytes
        };
        Shape {
            data_type: self.data_type.clone(),
            rows: self.rows,
            nulls: self.nulls.as_ref().map(&mut range),
            null_count: self.null_count,
            buffers: self.buffers.iter().map(&mut range).collect(),
            children: self.children.iter().map(|child| child.shape(end)).collect(),
        }
    }

    /// Writes its buffers to their places.
    ///
    /// Shapes: `shape` is that of this draft; what is in `memory` before does not matter.
    pub(super) fn write(&self, shape: &Shape, memory: &mut [u8]) {
        let own = self.nulls.iter().zip(&shape.nulls).chain(self.buffers.iter().zip(&shape.buffers));
        own.for_each(|(source, range)| source.write(&mut memory[range.clone()]));
        self.children.iter().zip(&shape.children).for_each(|(child, shape)| child.write(shape, memory));
    }
}

/// The form of an array, and where its buffers are in the memory that a draft was written to.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    data_type: DataType,
    rows: usize,
    nulls: Option<Range<usize>>,
    null_count: usize,
    buffers: Vec<Range<usize>>,
    children: Vec<Shape>,
}

impl Shape {
    /// The array over the buffers that `buffer` returns for their places.
    ///
    /// # Safety
    /// They hold what [`Draft::write`] wrote to these places for the draft of this shape.
    pub(super) unsafe fn array(&self, buffer: &impl Fn(Range<usize>) -> Buffer) -> ArrayRef {
        // SAFETY: passed on to the caller.
        make_array(unsafe { self.build(buffer) })
    }

    /// # Safety
    /// As for [`array`](Shape::array).
    unsafe fn build(&self, buffer: &impl Fn(Range<usize>) -> Buffer) -> ArrayData {
        let buffer_at = |range: &Range<usize>| match range.is_empty() {
            true => Buffer::default(),
            false => buffer(range.clone()),
        };
        let builder = ArrayData::builder(self.data_type.clone())
            .len(self.rows)
            .null_count(self.null_count)
            .null_bit_buffer(self.nulls.as_ref().map(buffer_at))
            .buffers(self.buffers.iter().map(buffer_at).collect())
            // SAFETY: passed on to the caller.
            .child_data(self.children.iter().map(|child| unsafe { child.build(buffer) }).collect());
        // SAFETY: the pieces were valid arrays of this type, which Arrow guarantees of every array made by safe code.
        // Joining them keeps what makes an array valid: `Source` wrote as many values as there are rows (asserted on
        // sizes), offsets ascend from 0 to the length of what they point into, long views point at the strings they
        // pointed at before, keys at the same dictionary, and strings were copied whole, so they are UTF-8 still. The
        // caller returns the bytes that were written.
        unsafe { builder.build_unchecked() }
    }
}

/// A column in memory.
pub(super) struct PlacedColumn {
    pub(super) array: ArrayRef,
    /// Bytes of its buffers, each rounded up to the alignment.
    pub(super) size_bytes: usize,
    pub(super) node: NodeId,
}

/// The arrays of `drafts`, each in memory of its node.
pub(super) fn place(
    drafts: &[Draft],
    machine: &Machine,
    nodes: &[NodeId],
) -> Result<Vec<PlacedColumn>, MemoryError> {
    let shape = |draft: &Draft| {
        let mut end = 0;
        (draft.shape(&mut end), end)
    };
    let shapes: Vec<(Shape, usize)> = drafts.iter().map(shape).collect();
    let columns: Vec<_> = nodes.iter().zip(&shapes).map(|(&node, &(_, end))| (node, vec![end])).collect();
    let new = allocate(machine, &columns)?.into_iter().flatten();
    let placed = drafts.iter().zip(shapes).zip(new).zip(nodes);
    let placed = placed.map(|(((draft, (shape, size_bytes)), mut new), &node)| {
        draft.write(&shape, new.as_mut());
        let buffer = new.freeze_parts();
        // SAFETY: the draft was written to this memory, by this shape.
        PlacedColumn { array: unsafe { shape.array(&buffer) }, size_bytes, node }
    });
    Ok(placed.collect())
}

/// The range of values that the offsets cover.
fn range<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>) -> Range<usize> {
    offsets[0].as_usize()..offsets[offsets.len() - 1].as_usize()
}

fn referred<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, values: &ArrayRef) -> ArrayRef {
    let Range { start, end } = range(offsets);
    values.slice(start, end - start)
}

fn fixed_width(pieces: &[ArrayRef]) -> Source {
    let bytes = |piece: &ArrayRef| {
        let width = match piece.data_type() {
            DataType::FixedSizeBinary(width) => *width as usize,
            data_type => {
                data_type.primitive_width().unwrap_or_else(|| unreachable!("{data_type} has no fixed width"))
            }
        };
        let data = piece.to_data();
        data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
    };
    Source::Bytes(pieces.iter().map(bytes).collect())
}

/// The same values; if the pieces have different dictionaries, one piece with all of them merged.
fn with_one_dictionary(pieces: &[ArrayRef]) -> Result<Vec<ArrayRef>, TooLong> {
    let dictionary = |piece: &ArrayRef| piece.as_any_dictionary().values().to_data();
    let first = dictionary(&pieces[0]);
    if pieces[1..].iter().all(|piece| dictionary(piece).ptr_eq(&first)) {
        return Ok(pieces.to_vec());
    }
    let pieces: Vec<&dyn Array> = pieces.iter().map(|piece| piece.as_ref()).collect();
    // It fails if there are more values than the type of the keys can count; fewer rows may have fewer values.
    Ok(vec![concat(&pieces).map_err(|_| TooLong)?])
}

//! Pieces of arrays for one buffer: their size, and writing them.
//!
//! Pieces refer to their arrays, without copies.

use arrow::array::{Array, ByteView, GenericByteViewArray, MAX_INLINE_VIEW_LEN, OffsetSizeTrait};
use arrow::buffer::{BooleanBuffer, Buffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{ByteViewType, ToByteSlice};
use arrow::util::{bit_mask, bit_util};

/// The content of one buffer: pieces, to be joined in their order.
pub(super) enum Source {
    /// Values of a fixed width, or the bytes of strings.
    Bytes(Vec<Buffer>),
    /// Booleans or validity, a bit a row.
    Bits(Vec<BooleanBuffer>),
    /// 32-bit offsets; joined they start at 0.
    Offsets32(Vec<OffsetBuffer<i32>>),
    /// 64-bit offsets; joined they start at 0.
    Offsets64(Vec<OffsetBuffer<i64>>),
    /// Views; joined, the long ones point into the buffers of the pieces, or into one buffer, that of `Strings` over the same
    /// pieces.
    Views(Vec<ViewPiece>),
    /// The strings too long for their views, one after the other.
    Strings(Vec<ViewPiece>),
}

impl Source {
    pub(super) fn size_bytes(&self) -> usize {
        match self {
            Source::Bytes(pieces) => pieces.iter().map(Buffer::len).sum(),
            Source::Bits(pieces) => bit_util::ceil(pieces.iter().map(BooleanBuffer::len).sum(), 8),
            Source::Offsets32(pieces) => offsets_size_bytes(pieces),
            Source::Offsets64(pieces) => offsets_size_bytes(pieces),
            Source::Views(pieces) => pieces.iter().map(|piece| size_of_val::<[u128]>(&piece.views)).sum(),
            Source::Strings(pieces) => pieces.iter().map(|piece| piece.strings_bytes).sum(),
        }
    }

    /// Writes the joined pieces.
    ///
    /// Shapes: `target` is [`size_bytes`](Source::size_bytes) long; its content does not matter.
    pub(super) fn write(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.size_bytes(), "a buffer is as long as its content");
        match self {
            Source::Bytes(pieces) => write_all(target, pieces.iter().map(Buffer::as_slice)),
            Source::Bits(pieces) => {
                // Bits are set one by one.
                target.fill(0);
                write_bits(target, pieces);
            }
            Source::Offsets32(pieces) => write_offsets(target, pieces),
            Source::Offsets64(pieces) => write_offsets(target, pieces),
            Source::Views(pieces) => write_views(target, pieces),
            Source::Strings(pieces) => write_strings(target, pieces),
        }
    }
}

/// Offsets of Arrow: `i32` or `i64`.
pub(super) trait Offset: OffsetSizeTrait {
    fn source(pieces: Vec<OffsetBuffer<Self>>) -> Source;
}

impl Offset for i32 {
    fn source(pieces: Vec<OffsetBuffer<i32>>) -> Source {
        Source::Offsets32(pieces)
    }
}

impl Offset for i64 {
    fn source(pieces: Vec<OffsetBuffer<i64>>) -> Source {
        Source::Offsets64(pieces)
    }
}

/// String or binary views, and the buffers they point into.
#[derive(Clone)]
pub(super) struct ViewPiece {
    /// Those of nulls are empty, since their strings are not kept.
    views: ScalarBuffer<u128>,
    pub(super) buffers: Vec<Buffer>,
    /// Of the strings too long for their views.
    pub(super) strings_bytes: usize,
    /// Where `buffers` are among those of the joined array; `None` if that has one buffer of strings.
    pub(super) places: Option<Vec<u32>>,
}

impl ViewPiece {
    pub(super) fn new<T: ByteViewType>(array: &GenericByteViewArray<T>) -> ViewPiece {
        let views = match array.nulls() {
            None => array.views().clone(),
            Some(nulls) => {
                let valid = nulls.iter().zip(array.views());
                valid.map(|(valid, &view)| if valid { view } else { 0 }).collect()
            }
        };
        let strings_bytes = views.iter().filter(|&&view| is_long(view)).map(|&view| length(view)).sum();
        ViewPiece { views, buffers: array.data_buffers().to_vec(), strings_bytes, places: None }
    }
}

/// The low half of a view's low word is the string's length; up to 12 bytes are in the view itself.
fn length(view: u128) -> usize {
    view as u32 as usize
}

fn is_long(view: u128) -> bool {
    view as u32 > MAX_INLINE_VIEW_LEN
}

/// A long view with its string elsewhere. Its high half is the position of the buffer and, above it, the offset in that.
fn pointing(view: u128, buffer: u32, offset: u32) -> u128 {
    u128::from(view as u64) | u128::from(buffer) << 64 | u128::from(offset) << 96
}

fn write_all<'a>(target: &mut [u8], parts: impl Iterator<Item = &'a [u8]>) {
    let mut end = 0;
    for part in parts {
        target[end..end + part.len()].copy_from_slice(part);
        end += part.len();
    }
}

fn write_bits(target: &mut [u8], pieces: &[BooleanBuffer]) {
    let mut end = 0;
    for piece in pieces {
        bit_mask::set_bits(target, piece.values(), end, piece.offset(), piece.len());
        end += piece.len();
    }
}

fn offsets_size_bytes<O: OffsetSizeTrait>(pieces: &[OffsetBuffer<O>]) -> usize {
    let rows: usize = pieces.iter().map(|piece| piece.len() - 1).sum();
    (rows + 1) * size_of::<O>()
}

fn write_offsets<O: OffsetSizeTrait>(target: &mut [u8], pieces: &[OffsetBuffer<O>]) {
    let (first, others) = target.split_at_mut(size_of::<O>());
    first.fill(0);
    let mut targets = others.chunks_exact_mut(size_of::<O>());
    let mut end = 0;
    for piece in pieces {
        let first = piece[0].as_usize();
        for (&offset, target) in piece[1..].iter().zip(&mut targets) {
            let joined = O::usize_as(end + offset.as_usize() - first);
            target.copy_from_slice(joined.to_byte_slice());
        }
        end += piece[piece.len() - 1].as_usize() - first;
    }
}

fn write_views(target: &mut [u8], pieces: &[ViewPiece]) {
    let joined: Vec<Buffer> = joined_views(pieces).map(ScalarBuffer::into_inner).collect();
    write_all(target, joined.iter().map(Buffer::as_slice));
}

fn joined_views(pieces: &[ViewPiece]) -> impl Iterator<Item = ScalarBuffer<u128>> {
    let mut end = 0;
    pieces.iter().map(move |piece| {
        // Most columns of short strings have no long one, and a single piece of a dictionary stays as it is.
        let stays = |places: &Vec<u32>| places.iter().zip(0..).all(|(&place, index)| place == index);
        if piece.strings_bytes == 0 || piece.places.as_ref().is_some_and(stays) {
            return piece.views.clone();
        }
        let mut views = piece.views.to_vec();
        for view in &mut views {
            if !is_long(*view) {
                continue;
            }
            *view = match &piece.places {
                Some(places) => {
                    let ByteView { buffer_index, offset, .. } = ByteView::from(*view);
                    pointing(*view, places[buffer_index as usize], offset)
                }
                None => {
                    let start = end;
                    end += *view as u32;
                    pointing(*view, 0, start)
                }
            };
        }
        views.into()
    })
}

/// A plain loop: this runs once per string, and the profile of development inlines no iterators here.
fn write_strings(target: &mut [u8], pieces: &[ViewPiece]) {
    let mut end = 0;
    for piece in pieces {
        let buffers: Vec<&[u8]> = piece.buffers.iter().map(Buffer::as_slice).collect();
        for &view in &*piece.views {
            if is_long(view) {
                let ByteView { length, buffer_index, offset, .. } = ByteView::from(view);
                let (start, length) = (offset as usize, length as usize);
                target[end..end + length]
                    .copy_from_slice(&buffers[buffer_index as usize][start..start + length]);
                end += length;
            }
        }
    }
}

//! The memory of a request: slices, or cells if several requests of a batch share it.

use std::cell::Cell;
use std::marker::PhantomData;

/// Bytes that a request reads.
///
/// From a slice, or from cells of bytes: `Cell::from_mut(&mut bytes[..]).as_slice_of_cells()` may be the target of one
/// member of a batch and the source of another.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    pub(super) start: *const u8,
    pub(super) size_bytes: usize,
    pub(super) is_cells: bool,
    borrow: PhantomData<&'a [Cell<u8>]>,
}

/// Bytes that a request writes: a mutably borrowed slice, or cells.
///
/// ```
/// use memferry_dsa::{Source, Target};
///
/// let (source, mut target) = (vec![1u8; 8], [0u8; 8]);
/// let (_read, _written) = (Source::from(&source), Target::from(&mut target));
/// ```
#[derive(Debug)]
pub struct Target<'a> {
    pub(super) start: *mut u8,
    pub(super) size_bytes: usize,
    pub(super) is_cells: bool,
    borrow: PhantomData<&'a [Cell<u8>]>,
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Source<'a> {
        Source { start: bytes.as_ptr(), size_bytes: bytes.len(), is_cells: false, borrow: PhantomData }
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Source<'a> {
        bytes.as_slice().into()
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Source<'a> {
        bytes.as_slice().into()
    }
}

impl<'a> From<&'a [Cell<u8>]> for Source<'a> {
    fn from(cells: &'a [Cell<u8>]) -> Source<'a> {
        Source { start: cells.as_ptr().cast(), size_bytes: cells.len(), is_cells: true, borrow: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Target<'a> {
        Target { start: bytes.as_mut_ptr(), size_bytes: bytes.len(), is_cells: false, borrow: PhantomData }
    }
}

impl<'a> From<&'a mut Vec<u8>> for Target<'a> {
    fn from(bytes: &'a mut Vec<u8>) -> Target<'a> {
        bytes.as_mut_slice().into()
    }
}

impl<'a, const N: usize> From<&'a mut [u8; N]> for Target<'a> {
    fn from(bytes: &'a mut [u8; N]) -> Target<'a> {
        bytes.as_mut_slice().into()
    }
}

impl<'a> From<&'a [Cell<u8>]> for Target<'a> {
    fn from(cells: &'a [Cell<u8>]) -> Target<'a> {
        // Cells may be written through a shared borrow, by the one thread that has it.
        Target {
            start: cells.as_ptr().cast_mut().cast(),
            size_bytes: cells.len(),
            is_cells: true,
            borrow: PhantomData,
        }
    }
}

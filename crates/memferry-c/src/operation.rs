//! Operations and their results.

use std::ffi::c_void;
use std::slice;

use memferry::mover::{
    Batch, Consumer, CopyError, CopyOptions, CopyReport, Mover, Operation, OperationError, Route,
};
use memferry::topology::NodeId;
use memferry_dsa::software::{CrcMode, Delta, DeltaError, Mismatch};
use memferry_dsa::{
    DifFormat, DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags, Outcome, Request,
};

use crate::error::{Error, mf_status};
use crate::machine::mf_node;
use crate::transfer::{Finish, mf_callback};

/// An operation. The comment names the used fields of `mf_operation` and the meaning of `mf_result::value`.
///
/// A program may pass any number: others are refused with `MF_INVALID_ARGUMENT`.
pub type mf_opcode = u32;

/// Nothing.
pub const MF_NOOP: mf_opcode = 0x00;
/// `size` bytes from `source` to `target`. Large copies are split over engines.
pub const MF_COPY: mf_opcode = 0x03;
/// `target` with the 8 bytes of `pattern`.
pub const MF_FILL: mf_opcode = 0x04;
/// `target` with the 16 bytes of `pattern` and `pattern_high`.
pub const MF_FILL_16: mf_opcode = 0x104;
/// `source` with `source_2`: `MF_EQUAL`, or `MF_DIFFERENT` at `value`.
pub const MF_COMPARE: mf_opcode = 0x05;
/// `source` with `pattern`: `MF_EQUAL`, or `MF_DIFFERENT` at `value`.
pub const MF_COMPARE_PATTERN: mf_opcode = 0x06;
/// The differences of `source_2` (new) to `source` (old), written to `target` with room for `target_size` bytes.
pub const MF_CREATE_DELTA: mf_opcode = 0x07;
/// The record `source` of `size` bytes, applied to `target` of `target_size` bytes.
pub const MF_APPLY_DELTA: mf_opcode = 0x08;
/// `source` to `target` and `target_2`, whose addresses are equal modulo 4096.
pub const MF_DUALCAST: mf_opcode = 0x09;
/// The CRC-32C of `source`, from `seed`: `value`.
pub const MF_CRC: mf_opcode = 0x10;
/// `source` to `target`, and its CRC-32C: `value`.
pub const MF_COPY_CRC: mf_opcode = 0x11;
/// `source` with fields: `MF_DONE` or `MF_DIF_MISMATCH`.
pub const MF_DIF_CHECK: mf_opcode = 0x12;
/// `source` to `target` (`target_size` bytes), with fields added.
pub const MF_DIF_INSERT: mf_opcode = 0x13;
/// `source` with fields, checked, to `target` (`target_size` bytes) without.
pub const MF_DIF_STRIP: mf_opcode = 0x14;
/// `source` with fields, checked, to `target` with new ones.
pub const MF_DIF_UPDATE: mf_opcode = 0x15;
/// The lines of `source` from the caches of the CPUs to memory.
pub const MF_CACHE_FLUSH: mf_opcode = 0x20;

/// The engines of a copy. 0 stands for the route of the mover.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum mf_route {
    /// That of the mover; for a mover, its default.
    MF_ROUTE_DEFAULT = 0,
    /// One engine.
    MF_ROUTE_SINGLE = 1,
    /// One engine, taken in turn.
    MF_ROUTE_ROUND_ROBIN = 2,
    /// An engine of the source's node and one of the target's.
    MF_ROUTE_PUSH_PULL = 3,
    /// All engines of the socket; half of each socket between two.
    MF_ROUTE_SOCKET = 4,
    /// All engines within a socket, two between sockets.
    MF_ROUTE_SMART = 5,
    /// All engines.
    MF_ROUTE_ALL = 6,
    /// The fewest engines with which the memories set the pace.
    MF_ROUTE_ADAPTIVE = 7,
}

/// The kind of an outcome.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum mf_outcome {
    /// The operation is complete and has no other outcome.
    MF_DONE = 0,
    /// Compare, create delta: the data is equal.
    MF_EQUAL = 1,
    /// Compare: the data differs; `value` is the offset of the first difference.
    MF_DIFFERENT = 2,
    /// Create delta: `value` is the size of the record.
    MF_DELTA_COMPLETE = 3,
    /// Create delta: the record has no room for all differences; `value` is its size so far.
    MF_DELTA_OVERFLOW = 4,
    /// Apply delta: the record is not valid for the target; `value` bytes of it were applied.
    MF_DELTA_INVALID = 5,
    /// A data integrity field is wrong; `value` source bytes before its block were good.
    MF_DIF_MISMATCH = 6,
}

/// Flag of an operation: wait on page faults in the device, if its queue allows that.
pub const MF_BLOCK_ON_FAULT: u32 = 1;
/// Flag of an operation: cores read the target soon; write it to the last-level cache.
pub const MF_INTO_CACHE: u32 = 2;
/// Flag of an operation: `source_node` is given.
pub const MF_SOURCE_NODE: u32 = 4;
/// Flag of an operation: `target_node` is given.
pub const MF_TARGET_NODE: u32 = 8;
/// Flag of a CRC: no inversion of seed and result.
pub const MF_CRC_BYPASS_INVERSION: u32 = 16;
/// Flag of a CRC: no reflection of the data.
pub const MF_CRC_BYPASS_REFLECTION: u32 = 32;

const FLAGS: u32 = 63;

/// The tags of a data integrity field.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct mf_dif_tags {
    /// The reference tag.
    pub reference: u32,
    /// Bits of the application tag that are not compared.
    pub application_mask: u16,
    /// The application tag.
    pub application: u16,
}

/// The format of blocks with data integrity fields, and the expected and the new fields. The bits are those of the DSA
/// specification, section 8.3.
#[derive(Copy, Clone, Debug, Default)]
#[repr(C)]
pub struct mf_dif {
    /// Bits 1:0: blocks of 512, 520, 4096 or 4104 bytes. Bit 2: the CRC is inverted. Bit 3: its seed is all ones.
    pub format: u8,
    /// Source flags: byte 40 of a descriptor.
    pub source_flags: u8,
    /// Target flags: byte 41 of a descriptor.
    pub target_flags: u8,
    /// The expected tags of the first block.
    pub source_tags: mf_dif_tags,
    /// The new tags of the first block.
    pub target_tags: mf_dif_tags,
}

/// An operation. Unused fields are 0.
///
/// Source and target must not overlap, and stay untouched until the completion.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_operation {
    /// One of `MF_COPY` and so on.
    pub opcode: mf_opcode,
    /// Flags, such as `MF_BLOCK_ON_FAULT`.
    pub flags: u32,
    /// The source.
    pub source: *const c_void,
    /// The second source of compare; the new data of create delta.
    pub source_2: *const c_void,
    /// The target; for create and apply delta, see there.
    pub target: *mut c_void,
    /// The second target of dualcast.
    pub target_2: *mut c_void,
    /// Size of the source, and of everything without a size of its own.
    pub size: usize,
    /// Size of the target, where it differs: create delta, apply delta, DIF insert and strip.
    pub target_size: usize,
    /// The pattern of fill and compare pattern, as 8 bytes in memory order.
    pub pattern: u64,
    /// The second 8 bytes of the pattern of `MF_FILL_16`.
    pub pattern_high: u64,
    /// The seed of a CRC: 0, or the CRC of the data before.
    pub seed: u32,
    /// The engines of a copy.
    pub route: mf_route_value,
    /// The node of the source, with `MF_SOURCE_NODE`.
    pub source_node: mf_node,
    /// The node of the target, with `MF_TARGET_NODE`.
    pub target_node: mf_node,
    /// Data integrity fields.
    pub dif: mf_dif,
    /// Called once at the completion, or NULL.
    pub callback: mf_callback,
    /// Passed to `callback`.
    pub context: *mut c_void,
}

/// A value of `mf_route`. A number, so that others can be refused.
pub type mf_route_value = u32;

/// The result of an operation.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_result {
    /// Whether the operation was executed. Unexpected data is an outcome, not an error.
    pub status: mf_status,
    /// The outcome.
    pub outcome: mf_outcome,
    /// The CRC, offset or size: see `mf_outcome`.
    pub value: u64,
    /// The bits of the wrong parts of a data integrity field: guard 1, application 2, reference 4, all ones 8.
    pub dif_errors: u32,
    /// The tags of the source block after the last checked one.
    pub source_tags: mf_dif_tags,
    /// The tags of the target block after the last written one.
    pub target_tags: mf_dif_tags,
    /// Bytes by CPU engines.
    pub cpu_bytes: u64,
    /// Bytes by DSA engines.
    pub dsa_bytes: u64,
}

impl mf_result {
    fn of(outcome: mf_outcome, value: u64) -> mf_result {
        let (source_tags, target_tags) = Default::default();
        mf_result {
            status: mf_status::MF_OK,
            outcome,
            value,
            dif_errors: 0,
            source_tags,
            target_tags,
            cpu_bytes: 0,
            dsa_bytes: 0,
        }
    }

    /// Of an operation that failed.
    pub(crate) fn failed(status: mf_status) -> mf_result {
        mf_result { status, ..mf_result::of(mf_outcome::MF_DONE, 0) }
    }
}

/// An outcome of memferry as a result.
pub(crate) trait IntoResult {
    fn into_result(self) -> mf_result;
}

impl IntoResult for () {
    fn into_result(self) -> mf_result {
        mf_result::of(mf_outcome::MF_DONE, 0)
    }
}

impl IntoResult for u32 {
    fn into_result(self) -> mf_result {
        mf_result::of(mf_outcome::MF_DONE, self.into())
    }
}

impl IntoResult for Option<usize> {
    fn into_result(self) -> mf_result {
        match self {
            None => mf_result::of(mf_outcome::MF_EQUAL, 0),
            Some(offset) => mf_result::of(mf_outcome::MF_DIFFERENT, offset as u64),
        }
    }
}

impl IntoResult for Delta {
    fn into_result(self) -> mf_result {
        match self {
            Delta::Equal => mf_result::of(mf_outcome::MF_EQUAL, 0),
            Delta::Complete { size_bytes } => mf_result::of(mf_outcome::MF_DELTA_COMPLETE, size_bytes as u64),
            Delta::Overflow { size_bytes, .. } => {
                mf_result::of(mf_outcome::MF_DELTA_OVERFLOW, size_bytes as u64)
            }
        }
    }
}

impl IntoResult for Result<(), DeltaError> {
    fn into_result(self) -> mf_result {
        match self {
            Ok(()) => mf_result::of(mf_outcome::MF_DONE, 0),
            Err(
                DeltaError::Descending { applied_bytes, .. } | DeltaError::OutOfRange { applied_bytes, .. },
            ) => mf_result::of(mf_outcome::MF_DELTA_INVALID, applied_bytes as u64),
            Err(_) => mf_result::of(mf_outcome::MF_DELTA_INVALID, 0),
        }
    }
}

impl IntoResult for DifTags {
    fn into_result(self) -> mf_result {
        mf_result { target_tags: self.into(), ..().into_result() }
    }
}

impl IntoResult for Result<DifTags, Mismatch> {
    fn into_result(self) -> mf_result {
        match self {
            Ok(tags) => mf_result { source_tags: tags.into(), ..().into_result() },
            Err(mismatch) => mismatch.into_result(),
        }
    }
}

impl IntoResult for Result<(DifTags, DifTags), Mismatch> {
    fn into_result(self) -> mf_result {
        match self {
            Ok((source, target)) => {
                mf_result { source_tags: source.into(), target_tags: target.into(), ..().into_result() }
            }
            Err(mismatch) => mismatch.into_result(),
        }
    }
}

impl IntoResult for Mismatch {
    fn into_result(self) -> mf_result {
        let result = mf_result::of(mf_outcome::MF_DIF_MISMATCH, self.bytes_completed as u64);
        mf_result { dif_errors: self.wrong.bits().into(), ..result }
    }
}

impl From<DifTags> for mf_dif_tags {
    fn from(tags: DifTags) -> mf_dif_tags {
        let DifTags { reference, application_mask, application } = tags;
        mf_dif_tags { reference, application_mask, application }
    }
}

impl From<mf_dif_tags> for DifTags {
    fn from(tags: mf_dif_tags) -> DifTags {
        let mf_dif_tags { reference, application_mask, application } = tags;
        DifTags { reference, application_mask, application }
    }
}

/// The engines that a number of the caller names.
pub(crate) fn route(value: mf_route_value) -> Result<Option<Route>, Error> {
    const ROUTES: [Route; 7] = [
        Route::Single,
        Route::RoundRobin,
        Route::PushPull,
        Route::Socket,
        Route::Smart,
        Route::All,
        Route::Adaptive,
    ];
    match value.checked_sub(1) {
        None => Ok(None),
        Some(index) => match ROUTES.get(index as usize) {
            Some(route) => Ok(Some(*route)),
            None => Err(Error::argument(format!("{value} is not a route; use a value of mf_route"))),
        },
    }
}

/// A source of the caller.
struct Bytes(*const u8, usize);

/// A target of the caller.
struct BytesMut(*mut u8, usize);

// SAFETY: the caller of the C function leaves the memory alone until the completion, whatever thread makes the copy.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Send for BytesMut {}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        if self.1 == 0 {
            return &[];
        }
        // SAFETY: checked for NULL by `pointer`; the caller promises that the bytes are readable.
        unsafe { slice::from_raw_parts(self.0, self.1) }
    }
}

impl AsMut<[u8]> for BytesMut {
    fn as_mut(&mut self) -> &mut [u8] {
        if self.1 == 0 {
            return &mut [];
        }
        // SAFETY: as in `as_ref`, for writing.
        unsafe { slice::from_raw_parts_mut(self.0, self.1) }
    }
}

/// Where an operation goes: to a mover, or into a batch.
pub(crate) enum Starter<'a, 'm> {
    Mover(&'m Mover),
    Batch(&'a mut Batch<'m>),
}

impl Starter<'_, '_> {
    fn copy(&mut self, source: Bytes, target: BytesMut, options: CopyOptions) -> Finish {
        let transfer = match self {
            Starter::Mover(mover) => mover.copy(source, target, options),
            Starter::Batch(batch) => batch.copy(source, target),
        };
        Box::pin(async { finish(transfer.await.map(|(_, _, report)| ((), report))) })
    }

    fn run<O>(&mut self, request: Request<'static, O>, options: CopyOptions) -> Result<Finish, Error>
    where
        O: Outcome + IntoResult + Send + 'static,
    {
        // Refused now instead of at the completion.
        request.check().map_err(CopyError::Invalid)?;
        let operation: Operation<(), O> = match self {
            Starter::Mover(mover) => mover.run((), |_| request, options),
            Starter::Batch(batch) => batch.run((), |_| request),
        };
        Ok(Box::pin(async { finish(operation.await.map(|((), outcome, report)| (outcome, report))) }))
    }
}

fn finish<O: IntoResult, B>(result: Result<(O, CopyReport), OperationError<B>>) -> Result<mf_result, Error> {
    let (outcome, CopyReport { cpu_bytes, dsa_bytes, .. }) = result.map_err(|error| error.error)?;
    Ok(mf_result { cpu_bytes, dsa_bytes, ..outcome.into_result() })
}

impl mf_operation {
    /// The options of the operation. A batch takes those of its first one.
    pub(crate) fn options(&self) -> Result<CopyOptions, Error> {
        if self.flags & !FLAGS != 0 {
            let flags = self.flags & !FLAGS;
            return Err(Error::argument(format!("flags {flags:#x} are not known; set unused bits to 0")));
        }
        let node = |flag, node| (self.flags & flag != 0).then_some(NodeId(node));
        Ok(CopyOptions {
            source_node: node(MF_SOURCE_NODE, self.source_node),
            target_node: node(MF_TARGET_NODE, self.target_node),
            consumer: if self.flags & MF_INTO_CACHE != 0 { Consumer::CoresSoon } else { Consumer::Unknown },
            block_on_fault: self.flags & MF_BLOCK_ON_FAULT != 0,
            route: route(self.route)?,
            ..CopyOptions::default()
        })
    }

    /// Starts the operation.
    ///
    /// # Safety
    /// The pointers are NULL or valid for their sizes until the completion, and nobody else accesses the targets.
    pub(crate) unsafe fn start(&self, mut starter: Starter<'_, '_>) -> Result<Finish, Error> {
        let options = self.options()?;
        let (size, target_size) = (self.size, self.target_size);
        let source = |name, start: *const c_void, size| {
            pointer(name, start, size)?;
            // SAFETY: promised by the caller; a request of no bytes is refused by its check.
            Ok::<&'static [u8], Error>(unsafe { slice::from_raw_parts(start.cast(), size) })
        };
        let target = |name, start: *mut c_void, size| {
            pointer(name, start, size)?;
            // SAFETY: as above.
            Ok::<&'static mut [u8], Error>(unsafe { slice::from_raw_parts_mut(start.cast(), size) })
        };
        let from = || source("source", self.source, size);
        let from_2 = || source("source_2", self.source_2, size);
        let to = |size| target("target", self.target, size);
        let mode = CrcMode {
            bypass_inversion: self.flags & MF_CRC_BYPASS_INVERSION != 0,
            bypass_data_reflection: self.flags & MF_CRC_BYPASS_REFLECTION != 0,
        };
        let format = DifFormat::from_bits(self.dif.format);
        let expected = DifSource {
            flags: DifSourceFlags::from_bits(self.dif.source_flags),
            tags: self.dif.source_tags.into(),
        };
        let made = DifTarget {
            flags: DifTargetFlags::from_bits(self.dif.target_flags),
            tags: self.dif.target_tags.into(),
        };
        match self.opcode {
            MF_NOOP => starter.run(Request::noop(), options),
            MF_COPY => {
                if size > 0 {
                    pointer("source", self.source, size)?;
                    pointer("target", self.target, size)?;
                    if self.source.addr().abs_diff(self.target.addr()) < size {
                        return Err(Error::argument(
                            "source and target overlap; copy in two steps, or use memmove",
                        ));
                    }
                }
                Ok(starter.copy(Bytes(self.source.cast(), size), BytesMut(self.target.cast(), size), options))
            }
            MF_FILL => starter.run(Request::fill(self.pattern, to(size)?), options),
            MF_FILL_16 => {
                let pattern = u128::from(self.pattern_high) << 64 | u128::from(self.pattern);
                starter.run(Request::fill_16(pattern, to(size)?), options)
            }
            MF_COMPARE => starter.run(Request::compare(from()?, from_2()?), options),
            MF_COMPARE_PATTERN => starter.run(Request::compare_pattern(self.pattern, from()?), options),
            MF_CREATE_DELTA => {
                starter.run(Request::create_delta(from()?, from_2()?, to(target_size)?), options)
            }
            MF_APPLY_DELTA => starter.run(Request::apply_delta(from()?, to(target_size)?), options),
            MF_DUALCAST => {
                let target_2 = target("target_2", self.target_2, size)?;
                starter.run(Request::dualcast(from()?, to(size)?, target_2), options)
            }
            MF_CRC => starter.run(Request::crc(self.seed, from()?).with_mode(mode), options),
            MF_COPY_CRC => {
                starter.run(Request::copy_crc(self.seed, from()?, to(size)?).with_mode(mode), options)
            }
            MF_DIF_CHECK => starter.run(Request::dif_check(from()?, format, expected), options),
            MF_DIF_INSERT => {
                starter.run(Request::dif_insert(from()?, to(target_size)?, format, made), options)
            }
            MF_DIF_STRIP => {
                starter.run(Request::dif_strip(from()?, to(target_size)?, format, expected), options)
            }
            MF_DIF_UPDATE => {
                starter.run(Request::dif_update(from()?, to(size)?, format, expected, made), options)
            }
            MF_CACHE_FLUSH => starter.run(Request::cache_flush(from()?), options),
            opcode => Err(Error::argument(format!("{opcode:#x} is not an opcode; use MF_COPY and so on"))),
        }
    }
}

/// Refuses pointers that no buffer can have.
fn pointer(name: &str, start: *const c_void, size: usize) -> Result<(), Error> {
    if start.is_null() {
        return Err(Error::argument(format!("{name} is NULL; the operation needs it")));
    }
    if start.addr().checked_add(size).is_none_or(|end| end > isize::MAX as usize) {
        return Err(Error::argument(format!("{name} has {size} bytes, which end behind the address space")));
    }
    Ok(())
}

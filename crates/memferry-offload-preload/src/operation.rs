//! An operation that device and CPU share.
//!
//! ```text
//! piece:  |<-- CPU ------->|<-- device: up to 8 descriptors ------------->|
//!            meanwhile          page fault: the CPU makes the pages present and does
//!                               their bytes; the rest is submitted again
//!                               error, full queue: the CPU
//! ```
//!
//! The CPU takes the beginning, which the program mostly reads first, so that it is in the cache. Large operations are
//! cut into pieces, so that signals are not delayed for long.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use memferry_dsa::{Descriptor, Status};

use crate::counts::{COUNTS, add};
use crate::entry::{libc_compare, libc_move, libc_set};
use crate::queues::{Queue, Queues};
use crate::settings;
use crate::sys;
use crate::thread::{DESCRIPTORS_MAX, Guard, Line};
use crate::tuner::{Kind, SHARE_WHOLE};

/// Size of a piece: some 0.3 ms of a device of Sapphire Rapids.
const PIECE_BYTES: usize = 8 << 20;
/// Size of the smallest part of a device, and multiple of all parts but the last.
const PAGE_BYTES: usize = 4096;
/// The CPU makes so many bytes present after a page fault: faults come in runs, for example in memory that is new.
const PRESENT_BYTES: usize = 64 << 10;
/// Page faults of a descriptor after which the CPU does the rest: each costs a submission.
const FAULTS_MAX: u32 = 4;
/// The node of smaller operations does not matter: asking for it takes a system call.
const NODE_BYTES_MIN: usize = 256 << 10;

/// An operation on memory of the program, and its addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Task {
    /// The regions do not overlap.
    Copy {
        source: *const u8,
        target: *mut u8,
    },
    Fill {
        byte: u8,
        target: *mut u8,
    },
    Compare {
        one: *const u8,
        other: *const u8,
    },
}

/// The result of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outcome {
    /// The answer of memcmp; 0 for others.
    pub(crate) answer: c_int,
    /// Bytes of descriptors that a device completed, without those behind a difference.
    pub(crate) device_bytes: usize,
    /// Something has disturbed it: page faults, full queues, errors.
    pub(crate) is_disturbed: bool,
    /// The device had completed its part of each piece before the CPU.
    pub(crate) device_was_first: bool,
}

impl Task {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Task::Copy { .. } => Kind::Copy,
            Task::Fill { .. } => Kind::Fill,
            Task::Compare { .. } => Kind::Compare,
        }
    }

    /// The node of this address decides which queues are near.
    fn address(self) -> usize {
        match self {
            Task::Copy { target, .. } | Task::Fill { target, .. } => target.addr(),
            Task::Compare { one, .. } => one.addr(),
        }
    }

    fn descriptor(self, offset: usize, size: usize, line: &Line) -> Descriptor {
        line.0.reset();
        let size = size as u32;
        match self {
            Task::Copy { source, target } => {
                Descriptor::memmove(source.wrapping_add(offset), target.wrapping_add(offset), size)
            }
            Task::Fill { byte, target } => {
                Descriptor::fill(u64::from_ne_bytes([byte; 8]), target.wrapping_add(offset), size)
            }
            Task::Compare { one, other } => {
                Descriptor::compare(one.wrapping_add(offset), other.wrapping_add(offset), size)
            }
        }
        .with_completion(&line.0)
    }

    /// Executes a part on the CPU. Returns the answer of memcmp, or 0.
    ///
    /// # Safety
    /// The part is in the memory of the task.
    pub(crate) unsafe fn on_cpu(self, offset: usize, size: usize) -> c_int {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Task::Copy { source, target } => libc_move(target.add(offset), source.add(offset), size),
                Task::Fill { byte, target } => libc_set(target.add(offset), byte.into(), size),
                Task::Compare { one, other } => {
                    return libc_compare(one.add(offset), other.add(offset), size);
                }
            }
        }
        0
    }

    /// The answer of memcmp for a device's answer that the bytes at an offset differ. If the offset is not in the part, the
    /// CPU compares all of it.
    ///
    /// # Safety
    /// The part is in the memory of the task.
    unsafe fn difference(self, offset: usize, size: usize, at: usize) -> c_int {
        let at = if at < size { at } else { 0 };
        // By the CPU from there on: another thread may have made them equal.
        // SAFETY: the caller's contract.
        unsafe { self.on_cpu(offset + at, size - at) }
    }
}

/// A part of a piece.
#[derive(Clone, Copy)]
struct Part<'q> {
    /// `None`: for the CPU.
    queue: Option<&'q Queue>,
    offset: usize,
    size: usize,
}

/// The bytes of the device in a piece of `size`.
fn device_bytes(size: usize, share: u32) -> usize {
    (size as u64 * u64::from(share.min(SHARE_WHOLE)) / u64::from(SHARE_WHOLE)) as usize
}

/// The size of the device's parts, for this many of its bytes.
fn part_bytes(bytes: usize, queues_count: usize, transfer_bytes_max: usize) -> usize {
    let at_least = bytes.div_ceil(queues_count.clamp(1, DESCRIPTORS_MAX));
    at_least.next_multiple_of(PAGE_BYTES).min(transfer_bytes_max).max(1)
}

/// Executes a task of `size` bytes; a device gets `share` of it, in parts of 1024.
///
/// # Safety
/// The memory of the task has `size` bytes, and the caller may access it as the task does.
pub(crate) unsafe fn run(task: Task, size: usize, queues: &Queues, share: u32, guard: &Guard) -> Outcome {
    let mut outcome = Outcome { device_was_first: true, ..Outcome::default() };
    let has_fixed_threshold = settings::THRESHOLD.load(Ordering::Relaxed) != 0;
    let mut offset = 0;
    while offset < size {
        // All descriptors of a piece are in flight at the same time.
        let room = queues.transfer_bytes_max.saturating_mul(DESCRIPTORS_MAX);
        let mut piece = (size - offset).min(PIECE_BYTES);
        if device_bytes(piece, share) > room {
            piece = (room as u64 * u64::from(SHARE_WHOLE) / u64::from(share.max(1))) as usize;
            piece = piece.clamp(1, size - offset);
        }
        let asks = queues.has_nodes && (piece >= NODE_BYTES_MIN || has_fixed_threshold);
        let node = asks.then(|| sys::node_of(task.address().wrapping_add(offset))).flatten();
        let former = sys::block_signals();
        // SAFETY: the piece is in the task.
        let answer = unsafe { run_piece(task, offset, piece, queues, (share, node), guard, &mut outcome) };
        sys::restore_signals(former);
        offset += piece;
        if answer != 0 {
            outcome.answer = answer;
            break;
        }
    }
    outcome
}

/// # Safety
/// As [`run`], for the part of the task.
unsafe fn run_piece(
    task: Task,
    offset: usize,
    size: usize,
    queues: &Queues,
    (share, node): (u32, Option<u32>),
    guard: &Guard,
    outcome: &mut Outcome,
) -> c_int {
    let by_device = device_bytes(size, share);
    let by_cpu = size - by_device;
    let step = part_bytes(by_device, queues.count(), queues.transfer_bytes_max);
    let mut parts = [Part { queue: None, offset: 0, size: 0 }; DESCRIPTORS_MAX];
    let mut next = offset + by_cpu;
    for (part, line) in parts.iter_mut().zip(&guard.thread.lines) {
        let bytes = step.min(offset + size - next);
        if bytes == 0 {
            break;
        }
        let descriptor = task.descriptor(next, bytes, line);
        // SAFETY: the memory is the task's, which is not given back before `finish`; the record is this thread's.
        let queue = unsafe { queues.submit(&descriptor, node) };
        if queue.is_none() {
            add(&COUNTS.refused, 1);
            outcome.is_disturbed = true;
        }
        *part = Part { queue, offset: next, size: bytes };
        next += bytes;
    }
    // SAFETY: the part is in the task.
    let mut answer = unsafe { task.on_cpu(offset, by_cpu) };
    outcome.device_was_first &= by_cpu > 0
        && (parts.iter().zip(&guard.thread.lines))
            .all(|(part, line)| part.queue.is_none() || line.0.poll().is_some());
    for (part, line) in parts.iter().zip(&guard.thread.lines).filter(|(part, _)| part.size > 0) {
        if answer == 0 {
            // SAFETY: the part is in the task, and was submitted to its queue with this record.
            answer = unsafe { finish(task, *part, line, outcome) };
        } else if let Some(queue) = part.queue {
            // The device must not read memory that the program may free, and the CPU must not read behind the difference:
            // the program may rely on it that memcmp ends there.
            queue.wait(&line.0);
        }
    }
    // What did not fit into the descriptors, because the sizes were rounded.
    if answer == 0 && next < offset + size {
        // SAFETY: the part is in the task.
        answer = unsafe { task.on_cpu(next, offset + size - next) };
    }
    answer
}

/// Completes a part of a device. Returns the answer of memcmp, or 0.
///
/// # Safety
/// The part is in the task. If it has a queue, this was submitted to it with the record of `line`.
unsafe fn finish(task: Task, part: Part<'_>, line: &Line, outcome: &mut Outcome) -> c_int {
    let Part { queue, mut offset, mut size } = part;
    // SAFETY: the part is in the task.
    let on_cpu = |offset, size| unsafe { task.on_cpu(offset, size) };
    let Some(queue) = queue else { return on_cpu(offset, size) };
    let mut faults = 0;
    loop {
        let completion = queue.wait(&line.0);
        let status = completion.map(|completion| completion.status);
        match completion {
            Some(completion) if status == Some(Status::Success) => {
                let at = completion.bytes_completed as usize;
                let differs = matches!(task, Task::Compare { .. }) && completion.result != 0;
                outcome.device_bytes += if !differs {
                    size
                } else if at < size {
                    at
                } else {
                    0
                };
                return match differs {
                    // SAFETY: the part is in the task.
                    true => unsafe { task.difference(offset, size, at) },
                    false => 0,
                };
            }
            Some(completion)
                if matches!(status, Some(Status::PageFault | Status::PageFaultRefused))
                    && completion.bytes_completed as usize <= size =>
            {
                outcome.is_disturbed = true;
                let done = completion.bytes_completed as usize;
                outcome.device_bytes += done;
                // A device may copy from the end, also without an overlap: then the end is done.
                let is_backwards = matches!(task, Task::Copy { .. }) && completion.is_backwards();
                let skip = |bytes: usize, offset: usize| if is_backwards { offset } else { offset + bytes };
                (offset, size) = (skip(done, offset), size - done);
                // If the memory is bad, this ends as it does in libc's function.
                let present = if faults >= FAULTS_MAX { size } else { size.min(PRESENT_BYTES) };
                let place = if is_backwards { offset + size - present } else { offset };
                let answer = on_cpu(place, present);
                (offset, size) = (skip(present, offset), size - present);
                if answer != 0 || size == 0 {
                    add(if faults >= FAULTS_MAX { &COUNTS.finished } else { &COUNTS.resumed }, 1);
                    return answer;
                }
                faults += 1;
                let descriptor = task.descriptor(offset, size, line);
                // SAFETY: the memory is the task's, and no descriptor with this record is in flight.
                let accepted = descriptor
                    .opcode()
                    .is_ok_and(|operation| unsafe { queue.submit(&descriptor, operation) });
                if !accepted {
                    add(&COUNTS.refused, 1);
                    return on_cpu(offset, size);
                }
                add(&COUNTS.resumed, 1);
            }
            // An error of the device, or a device that has stopped: some bytes may be written. The source is unchanged.
            _ => {
                outcome.is_disturbed = true;
                if completion.is_some() {
                    queue.note_failure();
                }
                add(&COUNTS.finished, 1);
                return on_cpu(offset, size);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_share_of_the_device() {
        for size in [4096, 16 << 10, (64 << 10) + 1, 1 << 20, PIECE_BYTES] {
            for share in [1, 256, 768, 1024] {
                for (queues, transfer) in [(1, 2 << 20), (3, 2 << 20), (8, 16 << 10), (100, 4096)] {
                    let bytes = device_bytes(size, share);
                    assert!(bytes <= size && (share < SHARE_WHOLE || bytes == size));
                    let part = part_bytes(bytes, queues, transfer);
                    assert!(part >= 1 && part <= transfer, "{size} {share} {queues} {transfer}");
                    let has_room = bytes <= transfer * DESCRIPTORS_MAX;
                    assert!(
                        !has_room || bytes.div_ceil(part) <= DESCRIPTORS_MAX,
                        "{bytes} in parts of {part}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_cpu_executes_parts() {
        let source: Vec<u8> = (0..100).collect();
        let mut target = vec![0; 100];
        let copy = Task::Copy { source: source.as_ptr(), target: target.as_mut_ptr() };
        let compare = Task::Compare { one: source.as_ptr(), other: copy.address() as *const u8 };
        // SAFETY: the parts are in the vectors.
        unsafe {
            assert_eq!(copy.on_cpu(10, 20), 0);
            assert_eq!(compare.on_cpu(10, 20), 0);
            assert_eq!(compare.on_cpu(10, 21).signum(), 1);
            assert_eq!(compare.difference(10, 30, 20).signum(), 1);
            assert_eq!(compare.difference(10, 30, 30).signum(), 1, "the offset is not in the part");
            assert_eq!(Task::Fill { byte: 7, target: copy.address() as *mut u8 }.on_cpu(0, 2), 0);
        }
        assert_eq!((&target[..2], &target[10..30], target[30]), (&[7, 7][..], &source[10..30], 0));
    }
}

//! Calls of `LIMIT` bytes and more: counted, and shared with a device if that pays.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use memferry_dsa::internals::fork;

use crate::counts::{self, COUNTS, add};
use crate::entry::{libc_compare, libc_move, libc_set};
use crate::operation::{self, Outcome, Task};
use crate::queues;
use crate::settings;
use crate::thread;
use crate::tuner::{self, Way};

/// The CPU compares so many bytes first: most regions that differ do so there.
const FIRST_BYTES: usize = 4096;

/// The generation of the process that [`COUNTS`] belong to.
pub(crate) static COUNTED: AtomicU32 = AtomicU32::new(0);

/// memcpy, memmove.
///
/// # Safety
/// As memmove(3).
pub(crate) unsafe extern "C" fn copy(target: *mut u8, source: *const u8, size: usize) -> *mut u8 {
    let (to, from) = (target.addr(), source.addr());
    let overlaps = to.wrapping_sub(from) < size || from.wrapping_sub(to) < size;
    count(size);
    if overlaps {
        add(&COUNTS.overlapping, 1);
    }
    // SAFETY: the caller's contract; the regions do not overlap.
    if overlaps || unsafe { share(Task::Copy { source, target }, size, size) }.is_none() {
        // SAFETY: the caller's contract.
        unsafe { libc_move(target, source, size) };
    }
    target
}

/// mempcpy.
///
/// # Safety
/// As mempcpy(3).
pub(crate) unsafe extern "C" fn copy_to_end(target: *mut u8, source: *const u8, size: usize) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe { copy(target, source, size) }.wrapping_add(size)
}

/// memset.
///
/// # Safety
/// As memset(3).
pub(crate) unsafe extern "C" fn fill(target: *mut u8, byte: c_int, size: usize) -> *mut u8 {
    count(size);
    // SAFETY: the caller's contract.
    if unsafe { share(Task::Fill { byte: byte as u8, target }, size, size) }.is_none() {
        // SAFETY: the caller's contract.
        unsafe { libc_set(target, byte, size) };
    }
    target
}

/// memcmp, bcmp.
///
/// # Safety
/// As memcmp(3).
pub(crate) unsafe extern "C" fn compare(one: *const u8, other: *const u8, size: usize) -> c_int {
    count(size);
    let first = size.min(FIRST_BYTES);
    // SAFETY: the caller's contract.
    let answer = unsafe { libc_compare(one, other, first) };
    if answer != 0 || size == first {
        return answer;
    }
    // SAFETY: the rest of the caller's memory.
    let (one, other, rest) = unsafe { (one.add(first), other.add(first), size - first) };
    // SAFETY: the caller's contract.
    match unsafe { share(Task::Compare { one, other }, rest, size) } {
        Some(answer) => answer,
        // SAFETY: the caller's contract.
        None => unsafe { libc_compare(one, other, rest) },
    }
}

#[inline]
fn count(size: usize) {
    // A child of fork has a copy of its parent's counters.
    let generation = fork::generation();
    if COUNTED.load(Ordering::Relaxed) != generation {
        COUNTED.store(generation, Ordering::Relaxed);
        counts::reset();
    }
    let class = &COUNTS.classes[counts::class(size)];
    add(&class.calls, 1);
    add(&class.bytes, size as u64);
}

/// Executes the task with a device. `None`: nothing was done, and libc's function is to do it. Otherwise the answer of memcmp,
/// or 0. The program has called a function with `call_size`.
///
/// # Safety
/// The memory of the task has `size` bytes, and the caller may access it as the task does.
#[inline]
unsafe fn share(task: Task, size: usize, call_size: usize) -> Option<c_int> {
    if !queues::are_there() {
        return None;
    }
    let Some(guard) = thread::enter() else {
        add(&COUNTS.nested, 1);
        return None;
    };
    // A child of fork opens the queues here, which sets errno.
    let _errno = Errno::save();
    let queues = queues::queues()?;
    let class = counts::class(call_size);
    let tuner = tuner::class(task.kind(), class);
    let threshold = settings::THRESHOLD.load(Ordering::Relaxed);
    let way = match threshold {
        0 => tuner.way(),
        _ if call_size < threshold => Way::Cpu(false),
        _ => tuner.device(),
    };
    let fixed = settings::SHARE.load(Ordering::Relaxed);
    let start = Instant::now();
    match way {
        Way::Cpu(false) => None,
        Way::Cpu(true) => {
            // SAFETY: the caller's contract.
            let answer = unsafe { task.on_cpu(0, size) };
            // A comparison that ended early has no rate.
            if answer == 0 {
                tuner.note_cpu(start.elapsed().as_nanos() as u64, size);
            }
            Some(answer)
        }
        Way::Device(tuned) => {
            let part = if fixed == 0 { tuned } else { fixed };
            // SAFETY: the caller's contract.
            let outcome = unsafe { operation::run(task, size, queues, part, &guard) };
            note(class, tuner, size, start.elapsed().as_nanos() as u64, outcome);
            Some(outcome.answer)
        }
    }
}

/// The errno of the program, which memcpy does not change.
struct Errno(c_int);

impl Errno {
    fn save() -> Errno {
        // SAFETY: errno is this thread's.
        Errno(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: errno is this thread's.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

fn note(class: usize, tuner: &tuner::Class, size: usize, ns: u64, outcome: Outcome) {
    let counts = &COUNTS.classes[class];
    if outcome.device_bytes > 0 {
        add(&counts.device_calls, 1);
        add(&counts.device_bytes, outcome.device_bytes as u64);
    }
    if outcome.answer != 0 {
        // The CPU would have stopped at the difference.
        tuner.note_disturbed();
        return;
    }
    if let Some(cpu_ns) = tuner.cpu_ns(size) {
        COUNTS.saved_ns.fetch_add(cpu_ns as i64 - ns as i64, Ordering::Relaxed);
        add(&COUNTS.estimated, 1);
    }
    match outcome.is_disturbed {
        true => tuner.note_disturbed(),
        false => tuner.note_device(ns, size, outcome.device_was_first),
    }
}

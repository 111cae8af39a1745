//! The policy of a range, set before it has pages.
//!
//! A range is left alone if its thread has a policy of its own: the program, or `numactl` around it, knows better. It is
//! also left alone after the program has mapped a device that reads memory itself. Its staging buffers must be near the
//! device, and nothing tells them from other memory.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicUsize, Ordering};

use crate::counts::{COUNTS, Ranges};
use crate::settings::{Pattern, Policy, Settings};
use crate::stripes::{STRIPES_MAX, Stripes};
use crate::sys::{self, Mode, PAGE};

/// Calls of this size and more are looked at. `usize::MAX` until the library is set up, and if it is off.
pub(crate) static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// The settings; null until the library is set up. Written once.
static SETTINGS: AtomicPtr<Settings> = AtomicPtr::new(std::ptr::null_mut());
/// The program has mapped a device that reads memory itself.
pub(crate) static HAS_DEVICE: AtomicBool = AtomicBool::new(false);
/// Stripes that the process may still have.
static STRIPES_LEFT: AtomicI64 = AtomicI64::new(0);
/// Ranges to go without stripes until the mappings are counted again: counting reads a file.
static COUNT_AGAIN: AtomicUsize = AtomicUsize::new(0);
const COUNT_AGAIN_AFTER: usize = 256;

/// The settings, once the library is set up.
pub(crate) fn settings() -> Option<&'static Settings> {
    // SAFETY: null, or a box that was leaked.
    // ORDERING: Acquire pairs with the Release in `publish`: the settings are complete.
    unsafe { SETTINGS.load(Ordering::Acquire).as_ref() }
}

/// Starts to place.
pub(crate) fn publish(settings: Settings) {
    let limit = settings.size_bytes_min;
    STRIPES_LEFT.store(stripes_left(), Ordering::Relaxed);
    // ORDERING: Release pairs with the Acquire in `settings`.
    SETTINGS.store(Box::into_raw(Box::new(settings)), Ordering::Release);
    LIMIT.store(limit, Ordering::Relaxed);
}

/// A kind of memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Heap,
    Anonymous,
}

/// The properties of a range that decide how it is placed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Range {
    /// The kernel uses pages of hugetlbfs.
    pub(crate) is_hugetlb: bool,
    /// Pages exist already and are to be moved.
    pub(crate) moves: bool,
    /// Nobody has touched it, it is private, and it can be written.
    pub(crate) is_fresh: bool,
}

/// A reason to leave memory of a thread alone.
enum Reason {
    Device,
    OwnPolicy,
    /// A sandbox forbids the question, and so probably the call.
    Refused,
}

/// Why memory of this thread is left alone, if it is.
fn reason(settings: &Settings) -> Option<Reason> {
    if HAS_DEVICE.load(Ordering::Relaxed) && !settings.with_devices {
        return Some(Reason::Device);
    }
    match sys::policy() {
        Some(0) => None,
        Some(_) => Some(Reason::OwnPolicy),
        None => Some(Reason::Refused),
    }
}

/// Whether memory of this thread is left alone, and counts the reason.
pub(crate) fn is_left_alone(settings: &Settings, bytes: usize) -> bool {
    let reason = reason(settings);
    match reason {
        None => {}
        Some(Reason::Device) => COUNTS.after_device.add(bytes),
        Some(Reason::OwnPolicy) => COUNTS.own_policy.add(bytes),
        Some(Reason::Refused) => COUNTS.refuse(bytes, libc::EPERM),
    }
    reason.is_some()
}

/// Whether an allocation of this thread would be interleaved. Counts nothing.
pub(crate) fn interleaves_heap() -> bool {
    settings().is_some_and(|settings| settings.heap == Policy::Interleave && reason(settings).is_none())
}

/// Places the whole pages of a range. Returns whether it has a policy now.
pub(crate) fn place(kind: Kind, start: usize, bytes: usize, range: Range) -> bool {
    let Some(settings) = settings() else { return false };
    let policy = match kind {
        Kind::Heap => settings.heap,
        Kind::Anonymous => settings.anonymous,
    };
    let (first, end) = (start.next_multiple_of(PAGE), (start + bytes) / PAGE * PAGE);
    if policy == Policy::Leave || first >= end || is_left_alone(settings, bytes) {
        return false;
    }
    let whole = end - first;
    let answer = match policy {
        Policy::FirstTouch => sys::bind(first, whole, Mode::Local, &settings.nodes, false),
        _ => interleave(settings, first, whole, range),
    };
    match answer {
        Ok(()) => {
            let counted: &Ranges = if kind == Kind::Heap { &COUNTS.heap } else { &COUNTS.anonymous };
            counted.add(bytes);
        }
        Err(errno) => COUNTS.refuse(bytes, errno),
    }
    answer.is_ok()
}

fn interleave(settings: &Settings, start: usize, bytes: usize, range: Range) -> Result<(), i32> {
    let bind = |mode| sys::bind(start, bytes, mode, &settings.nodes, range.moves);
    match settings.pattern {
        Pattern::Even => bind(Mode::Interleave),
        Pattern::Kernel => bind(Mode::WeightedInterleave),
        Pattern::Stripes => {
            let stripes = Stripes::new(start, start + bytes, &settings.weights, STRIPES_MAX);
            if range.is_hugetlb || !take_stripes(stripes.iter().count()) {
                COUNTS.without_weights.add(bytes);
                return bind(Mode::Interleave);
            }
            if range.is_fresh {
                // Mappings that are cut before their first page can never be joined again (`anon_vma`), and mremap(2)
                // moves one mapping only. So one page comes now, and leaves below.
                // SAFETY: nobody else knows this memory yet; it is mapped and may be written.
                unsafe { (start as *mut u8).write_volatile(0) };
            }
            let answer = stripes.iter().try_for_each(|(from, to, node)| {
                let nodes = sys::Nodes::of([node]);
                sys::bind(from, to - from, Mode::Preferred, &nodes, range.moves)
            });
            if range.is_fresh {
                // SAFETY: as above; fresh memory is zero before and after. Locked pages stay, which is an error here.
                let _ = unsafe { sys::advise(start, bytes, libc::MADV_DONTNEED) };
            }
            answer
        }
    }
}

/// Joins the mappings of a range again, so that the kernel can move it.
pub(crate) fn join(start: usize, bytes: usize) -> bool {
    let (first, end) = (start / PAGE * PAGE, (start + bytes).next_multiple_of(PAGE));
    sys::bind(first, end - first, Mode::Default, &sys::Nodes::NONE, false).is_ok()
}

/// Takes so many stripes from those that the process may have.
fn take_stripes(count: usize) -> bool {
    let count = count as i64;
    let take = || {
        let is_enough = STRIPES_LEFT.fetch_sub(count, Ordering::Relaxed) >= count;
        if !is_enough {
            STRIPES_LEFT.fetch_add(count, Ordering::Relaxed);
        }
        is_enough
    };
    if take() {
        return true;
    }
    // Ranges may have been unmapped since.
    if !COUNT_AGAIN.fetch_add(1, Ordering::Relaxed).is_multiple_of(COUNT_AGAIN_AFTER) {
        return false;
    }
    STRIPES_LEFT.store(stripes_left(), Ordering::Relaxed);
    take()
}

/// Half of the mappings that the kernel allows, without the present ones.
fn stripes_left() -> i64 {
    /// Linux `include/linux/mm.h`, `DEFAULT_MAX_MAP_COUNT`.
    const DEFAULT: i64 = 65_530;
    let mut text = [0; 32];
    let most = read_start(c"/proc/sys/vm/max_map_count", &mut text)
        .and_then(|text| std::str::from_utf8(text).ok()?.trim().parse().ok())
        .unwrap_or(DEFAULT);
    most / 2 - lines_of(c"/proc/self/maps")
}

/// The first bytes of a file, which are all of a small one.
pub(crate) fn read_start<'a>(path: &std::ffi::CStr, bytes: &'a mut [u8]) -> Option<&'a [u8]> {
    let file = i32::try_from(sys::open(path, false)).ok().filter(|&file| file >= 0)?;
    let count = sys::read(file, bytes);
    sys::close(file);
    usize::try_from(count).ok().map(|count| &bytes[..count])
}

fn lines_of(path: &std::ffi::CStr) -> i64 {
    let file = sys::open(path, false) as i32;
    if file < 0 {
        return 0;
    }
    let (mut text, mut lines) = ([0; 4096], 0);
    while let Some(count) = usize::try_from(sys::read(file, &mut text)).ok().filter(|&count| count > 0) {
        lines += text[..count].iter().filter(|&&byte| byte == b'\n').count() as i64;
    }
    sys::close(file);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_bounded() {
        let left = stripes_left();
        assert!((1000..1 << 30).contains(&left), "{left}");
        STRIPES_LEFT.store(10, Ordering::Relaxed);
        COUNT_AGAIN.store(1, Ordering::Relaxed);
        assert!(take_stripes(7));
        assert!(!take_stripes(7), "three are left, and the mappings are not counted again yet");
        assert!(take_stripes(3));
        COUNT_AGAIN.store(COUNT_AGAIN_AFTER, Ordering::Relaxed);
        assert!(take_stripes(7), "counted again");
    }

    #[test]
    fn lines_of_a_file_are_counted() {
        assert!(lines_of(c"/proc/self/maps") > 10);
        assert_eq!(lines_of(c"/nowhere"), 0);
    }
}

//! The summary of a process, written when it exits. A process that ends by _exit(2), a signal or exec(3) writes none.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use memferry_dsa::internals::{fork, panics};

use crate::counts::{CLASSES, COUNTED_BYTES_MIN, COUNTS, ClassCounts};
use crate::settings::{self, Summary};
use crate::tuner::{self, Kind, SHARE_WHOLE, State};
use crate::{arena, large, queues, start, sys};

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = finish;
#[cfg(test)]
const _: extern "C" fn() = finish;

/// More than a summary takes while it is written: a line for each class of sizes, and copies as the text grows.
const TEXT_BYTES: usize = 64 << 10;

/// Where the summary goes; null: nowhere. Written once by `prepare`.
static SUMMARY: AtomicPtr<Summary> = AtomicPtr::new(std::ptr::null_mut());
/// The process that `prepare` was called in.
static PROCESS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn prepare(summary: Summary) {
    PROCESS.store(sys::process().into(), Ordering::Relaxed);
    // ORDERING: Release pairs with the Acquire in `finish`: the summary is complete.
    SUMMARY.store(Box::into_raw(Box::new(summary)), Ordering::Release);
}

/// Calls of the replaced functions still work afterwards: other destructors follow.
extern "C" fn finish() {
    // SAFETY: null, or a box that was leaked.
    // ORDERING: Acquire pairs with the Release in `prepare`.
    let Some(summary) = (unsafe { SUMMARY.load(Ordering::Acquire).as_ref() }) else { return };
    // A child of fork that has made no large call has the counters of its parent.
    if large::COUNTED.load(Ordering::Relaxed) != fork::generation() {
        return;
    }
    let is_child = PROCESS.load(Ordering::Relaxed) != u64::from(sys::process());
    if !arena::reserve(TEXT_BYTES) {
        return start::write_stderr(b"memferry offload: there is no memory for the summary\n");
    }
    let _ = panics::contain(|| match summary {
        Summary::None => {}
        Summary::Stderr if is_child => {}
        Summary::Stderr => start::warn(text().trim_end()),
        Summary::File(path) => {
            let line = line();
            let file = sys::open_for_appending(path);
            if file >= 0 {
                // One call, so that lines of several processes do not mix.
                sys::write(file as i32, line.as_bytes());
                sys::close(file as i32);
            }
        }
    });
}

struct Sum {
    calls: u64,
    bytes: u64,
    device_calls: u64,
    device_bytes: u64,
}

impl Sum {
    fn of(classes: &[ClassCounts]) -> Sum {
        let sum = |of: fn(&ClassCounts) -> &AtomicU64| -> u64 {
            classes.iter().map(|class| of(class).load(Ordering::Relaxed)).sum()
        };
        Sum {
            calls: sum(|class| &class.calls),
            bytes: sum(|class| &class.bytes),
            device_calls: sum(|class| &class.device_calls),
            device_bytes: sum(|class| &class.device_bytes),
        }
    }

    fn row(&self, name: &str, note: &str) -> String {
        let Sum { calls, bytes, device_calls, device_bytes } = self;
        let row = format!(
            "  {name:<20}{calls:>10}{:>12}{device_calls:>14}{:>14}  {note}",
            size(*bytes),
            size(*device_bytes)
        );
        row.trim_end().to_owned()
    }
}

/// The summary for people.
fn text() -> String {
    let smallest = settings::THRESHOLD.load(Ordering::Relaxed);
    let smallest = if smallest == 0 { COUNTED_BYTES_MIN } else { smallest.min(COUNTED_BYTES_MIN) };
    let all = Sum::of(&COUNTS.classes);
    let mut text = format!(
        "{} calls of {} or more, {}; smaller calls are not counted\n",
        all.calls,
        size(smallest as u64),
        size(all.bytes)
    );
    if all.calls == 0 {
        return text;
    }
    text += "  size                     calls       bytes  with a device     by devices\n";
    for class in 0..CLASSES {
        let sum = Sum::of(&COUNTS.classes[class..=class]);
        if sum.calls > 0 {
            let _ = writeln!(text, "{}", sum.row(&class_name(class), &class_note(class)));
        }
    }
    let _ = writeln!(text, "{}", all.row("all", ""));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let kinds = [
        ("overlapping calls", count(&COUNTS.overlapping)),
        ("nested calls", count(&COUNTS.nested)),
        ("page faults resumed", count(&COUNTS.resumed)),
        ("parts refused by full queues", count(&COUNTS.refused)),
        ("parts finished by the CPU", count(&COUNTS.finished)),
    ];
    for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
        let _ = writeln!(text, "  {kind}: {count}");
    }
    text += &time();
    text
}

fn time() -> String {
    if !queues::are_there() {
        return "  time: neither saved nor lost, because no device can be used\n".to_owned();
    }
    let (saved, calls) = (COUNTS.saved_ns.load(Ordering::Relaxed), COUNTS.estimated.load(Ordering::Relaxed));
    if calls == 0 {
        return "  time: not estimated, because too few calls were made by the CPU alone\n".to_owned();
    }
    let (word, saved) = if saved < 0 { ("lost", -saved) } else { ("saved", saved) };
    format!(
        "  time: {:.3} ms {word}, estimated: the time of {calls} calls with a device, beside the mean time of calls of \
        the same class that the CPU made alone\n",
        saved as f64 / 1e6
    )
}

fn class_name(class: usize) -> String {
    let from = (COUNTED_BYTES_MIN as u64) << class;
    match class {
        0 => format!("below {}", size(2 * from)),
        _ if class == CLASSES - 1 => format!("{} or more", size(from)),
        _ => format!("{} to {}", size(from), size(2 * from)),
    }
}

/// The decisions for a class, by kind of call.
fn class_note(class: usize) -> String {
    if !queues::are_there() || settings::THRESHOLD.load(Ordering::Relaxed) != 0 {
        return String::new();
    }
    let notes = Kind::ALL.into_iter().filter_map(|kind| {
        let note = match tuner::class(kind, class).state() {
            State::Unused => return None,
            State::Measuring => "measuring".to_owned(),
            State::Cpu => "the CPU is faster".to_owned(),
            State::Disturbed => "the CPU, because devices were disturbed".to_owned(),
            State::Device(share) => format!("device {} %", share * 100 / SHARE_WHOLE),
        };
        Some(format!("{}: {note}", kind.name()))
    });
    notes.collect::<Vec<_>>().join("; ")
}

/// A number of bytes.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    let digits = usize::from(value.fract() != 0.0 && power > 0);
    format!("{value:.digits$} {}", UNITS[power as usize])
}

/// The summary for programs: a line of JSON.
fn line() -> String {
    let mut line = format!("{{\"process\":{},\"program\":\"{}\",\"classes\":[", sys::process(), program());
    let mut separator = "";
    for (class, counts) in COUNTS.classes.iter().enumerate() {
        let sum = Sum::of(std::slice::from_ref(counts));
        let from = if class == 0 { 0 } else { (COUNTED_BYTES_MIN as u64) << class };
        let _ = write!(
            line,
            "{separator}{{\"from_bytes\":{from},\"calls\":{},\"bytes\":{},\"device_calls\":{},\"device_bytes\":{}}}",
            sum.calls, sum.bytes, sum.device_calls, sum.device_bytes
        );
        separator = ",";
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let _ = writeln!(
        line,
        "],\"overlapping\":{},\"nested\":{},\"resumed\":{},\"refused\":{},\"finished\":{},\"estimated_calls\":{},\
        \"saved_ns\":{}}}",
        count(&COUNTS.overlapping),
        count(&COUNTS.nested),
        count(&COUNTS.resumed),
        count(&COUNTS.refused),
        count(&COUNTS.finished),
        count(&COUNTS.estimated),
        COUNTS.saved_ns.load(Ordering::Relaxed),
    );
    line
}

/// The name of the program as Linux shows it, without characters that JSON escapes.
fn program() -> String {
    let mut name = [0; 64];
    let count = usize::try_from(sys::read_file(c"/proc/self/comm", &mut name)).unwrap_or(0);
    let name = String::from_utf8_lossy(&name[..count.min(name.len())]).into_owned();
    name.chars().filter(|letter| !letter.is_control() && !"\"\\".contains(*letter)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let shown = [0, 1, 1023, 1024, 1536, 16 << 10, 3 << 30, u64::MAX].map(size);
        assert_eq!(shown, ["0 B", "1 B", "1023 B", "1 KiB", "1.5 KiB", "16 KiB", "3 GiB", "16777216 TiB"]);
    }

    #[test]
    fn classes_have_names() {
        let names = [0, 1, CLASSES - 1].map(class_name);
        assert_eq!(names, ["below 32 KiB", "32 KiB to 64 KiB", "32 MiB or more"]);
    }
}

//! Decides for each kind of call and class of sizes whether a device shares a call, and how large its share is.
//!
//! ```text
//! first calls of a class    device and CPU in turns                        the calibration
//! later                     the faster way; every 64th call the other one  it is calibrated again all the time
//! most calls disturbed      the CPU; every 64th call tries the device
//! share of the device       grows if the device waited for the CPU, shrinks if the CPU waited for the device
//! ```
//!
//! The program's own calls are the measurement: they have its sizes, its caches and its competitors, and cost nothing. A
//! call that took a page fault or found a queue full says nothing about the rate of either way and is only counted: a faulted
//! call returns early on the device and late on the CPU. Calls that overlap are left out, because no device gets them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::counts::CLASSES;

/// Calls of each way before a class has a faster one, and surplus of disturbed calls that gives a class up to the CPU.
const SAMPLES_MIN: u64 = 8;
/// Every so many calls go the other way.
const EXPLORE_EVERY: u32 = 64;
/// Shares are in parts of 1024.
pub(crate) const SHARE_WHOLE: u32 = 1024;
/// The first share: a device of Sapphire Rapids and one of its cores copy at about 30 and 10 GB/s (Kuper et al., 2024,
/// section 4.2).
const SHARE_FIRST: u32 = 768;
/// The change of the share after a call.
const SHARE_STEP: u32 = 16;
const SHARE_MIN: u32 = 256;

/// The way of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The CPU alone; `true`: the call is to be timed.
    Cpu(bool),
    /// A device gets this share, in parts of 1024.
    Device(u32),
}

/// The mean time of a mebibyte, of the last samples.
///
/// Two threads may overwrite each other's sample, which loses one of many.
struct Rate(AtomicU64); // 63:48 samples, at most 65535; 47:0 nanoseconds

impl Rate {
    const fn new() -> Rate {
        Rate(AtomicU64::new(0))
    }

    fn samples(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> 48
    }

    fn ns_per_mib(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & ((1 << 48) - 1)
    }

    fn note(&self, ns: u64, bytes: usize) {
        let sample = (u128::from(ns) << 20) / bytes.max(1) as u128;
        let (samples, mean) = (self.samples(), self.ns_per_mib());
        let sample = u64::try_from(sample).unwrap_or(u64::MAX).min((1 << 48) - 1);
        // A call that was interrupted says nothing about its way.
        let sample = if samples >= SAMPLES_MIN { sample.min(4 * mean.max(1)) } else { sample };
        let weight = (samples + 1).min(SAMPLES_MIN);
        let mean = (mean * (weight - 1) + sample) / weight;
        self.0.store((samples + 1).min(0xffff) << 48 | mean, Ordering::Relaxed);
    }
}

/// The kind of a call. Each has its own classes: a fill reads nothing, and a comparison writes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Copy,
    Fill,
    Compare,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Copy, Kind::Fill, Kind::Compare];

    /// The name in the summary.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Copy => "copies",
            Kind::Fill => "fills",
            Kind::Compare => "comparisons",
        }
    }
}

/// The state of one class. All threads read and write it.
pub(crate) struct Class {
    turn: AtomicU32,
    share: AtomicU32,
    cpu: Rate,
    device: Rate,
    /// Disturbed calls with a device, less the undisturbed ones: 0 to [`SAMPLES_MIN`].
    disturbed: AtomicU64,
}

/// The decision for a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// No call was decided.
    Unused,
    Measuring,
    Cpu,
    /// The CPU, because most calls with a device were disturbed.
    Disturbed,
    /// A device gets this share, in parts of 1024.
    Device(u32),
}

/// The classes of this process by kind; a child of fork goes on with those of its parent.
static TUNER: [[Class; CLASSES]; Kind::ALL.len()] =
    [const { [const { Class::new() }; CLASSES] }; Kind::ALL.len()];

/// The state of calls of a kind, by the number of [`counts::class`](crate::counts::class).
#[inline]
pub(crate) fn class(kind: Kind, class: usize) -> &'static Class {
    &TUNER[kind as usize][class]
}

impl Class {
    const fn new() -> Class {
        Class {
            turn: AtomicU32::new(0),
            share: AtomicU32::new(SHARE_FIRST),
            cpu: Rate::new(),
            device: Rate::new(),
            disturbed: AtomicU64::new(0),
        }
    }

    /// Decides a call.
    pub(crate) fn way(&self) -> Way {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let explores = turn % EXPLORE_EVERY == EXPLORE_EVERY - 1;
        if self.is_given_up() {
            // An undisturbed try ends this.
            return if explores { self.device() } else { Way::Cpu(self.cpu.samples() < SAMPLES_MIN) };
        }
        let is_calibrated = self.is_calibrated();
        let takes_device = match is_calibrated {
            false => turn.is_multiple_of(2),
            true => self.is_device_faster() != explores,
        };
        if takes_device { self.device() } else { Way::Cpu(!is_calibrated || explores) }
    }

    fn is_calibrated(&self) -> bool {
        self.cpu.samples() >= SAMPLES_MIN && self.device.samples() >= SAMPLES_MIN
    }

    fn is_device_faster(&self) -> bool {
        self.device.ns_per_mib() < self.cpu.ns_per_mib()
    }

    fn is_given_up(&self) -> bool {
        self.disturbed.load(Ordering::Relaxed) >= SAMPLES_MIN
    }

    /// The way with a device, whichever is faster.
    pub(crate) fn device(&self) -> Way {
        Way::Device(self.share.load(Ordering::Relaxed))
    }

    /// A call of the CPU alone.
    pub(crate) fn note_cpu(&self, ns: u64, bytes: usize) {
        self.cpu.note(ns, bytes);
    }

    /// A call that a device shared. `device_was_first`: its part was complete before that of the CPU.
    pub(crate) fn note_device(&self, ns: u64, bytes: usize, device_was_first: bool) {
        self.device.note(ns, bytes);
        let disturbed = self.disturbed.load(Ordering::Relaxed);
        if disturbed > 0 {
            self.disturbed.store(disturbed - 1, Ordering::Relaxed);
        }
        let share = self.share.load(Ordering::Relaxed);
        let next = if device_was_first { share + SHARE_STEP } else { share.saturating_sub(SHARE_STEP) };
        self.share.store(next.clamp(SHARE_MIN, SHARE_WHOLE), Ordering::Relaxed);
    }

    /// A call that a device shared, and that page faults, full queues, errors or an early difference have disturbed.
    pub(crate) fn note_disturbed(&self) {
        let disturbed = self.disturbed.load(Ordering::Relaxed);
        self.disturbed.store((disturbed + 1).min(SAMPLES_MIN), Ordering::Relaxed);
    }

    /// The time of the CPU for so many bytes, if it is known.
    pub(crate) fn cpu_ns(&self, bytes: usize) -> Option<u64> {
        (self.cpu.samples() >= SAMPLES_MIN)
            .then(|| ((u128::from(self.cpu.ns_per_mib()) * bytes as u128) >> 20) as u64)
    }

    /// The decision so far.
    pub(crate) fn state(&self) -> State {
        if self.turn.load(Ordering::Relaxed) == 0 {
            State::Unused
        } else if self.is_given_up() {
            State::Disturbed
        } else if !self.is_calibrated() {
            State::Measuring
        } else if self.is_device_faster() {
            State::Device(self.share.load(Ordering::Relaxed))
        } else {
            State::Cpu
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Runs calls whose ways take these times. Returns how many of the last 640 a device shared.
    fn run(class: &Class, calls: usize, device_ns: u64, cpu_ns: u64) -> usize {
        let mut shared = 0;
        for call in 0..calls {
            match class.way() {
                Way::Device(_) => {
                    class.note_device(device_ns, MIB, false);
                    shared += usize::from(call + 640 >= calls);
                }
                Way::Cpu(true) => class.note_cpu(cpu_ns, MIB),
                Way::Cpu(false) => {}
            }
        }
        shared
    }

    #[test]
    fn the_faster_way_gets_the_calls() {
        assert_eq!(run(&Class::new(), 1280, 40_000, 100_000), 630, "ten of 640 explore");
        assert_eq!(run(&Class::new(), 1280, 100_000, 40_000), 10);
    }

    #[test]
    fn a_change_is_noticed() {
        let class = Class::new();
        assert_eq!(run(&class, 1280, 40_000, 100_000), 630);
        assert_eq!(run(&class, 5000, 300_000, 100_000), 10, "the device has become slower");
        assert_eq!(run(&class, 5000, 20_000, 100_000), 630, "and faster again");
    }

    /// Runs calls whose device part is always disturbed. Returns how many of them a device shared.
    fn run_disturbed(class: &Class, calls: usize) -> usize {
        let mut shared = 0;
        for _ in 0..calls {
            match class.way() {
                Way::Device(_) => {
                    class.note_disturbed();
                    shared += 1;
                }
                Way::Cpu(true) => class.note_cpu(100_000, MIB),
                Way::Cpu(false) => {}
            }
        }
        shared
    }

    #[test]
    fn disturbed_classes_are_given_up() {
        let class = Class::new();
        assert_eq!(class.state(), State::Unused);
        assert_eq!(run_disturbed(&class, 640), 8 + 10, "eight until it is given up, and ten explore");
        assert_eq!(class.state(), State::Disturbed);
        assert_eq!(run(&class, 1280, 40_000, 100_000), 630, "and it is tried again");
        assert_eq!(class.state(), State::Device(SHARE_MIN));
        assert!(run_disturbed(&class, 640) < 20, "also after its calibration");
    }

    #[test]
    fn some_disturbed_calls_change_nothing() {
        let class = Class::new();
        run(&class, 1280, 40_000, 100_000);
        for _ in 0..100 {
            class.note_disturbed();
            class.note_device(40_000, MIB, false);
        }
        assert_eq!(class.state(), State::Device(SHARE_MIN));
    }

    #[test]
    fn the_share_follows_the_slower_part() {
        let class = Class::new();
        let Way::Device(first) = class.way() else { panic!("the first call tries the device") };
        (0..100).for_each(|_| class.note_device(1, MIB, true));
        assert_eq!(class.share.load(Ordering::Relaxed), SHARE_WHOLE);
        (0..100).for_each(|_| class.note_device(1, MIB, false));
        assert_eq!((class.share.load(Ordering::Relaxed), first), (SHARE_MIN, SHARE_FIRST));
    }

    #[test]
    fn one_interrupted_call_changes_little() {
        let class = Class::new();
        (0..20).for_each(|_| class.note_cpu(1000, MIB));
        class.note_cpu(1_000_000_000, MIB);
        assert!(class.cpu_ns(MIB).unwrap() < 1500);
        assert_eq!(Class::new().cpu_ns(MIB), None);
    }
}

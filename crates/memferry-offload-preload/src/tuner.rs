//! Decides for each class of sizes whether a device shares a call, and how large its share is.
//!
//! ```text
//! first calls of a class    device and CPU in turns                        the calibration
//! later                     the faster way; every 64th call the other one  it is calibrated again all the time
//! share of the device       grows if the device waited for the CPU, shrinks if the CPU waited for the device
//! ```
//!
//! The program's own calls are the measurement: they have its sizes, its caches and its competitors, and cost nothing. A
//! call that took a page fault or found a queue full says nothing about either way and is left out: a faulted call returns
//! early on the device and late on the CPU. So are calls that overlap, which no device gets.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::counts::CLASSES;

/// Calls of each way before a class has a faster one.
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

/// The state of one class. All threads read and write it.
pub(crate) struct Class {
    turn: AtomicU32,
    share: AtomicU32,
    cpu: Rate,
    device: Rate,
}

/// The classes of this process; a child of fork goes on with those of its parent.
pub(crate) static TUNER: [Class; CLASSES] = [const { Class::new() }; CLASSES];

impl Class {
    const fn new() -> Class {
        Class {
            turn: AtomicU32::new(0),
            share: AtomicU32::new(SHARE_FIRST),
            cpu: Rate::new(),
            device: Rate::new(),
        }
    }

    /// Decides a call.
    pub(crate) fn way(&self) -> Way {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let is_calibrated = self.cpu.samples() >= SAMPLES_MIN && self.device.samples() >= SAMPLES_MIN;
        let explores = turn % EXPLORE_EVERY == EXPLORE_EVERY - 1;
        let takes_device = match is_calibrated {
            false => turn.is_multiple_of(2),
            true => (self.device.ns_per_mib() < self.cpu.ns_per_mib()) != explores,
        };
        if takes_device { self.device() } else { Way::Cpu(!is_calibrated || explores) }
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
        let share = self.share.load(Ordering::Relaxed);
        let next = if device_was_first { share + SHARE_STEP } else { share.saturating_sub(SHARE_STEP) };
        self.share.store(next.clamp(SHARE_MIN, SHARE_WHOLE), Ordering::Relaxed);
    }

    /// The time of the CPU for so many bytes, if it is known.
    pub(crate) fn cpu_ns(&self, bytes: usize) -> Option<u64> {
        (self.cpu.samples() >= SAMPLES_MIN)
            .then(|| ((u128::from(self.cpu.ns_per_mib()) * bytes as u128) >> 20) as u64)
    }

    /// The share of the device in parts of 1024, and whether the device is the faster way.
    pub(crate) fn state(&self) -> Option<(u32, bool)> {
        let is_calibrated = self.cpu.samples() >= SAMPLES_MIN && self.device.samples() >= SAMPLES_MIN;
        is_calibrated
            .then(|| (self.share.load(Ordering::Relaxed), self.device.ns_per_mib() < self.cpu.ns_per_mib()))
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

//! The published guidelines for DSA as pure functions, which the mover follows.
//!
//! | | advice | here |
//! |---|---|---|
//! | G1 | contiguous ranges as one large descriptor, others in batches of 4 to 8 | [`batch_len`](memferry_dsa::internals::driver::batch_len) |
//! | G2 | asynchronously, up to the depth of the queue; below a size the CPU is faster | [`depth`](memferry_dsa::internals::driver::depth), [`Guidelines::offloads`] |
//! | G3 | data that is read at once into the last-level cache, other data into memory | [`Guidelines::into_cache`] |
//! | G4 | between memories of different kinds devices lose least | devices are asked first, [`Route`](super::Route) |
//! | G5 | several engines of a device at once, above all for small transfers | work items go to all queues, [`least_loaded`](memferry_dsa::internals::driver::least_loaded) |
//! | G6 | several dedicated queues of 32 entries; a shared one for many submitters | [`least_loaded`](memferry_dsa::internals::driver::least_loaded), [`depth`](memferry_dsa::internals::driver::depth), [`home`] |
//!
//! Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon
//! Scalable Processors" (2024), sections 4.2, 4.3 and 6.1 to 6.3.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(super) use memferry_dsa::internals::driver::{BATCH_LEN_MAX, BATCHED_BYTES_MAX, least_loaded};

use crate::model::hardware::Hardware;
use crate::model::offload::Offload;
use crate::topology::Machine;

/// The part of the last-level cache that a device's writes may fill: two of its 15 or 16 ways. Beyond it they evict each
/// other ("leaky DMA", section 4.3).
///
/// Source: Farshin et al., "Reexamining Direct Cache Access to Optimize I/O Intensive Applications for
/// Multi-hundred-gigabit Networks" (2020), for the two ways.
const DEVICE_PART_OF_LLC: u64 = 8;

/// The next user of a copy's target.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Consumer {
    /// Unknown: devices write to memory, the default without hint.
    #[default]
    Unknown,
    /// Cores of this machine, soon.
    CoresSoon,
    /// Cores later, or a device.
    Later,
}

/// Thresholds of the guidelines, which a program or a calibration may set.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Guidelines {
    /// CPUs do smaller copies. A device overtakes them at 128 bytes (figure 15) to 256 (figure 2b) if no thread waits for
    /// it.
    ///
    /// Default: the size from which a busy device is at least as fast as a core, if the machine has both rates; otherwise
    /// 256. `memferry calibrate` measures cores; a profile also has the cost of a descriptor.
    pub offload_bytes_min: usize,
    /// The same for copies whose thread [waits](super::CopyOptions::waits) at once: 4096 (section 6.1). A mover cannot see
    /// that a thread will wait, so the options of the copy say it.
    ///
    /// Default: the size from which a device that is waited for takes no longer than a core, if the machine has the rates;
    /// otherwise 4096.
    pub offload_waited_bytes_min: usize,
    /// Size of the last-level cache; 0 if unknown, so that nothing is written there.
    ///
    /// Default: the value of sysfs for the first CPU of this machine.
    pub llc_bytes: u64,
}

impl Guidelines {
    /// The defaults for a machine.
    pub fn of(machine: &Machine) -> Guidelines {
        let llc_bytes = if machine.is_this_machine() { llc_bytes().unwrap_or(0) } else { 0 };
        let (offload_bytes_min, offload_waited_bytes_min) = break_even_bytes(machine).unwrap_or((256, 4096));
        Guidelines { offload_bytes_min, offload_waited_bytes_min, llc_bytes }
    }

    /// G2: whether a device should copy this size, for a thread that waits for it or not.
    pub fn offloads(&self, size_bytes: usize, waits: bool) -> bool {
        size_bytes >= if waits { self.offload_waited_bytes_min } else { self.offload_bytes_min }
    }

    /// G3: whether a device should write to the last-level cache: only data that is read soon and fits into the part that
    /// devices may fill.
    #[inline]
    pub fn into_cache(&self, consumer: Consumer, size_bytes: usize) -> bool {
        consumer == Consumer::CoresSoon && size_bytes as u64 <= self.llc_bytes / DEVICE_PART_OF_LLC
    }
}

/// The modelled sizes at which a busy device and one that is waited for overtake a core; `usize::MAX` if one never does.
fn break_even_bytes(machine: &Machine) -> Option<(usize, usize)> {
    // Without it a device would cost nothing in the model.
    machine.parameter("device_descriptor_ns")?;
    let offload = Offload::of(&Hardware::of(machine).ok()?).ok()?;
    let [busy, waited] = [offload.break_even_pipelined_bytes(), offload.break_even_waited_bytes()];
    Some((busy.ceil() as usize, waited.ceil() as usize))
}

/// The cache of the highest level of the first CPU.
fn llc_bytes() -> Option<u64> {
    let read = |index: u32, file: &str| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}")).ok()
    };
    let caches = (0..8).filter_map(|index| {
        let level: u32 = read(index, "level")?.trim().parse().ok()?;
        Some((level, kib(read(index, "size")?.trim())?))
    });
    caches.max().map(|(_, bytes)| bytes)
}

/// Parses a size of sysfs, `107520K`.
fn kib(size: &str) -> Option<u64> {
    size.strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// G6: the engine of the calling thread among `count` equal ones, so that threads with small copies do not contend for one
/// lock. Threads are assigned in turn.
///
/// Source: Kuper et al. (2024), section 6.4: each dedicated queue is bound to the core that uses it most.
pub(super) fn home(count: usize) -> usize {
    thread_number() % count.max(1)
}

/// The number of the calling thread, in the order of first calls.
pub(super) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // ORDERING: Relaxed: numbers only have to differ.
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    #[test]
    fn small_copies_stay_on_the_cpu() {
        let guidelines = Guidelines { offload_bytes_min: 256, offload_waited_bytes_min: 4096, llc_bytes: 0 };
        let offloads = |waits| [0, 255, 256, 4095, 4096].map(|size| guidelines.offloads(size, waits));
        assert_eq!(offloads(false), [false, false, true, true, true]);
        assert_eq!(offloads(true), [false, false, false, false, true]);
    }

    #[test]
    fn the_threshold_is_where_the_machines_device_overtakes_its_core() {
        const PROFILE: &str = include_str!("../../machines/spr-56c.json");
        let with = |from: &str, to: &str| {
            assert!(PROFILE.contains(from));
            let machine =
                Machine::from_profile_text("made up", &PROFILE.replace(from, to)).expect("a profile");
            let Guidelines { offload_bytes_min, offload_waited_bytes_min, .. } = Guidelines::of(&machine);
            (offload_bytes_min, offload_waited_bytes_min)
        };
        // What the profile was calibrated on, and a core that copies twice as fast: twice (126 - 80.35) ns.
        assert_eq!(with("5574.5", "5574.5"), (255, 4101));
        assert_eq!(with("5574.5", "11149.0").0, 509);
        assert_eq!(with("5574.5", "40000.0"), (usize::MAX, usize::MAX), "no device is that fast");
        let unknown = with("device_descriptor_ns", "worker_wake_ns");
        assert_eq!(unknown, (256, 4096), "what is not known is not guessed");
        assert_eq!(Guidelines::of(&Machine::two_tiers().expect("built in")).offload_bytes_min, 256);
    }

    #[test]
    fn only_what_is_read_soon_and_fits_goes_into_the_cache() {
        let guidelines =
            Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 80 << 20 };
        let sizes = [1, 10 << 20, (10 << 20) + 1];
        assert_eq!(sizes.map(|size| guidelines.into_cache(Consumer::CoresSoon, size)), [true, true, false]);
        for consumer in [Consumer::Unknown, Consumer::Later] {
            assert!(!guidelines.into_cache(consumer, 1), "{consumer:?}");
        }
        let ignorant = Guidelines { llc_bytes: 0, ..guidelines };
        assert!(!ignorant.into_cache(Consumer::CoresSoon, 1), "of an unknown cache nothing is expected");
    }

    #[test]
    fn sizes_of_caches_are_read() {
        assert_eq!(kib("107520K"), Some(105 << 20));
        assert_eq!((kib("32M"), kib("K"), kib("99999999999999999999K")), (None, None, None));
    }
}

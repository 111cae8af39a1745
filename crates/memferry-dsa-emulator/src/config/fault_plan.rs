//! Injected misbehaviour of the emulated device, within the specification, from a seed.
//!
//! Source: the generator is SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
//! Generators", OOPSLA 2014).

use std::fmt;

/// The configuration of injected misbehaviour: faults, delays, reordering. Probabilities are in thousandths.
///
/// The same seed, configuration, descriptors and steps give the same behaviour, bit for bit.
///
/// ```
/// use memferry_dsa_emulator::FaultPlan;
///
/// let plan = FaultPlan { page_faults_per_mille: 500, ..FaultPlan::from_seed(42) };
/// assert!(plan.to_string().starts_with("seed 0x2a, changed to"), "a failing test prints the whole plan");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultPlan {
    /// The seed of all random decisions; print it when something fails.
    pub seed: u64,
    /// Longest delay, in steps of the device, before an engine continues or a completion record is written.
    pub delay_steps_max: u32,
    /// Run engines and members of a batch in random order, as far as fences allow.
    pub reorder: bool,
    /// Chance of a page fault at each page that a descriptor accesses. A page does not fault twice in a row, so that
    /// software that resumes makes progress.
    pub page_faults_per_mille: u16,
    /// Chance that a shared queue answers Retry although it has room.
    pub retries_per_mille: u16,
    /// Chance that a copy of regions that do not overlap runs from the end to the start.
    pub backwards_per_mille: u16,
    /// Chance that Compare Pattern reports the start of the 8 bytes with the difference, instead of its offset.
    pub rounded_differences_per_mille: u16,
    /// Chance that idle engines of the group execute members of a batch.
    pub spread_batches_per_mille: u16,
    /// Chance that an engine starts to read for the next descriptor before the current one is executed. Writes stay in
    /// order within a queue.
    pub work_ahead_per_mille: u16,
    /// Chance of a hardware error (0x20 to 0x22) at each page that a descriptor accesses.
    pub hardware_errors_per_mille: u16,
    /// Chance that a completion record cannot be written: it stays zero, and the error register has the reason.
    pub lost_records_per_mille: u16,
    /// Largest piece of a transfer. Between pieces other engines run, and page faults are drawn.
    pub piece_bytes_max: u32,
}

impl FaultPlan {
    /// No misbehaviour: no delay, no fault, first come first served.
    pub fn none() -> FaultPlan {
        FaultPlan {
            seed: 0,
            delay_steps_max: 0,
            reorder: false,
            page_faults_per_mille: 0,
            retries_per_mille: 0,
            backwards_per_mille: 0,
            rounded_differences_per_mille: 0,
            spread_batches_per_mille: 0,
            work_ahead_per_mille: 0,
            hardware_errors_per_mille: 0,
            lost_records_per_mille: 0,
            // Large enough to run at the speed of memory, small enough that engines share a thread fairly.
            piece_bytes_max: 64 << 10,
        }
    }

    /// Every kind of misbehaviour that software must be able to handle; the seed decides how much of each.
    ///
    /// It has no lost completion records, because only a time-out helps against them, and no hardware errors, because
    /// nothing does.
    pub fn from_seed(seed: u64) -> FaultPlan {
        let mut random = Random::new(seed);
        let mut up_to = |max: u64| random.below(max + 1);
        FaultPlan {
            seed,
            delay_steps_max: up_to(20) as u32,
            reorder: true,
            page_faults_per_mille: up_to(300) as u16,
            retries_per_mille: up_to(300) as u16,
            backwards_per_mille: up_to(500) as u16,
            lost_records_per_mille: 0,
            hardware_errors_per_mille: 0,
            piece_bytes_max: 1 + up_to(16 << 10) as u32,
            rounded_differences_per_mille: up_to(1000) as u16,
            spread_batches_per_mille: up_to(1000) as u16,
            work_ahead_per_mille: up_to(1000) as u16,
        }
    }
}

/// Prints everything that is needed to build the same plan again.
impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {:#x}", self.seed)?;
        if *self == FaultPlan::from_seed(self.seed) { Ok(()) } else { write!(f, ", changed to {self:?}") }
    }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`, which is not zero. (The bias is below 2^-32 for the bounds used here.)
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True in `per_mille` of a thousand cases.
    #[inline]
    pub(crate) fn chance(&mut self, per_mille: u16) -> bool {
        per_mille > 0 && self.below(1000) < u64::from(per_mille)
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use super::*;

    /// The text that a failing test prints is enough to replay it.
    #[test]
    fn the_text_is_the_seed_and_any_changes() {
        assert_eq!(FaultPlan::from_seed(0x2a).to_string(), "seed 0x2a");
        let changed = FaultPlan { work_ahead_per_mille: 1234, ..FaultPlan::from_seed(0x2a) };
        assert!(changed.to_string().contains("work_ahead_per_mille: 1234"), "{changed}");
    }
}

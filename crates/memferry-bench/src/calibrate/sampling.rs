//! The number of samples: as many as help, within the time limit.

use std::fmt;
use std::time::{Duration, Instant};

use memferry::internals::Fact;

use super::{CalibrateError, fact};
use crate::memory::arena::exceeding_caches_bytes;
use crate::memory::threads::{together, undisturbed};

/// Limits of a calibration.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct SamplingPlan {
    /// Maximum number of passes: a disturbance of the machine may last longer than all samples of one value.
    pub passes: usize,
    /// Maximum number of samples of each value in a pass.
    pub rounds: usize,
    /// Time limit of all passes together; see [`has_time`](SamplingPlan::has_time).
    pub limit: Duration,
    /// Whether to use little memory and time. The results are then those of caches.
    pub is_quick: bool,
}

/// Share of the limit for a pass in which every value uses up its time. Together with unsampled work, such as allocating
/// arenas and starting threads, at least two passes fit.
const PASS_SHARE: f64 = 0.25;

impl SamplingPlan {
    /// For profiles, in less than two minutes: the limit leaves time for unsampled work.
    pub const FULL: SamplingPlan =
        SamplingPlan { passes: 6, rounds: 20, limit: Duration::from_secs(100), is_quick: false };
    /// As short as possible: checks that it works.
    pub const QUICK: SamplingPlan =
        SamplingPlan { passes: 2, rounds: 2, limit: Duration::from_secs(20), is_quick: true };

    /// Whether there is time for another pass, after `elapsed` in all passes and `last` in the last one.
    pub fn has_time(self, elapsed: Duration, last: Duration) -> bool {
        elapsed + last <= self.limit
    }

    /// Time for each of `figures_count` values in a pass.
    pub fn slice(self, figures_count: usize) -> Duration {
        self.limit.mul_f64(PASS_SHARE / figures_count.max(1) as f64)
    }

    /// Size of each CPU's arena.
    pub(super) fn arena_bytes(self, cpus: &[u32]) -> usize {
        if self.is_quick { 16 << 20 } else { exceeding_caches_bytes(cpus, cpus.len()) }
    }

    /// Bytes of one round: some milliseconds, so that some rounds are undisturbed.
    pub(super) fn round_bytes(self) -> usize {
        if self.is_quick { 1 << 20 } else { 16 << 20 }
    }

    /// Number of hardware threads of a node that are measured one by one, with `paths_count` paths.
    pub(super) fn threads_max(self, paths_count: usize) -> usize {
        if self.is_quick { 2 } else { (64 / paths_count.max(1)).clamp(2, 8) }
    }
}

/// Takes samples of each value within its share of the time.
pub(super) struct Sampler {
    pub(super) effort: SamplingPlan,
    slice: Duration,
    taken: Option<(usize, usize)>,
}

impl Sampler {
    /// A sampler for a pass with `figures_count` values.
    pub(super) fn new(effort: SamplingPlan, figures_count: usize) -> Sampler {
        Sampler { effort, slice: effort.slice(figures_count), taken: None }
    }

    /// Fewest and most samples of a value so far.
    pub(super) fn taken(&self) -> (usize, usize) {
        self.taken.unwrap_or_default()
    }

    /// Number of samples to take after a first one, which took `first_s`.
    pub(super) fn more(&mut self, first_s: f64) -> usize {
        // The first sample is cold and slow, so that this is rather too few.
        let fitting = (self.slice.as_secs_f64() / first_s) as usize;
        let more = fitting.min(self.effort.rounds).saturating_sub(1);
        self.count(1 + more);
        more
    }

    fn count(&mut self, samples: usize) {
        let (least, most) = self.taken.unwrap_or((samples, samples));
        self.taken = Some((least.min(samples), most.max(samples)));
    }

    /// Seconds of `work` by all of `cpus` together, undisturbed.
    pub(super) fn together_s<W: Send>(
        &mut self,
        cpus: &[u32],
        works: &mut [W],
        work: impl Fn(&mut W) + Sync,
    ) -> Result<f64, CalibrateError> {
        let first = undisturbed(&together(cpus, works, 1, &work)?);
        let more = self.more(first);
        Ok(undisturbed(&together(cpus, works, more, &work)?).min(first))
    }

    /// Undisturbed seconds of `one`, from up to `factor` times as many samples as usual.
    pub(super) fn least_s(
        &mut self,
        factor: usize,
        mut one: impl FnMut() -> Result<f64, CalibrateError>,
    ) -> Result<f64, CalibrateError> {
        let (begin, mut times) = (Instant::now(), Vec::new());
        while times.len() < factor * self.effort.rounds && (times.is_empty() || begin.elapsed() < self.slice)
        {
            times.push(one()?);
        }
        self.count(times.len());
        Ok(undisturbed(&times))
    }
}

/// The extent of a calibration, which the time limit may reduce.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sampling {
    /// Number of passes.
    pub passes: usize,
    /// Fewest and most samples of a value in a pass.
    pub samples: (usize, usize),
    /// Hardware threads of a node that were measured one by one, and those of the largest node.
    pub threads: (usize, usize),
    /// Size of the smallest arena of a thread.
    pub arena_bytes: usize,
}

impl Sampling {
    pub(super) fn with(self, other: Sampling) -> Sampling {
        Sampling {
            passes: self.passes + other.passes,
            samples: (self.samples.0.min(other.samples.0), self.samples.1.max(other.samples.1)),
            arena_bytes: self.arena_bytes.min(other.arena_bytes),
            ..self
        }
    }

    pub(super) fn facts(&self, source: &str) -> Vec<Fact> {
        let facts = [
            ("calibration_passes", self.passes, "passes"),
            ("calibration_samples_min", self.samples.0, "samples"),
            ("calibration_samples_max", self.samples.1, "samples"),
            ("calibration_threads", self.threads.0, "threads"),
            ("calibration_threads_of", self.threads.1, "threads"),
            ("calibration_arena", self.arena_bytes, "bytes"),
        ];
        facts.map(|(name, value, unit)| fact(name.to_owned(), value as f64, unit, source)).into()
    }
}

impl fmt::Display for Sampling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sampling { passes, samples: (least, most), threads: (threads, of_threads), arena_bytes } = self;
        let samples = if least == most { most.to_string() } else { format!("{least} to {most}") };
        write!(
            f,
            "best of {passes} passes with {samples} samples of each figure; {threads} of {of_threads} hardware threads \
             of a node one by one; {} MiB for each thread",
            arena_bytes >> 20
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_pass_must_fit() {
        let seconds = Duration::from_secs;
        assert!(SamplingPlan::FULL.has_time(seconds(60), seconds(20)));
        assert!(!SamplingPlan::FULL.has_time(seconds(90), seconds(20)));
    }

    /// More values get fewer samples each, but at least one.
    #[test]
    fn figures_share_the_time() {
        let samples =
            |figures_count, first_s| Sampler::new(SamplingPlan::FULL, figures_count).more(first_s) + 1;
        assert_eq!(samples(25, 0.01), SamplingPlan::FULL.rounds);
        assert_eq!(samples(1250, 0.0039), 5);
        assert_eq!(samples(1250, 100.0), 1);
        // `least_s` takes samples one by one and reads the clock.
        let mut sampler = Sampler::new(SamplingPlan { limit: Duration::ZERO, ..SamplingPlan::FULL }, 1);
        assert_eq!(sampler.least_s(2, || Ok(0.5)).unwrap(), 0.5);
        assert_eq!(sampler.taken(), (1, 1));
        let mut sampler = Sampler::new(SamplingPlan::FULL, 1);
        sampler.least_s(2, || Ok(0.5)).unwrap();
        sampler.more(f64::INFINITY);
        assert_eq!(sampler.taken(), (1, 2 * SamplingPlan::FULL.rounds));
    }

    #[test]
    fn samplings_are_merged() {
        let one = Sampling { passes: 2, samples: (3, 20), threads: (2, 24), arena_bytes: 48 << 20 };
        let both = one.with(Sampling { passes: 1, samples: (1, 5), arena_bytes: 32 << 20, ..one });
        assert_eq!((both.passes, both.samples, both.arena_bytes), (3, (1, 20), 32 << 20));
        let text = both.to_string();
        assert!(
            text.contains("3 passes with 1 to 20 samples") && text.contains("2 of 24 hardware"),
            "{text}"
        );
    }
}

//! How much is measured: as often as it helps, and no longer than the time allows.

use std::fmt;
use std::time::{Duration, Instant};

use memferry::topology::Fact;

use super::threads::{together, undisturbed};
use super::{CalibrateError, arena, fact};

/// How much to measure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Effort {
    /// How often everything is measured at most, in turns: what disturbs a machine may last longer than all samples of
    /// a figure.
    pub passes: usize,
    /// Samples of each figure in a pass, at most.
    pub rounds: usize,
    /// What all passes together may take; see [`has_time`](Effort::has_time).
    pub limit: Duration,
    /// Whether memory is small, so that everything is over soon. The figures are then those of caches.
    pub is_quick: bool,
}

/// A pass in which every figure used up its share of the time would take this part of the limit. With what is not
/// sampled, such as making arenas and threads, two passes at least fit.
const PASS_SHARE: f64 = 0.25;

impl Effort {
    /// For figures to keep, in less than two minutes: the limit leaves time for what is not sampled.
    pub const FULL: Effort =
        Effort { passes: 6, rounds: 20, limit: Duration::from_secs(100), is_quick: false };
    /// To see that it works.
    pub const QUICK: Effort = Effort { passes: 2, rounds: 2, limit: Duration::from_secs(20), is_quick: true };

    /// Whether there is time for another pass, after some that have taken `elapsed` in all, the last one `last`.
    pub fn has_time(self, elapsed: Duration, last: Duration) -> bool {
        elapsed + last <= self.limit
    }

    /// What each of so many figures may take in a pass.
    pub fn slice(self, figures_count: usize) -> Duration {
        self.limit.mul_f64(PASS_SHARE / figures_count.max(1) as f64)
    }

    /// What each CPU walks through, so that all together exceed the caches several times: of twice a cache's size,
    /// caches that do not evict in the order of use still have a part.
    pub(super) fn arena_bytes(self, cpus: &[u32]) -> usize {
        if self.is_quick {
            return 16 << 20;
        }
        let cache_bytes = cpus.first().and_then(|&cpu| arena::cache_bytes(cpu)).unwrap_or(32 << 20);
        (8 * cache_bytes / cpus.len().max(1)).max(32 << 20)
    }

    /// What is read or written in one round: some milliseconds, so that some rounds go undisturbed.
    pub(super) fn round_bytes(self) -> usize {
        if self.is_quick { 1 << 20 } else { 16 << 20 }
    }

    /// Hardware threads of a node that are measured one by one, on so many ways between nodes.
    pub(super) fn threads_max(self, ways_count: usize) -> usize {
        if self.is_quick { 2 } else { (64 / ways_count.max(1)).clamp(2, 8) }
    }
}

/// Takes samples of figures, of each as many as its share of the time allows.
pub(super) struct Sampler {
    pub(super) effort: Effort,
    slice: Duration,
    taken: Option<(usize, usize)>,
}

impl Sampler {
    /// For a pass with so many figures.
    pub(super) fn new(effort: Effort, figures_count: usize) -> Sampler {
        Sampler { effort, slice: effort.slice(figures_count), taken: None }
    }

    /// Fewest and most samples of a figure so far.
    pub(super) fn taken(&self) -> (usize, usize) {
        self.taken.unwrap_or_default()
    }

    /// How many samples there should be beside a first one, which took `first_s`.
    pub(super) fn more(&mut self, first_s: f64) -> usize {
        // A first sample finds nothing warm, so that this is rather too few.
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

    /// Seconds that `one` tells, undisturbed, of `factor` times as many samples as others have.
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

/// How much of a machine a calibration has looked at: what time did not allow is not behind its figures.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sampling {
    /// How often everything was measured.
    pub passes: usize,
    /// Fewest and most samples of a figure in a pass.
    pub samples: (usize, usize),
    /// Hardware threads of a node that were measured one by one, and how many the largest node has.
    pub threads: (usize, usize),
    /// What each thread walked through, where it was least.
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
    fn another_pass_has_to_fit() {
        let seconds = Duration::from_secs;
        assert!(Effort::FULL.has_time(seconds(60), seconds(20)));
        assert!(!Effort::FULL.has_time(seconds(90), seconds(20)));
    }

    /// The more figures there are, the fewer samples of each; but one.
    #[test]
    fn figures_share_the_time() {
        let samples = |figures_count, first_s| Sampler::new(Effort::FULL, figures_count).more(first_s) + 1;
        assert_eq!(samples(25, 0.01), Effort::FULL.rounds);
        assert_eq!(samples(1250, 0.0039), 5);
        assert_eq!(samples(1250, 100.0), 1);
        // What takes samples one by one looks at the clock.
        let mut sampler = Sampler::new(Effort { limit: Duration::ZERO, ..Effort::FULL }, 1);
        assert_eq!(sampler.least_s(2, || Ok(0.5)).unwrap(), 0.5);
        assert_eq!(sampler.taken(), (1, 1));
        let mut sampler = Sampler::new(Effort::FULL, 1);
        sampler.least_s(2, || Ok(0.5)).unwrap();
        sampler.more(f64::INFINITY);
        assert_eq!(sampler.taken(), (1, 2 * Effort::FULL.rounds));
    }

    #[test]
    fn two_samplings() {
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

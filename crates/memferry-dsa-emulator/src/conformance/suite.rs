//! The common parts of the checks: buffers with guards around them, sizes, places, options, and the list of failures.

use std::collections::BTreeSet;
use std::fmt::Debug;

use memferry_dsa::{Batch, Client, ClientError, Outcome, Outcomes, Request};

use super::{Report, Thoroughness};
use crate::config::Random;

/// Maximum number of failures with a description.
const FAILURES_MAX: usize = 20;
/// Bytes around a buffer that nothing may change.
const GUARD_BYTES: usize = 128;
const PAGE_BYTES: usize = memferry_dsa::internals::PAGE_BYTES as usize;

/// Sizes around lines, pages, and the pieces of software and devices.
const SIZES_QUICK: [usize; 12] = [1, 7, 8, 63, 64, 65, 511, 4095, 4096, 4097, 8209, 20_000];
const SIZES_FULL: [usize; 6] = [65_535, 65_537, 262_144, 1_048_575, 1_048_577, (2 << 20) + 4099];
/// Offsets in a page: around lines, and close to the end.
const OFFSETS: [usize; 8] = [0, 1, 7, 8, 63, 2048, 4090, 4095];

/// A run of the suite.
pub(super) struct Suite<'c> {
    client: &'c Client,
    pub(super) thoroughness: Thoroughness,
    pub(super) random: Random,
    report: Report,
}

/// Options of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hints {
    into_cache: bool,
    block_on_fault: bool,
}

impl Hints {
    /// Applies the options to an operation with a target.
    pub(super) fn apply<O>(self, request: Request<'_, O>) -> Request<'_, O> {
        let request = self.apply_to_reader(request);
        if self.into_cache { request.into_cache() } else { request }
    }

    /// Applies the options to an operation that only reads.
    pub(super) fn apply_to_reader<O>(self, request: Request<'_, O>) -> Request<'_, O> {
        if self.block_on_fault { request.block_on_fault() } else { request }
    }
}

impl<'c> Suite<'c> {
    pub(super) fn new(client: &'c Client, thoroughness: Thoroughness, seed: u64) -> Suite<'c> {
        let report = Report {
            seed,
            requests: 0,
            failures: Vec::new(),
            failures_count: 0,
            lacking: BTreeSet::new(),
            stats: client.stats(),
        };
        Suite { client, thoroughness, random: Random::new(seed), report }
    }

    pub(super) fn report(mut self) -> Report {
        self.report.stats = self.client.stats();
        let adds_up = self.report.stats.adds_up();
        self.require(adds_up, || "the client's counters do not add up".to_owned());
        self.report
    }

    /// All sizes.
    pub(super) fn sizes(&self) -> Vec<usize> {
        let mut sizes = SIZES_QUICK.to_vec();
        if self.thoroughness == Thoroughness::Full {
            sizes.extend(SIZES_FULL);
        }
        sizes
    }

    /// The number of variants (places, options, data) for each size.
    pub(super) fn variants(&self) -> usize {
        match self.thoroughness {
            Thoroughness::Quick => 2,
            Thoroughness::Full => 8,
        }
    }

    /// A random element.
    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound.max(1) as u64) as usize
    }

    pub(super) fn hints(&mut self) -> Hints {
        Hints { into_cache: self.below(2) == 1, block_on_fault: self.below(2) == 1 }
    }

    /// A random offset in a page.
    pub(super) fn offset(&mut self) -> usize {
        self.pick(&OFFSETS)
    }

    /// A buffer at an offset in a page, whose bytes differ from their neighbours.
    pub(super) fn buffer(&mut self, size: usize, offset: usize) -> Buffer {
        let salt = self.random.next();
        let mut bytes: Vec<u8> = vec![0; size + 3 * PAGE_BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = ((index as u64).wrapping_mul(0x9e37_79b9).wrapping_add(salt) >> 11) as u8;
        }
        let to_page = bytes.as_ptr().align_offset(PAGE_BYTES);
        let start = to_page + offset + if to_page + offset < GUARD_BYTES { PAGE_BYTES } else { 0 };
        Buffer { before: bytes.clone(), bytes, start, size }
    }

    /// A buffer at a random offset in a page.
    pub(super) fn buffer_anywhere(&mut self, size: usize) -> Buffer {
        let offset = self.offset();
        self.buffer(size, offset)
    }

    /// Runs a request; `None` if the device lacks the operation or the request fails, which is recorded.
    pub(super) fn run<O: Outcome>(
        &mut self,
        request: Request<'_, O>,
        describe: impl Fn() -> String,
    ) -> Option<O> {
        self.report.requests += 1;
        let result = self.client.run(request);
        self.outcome(result, describe)
    }

    pub(super) fn run_batch(&mut self, batch: Batch<'_>, describe: impl Fn() -> String) -> Option<Outcomes> {
        self.report.requests += 1;
        let result = self.client.run_batch(batch);
        self.outcome(result, describe)
    }

    fn outcome<T>(&mut self, result: Result<T, ClientError>, describe: impl Fn() -> String) -> Option<T> {
        match result {
            Ok(outcome) => return Some(outcome),
            Err(ClientError::NoDevice(why)) => {
                let name = describe().split(',').next().unwrap_or_default().to_owned();
                self.report.lacking.insert(format!("{name}: {why}"));
            }
            Err(error) => self.fail(format!("{}: {error}", describe())),
        }
        None
    }

    /// Runs an invalid request; returns its error.
    pub(super) fn run_invalid<O: Outcome>(&mut self, request: Request<'_, O>) -> Option<ClientError> {
        self.report.requests += 1;
        self.client.run(request).err()
    }

    /// Records a failure unless the value is as expected.
    pub(super) fn expect<T: PartialEq + Debug>(
        &mut self,
        found: T,
        expected: T,
        describe: impl Fn() -> String,
    ) {
        self.require(found == expected, || format!("{}: {found:?} instead of {expected:?}", describe()));
    }

    pub(super) fn require(&mut self, holds: bool, otherwise: impl Fn() -> String) {
        if !holds {
            self.fail(otherwise());
        }
    }

    /// Records a failure unless the target is as expected and the memory around it is unchanged.
    pub(super) fn expect_bytes(&mut self, target: &Buffer, expected: &[u8], describe: impl Fn() -> String) {
        let found = target.bytes();
        let at = found.iter().zip(expected).position(|(found, expected)| found != expected);
        self.require(at.is_none() && found.len() == expected.len(), || {
            format!("{}: the target differs at {at:?}", describe())
        });
        self.require(target.is_intact_around(), || {
            format!("{}: memory around the target was written", describe())
        });
    }

    /// Records a failure if the memory was written.
    pub(super) fn expect_unchanged(&mut self, source: &Buffer, describe: impl Fn() -> String) {
        self.require(source.bytes == source.before, || format!("{}: a source was written", describe()));
    }

    fn fail(&mut self, describe: String) {
        self.report.failures_count += 1;
        if self.report.failures.len() < FAILURES_MAX {
            self.report.failures.push(describe);
        }
    }
}

/// A buffer with guards around it, and its original content.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    before: Vec<u8>,
    start: usize,
    size: usize,
}

impl Buffer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.size]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.size]
    }

    /// The original bytes.
    pub(super) fn before(&self) -> &[u8] {
        &self.before[self.start..self.start + self.size]
    }

    /// Sets the original bytes.
    pub(super) fn set(&mut self, bytes: &[u8]) {
        self.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        self.before.copy_from_slice(&self.bytes);
    }

    fn is_intact_around(&self) -> bool {
        let end = self.start + self.size;
        self.bytes[..self.start] == self.before[..self.start] && self.bytes[end..] == self.before[end..]
    }
}

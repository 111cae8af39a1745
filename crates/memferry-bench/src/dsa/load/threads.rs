//! A load in threads of this machine, on the submitting cores themselves or on queues.

use std::hint::black_box;
use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use std::{panic, thread};

use memferry_dsa::Portal;
use memferry_dsa::internals::PAGE_BYTES;
use memferry_dsa::internals::affinity::confine;
use memferry_dsa::internals::software::{Flush, flush};

use super::queue::{LOOKS, LOOKS_ANEW, Queue};
use super::{Load, LoadError, LoadOperation, PageState, SubmitterTimes};

/// The executor of the work.
#[derive(Clone)]
pub enum Executor {
    /// The submitting thread.
    Core,
    /// A device, through this queue.
    Queue(Arc<dyn Portal>),
}

/// The times of each lane, for each iteration.
pub type Iterations = Vec<Vec<SubmitterTimes>>;

/// One submitter with its memory: a separate part for each submission in flight and each member of a batch.
pub struct Lane<B> {
    /// Its load.
    pub load: Load,
    /// The executor of the work.
    pub executor: Executor,
    /// The CPU of its thread; `None`: any.
    pub cpu: Option<u32>,
    /// Whether submissions to a queue are timed one by one, which costs two readings of the clock each. With one
    /// submission at a time, records and descriptors are made anew for each, which is timed as well.
    pub times_submissions: bool,
    /// The place of the data when an iteration begins.
    pub placed: Placed,
    /// Source, target, and a region for a second target or a delta record. Each starts on a page. They have at least
    /// [`Lane::region_bytes`], [`Lane::target_bytes`] and [`Lane::extra_bytes`]. A core cycles through all bytes.
    pub regions: [B; 3],
}

/// The place of the data when an iteration begins: in a cache, or flushed from all caches. Later submissions find the
/// same bytes where earlier ones left them. A device that reads memory does not bring it into a cache, so its source
/// stays where it is.
///
/// Source: Fürst 2024, figure 3.2 ("clearing of cache entries"); Kuper et al. 2024, section 4.1, and 6.2 G3: the flag
/// Cache Control chooses for the target.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The submitting core has read the source.
    pub is_source_cached: bool,
    /// A core as executor has read the target; a device writes it to the last-level cache, not to memory.
    pub is_target_cached: bool,
}

impl<B> Lane<B> {
    /// Bytes of the source for a load.
    pub fn region_bytes(load: &Load) -> usize {
        parts(load).saturating_mul(stride(load.work.region_bytes(load.size_bytes as usize)))
    }

    /// Bytes of the target: with absent pages, each submission has a separate part.
    pub fn target_bytes(load: &Load) -> usize {
        match load.pages {
            PageState::Touched => Self::region_bytes(load),
            _ => Self::region_bytes(&Load { depth: load.repetitions, ..*load }),
        }
    }

    /// Bytes of the third region for a load.
    pub fn extra_bytes(load: &Load) -> usize {
        parts(load).saturating_mul(stride(load.work.extra_bytes(load.size_bytes as usize)))
    }
}

/// Descriptors that can be in flight.
pub(super) fn parts(load: &Load) -> usize {
    load.depth.saturating_mul(load.batch as usize)
}

/// Parts start on a page.
pub(super) fn stride(size_bytes: usize) -> usize {
    size_bytes.next_multiple_of(PAGE_BYTES as usize)
}

/// Runs the loads at the same time, `iterations` times. All threads start each iteration together. Returns the times of
/// the lanes in each iteration, and the lanes. For absent pages the targets must be untouched, so there is one
/// iteration.
///
/// # Errors
/// [`LoadError`]. The lanes are leaked then, because a device may still write to their memory.
///
/// # Panics
/// If a region is shorter than its load needs.
pub fn threads<B: AsMut<[u8]> + Send>(
    mut lanes: Vec<Lane<B>>,
    iterations: usize,
) -> Result<(Iterations, Vec<Lane<B>>), LoadError> {
    for Lane { load, placed, executor, .. } in &lanes {
        load.check()?;
        let is_core = matches!(executor, Executor::Core);
        if *placed != Placed::default() && !is_core && load.work != LoadOperation::Copy {
            return Err(LoadError::Load(
                "of a device's operations, copies find and leave data in caches".to_owned(),
            ));
        }
        if load.pages != PageState::Touched && iterations > 1 {
            return Err(LoadError::Load("pages are absent once: give each iteration new lanes".to_owned()));
        }
        match (executor, load.pages) {
            (Executor::Core, PageState::AbsentResume) => {
                return Err(LoadError::Load(
                    "a core does not stop at absent pages, so it does not resume".to_owned(),
                ));
            }
            (Executor::Queue(portal), PageState::AbsentBlock) if !portal.work_queue().block_on_fault => {
                let queue = &portal.work_queue().name;
                let how = "set block_on_fault to 1 (memferry configure), or ask for absent-resume";
                return Err(LoadError::Load(format!("{queue} does not wait for absent pages; {how}")));
            }
            _ => {}
        }
    }
    let barrier = Barrier::new(lanes.len());
    let ended: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            lanes.iter_mut().map(|lane| scope.spawn(|| lane.run(&barrier, iterations))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    if ended.iter().any(|seen| !matches!(seen, Ok(Ok(_)))) {
        // A device may still write.
        std::mem::forget(lanes);
        lanes = Vec::new();
    }
    let mut seen = Vec::with_capacity(ended.len());
    for lane in ended {
        seen.push(lane.unwrap_or_else(|panic| panic::resume_unwind(panic))?);
    }
    let iteration = |number: usize| seen.iter().map(|lane: &Vec<SubmitterTimes>| lane[number]).collect();
    Ok(((0..iterations).map(iteration).collect(), lanes))
}

impl<B: AsMut<[u8]>> Lane<B> {
    fn run(&mut self, barrier: &Barrier, iterations: usize) -> Result<Vec<SubmitterTimes>, LoadError> {
        if let Some(cpu) = self.cpu {
            // Without permission it runs on any CPU.
            let _ = confine(&[cpu]);
        }
        let load = self.load;
        arrange(&load, self.regions.each_mut().map(AsMut::as_mut));
        let mut failed = None;
        let mut queue = match &self.executor {
            Executor::Queue(portal) => {
                let regions = self.regions.each_mut().map(AsMut::as_mut);
                Some(Queue::new(&**portal, &load, self.placed, regions))
            }
            Executor::Core => None,
        };
        let mut seen = Vec::with_capacity(iterations);
        for _ in 0..iterations {
            // Nothing is in flight between iterations.
            for (region, before) in
                self.regions.iter_mut().zip(before(load.pages, self.placed, queue.is_none()))
            {
                place(region.as_mut(), before);
            }
            // A failed lane still waits at the barrier; otherwise the others would wait for ever.
            barrier.wait();
            if failed.is_some() {
                continue;
            }
            let start = Instant::now();
            let mut busy = SubmitterTimes::default();
            match &mut queue {
                Some(queue) => {
                    let ran = match (load.pages, self.times_submissions, load.depth) {
                        (PageState::Touched, false, _) => queue.run(&load, None),
                        (PageState::Touched, true, 1) => queue.run_anew(&load, &mut busy),
                        (PageState::Touched, true, _) => {
                            queue.run(&load, Some(busy.submitting_ns.insert(0.0)))
                        }
                        _ => queue.run_absent(&load).map(|faults_count| busy.faults_count = faults_count),
                    };
                    failed = ran.err();
                }
                None => {
                    let [source, target, extra] = self.regions.each_mut().map(AsMut::as_mut);
                    on_core(&load, source, target, extra);
                    if self.times_submissions && load.work == LoadOperation::Nothing {
                        look_at_clock(&load);
                    }
                }
            }
            seen.push(SubmitterTimes { elapsed_ns: start.elapsed().as_nanos() as f64, ..busy });
        }
        if failed.is_some() {
            // The device may still write its records.
            std::mem::forget(queue);
        }
        failed.map_or(Ok(seen), Err)
    }
}

/// The treatment of a region before an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Read,
    Flushed,
    /// A flush would bring absent pages in.
    Left,
}

/// The treatment of source, target and third region.
fn before(pages: PageState, placed: Placed, is_core: bool) -> [Before; 3] {
    let read_if = |is_read| if is_read { Before::Read } else { Before::Flushed };
    let target = read_if(placed.is_target_cached && is_core);
    [
        read_if(placed.is_source_cached),
        if pages == PageState::Touched { target } else { Before::Left },
        target,
    ]
}

fn place(region: &[u8], before: Before) {
    match before {
        Before::Read => _ = black_box(region.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte))),
        Before::Flushed => flush(region, Flush::Invalidate),
        Before::Left => {}
    }
}

/// The cost of timing the submissions of such a load one by one: as many readings of the clock.
fn look_at_clock(load: &Load) {
    let looks_count = if load.depth == 1 { LOOKS_ANEW } else { LOOKS };
    for _ in 0..load.repetitions * looks_count {
        black_box(Instant::now());
    }
}

/// Writes the content that the operation needs beyond equal bytes to each part.
fn arrange(load: &Load, [source, _, extra]: [&mut [u8]; 3]) {
    let size = load.size_bytes as usize;
    let (source_bytes, extra_bytes) = (load.work.region_bytes(size), load.work.extra_bytes(size));
    for part in source.chunks_mut(stride(source_bytes)).filter(|part| part.len() >= source_bytes) {
        load.work.arrange(&mut part[..source_bytes], &mut []);
    }
    if extra_bytes > 0 {
        for part in extra.chunks_mut(stride(extra_bytes)).filter(|part| part.len() >= extra_bytes) {
            load.work.arrange(&mut [], &mut part[..extra_bytes]);
        }
    }
}

/// Cycles through each region separately: a region with one part stays in the caches, a large one does not.
fn on_core(load: &Load, source: &[u8], target: &mut [u8], extra: &mut [u8]) {
    let data = load.size_bytes as usize;
    let (size, extra_size) = (load.work.region_bytes(data), load.work.extra_bytes(data));
    let (mut source_round, mut target_round) =
        (Round::new(source.len(), size), Round::new(target.len(), size));
    let mut extra_round = Round::new(extra.len(), extra_size);
    for _ in 0..load.repetitions * load.batch as usize {
        load.work.on_this_core(
            data,
            &source[source_round.next()],
            &mut target[target_round.next()],
            &mut extra[extra_round.next()],
        );
    }
}

/// Cycles through the parts of a region. A division would cost as much as copying a hundred bytes.
struct Round {
    at: usize,
    size: usize,
    step: usize,
    end: usize,
}

impl Round {
    /// Parts of `size` bytes, at least one, in a region of `region_bytes`.
    fn new(region_bytes: usize, size: usize) -> Round {
        let step = stride(size).max(1);
        let parts_count = if size == 0 { 1 } else { (region_bytes / step).max(1) };
        Round { at: 0, size, step, end: parts_count * step }
    }

    fn next(&mut self) -> Range<usize> {
        let part = self.at..self.at + self.size;
        self.at += self.step;
        if self.at == self.end {
            self.at = 0;
        }
        part
    }
}

#[cfg(test)]
mod tests;

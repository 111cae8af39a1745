//! A load in threads of this machine, on the submitting cores themselves or on queues.

use std::panic;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use super::work::Regions;
use super::{Failed, Load, Pages, Seen};
use crate::address::PAGE_BYTES;
use crate::completion::Status;
use crate::portal::{Backoff, submit_patiently};
use crate::{CompletionRecord, Descriptor, Portal, Wait};

/// Who does the work.
#[derive(Clone)]
pub enum Way {
    /// The submitting thread.
    Core,
    /// A device, through this queue.
    Queue(Arc<dyn Portal>),
}

/// What each lane saw, for each iteration.
pub type Iterations = Vec<Vec<Seen>>;

/// One submitter with its memory: for each submission under way and each member of a batch a part of its own.
pub struct Lane<B> {
    /// What it does.
    pub load: Load,
    /// Who does the work.
    pub way: Way,
    /// The CPU of its thread, if it is to have one.
    pub cpu: Option<u32>,
    /// Whether submissions to a queue are timed one by one, which costs as much as looking at a clock twice.
    pub times_submissions: bool,
    /// Source, target, and what a second target or a delta record needs: at least [`Lane::region_bytes`] the first two,
    /// [`Lane::extra_bytes`] the third, each beginning with a page. A core goes round in all that there is.
    pub regions: [B; 3],
}

/// A record on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Slot(CompletionRecord);

/// Far beyond everything that a submission takes.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Looks at a record before the clock is asked.
const LOOKS: u32 = 1 << 16;

impl<B> Lane<B> {
    /// Bytes of source and target for a load.
    pub fn region_bytes(load: &Load) -> usize {
        parts(load).saturating_mul(stride(load.size_bytes as usize))
    }

    /// Bytes of the third region for a load.
    pub fn extra_bytes(load: &Load) -> usize {
        parts(load).saturating_mul(stride(load.work.extra_bytes(load.size_bytes as usize)))
    }
}

/// Descriptors that can be under way.
fn parts(load: &Load) -> usize {
    load.depth.saturating_mul(load.batch as usize)
}

/// Parts begin with a page.
fn stride(size_bytes: usize) -> usize {
    size_bytes.next_multiple_of(PAGE_BYTES as usize)
}

/// Runs the loads side by side, `iterations` times. Each iteration begins for all threads together; the answer has
/// for each of them what each lane saw, and the lanes.
///
/// # Errors
/// [`Failed`]. The memory of lanes whose device still may write to it is leaked then.
///
/// # Panics
/// If a region is shorter than its load needs.
pub fn threads<B: AsMut<[u8]> + Send>(
    mut lanes: Vec<Lane<B>>,
    iterations: usize,
) -> Result<(Iterations, Vec<Lane<B>>), Failed> {
    for Lane { load, .. } in &lanes {
        load.check()?;
        if load.pages != Pages::Touched {
            return Err(Failed::Load("threads run on memory that was touched before".to_owned()));
        }
    }
    let barrier = Barrier::new(lanes.len());
    let ended: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> =
            lanes.iter_mut().map(|lane| scope.spawn(|| lane.run(&barrier, iterations))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    if ended.iter().any(|seen| !matches!(seen, Ok(Ok(_)))) {
        // Somebody's device may still write.
        std::mem::forget(lanes);
        lanes = Vec::new();
    }
    let mut seen = Vec::with_capacity(ended.len());
    for lane in ended {
        seen.push(lane.unwrap_or_else(|panic| panic::resume_unwind(panic))?);
    }
    let iteration = |number: usize| seen.iter().map(|lane: &Vec<Seen>| lane[number]).collect();
    Ok(((0..iterations).map(iteration).collect(), lanes))
}

impl<B: AsMut<[u8]>> Lane<B> {
    fn run(&mut self, barrier: &Barrier, iterations: usize) -> Result<Vec<Seen>, Failed> {
        if let Some(cpu) = self.cpu {
            pin(cpu);
        }
        let load = self.load;
        let mut failed = None;
        let mut queue = match &self.way {
            Way::Queue(portal) => {
                Some(Queue::new(&**portal, &load, self.regions.each_mut().map(AsMut::as_mut)))
            }
            Way::Core => None,
        };
        let mut seen = Vec::with_capacity(iterations);
        for _ in 0..iterations {
            // One that has failed still comes to the barrier, or the others would wait for ever.
            barrier.wait();
            if failed.is_some() {
                continue;
            }
            let start = Instant::now();
            let mut submitting_ns = None;
            match &mut queue {
                Some(queue) => {
                    submitting_ns = self.times_submissions.then_some(0.0);
                    failed = queue.run(load.depth, load.repetitions, submitting_ns.as_mut()).err();
                }
                None => {
                    let [source, target, extra] = self.regions.each_mut().map(AsMut::as_mut);
                    on_core(&load, source, target, extra);
                }
            }
            seen.push(Seen { elapsed_ns: start.elapsed().as_nanos() as f64, submitting_ns });
        }
        if failed.is_some() {
            // Its records are the device's.
            std::mem::forget(queue);
        }
        failed.map_or(Ok(seen), Err)
    }
}

/// Goes round in each region by itself: one with room for one part stays in the caches, a large one does not.
fn on_core(load: &Load, source: &[u8], target: &mut [u8], extra: &mut [u8]) {
    let size = load.size_bytes as usize;
    let extra_size = load.work.extra_bytes(size);
    let room = |region: usize| (region / stride(size)).max(1);
    let (source_parts, target_parts, extra_parts) = (room(source.len()), room(target.len()), parts(load));
    for number in 0..load.repetitions * load.batch as usize {
        let source_at = number % source_parts * stride(size);
        let target_at = number % target_parts * stride(size);
        let extra_at = number % extra_parts * stride(extra_size);
        load.work.on_this_core(
            &source[source_at..source_at + size],
            &mut target[target_at..target_at + size],
            &mut extra[extra_at..extra_at + extra_size],
        );
    }
}

/// The descriptors of a lane, ready to be submitted again and again.
struct Queue<'a> {
    portal: &'a dyn Portal,
    slots: Vec<Slot>,
    descriptors: Vec<Descriptor>,
    _lists: Vec<Vec<Descriptor>>,
    _member_records: Vec<Slot>,
}

impl<'a> Queue<'a> {
    fn new(portal: &'a dyn Portal, load: &Load, [source, target, extra]: [&mut [u8]; 3]) -> Queue<'a> {
        let size = load.size_bytes as usize;
        let extra_size = load.work.extra_bytes(size);
        let parts = parts(load);
        let (step, extra_step) = (stride(size), stride(extra_size));
        assert!(source.len() >= parts * step && target.len() >= parts * step, "a region is too short");
        assert!(extra.len() >= parts * extra_step, "the third region is too short");
        let (source, target, extra) = (source.as_ptr(), target.as_mut_ptr(), extra.as_mut_ptr());
        let descriptor = |part: usize| {
            let at = Regions {
                source: source.wrapping_add(part * step).into(),
                target: target.wrapping_add(part * step).into(),
                extra: extra.wrapping_add(part * extra_step).into(),
            };
            load.work.descriptor(at, load.size_bytes)
        };
        let batch = load.batch as usize;
        let slots: Vec<Slot> = (0..load.depth).map(|_| Slot::default()).collect();
        let is_batch = batch > 1;
        let records_count = if is_batch && load.work.has_result() { parts } else { 0 };
        let records: Vec<Slot> = (0..records_count).map(|_| Slot::default()).collect();
        let member = |part: usize| match records.get(part) {
            Some(Slot(record)) => descriptor(part).with_completion(record),
            None => descriptor(part),
        };
        let list = |slot: usize| (0..batch).map(|it| member(slot * batch + it)).collect();
        let lists: Vec<Vec<Descriptor>> =
            if is_batch { (0..load.depth).map(list).collect() } else { Vec::new() };
        let submission = |(slot, Slot(record)): (usize, &Slot)| {
            let descriptor = match lists.get(slot) {
                Some(list) => Descriptor::batch(list.as_ptr(), load.batch),
                None => descriptor(slot),
            };
            descriptor.with_completion(record)
        };
        let descriptors = slots.iter().enumerate().map(submission).collect();
        Queue { portal, slots, descriptors, _lists: lists, _member_records: records }
    }

    fn run(
        &mut self,
        depth: usize,
        repetitions: usize,
        mut submitting_ns: Option<&mut f64>,
    ) -> Result<(), Failed> {
        for number in 0..repetitions {
            let Slot(record) = &self.slots[number % depth];
            if number >= depth {
                self.wait(record)?;
            }
            record.reset();
            let begin = submitting_ns.is_some().then(Instant::now);
            // Patience for a queue that others fill too.
            // SAFETY: the regions were borrowed mutably from the lane, which is not touched before all that is in
            // flight is complete, or leaked; so are records and lists. Parts of different slots do not overlap.
            unsafe {
                submit_patiently(self.portal, &self.descriptors[number % depth], Backoff::new(1 << 20))
            }?;
            if let (Some(begin), Some(sum)) = (begin, &mut submitting_ns) {
                **sum += begin.elapsed().as_nanos() as f64;
            }
        }
        self.slots[..depth.min(repetitions)].iter().try_for_each(|Slot(record)| self.wait(record))
    }

    fn wait(&self, record: &CompletionRecord) -> Result<(), Failed> {
        // A clock is looked at only after some time: it costs a good part of a round trip.
        let looked = (0..LOOKS).find_map(|_| {
            let completion = record.poll();
            if completion.is_none() {
                std::hint::spin_loop();
            }
            completion
        });
        let completion = match looked {
            Some(completion) => completion,
            None => Wait::Pause.wait(record, TIMEOUT).map_err(|_| Failed::Silent)?,
        };
        self.portal.settled(1);
        match completion.status {
            Status::Success => Ok(()),
            status => Err(Failed::Status(status)),
        }
    }
}

/// Binds the calling thread to a CPU. Best effort: a thread that may not run there runs elsewhere.
pub fn pin(cpu: u32) {
    if cpu as usize >= libc::CPU_SETSIZE as usize {
        return;
    }
    // SAFETY: all zero is an empty set, and `cpu` is in its range.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        set
    };
    // SAFETY: it reads the set, and changes only where this thread runs.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}

#[cfg(test)]
mod tests {
    use super::super::work::BYTE;
    use super::*;
    use crate::measure::device;
    use crate::measure::load::Work;

    /// Bytes that begin with a page.
    struct Paged(Vec<u8>, usize, usize);

    impl Paged {
        fn new(bytes: usize) -> Paged {
            let all = vec![BYTE; bytes + 4096];
            let begin = all.as_ptr().align_offset(4096);
            Paged(all, begin, bytes)
        }
    }

    impl AsMut<[u8]> for Paged {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0[self.1..self.1 + self.2]
        }
    }

    fn lane(load: Load, way: Way) -> Lane<Paged> {
        let bytes = Lane::<Paged>::region_bytes(&load);
        let extra = Lane::<Paged>::extra_bytes(&load);
        Lane { load, way, cpu: None, times_submissions: true, regions: [bytes, bytes, extra].map(Paged::new) }
    }

    fn load(work: Work, batch: u32) -> Load {
        Load { work, size_bytes: 4096, batch, depth: 2, repetitions: 5, pages: Pages::Touched }
    }

    /// Every operation, on cores and through a queue: as often as it says, and with its effect.
    #[test]
    fn all_operations_everywhere() {
        let emulator = device::emulated().unwrap();
        for way in [Way::Core, Way::Queue(emulator.portal(0))] {
            for batch in [1, 4] {
                let before = emulator.counters().ended_count();
                for work in Work::ALL {
                    let mut lanes =
                        vec![lane(load(work, batch), way.clone()), lane(load(work, batch), Way::Core)];
                    lanes[0].regions[0].as_mut()[..4096].fill(BYTE);
                    let (seen, _) = threads(lanes, 3).unwrap();
                    assert_eq!(seen.len(), 3);
                    assert!(
                        seen.iter().flatten().all(|seen| seen.elapsed_ns > seen.submitting_ns.unwrap_or(0.0)),
                        "{work}: {seen:?}"
                    );
                }
                let members = if batch == 1 { 1 } else { batch + 1 };
                let expected = if matches!(way, Way::Core) { 0 } else { 9 * 3 * 5 * u64::from(members) };
                assert_eq!(emulator.counters().ended_count() - before, expected);
            }
        }
    }

    #[test]
    fn copies_arrive() {
        let emulator = device::emulated().unwrap();
        let mut copying = lane(load(Work::Copy, 1), Way::Queue(emulator.portal(0)));
        copying.regions[0].as_mut().fill(9);
        let (_, lanes) = threads(vec![copying], 1).unwrap();
        let mut lanes = lanes;
        assert!(lanes[0].regions[1].as_mut().iter().all(|byte| *byte == 9));
    }

    #[test]
    fn a_device_that_is_gone_is_an_error() {
        let emulator = device::emulated().unwrap();
        let lanes = vec![
            lane(load(Work::Copy, 1), Way::Queue(emulator.portal(0))),
            lane(load(Work::Copy, 1), Way::Core),
        ];
        emulator.abort();
        assert!(matches!(threads(lanes, 3), Err(Failed::Unsubmitted(_))));
    }
}

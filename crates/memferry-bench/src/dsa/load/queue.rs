//! A queue under load, with descriptors made once or anew for each submission.

use std::time::{Duration, Instant};
use std::{hint, thread};

use memferry_dsa::internals::request::touch;
use memferry_dsa::{
    Address, Backoff, CompletionRecord, Descriptor, Flags, Portal, Status, Wait, submit_with_backoff,
};

use super::threads::{parts, stride};
use super::work::Regions;
use super::{Lane, Load, LoadError, PageState, Placed, SubmitterTimes};

/// A record on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
pub(in crate::dsa) struct Slot(pub(in crate::dsa) CompletionRecord);

/// Far longer than any submission.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls of a record before the clock is read.
const POLLS: u32 = 1 << 16;

/// Readings of the clock per timed submission, and per timed submission with new descriptors.
pub(super) const LOOKS: usize = 2;
pub(super) const LOOKS_ANEW: usize = 4;

/// A queue and the descriptors for it.
pub(super) struct Queue<'a> {
    portal: &'a dyn Portal,
    /// Addresses of source, target and third region.
    regions: [Address; 3],
    flags: Flags,
    pub(super) made: Made,
}

/// The descriptors of a lane, for repeated submission.
pub(super) struct Made {
    slots: Vec<Slot>,
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) lists: Vec<Vec<Descriptor>>,
    member_records: Vec<Slot>,
}

impl Made {
    /// Allocates them.
    fn allocate(load: &Load) -> Made {
        let slots = |count: usize| (0..count).map(|_| Slot::default()).collect();
        let batch = load.batch as usize;
        let lists_count = if batch > 1 { load.depth } else { 0 };
        Made {
            slots: slots(load.depth),
            descriptors: Vec::with_capacity(load.depth),
            lists: (0..lists_count).map(|_| Vec::with_capacity(batch)).collect(),
            member_records: slots(if batch > 1 && load.work.has_result() { parts(load) } else { 0 }),
        }
    }

    /// Writes the descriptors.
    fn prepare(&mut self, load: &Load, [source, target, extra]: [Address; 3], flags: Flags) {
        let size = load.size_bytes as usize;
        let (step, extra_step) = (stride(load.work.region_bytes(size)), stride(load.work.extra_bytes(size)));
        let descriptor = |part: usize| {
            let at = |region: Address, step: usize| region.offset((part * step) as u64);
            let at =
                Regions { source: at(source, step), target: at(target, step), extra: at(extra, extra_step) };
            load.work.descriptor(at, load.size_bytes).with_flags(flags)
        };
        let batch = load.batch as usize;
        for (slot, list) in self.lists.iter_mut().enumerate() {
            list.extend((0..batch).map(|it| {
                let part = slot * batch + it;
                match self.member_records.get(part) {
                    Some(Slot(record)) => descriptor(part).with_completion(record),
                    None => descriptor(part),
                }
            }));
        }
        for (slot, Slot(record)) in self.slots.iter().enumerate() {
            let descriptor = match self.lists.get(slot) {
                Some(list) => Descriptor::batch(list.as_ptr(), load.batch),
                None => descriptor(slot),
            };
            self.descriptors.push(descriptor.with_completion(record));
        }
    }
}

impl<'a> Queue<'a> {
    pub(super) fn new(
        portal: &'a dyn Portal,
        load: &Load,
        placed: Placed,
        [source, target, extra]: [&mut [u8]; 3],
    ) -> Queue<'a> {
        assert!(source.len() >= Lane::<()>::region_bytes(load), "the source is too short");
        assert!(target.len() >= Lane::<()>::target_bytes(load), "the target is too short");
        assert!(extra.len() >= Lane::<()>::extra_bytes(load), "the third region is too short");
        let regions =
            [source.as_ptr().into(), target.as_mut_ptr().cast_const().into(), extra.as_ptr().into()];
        let flags = match (placed.is_target_cached, load.pages) {
            (true, _) => Flags::CACHE_CONTROL,
            (false, PageState::AbsentBlock) => Flags::BLOCK_ON_FAULT,
            (false, _) => Flags::NONE,
        };
        let mut made = Made::allocate(load);
        made.prepare(load, regions, flags);
        Queue { portal, regions, flags, made }
    }

    pub(super) fn run(&mut self, load: &Load, mut submitting_ns: Option<&mut f64>) -> Result<(), LoadError> {
        let Load { depth, repetitions, .. } = *load;
        for number in 0..repetitions {
            let slot = number % depth;
            if number >= depth {
                wait(self.portal, &self.made.slots[slot].0)?;
            }
            let begin = submitting_ns.is_some().then(Instant::now);
            self.submit(slot)?;
            if let (Some(begin), Some(sum)) = (begin, &mut submitting_ns) {
                **sum += nanoseconds(begin, Instant::now());
            }
        }
        let last = &self.made.slots[..depth.min(repetitions)];
        last.iter().try_for_each(|Slot(record)| wait(self.portal, record))
    }

    /// Runs one submission at a time, each with new records and descriptors.
    pub(super) fn run_anew(&mut self, load: &Load, busy: &mut SubmitterTimes) -> Result<(), LoadError> {
        let (mut allocating_ns, mut preparing_ns, mut submitting_ns) = (0.0, 0.0, 0.0);
        for _ in 0..load.repetitions {
            let begin = Instant::now();
            // The previous ones are complete and freed here.
            self.made = Made::allocate(load);
            let allocated = Instant::now();
            self.made.prepare(load, self.regions, self.flags);
            let prepared = Instant::now();
            self.submit(0)?;
            let submitted = Instant::now();
            wait(self.portal, &self.made.slots[0].0)?;
            allocating_ns += nanoseconds(begin, allocated);
            preparing_ns += nanoseconds(allocated, prepared);
            submitting_ns += nanoseconds(prepared, submitted);
        }
        busy.allocating_ns = Some(allocating_ns);
        busy.preparing_ns = Some(preparing_ns);
        busy.submitting_ns = Some(submitting_ns);
        Ok(())
    }

    /// Copies to absent pages, each to a separate part, with one copy in flight per slot. After a page fault it touches the
    /// page and submits the rest. Returns the number of page faults.
    pub(super) fn run_absent(&mut self, load: &Load) -> Result<u64, LoadError> {
        let [source, target, _] = self.regions;
        let step = stride(load.size_bytes as usize) as u64;
        let mut is_busy = vec![false; load.depth];
        let (mut begun, mut complete, mut faults_count) = (0, 0, 0);
        let (mut idle_rounds, mut idle_since) = (0, Instant::now());
        while complete < load.repetitions {
            idle_rounds += 1;
            for (slot, is_busy) in is_busy.iter_mut().enumerate() {
                let record = &self.made.slots[slot].0;
                if *is_busy {
                    let Some(completion) = record.poll() else { continue };
                    self.portal.completed(1);
                    *is_busy = false;
                    let rest = self.made.descriptors[slot].resumed(&completion);
                    match (completion.status, rest) {
                        (Status::Success, _) => complete += 1,
                        (Status::PageFault, Some(rest)) if load.pages == PageState::AbsentResume => {
                            // SAFETY: the regions are borrowed from the lane, and the device has completed this part.
                            unsafe { touch(&self.made.descriptors[slot], &completion) };
                            faults_count += 1;
                            self.made.descriptors[slot] = rest;
                            self.submit(slot)?;
                            *is_busy = true;
                        }
                        (status, _) => return Err(LoadError::Status(status)),
                    }
                } else if begun < load.repetitions {
                    let (from, to) = (source.offset(slot as u64 * step), target.offset(begun as u64 * step));
                    let copy = Descriptor::memmove(from, to, load.size_bytes).with_flags(self.flags);
                    self.made.descriptors[slot] = copy.with_completion(record);
                    begun += 1;
                    self.submit(slot)?;
                    *is_busy = true;
                } else {
                    continue;
                }
                idle_rounds = 0;
            }
            match idle_rounds {
                0..POLLS => hint::spin_loop(),
                POLLS => idle_since = Instant::now(),
                _ if idle_since.elapsed() > TIMEOUT => return Err(LoadError::Silent),
                // The thread of an emulated device may need this CPU.
                _ => thread::yield_now(),
            }
        }
        Ok(faults_count)
    }

    fn submit(&self, slot: usize) -> Result<(), LoadError> {
        self.made.slots[slot].0.reset();
        // Patience for a queue that other clients fill too.
        // SAFETY: the regions were borrowed mutably from the lane, which is not touched before all that is in flight is
        // complete, or leaked; the same holds for `made`. Parts of different slots do not overlap.
        unsafe { submit_with_backoff(self.portal, &self.made.descriptors[slot], Backoff::new(1 << 20)) }?;
        Ok(())
    }
}

/// Waits for the completion of a submission through `portal`.
pub(in crate::dsa) fn wait(portal: &dyn Portal, record: &CompletionRecord) -> Result<(), LoadError> {
    // The clock is read only after many polls: it costs a good part of a round trip.
    let polled = (0..POLLS).find_map(|_| {
        let completion = record.poll();
        if completion.is_none() {
            hint::spin_loop();
        }
        completion
    });
    let completion = match polled {
        Some(completion) => completion,
        None => Wait::Pause.wait(record, TIMEOUT).map_err(|_| LoadError::Silent)?,
    };
    portal.completed(1);
    match completion.status {
        Status::Success => Ok(()),
        status => Err(LoadError::Status(status)),
    }
}

fn nanoseconds(begin: Instant, end: Instant) -> f64 {
    (end - begin).as_nanos() as f64
}

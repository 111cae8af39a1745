//! A piece of a copy, or an operation: what one descriptor at a time is asked to do. All that touches memory is here.

use memferry_dsa::request::Progress;
use memferry_dsa::system::Version;
use memferry_dsa::{
    Completion, CompletionRecord, Descriptor, Flags, Opcode, PAGE_BYTES, Portal, Status, Submission,
    SubmitError, WorkQueueInfo,
};

use super::super::RawRequest;
use super::super::guidelines::{self, BATCHED_BYTES_MAX};
use super::super::raw::RawOperation;

/// A part of a copy that is still to be done, or what is left of an operation.
///
/// Pieces of one copy do not overlap, and exist only while their copy is not finished: the engine finishes a
/// copy when its last piece is gone, and leaks its buffers when a piece was lost. So whoever has a piece may
/// read its source and write its target, under the promise that was made to [`RawRequest::new`]. The same goes for an
/// operation, which is one piece, and the promise that was made when its task was.
#[derive(Debug)]
pub(super) struct Piece {
    /// Key of the copy it belongs to.
    pub(super) job: usize,
    body: Body,
    /// Page faults that cut it short so far.
    pub(super) faults_count: u32,
    /// Times in a row that all queues refused it.
    pub(super) refusals_count: u32,
    /// Of the thread that submitted the copy.
    pub(super) thread_number: usize,
    /// It is no member of batches: one did not come to it, or the CPU has to do it.
    pub(super) is_loner: bool,
}

#[derive(Debug)]
enum Body {
    Copy(Run),
    Operation(Box<RawOperation>),
}

/// A run of bytes to be copied.
#[derive(Copy, Clone, Debug)]
struct Run {
    source: *const u8,
    target: *mut u8,
    size_bytes: usize,
    /// Flags that it is submitted with if the queue knows them.
    hints: Flags,
}

// SAFETY: what may be done with the pointers does not depend on the thread.
unsafe impl Send for Piece {}

/// How a descriptor of a piece ended, and how many bytes of the piece are done by it.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Landed {
    /// All of the piece.
    Done(u64),
    /// An operation goes on with the next part.
    Next(u64),
    /// A page fault: touch the page, then go on.
    Fault(u64),
    /// The device does not know these hints; the piece goes without.
    HintRefused(Flags),
    /// The device does not do this: the CPU has to.
    NotTaken,
    /// The device failed.
    Failed(Status),
}

impl Piece {
    /// All of a copy, whose operation it takes, if it is one. To be called by the thread that submits it.
    pub(super) fn of(job: usize, copy: &mut RawRequest) -> Piece {
        let flag = |is_wanted, flag| if is_wanted { flag } else { Flags::NONE };
        let hints = flag(copy.block_on_fault(), Flags::BLOCK_ON_FAULT)
            | flag(copy.into_cache(), Flags::CACHE_CONTROL);
        let run = Run { source: copy.source(), target: copy.target(), size_bytes: copy.size_bytes(), hints };
        let thread_number = guidelines::thread_number();
        let body = copy.take_operation().map_or(Body::Copy(run), Body::Operation);
        Piece { job, body, faults_count: 0, refusals_count: 0, thread_number, is_loner: false }
    }

    /// What is left to be done.
    pub(super) fn size_bytes(&mut self) -> u64 {
        match &mut self.body {
            Body::Copy(run) => run.size_bytes as u64,
            Body::Operation(operation) => operation.task().left_bytes(),
        }
    }

    /// Small enough for a batch.
    pub(super) fn is_small(&mut self) -> bool {
        !self.is_loner && self.size_bytes() <= BATCHED_BYTES_MAX as u64
    }

    /// Splits a copy so that its front has at most `size_bytes_max`; returns what is behind that, if anything. Operations
    /// cut themselves.
    pub(super) fn split(&mut self, size_bytes_max: usize) -> Option<Piece> {
        let Body::Copy(run) = &mut self.body else { return None };
        if run.size_bytes <= size_bytes_max {
            return None;
        }
        let rest = run.without_front(size_bytes_max);
        run.size_bytes = size_bytes_max;
        Some(Piece {
            job: self.job,
            body: Body::Copy(rest),
            faults_count: 0,
            refusals_count: 0,
            thread_number: self.thread_number,
            is_loner: false,
        })
    }

    /// Whether a queue takes it: whole, as a member of a batch must be, or in parts.
    pub(super) fn fits(&mut self, queue: &WorkQueueInfo, version: Version, is_member: bool) -> bool {
        match &mut self.body {
            Body::Copy(run) => {
                queue.operations.contains(Opcode::Memmove)
                    && run.size_bytes <= queue.transfer_bytes_max as usize
            }
            Body::Operation(operation) => operation.task().fits(queue, version, !is_member).is_ok(),
        }
    }

    /// Offers the piece, which fits, to a device.
    ///
    /// If it is accepted, the piece and the record are the device's: the engine keeps both in a flight until
    /// the record has completed, and leaks the record, and the buffers, if that is given up.
    pub(super) fn submit(
        &mut self,
        portal: &dyn Portal,
        refused: Flags,
        record: &CompletionRecord,
    ) -> (Descriptor, Result<Submission, SubmitError>) {
        let descriptor = self.descriptor(portal.work_queue(), refused).with_completion(record);
        // SAFETY: the ranges are good while the piece exists, see its type; that flights live as long as the
        // device needs them is what `State::land` and `State::give_up` see to, the only places where they end.
        let submission = unsafe { portal.submit(&descriptor) };
        (descriptor, submission)
    }

    /// Offers several pieces as a batch, whose list and records the device has until `record` is written. The rest is as
    /// for [`submit`](Piece::submit).
    pub(super) fn submit_batch(
        portal: &dyn Portal,
        batch: &Descriptor,
        record: &CompletionRecord,
    ) -> Result<Submission, SubmitError> {
        // SAFETY: as in `submit`: the list was written from pieces that the flight keeps.
        unsafe { portal.submit(&batch.with_completion(record)) }
    }

    /// What is to be submitted next, without the hints that the queue does not know, and without a record.
    pub(super) fn descriptor(&mut self, queue: &WorkQueueInfo, refused: Flags) -> Descriptor {
        let unknown = refused | if queue.block_on_fault { Flags::NONE } else { Flags::BLOCK_ON_FAULT };
        match &mut self.body {
            Body::Copy(Run { source, target, size_bytes, hints }) => {
                let size_bytes =
                    u32::try_from(*size_bytes).expect("split to the queue's transfer_bytes_max, a u32");
                Descriptor::memmove(*source, *target, size_bytes).with_flags(hints.without(unknown))
            }
            Body::Operation(operation) => {
                operation.task().drop_hints(unknown);
                operation.task().next(queue.transfer_bytes_max)
            }
        }
    }

    /// Takes in how `descriptor`, the last that was submitted of it, has ended. No device has the piece any more.
    pub(super) fn absorb(&mut self, descriptor: &Descriptor, completion: &Completion) -> Landed {
        let landed = match &mut self.body {
            Body::Copy(run) => run.absorb(descriptor, completion),
            Body::Operation(operation) => absorb(operation, completion),
        };
        self.faults_count += u32::from(matches!(landed, Landed::Fault(_)));
        landed
    }

    /// Touches the page that `completion` missed, as the CPU: reads it, or writes it where the device wanted to
    /// write. A page outside of this piece is left alone; the piece will then fault again, until the CPU does
    /// it.
    pub(super) fn touch(&mut self, completion: &Completion) {
        match &mut self.body {
            Body::Copy(run) => run.touch(completion),
            Body::Operation(operation) => {
                // SAFETY: the device has stopped working on this piece, and nobody else has it.
                unsafe { operation.task().touch(completion) };
            }
        }
    }

    /// Does the piece with the CPU. How many bytes that were.
    pub(super) fn do_on_this_cpu(&mut self) -> u64 {
        let size_bytes = self.size_bytes();
        match &mut self.body {
            Body::Copy(run) => run.copy_on_this_cpu(),
            Body::Operation(operation) => operation.execute(),
        }
        size_bytes
    }
}

fn absorb(operation: &mut RawOperation, completion: &Completion) -> Landed {
    let before = operation.task().left_bytes();
    // SAFETY: the completion is that of what `next` last returned, see `Piece::absorb`.
    match unsafe { operation.task().absorb(completion) } {
        Progress::Ended(ended) => {
            operation.end(Ok(ended));
            Landed::Done(before)
        }
        Progress::Next => Landed::Next(before - operation.task().left_bytes()),
        Progress::Fault => Landed::Fault(before - operation.task().left_bytes()),
        Progress::HintRefused(hints) => Landed::HintRefused(hints),
        Progress::NotTaken => Landed::NotTaken,
        Progress::Failed(status) => Landed::Failed(status),
    }
}

impl Run {
    /// What is behind the first bytes, of which there are more.
    fn without_front(mut self, bytes: usize) -> Run {
        assert!(bytes <= self.size_bytes, "a rest lies inside of its whole");
        // SAFETY: asserted: this stays inside both ranges.
        (self.source, self.target) = unsafe { (self.source.add(bytes), self.target.add(bytes)) };
        self.size_bytes -= bytes;
        self
    }

    fn absorb(&mut self, descriptor: &Descriptor, completion: &Completion) -> Landed {
        if completion.status == Status::Success {
            return Landed::Done(self.size_bytes as u64);
        }
        if let Some(rest) = descriptor.resumed(completion) {
            let skipped_bytes = (rest.address_1().0 - descriptor.address_1().0) as usize;
            *self = self.without_front(skipped_bytes);
            assert!(rest.size() as usize <= self.size_bytes, "a rest lies inside of its whole");
            self.size_bytes = rest.size() as usize;
            return Landed::Fault(completion.bytes_completed.into());
        }
        let hints = completion.invalid_flags();
        if completion.status == Status::InvalidFlags && self.hints != self.hints.without(hints) {
            self.hints = self.hints.without(hints);
            return Landed::HintRefused(hints);
        }
        match completion.status {
            Status::BadOpcode => Landed::NotTaken,
            status => Landed::Failed(status),
        }
    }

    fn touch(&self, completion: &Completion) {
        let page = completion.fault_address.page().0 as usize;
        let start = if completion.write_fault { self.target.addr() } else { self.source.addr() };
        let Some(offset) = page.max(start).checked_sub(start) else { return };
        if offset >= self.size_bytes || start + offset >= page + PAGE_BYTES as usize {
            return;
        }
        // SAFETY: `offset` is inside of both ranges, the device has stopped working on this piece, and nobody
        // else does. Volatile, because the access is made for the page, not for the value.
        unsafe {
            if completion.write_fault {
                let byte = self.target.add(offset);
                byte.write_volatile(byte.read_volatile());
            } else {
                self.source.add(offset).read_volatile();
            }
        }
    }

    /// Does the piece with the CPU.
    fn copy_on_this_cpu(&self) {
        // SAFETY: see the piece's type: the ranges are good, ours alone, and apart.
        unsafe { std::ptr::copy_nonoverlapping(self.source, self.target, self.size_bytes) };
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use memferry_dsa::Address;
    use memferry_dsa_emulator::shared_queue;

    use super::*;

    /// A piece of these buffers, which must outlive it.
    fn piece(source: &[u8], target: &mut [u8]) -> Piece {
        // SAFETY: the tests keep the buffers, and do not touch them between the calls.
        let mut copy = unsafe { RawRequest::new(source.as_ptr(), target.as_mut_ptr(), source.len(), |_| {}) };
        Piece::of(0, &mut copy)
    }

    fn fault(bytes_completed: u32, backwards: bool, write_fault: bool, fault_address: u64) -> Completion {
        Completion {
            bytes_completed,
            result: u8::from(backwards),
            write_fault,
            fault_address: Address(fault_address),
            ..Completion::new(Status::PageFault)
        }
    }

    #[test]
    fn splitting_covers_everything_once() {
        for (size, max) in [(1, 1), (10, 3), (9, 3), (3, 10), (4097, 4096)] {
            let source: Vec<u8> = (0..size).map(|index| (index % 250) as u8 + 1).collect();
            let mut target = vec![0; size];
            let mut left = Some(piece(&source, &mut target));
            while let Some(mut front) = left {
                left = front.split(max);
                assert!((1..=max as u64).contains(&front.size_bytes()));
                front.do_on_this_cpu();
            }
            assert_eq!(target, source, "{size} by {max}");
        }
    }

    #[test]
    fn what_a_fault_left_is_done_from_either_end() {
        let source: Vec<u8> = (1..=100).collect();
        for (backwards, expected) in [(false, 30..100), (true, 0..70)] {
            let mut target = vec![0; 100];
            let mut piece = piece(&source, &mut target);
            let descriptor = piece.descriptor(&shared_queue("wq0.0", 1), Flags::NONE);
            let landed = piece.absorb(&descriptor, &fault(30, backwards, false, 0));
            assert_eq!((landed, piece.size_bytes(), piece.faults_count), (Landed::Fault(30), 70, 1));
            piece.do_on_this_cpu();
            let copied: Vec<usize> = (0..100).filter(|&index| target[index] != 0).collect();
            assert_eq!(copied, expected.collect::<Vec<_>>(), "backwards: {backwards}");
        }
    }

    #[test]
    fn touching_makes_the_missing_page_present() {
        const PAGES: usize = 4;
        let size_bytes = PAGES * PAGE_BYTES as usize;
        // SAFETY: a new anonymous mapping, of nobody's business, that stays for ever.
        let target = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let address = libc::mmap(std::ptr::null_mut(), size_bytes, protection, flags, -1, 0);
            assert_ne!(address, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(address.cast::<u8>(), size_bytes)
        };
        let address = target.as_mut_ptr();
        let mut piece = piece(&vec![0; size_bytes], target);
        let missed = address.addr() as u64 + 2 * PAGE_BYTES;
        piece.touch(&fault(0, false, true, missed));
        let mut present = [0; PAGES];
        // SAFETY: the mapping has PAGES pages, and `present` a byte for each.
        assert_eq!(unsafe { libc::mincore(address.cast(), size_bytes, present.as_mut_ptr()) }, 0);
        assert_eq!(present.map(|byte| byte & 1), [0, 0, 1, 0]);
    }

    #[test]
    fn touching_changes_nothing_and_stays_inside() {
        let source = vec![1; 3 * PAGE_BYTES as usize];
        let mut target: Vec<u8> = (0..source.len()).map(|index| index as u8).collect();
        let before = target.clone();
        let into = target.as_ptr().addr();
        let mut piece = piece(&source, &mut target);
        for write_fault in [false, true] {
            let start = if write_fault { into } else { source.as_ptr().addr() } as u64;
            // Addresses before, in and behind the piece; those outside would crash.
            for address in [0, start - PAGE_BYTES, start, start + 5000, start + 4 * PAGE_BYTES, u64::MAX] {
                piece.touch(&fault(0, false, write_fault, address));
            }
        }
        assert_eq!(target, before);
    }
}

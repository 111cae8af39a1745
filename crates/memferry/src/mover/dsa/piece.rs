//! A piece of a copy: what one descriptor is asked to do. All that touches memory is here.

use memferry_dsa::{
    Completion, CompletionRecord, Descriptor, Flags, PAGE_BYTES, Portal, Submission, SubmitError,
};

use super::super::RawCopy;

/// A part of a copy that is still to be done.
///
/// Pieces of one copy do not overlap, and exist only while their copy is not finished: the engine finishes a
/// copy when its last piece is gone, and leaks its buffers when a piece was lost. So whoever has a piece may
/// read its source and write its target, under the promise that was made to [`RawCopy::new`].
#[derive(Debug)]
pub(super) struct Piece {
    /// Key of the copy it belongs to.
    pub(super) job: usize,
    source: *const u8,
    target: *mut u8,
    pub(super) size_bytes: usize,
    block_on_fault: bool,
    /// Page faults that cut it short so far.
    pub(super) faults_count: u32,
    /// Times in a row that all queues refused it.
    pub(super) refusals_count: u32,
}

// SAFETY: what may be done with the pointers does not depend on the thread.
unsafe impl Send for Piece {}

impl Piece {
    /// All of a copy.
    pub(super) fn of(job: usize, copy: &RawCopy) -> Piece {
        Piece {
            job,
            source: copy.source(),
            target: copy.target(),
            size_bytes: copy.size_bytes(),
            block_on_fault: copy.block_on_fault(),
            faults_count: 0,
            refusals_count: 0,
        }
    }

    /// Splits this piece so that its front has at most `size_bytes_max`; returns what is behind that, if anything.
    pub(super) fn split(&mut self, size_bytes_max: usize) -> Option<Piece> {
        if self.size_bytes <= size_bytes_max {
            return None;
        }
        let front_bytes = size_bytes_max;
        // SAFETY: `front_bytes` is less than the size of both ranges.
        let (source, target) = unsafe { (self.source.add(front_bytes), self.target.add(front_bytes)) };
        let size_bytes = self.size_bytes - front_bytes;
        self.size_bytes = front_bytes;
        Some(Piece { source, target, size_bytes, faults_count: 0, refusals_count: 0, ..*self })
    }

    /// Offers the piece, whose size fits into one descriptor, to a device.
    ///
    /// If it is accepted, the piece and the record are the device's: the engine keeps both in a flight until
    /// the record has completed, and leaks the record, and the buffers, if that is given up.
    pub(super) fn submit(
        &self,
        portal: &dyn Portal,
        record: &CompletionRecord,
    ) -> (Descriptor, Result<Submission, SubmitError>) {
        let descriptor = self.descriptor(record, portal.work_queue().block_on_fault);
        // SAFETY: the ranges are good while the piece exists, see its type; that flights live as long as the
        // device needs them is what `State::land` and `State::give_up` see to, the only places where they end.
        let submission = unsafe { portal.submit(&descriptor) };
        (descriptor, submission)
    }

    fn descriptor(&self, record: &CompletionRecord, queue_can_block: bool) -> Descriptor {
        let size_bytes =
            u32::try_from(self.size_bytes).expect("split to the queue's transfer_bytes_max, a u32");
        let descriptor = Descriptor::memmove(self.source, self.target, size_bytes).with_completion(record);
        if self.block_on_fault && queue_can_block {
            descriptor.with_flags(Flags::BLOCK_ON_FAULT)
        } else {
            descriptor
        }
    }

    /// What is left of this piece after a completion that left `rest` of its `descriptor`.
    pub(super) fn after(mut self, descriptor: &Descriptor, rest: &Descriptor) -> Piece {
        let skipped_bytes = (rest.address_1().0 - descriptor.address_1().0) as usize;
        assert!(skipped_bytes + rest.size() as usize <= self.size_bytes, "a rest lies inside of its whole");
        // SAFETY: asserted: this stays inside both ranges.
        (self.source, self.target) =
            unsafe { (self.source.add(skipped_bytes), self.target.add(skipped_bytes)) };
        self.size_bytes = rest.size() as usize;
        self.faults_count += 1;
        self
    }

    /// Touches the page that `completion` missed, as the CPU: reads it, or writes it where the device wanted to
    /// write. A page outside of this piece is left alone; the piece will then fault again, until the CPU does
    /// it.
    pub(super) fn touch(&self, completion: &Completion) {
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
    pub(super) fn copy_on_this_cpu(&self) {
        // SAFETY: see the type: the ranges are good, ours alone, and apart.
        unsafe { std::ptr::copy_nonoverlapping(self.source, self.target, self.size_bytes) };
    }
}

#[cfg(all(test, not(memferry_loom)))]
mod tests {
    use memferry_dsa::{Address, Status};

    use super::*;

    /// A piece of these buffers, which must outlive it.
    fn piece(source: &[u8], target: &mut [u8]) -> Piece {
        // SAFETY: the tests keep the buffers, and do not touch them between the calls.
        let copy = unsafe { RawCopy::new(source.as_ptr(), target.as_mut_ptr(), source.len(), |_| {}) };
        Piece::of(0, &copy)
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
                assert!((1..=max).contains(&front.size_bytes));
                front.copy_on_this_cpu();
            }
            assert_eq!(target, source, "{size} by {max}");
        }
    }

    #[test]
    fn what_a_fault_left_is_done_from_either_end() {
        let source: Vec<u8> = (1..=100).collect();
        for (backwards, expected) in [(false, 30..100), (true, 0..70)] {
            let mut target = vec![0; 100];
            let whole = piece(&source, &mut target);
            let descriptor = whole.descriptor(&CompletionRecord::new(), false);
            let rest = descriptor.resumed(&fault(30, backwards, false, 0)).expect("70 bytes are left");
            let rest = whole.after(&descriptor, &rest);
            assert_eq!((rest.size_bytes, rest.faults_count), (70, 1));
            rest.copy_on_this_cpu();
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
        let piece = piece(&vec![0; size_bytes], target);
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
        let piece = piece(&source, &mut target);
        for write_fault in [false, true] {
            let start = if write_fault { piece.target.addr() } else { piece.source.addr() } as u64;
            // Addresses before, in and behind the piece; those outside would crash.
            for address in [0, start - PAGE_BYTES, start, start + 5000, start + 4 * PAGE_BYTES, u64::MAX] {
                piece.touch(&fault(0, false, write_fault, address));
            }
        }
        assert_eq!(target, before);
    }
}

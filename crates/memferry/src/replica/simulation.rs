//! A medium that is worse than a real one: it loses, tears and reorders what was not flushed.
//!
//! Bytes are durable in units: 8 bytes (stores to persistent memory), a cache line, a sector or a page. A reset keeps any
//! subset of the units that were written since the last flush; before that, any of them may become durable early. A flush
//! that fails makes any subset durable and forgets the others, as Linux does: reads still see them, and later flushes leave
//! them out.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;

use super::slots::Medium;

/// The sizes of units.
pub(super) const UNIT_BYTES: [usize; 4] = [8, 64, 512, 4096];

/// SplitMix64. Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(super) fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub(super) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The event in place of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The machine is reset in the middle of it.
    Reset,
    /// The process is killed in the middle of it; the cache stays.
    Kill,
    /// It fails, and the process goes on.
    Error,
}

struct State {
    durable: Vec<u8>,
    cache: Vec<u8>,
    /// Units that the next flush makes durable.
    dirty: BTreeSet<usize>,
    unit_bytes: usize,
    random: Random,
    /// Operations left before the fault, which happens once.
    fault: Option<(usize, Fault)>,
    /// After a reset or a kill nothing works until the next process.
    is_down: bool,
    faults_count: usize,
}

/// The medium: shared, because it survives the process that has it open.
#[derive(Clone)]
pub(super) struct Simulation(Rc<RefCell<State>>);

impl Simulation {
    pub(super) fn new(size_bytes: usize, unit_bytes: usize, seed: u64) -> Simulation {
        Simulation(Rc::new(RefCell::new(State {
            durable: vec![0; size_bytes],
            cache: vec![0; size_bytes],
            dirty: BTreeSet::new(),
            unit_bytes,
            random: Random(seed),
            fault: None,
            is_down: false,
            faults_count: 0,
        })))
    }

    /// Lets the fault happen after `operations` more writes and flushes.
    pub(super) fn plan(&self, operations: usize, fault: Fault) {
        self.0.borrow_mut().fault = Some((operations, fault));
    }

    /// Faults that have happened.
    pub(super) fn faults_count(&self) -> usize {
        self.0.borrow().faults_count
    }

    /// Whether a fault has ended the process.
    pub(super) fn is_down(&self) -> bool {
        self.0.borrow().is_down
    }

    /// Begins the next process, without a planned fault.
    pub(super) fn restart(&self) {
        let mut state = self.0.borrow_mut();
        (state.fault, state.is_down) = (None, false);
    }

    /// Resets the machine now.
    pub(super) fn reset(&self) {
        self.0.borrow_mut().reset();
    }

    /// Makes everything durable, as the kernel does after some time.
    pub(super) fn write_back(&self) {
        let state = &mut *self.0.borrow_mut();
        for unit in std::mem::take(&mut state.dirty) {
            state.make_durable(unit);
        }
    }

    /// Changes bytes that are durable.
    pub(super) fn damage(&self, change: impl FnOnce(&mut [u8])) {
        let mut state = self.0.borrow_mut();
        assert!(state.dirty.is_empty(), "all is flushed");
        change(&mut state.durable);
        state.cache = state.durable.clone();
    }
}

impl State {
    /// The fault of this operation, if there is one.
    fn begin(&mut self) -> io::Result<Option<Fault>> {
        if self.is_down {
            return Err(io::Error::other("the process is gone"));
        }
        let Some((left, fault)) = self.fault else { return Ok(None) };
        if left > 0 {
            self.fault = Some((left - 1, fault));
            return Ok(None);
        }
        self.fault = None;
        self.faults_count += 1;
        Ok(Some(fault))
    }

    /// Ends an operation in whose middle the fault happened.
    fn fail(&mut self, fault: Fault) -> io::Result<()> {
        match fault {
            Fault::Reset => {
                self.reset();
                self.is_down = true;
            }
            Fault::Kill => self.is_down = true,
            Fault::Error => {}
        }
        Err(io::Error::other(format!("{fault:?}")))
    }

    /// Makes a random subset of the dirty units durable.
    fn make_some_durable(&mut self) {
        // All, none or some: the extremes are the interesting ones, and rare otherwise.
        let share = self.random.below(4);
        for unit in std::mem::take(&mut self.dirty) {
            let is_kept = match share {
                0 => false,
                1 => true,
                _ => self.random.is_one_in(2),
            };
            if is_kept {
                self.make_durable(unit);
            } else {
                self.dirty.insert(unit);
            }
        }
    }

    fn make_durable(&mut self, unit: usize) {
        let begin = unit * self.unit_bytes;
        let end = (begin + self.unit_bytes).min(self.cache.len());
        self.durable[begin..end].copy_from_slice(&self.cache[begin..end]);
    }

    fn reset(&mut self) {
        self.make_some_durable();
        self.dirty.clear();
        self.cache.clone_from(&self.durable);
    }

    /// Writes the units of a range, or in the middle of a fault any of them.
    fn write(&mut self, offset: usize, bytes: &[u8], is_cut: bool) {
        let share = self.random.below(4);
        let mut at = offset;
        while at < offset + bytes.len() {
            let unit = at / self.unit_bytes;
            let end = ((unit + 1) * self.unit_bytes).min(offset + bytes.len());
            let is_written = !is_cut || share == 0 || (share > 1 && self.random.is_one_in(2));
            if is_written {
                self.cache[at..end].copy_from_slice(&bytes[at - offset..end - offset]);
                self.dirty.insert(unit);
            }
            at = end;
        }
    }
}

impl Medium for Simulation {
    fn size_bytes(&self) -> io::Result<u64> {
        let state = self.0.borrow();
        if state.is_down {
            Err(io::Error::other("the process is gone"))
        } else {
            Ok(state.cache.len() as u64)
        }
    }

    fn read(&self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        let state = self.0.borrow();
        let offset = offset as usize;
        let Some(source) = state.cache.get(offset..offset + target.len()) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        target.copy_from_slice(source);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8], meanwhile: &mut dyn FnMut()) -> io::Result<()> {
        meanwhile();
        let state = &mut *self.0.borrow_mut();
        let fault = state.begin()?;
        assert!(offset as usize + bytes.len() <= state.cache.len(), "a write behind the end");
        state.write(offset as usize, bytes, fault.is_some());
        if state.random.is_one_in(3) {
            state.make_some_durable();
        }
        fault.map_or(Ok(()), |fault| state.fail(fault))
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        let fault = state.begin()?;
        if let Some(fault) = fault {
            state.make_some_durable();
            if fault == Fault::Error {
                state.dirty.clear();
            }
            return state.fail(fault);
        }
        drop(state);
        self.write_back();
        Ok(())
    }

    fn piece_bytes(&self) -> usize {
        1000
    }
}

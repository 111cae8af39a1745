//! A walk over several regions side by side, from one page border to the next.

use memferry_dsa::{Address, Descriptor};

use super::{Env, Stop};
use crate::device::translation::{Fault, bytes_to_page_end};
use crate::memory::{Access, Memory, Vanished};

/// `N` regions of the same size, sources before targets; their pages are translated in this order.
#[derive(Debug)]
pub(super) struct Walk<const N: usize> {
    regions: [(Address, Access); N],
    size: u32,
    done: u32,
    block_on_fault: bool,
}

/// A part of the regions without a page border in any of them, whose pages are translated.
pub(super) struct Span<const N: usize> {
    /// The start in each region.
    pub(super) at: [Address; N],
    /// The offset in the regions.
    pub(super) offset: u32,
    /// Its length.
    pub(super) bytes: u32,
}

impl<const N: usize> Walk<N> {
    pub(super) fn new(regions: [(Address, Access); N], descriptor: &Descriptor) -> Walk<N> {
        Walk { regions, size: descriptor.size(), done: 0, block_on_fault: super::blocks_on_fault(descriptor) }
    }

    /// Bytes executed so far.
    pub(super) fn done(&self) -> u32 {
        self.done
    }

    pub(super) fn block_on_fault(&self) -> bool {
        self.block_on_fault
    }

    /// Calls `each` for every span of the next piece; true after the last piece.
    ///
    /// A span for which `each` returns an error does not count as executed.
    pub(super) fn piece<M: Memory>(
        &mut self,
        env: &mut Env<'_, M>,
        each: impl FnMut(&mut Env<'_, M>, &Span<N>) -> Result<(), Interrupted>,
    ) -> Result<bool, Stop> {
        self.piece_in_units(1, env, each)
    }

    /// [`piece`](Self::piece) in multiples of `unit` bytes, a power of two that divides size and addresses.
    pub(super) fn piece_in_units<M: Memory>(
        &mut self,
        unit: u32,
        env: &mut Env<'_, M>,
        mut each: impl FnMut(&mut Env<'_, M>, &Span<N>) -> Result<(), Interrupted>,
    ) -> Result<bool, Stop> {
        let piece = env.chance.piece_bytes(self.size - self.done).max(unit) & !(unit - 1);
        let end = self.done + piece;
        let mut pages = [None; N];
        while self.done < end {
            let mut bytes = end - self.done;
            let mut at = [Address(0); N];
            for ((here, (start, access)), page) in at.iter_mut().zip(self.regions).zip(&mut pages) {
                *here = start.offset(self.done.into());
                if page.replace(here.page()) != Some(here.page()) {
                    let (memory, counters) = (env.memory, env.counters);
                    env.chance.data_page(memory, here.page(), access, self.block_on_fault, counters)?;
                }
                bytes = bytes.min(bytes_to_page_end(*here) as u32);
            }
            let span = Span { at, offset: self.done, bytes };
            each(env, &span).map_err(|interrupted| interrupted.stop(self.block_on_fault))?;
            env.done(bytes);
            self.done += bytes;
        }
        Ok(self.done == self.size)
    }
}

/// The reason why a span was not executed completely.
pub(super) enum Interrupted {
    /// A page has vanished after its translation.
    Vanished(Vanished),
    Stop(Stop),
}

impl Interrupted {
    fn stop(self, block_on_fault: bool) -> Stop {
        match self {
            Interrupted::Vanished(vanished) => Stop::Fault(Fault::vanished(vanished, block_on_fault)),
            Interrupted::Stop(stop) => stop,
        }
    }
}

impl From<Vanished> for Interrupted {
    fn from(vanished: Vanished) -> Interrupted {
        Interrupted::Vanished(vanished)
    }
}

impl From<Fault> for Interrupted {
    fn from(fault: Fault) -> Interrupted {
        Interrupted::Stop(Stop::Fault(fault))
    }
}

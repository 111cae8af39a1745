//! The mark of a slot: whose entry it holds, for which position, and in which stage.

use super::ClientId;

/// The mask of a position: marks have 50 bits for it, and positions wrap.
pub(super) const POSITION: u64 = (1 << 50) - 1;

/// The mark of a slot; 0: never used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark(pub(super) u64); // 63:14 position + 1, 13:2 client, 1:0 stage

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The client is writing the words.
    Taken = 0,
    /// The words are complete.
    Ready = 1,
    /// The ring was closed at this slot.
    Sealed = 2,
    /// The ring was opened again at this slot.
    Open = 3,
}

impl Mark {
    pub(super) fn new(position: u64, client: ClientId, stage: Stage) -> Mark {
        Mark(next(position) << 14 | u64::from(client) << 2 | stage as u64)
    }

    pub(super) fn client(self) -> ClientId {
        (self.0 >> 2) as ClientId & 0xfff
    }

    /// Whether it belongs to this position, in any stage.
    pub(super) fn is_of(self, position: u64) -> bool {
        self.0 >> 14 == next(position)
    }

    pub(super) fn is(self, stage: Stage) -> bool {
        self.0 & 3 == stage as u64
    }

    /// Whether the slot holds the entry of this position.
    pub(super) fn holds(self, position: u64) -> bool {
        self.is_of(position) && (self.is(Stage::Ready) || self.is(Stage::Taken))
    }

    /// Whether the slot can be taken for this position: its content is of an earlier one.
    pub(super) fn is_free_for(self, position: u64) -> bool {
        match distance(self.0 >> 14, next(position)) {
            0 => self.is(Stage::Open),
            later => later <= POSITION / 2,
        }
    }
}

/// The position after this one.
pub(super) fn next(position: u64) -> u64 {
    (position + 1) & POSITION
}

/// Positions from one to another.
pub(super) fn distance(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & POSITION
}

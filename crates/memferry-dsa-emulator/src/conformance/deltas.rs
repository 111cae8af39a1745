//! Create Delta Record and Apply Delta Record.

use memferry_dsa::Request;
use memferry_dsa::internals::request::DELTA_ROOM_BYTES_MIN;
use memferry_dsa::internals::software::{DELTA_BYTES_MAX, ENTRY_BYTES};
use memferry_dsa::software::{Delta, DeltaError};

use super::oracle;
use super::suite::{Buffer, Suite};

pub(super) fn run(suite: &mut Suite<'_>) {
    let mut sizes: Vec<usize> = suite.sizes().into_iter().map(|size| size.next_multiple_of(8)).collect();
    sizes.retain(|size| *size <= DELTA_BYTES_MAX);
    sizes.dedup();
    for size in sizes {
        for _ in 0..suite.variants() {
            let changes = [0, 1, 7, 8, 9, size / 64, size / 8];
            let changes = suite.pick(&changes);
            round_trip(suite, size, changes);
            apply_odd(suite, size);
        }
    }
}

/// A buffer for a source: at a multiple of 8.
fn aligned(suite: &mut Suite<'_>, size: usize) -> Buffer {
    let offset = suite.pick(&[0, 8, 64, 4088]);
    suite.buffer(size, offset)
}

/// Changes some words of a copy.
fn changed(suite: &mut Suite<'_>, old: &Buffer, changes: usize) -> Buffer {
    let size = old.bytes().len();
    let mut bytes = old.bytes().to_vec();
    for _ in 0..changes {
        let word = suite.below(size / 8);
        bytes[word * 8 + suite.below(8)] ^= 0x10;
    }
    let mut new = aligned(suite, size);
    new.set(&bytes);
    new
}

fn round_trip(suite: &mut Suite<'_>, size: usize, changes: usize) {
    let mut old = aligned(suite, size);
    let new = changed(suite, &old, changes);
    let record = oracle::delta(old.bytes(), new.bytes());
    let rooms = [DELTA_ROOM_BYTES_MIN, record.len() / 2, record.len(), record.len() + 3, size * 10 / 8 + 100];
    let room = suite.pick(&rooms).max(DELTA_ROOM_BYTES_MIN);
    let mut delta = suite.buffer_anywhere(room);
    let hints = suite.hints();
    let describe =
        || format!("Create Delta Record, {size} bytes, {} of record in {room}, {hints:?}", record.len());
    let request = Request::create_delta(old.bytes(), new.bytes(), delta.bytes_mut());
    let Some(found) = suite.run(hints.apply(request), describe) else { return };
    let written = record.len().min(room / ENTRY_BYTES * ENTRY_BYTES);
    let expected = match record.len() {
        0 => Delta::Equal,
        size_bytes if size_bytes <= room => Delta::Complete { size_bytes },
        _ => {
            let next = &record[written..];
            let bytes_compared = 8 * usize::from(u16::from_le_bytes([next[0], next[1]]));
            Delta::Overflow { size_bytes: written, bytes_compared }
        }
    };
    suite.expect(found, expected, describe);
    suite
        .require(delta.bytes()[..written] == record[..written], || format!("{}: another record", describe()));
    suite.expect_unchanged(&old, describe);
    suite.expect_unchanged(&new, describe);
    if written == 0 {
        return;
    }
    let describe = || format!("Apply Delta Record, {written} bytes to {size}, {hints:?}");
    let mut expected = old.bytes().to_vec();
    for entry in record[..written].chunks(ENTRY_BYTES) {
        let at = 8 * usize::from(u16::from_le_bytes([entry[0], entry[1]]));
        expected[at..at + 8].copy_from_slice(&entry[2..]);
    }
    let request = Request::apply_delta(&delta.bytes()[..written], old.bytes_mut());
    if let Some(applied) = suite.run(hints.apply(request), describe) {
        suite.expect(applied, Ok(()), describe);
        suite.expect_bytes(&old, &expected, describe);
    }
}

/// An entry that descends or is outside: only the entries before it are applied. An entry with the offset of the one
/// before is applied too.
fn apply_odd(suite: &mut Suite<'_>, size: usize) {
    let words = (size / 8).min(40);
    let odd = suite.below(words);
    let is_outside = suite.below(2) == 1 && size / 8 < usize::from(u16::MAX);
    let offset = if is_outside { size / 8 } else { odd.saturating_sub(suite.pick(&[1, 2])) };
    let descends = odd > 0 && offset < odd - 1;
    let offsets: Vec<usize> = (0..words).map(|word| if word == odd { offset } else { word }).collect();
    let applied_bytes = odd * ENTRY_BYTES;
    let expected = match (is_outside, descends) {
        (true, _) => Err(DeltaError::OutOfRange { applied_bytes }),
        (false, true) => Err(DeltaError::Descending { applied_bytes }),
        (false, false) => Ok(()),
    };
    let good = if expected.is_ok() { words } else { odd };
    let mut target = aligned(suite, size);
    let mut after = target.bytes().to_vec();
    for (number, offset) in offsets[..good].iter().enumerate() {
        after[offset * 8..offset * 8 + 8].fill(number as u8);
    }
    let entry = |(number, offset): (usize, &usize)| {
        (*offset as u16).to_le_bytes().into_iter().chain([number as u8; 8]).collect::<Vec<u8>>()
    };
    let record: Vec<u8> = offsets.iter().enumerate().flat_map(entry).collect();
    let mut delta = suite.buffer_anywhere(record.len());
    delta.set(&record);
    let describe =
        || format!("Apply Delta Record, {words} entries to {size} bytes, entry {odd} has offset {offset}");
    if let Some(applied) = suite.run(Request::apply_delta(delta.bytes(), target.bytes_mut()), describe) {
        suite.expect(applied, expected, describe);
        suite.expect_bytes(&target, &after, describe);
    }
}

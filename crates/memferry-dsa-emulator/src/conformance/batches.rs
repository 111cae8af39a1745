//! Batches: members of all kinds, fences, abandoned members.

use std::cell::Cell;

use memferry_dsa::{Batch, DifBlock, DifFormat, DifSource, DifTarget, MemberError, Request};

use super::oracle;
use super::suite::Suite;

pub(super) fn run(suite: &mut Suite<'_>) {
    for count in [1, 2, 3, 31, 33, 70] {
        copies(suite, count);
    }
    for _ in 0..suite.variants() {
        let size = suite.pick(&[9, 4096, 10_001]);
        chain(suite, size);
        stopped(suite, size);
        stopped_by_data(suite);
    }
    let empty = suite.run_batch(Batch::new(), || "Batch, without members".to_owned());
    suite.require(empty.is_none_or(|outcomes| outcomes.all_ended()), || "an empty batch failed".to_owned());
}

/// Independent members, more than one batch of the device can have.
fn copies(suite: &mut Suite<'_>, count: usize) {
    let describe = || format!("Batch, {count} copies and CRCs");
    let sources: Vec<_> = (0..count).map(|index| suite.buffer_anywhere(1 + index * 97)).collect();
    let mut targets: Vec<_> = (0..count).map(|index| suite.buffer_anywhere(1 + index * 97)).collect();
    let mut batch = Batch::new();
    let mut tickets = Vec::new();
    for (source, target) in sources.iter().zip(&mut targets) {
        tickets.push(batch.add(Request::copy_crc(7, source.bytes(), target.bytes_mut())));
    }
    let Some(outcomes) = suite.run_batch(batch, describe) else { return };
    for ((source, target), ticket) in sources.iter().zip(&targets).zip(&tickets) {
        suite.expect(outcomes.get(ticket), Ok(oracle::crc32c(7, source.bytes(), false, false)), describe);
        suite.expect_bytes(target, source.bytes(), describe);
        suite.expect_unchanged(source, describe);
    }
}

/// Members behind a fence read the writes of earlier members.
fn chain(suite: &mut Suite<'_>, size: usize) {
    let describe = || format!("Batch, four dependent members of {size} bytes");
    let pattern = suite.random.next();
    let source = suite.buffer_anywhere(size);
    let (mut first, mut second) = (suite.buffer_anywhere(size), suite.buffer_anywhere(size));
    let one = Cell::from_mut(first.bytes_mut()).as_slice_of_cells();
    let two = Cell::from_mut(second.bytes_mut()).as_slice_of_cells();
    let mut batch = Batch::new();
    batch.add(Request::fill(pattern, one));
    batch.add(Request::fill(!pattern, two));
    batch.fence();
    batch.add(Request::copy(source.bytes(), one));
    batch.fence();
    let crc = batch.add(Request::copy_crc(0, one, two));
    batch.fence();
    let equal = batch.add(Request::compare(source.bytes(), two).expecting_equal());
    let barrier = batch.add(Request::noop());
    let Some(outcomes) = suite.run_batch(batch, describe) else { return };
    suite.expect(outcomes.get(&crc), Ok(oracle::crc32c(0, source.bytes(), false, false)), describe);
    suite.expect(outcomes.get(&equal), Ok(None), describe);
    suite.expect(outcomes.get(&barrier), Ok(()), describe);
    suite.expect_bytes(&first, source.bytes(), describe);
    suite.expect_bytes(&second, source.bytes(), describe);
}

/// A comparison with an unexpected result abandons the members behind the fence, and none before it.
fn stopped(suite: &mut Suite<'_>, size: usize) {
    let describe = || format!("Batch, stopped by a comparison of {size} bytes");
    let (one, other) = (suite.buffer_anywhere(size), suite.buffer_anywhere(size));
    let (mut before, mut behind) = (suite.buffer_anywhere(size), suite.buffer_anywhere(size));
    let expected = one.bytes().iter().zip(other.bytes()).position(|(one, other)| one != other);
    let mut batch = Batch::new();
    let compared = batch.add(Request::compare(one.bytes(), other.bytes()).expecting_equal());
    let copied = batch.add(Request::copy(one.bytes(), before.bytes_mut()));
    batch.fence();
    let abandoned = batch.add(Request::fill(0, behind.bytes_mut()));
    let also = batch.add(Request::noop());
    let Some(outcomes) = suite.run_batch(batch, describe) else { return };
    suite.expect(outcomes.get(&compared), Ok(expected), describe);
    suite.expect(outcomes.get(&copied), Ok(()), describe);
    suite.expect_bytes(&before, one.bytes(), describe);
    if expected.is_some() {
        suite.expect(outcomes.get(&abandoned), Err(MemberError::Abandoned), describe);
        suite.expect(outcomes.get(&also), Err(MemberError::Abandoned), describe);
        suite.expect_unchanged(&behind, describe);
    }
}

/// A bad data integrity field abandons the members behind the fence.
fn stopped_by_data(suite: &mut Suite<'_>) {
    let describe = || "Batch, stopped by a data integrity field".to_owned();
    let format = DifFormat::new(DifBlock::Bytes512);
    let data = suite.buffer_anywhere(512 * 9);
    let mut bad = oracle::dif_insert(format, DifTarget::default(), data.bytes());
    bad[520 * 5] ^= 1;
    let mut behind = suite.buffer_anywhere(100);
    let mut batch = Batch::new();
    let checked = batch.add(Request::dif_check(&bad, format, DifSource::default()));
    batch.fence();
    let abandoned = batch.add(Request::fill(0, behind.bytes_mut()));
    let Some(outcomes) = suite.run_batch(batch, describe) else { return };
    let completed = outcomes.get(&checked).map(|checked| checked.map_err(|wrong| wrong.bytes_completed));
    suite.expect(completed.map(|checked| checked.err()), Ok(Some(520 * 5)), describe);
    suite.expect(outcomes.get(&abandoned), Err(MemberError::Abandoned), describe);
    suite.expect_unchanged(&behind, describe);
}

//! No-op, drain, copy, fill, dualcast, cache flush.

use std::cell::Cell;

use memferry_dsa::Request;

use super::suite::Suite;

pub(super) fn run(suite: &mut Suite<'_>) {
    suite.run(Request::noop(), || "No-op, alone".to_owned());
    suite.run(Request::drain(), || "Drain, alone".to_owned());
    for size in suite.sizes() {
        for _ in 0..suite.variants() {
            copy(suite, size);
            copy_within(suite, size);
            fill(suite, size);
            dualcast(suite, size);
            cache_flush(suite, size);
        }
    }
}

fn copy(suite: &mut Suite<'_>, size: usize) {
    let (source, mut target) = (suite.buffer_anywhere(size), suite.buffer_anywhere(size));
    let hints = suite.hints();
    let describe = || format!("Memory Move, {size} bytes, {hints:?}");
    let request = hints.apply(Request::copy(source.bytes(), target.bytes_mut()));
    if suite.run(request, describe).is_some() {
        suite.expect_bytes(&target, source.bytes(), describe);
    }
    suite.expect_unchanged(&source, describe);
}

/// Source and target overlap, in either order.
fn copy_within(suite: &mut Suite<'_>, size: usize) {
    let shift = 1 + suite.below(size);
    let is_down = suite.below(2) == 1;
    let mut both = suite.buffer_anywhere(size + shift);
    let (from, to) = if is_down { (shift, 0) } else { (0, shift) };
    let mut expected = both.before().to_vec();
    expected.copy_within(from..from + size, to);
    let describe = || format!("Memory Move, {size} bytes from {from} to {to} of one region");
    let cells = Cell::from_mut(both.bytes_mut()).as_slice_of_cells();
    let request = Request::copy(&cells[from..from + size], &cells[to..to + size]);
    if suite.run(request, describe).is_some() {
        suite.expect_bytes(&both, &expected, describe);
    }
}

fn fill(suite: &mut Suite<'_>, size: usize) {
    let pattern = suite.random.next();
    let wide = u128::from(suite.random.next()) << 64 | u128::from(pattern);
    let mut target = suite.buffer_anywhere(size);
    let hints = suite.hints();
    let describe = || format!("Memory Fill, {size} bytes, {hints:?}");
    if suite.run(hints.apply(Request::fill(pattern, target.bytes_mut())), describe).is_some() {
        let expected: Vec<u8> = pattern.to_le_bytes().into_iter().cycle().take(size).collect();
        suite.expect_bytes(&target, &expected, describe);
    }
    let describe = || format!("Memory Fill with 16 bytes, {size} bytes, {hints:?}");
    if suite.run(hints.apply(Request::fill_16(wide, target.bytes_mut())), describe).is_some() {
        let expected: Vec<u8> = wide.to_le_bytes().into_iter().cycle().take(size).collect();
        suite.expect_bytes(&target, &expected, describe);
    }
}

fn dualcast(suite: &mut Suite<'_>, size: usize) {
    let offset = suite.offset();
    let source = suite.buffer_anywhere(size);
    let (mut target_1, mut target_2) = (suite.buffer(size, offset), suite.buffer(size, offset));
    let hints = suite.hints();
    let describe = || format!("Dualcast, {size} bytes, {hints:?}");
    let request = Request::dualcast(source.bytes(), target_1.bytes_mut(), target_2.bytes_mut());
    if suite.run(hints.apply(request), describe).is_some() {
        suite.expect_bytes(&target_1, source.bytes(), describe);
        suite.expect_bytes(&target_2, source.bytes(), describe);
    }
    suite.expect_unchanged(&source, describe);
}

/// The place of the lines afterwards is not visible; this checks that the bytes are unchanged.
fn cache_flush(suite: &mut Suite<'_>, size: usize) {
    let data = suite.buffer_anywhere(size);
    let hints = suite.hints();
    let describe = || format!("Cache Flush, {size} bytes, {hints:?}");
    suite.run(hints.apply_to_reader(Request::cache_flush(data.bytes())), describe);
    suite.expect_unchanged(&data, describe);
}

//! Compare, Compare Pattern, CRC Generation, Copy with CRC.

use memferry_dsa::Request;
use memferry_dsa::software::CrcMode;

use super::oracle;
use super::suite::{Buffer, Suite};

pub(super) fn run(suite: &mut Suite<'_>) {
    for size in suite.sizes() {
        for _ in 0..suite.variants() {
            compare(suite, size);
            compare_pattern(suite, size);
            crc(suite, size);
        }
    }
    let nine = suite.run(Request::crc(0, b"123456789"), || "CRC Generation, the check value".to_owned());
    suite.require(nine.is_none_or(|crc| crc == 0xe306_9283), || format!("the check value is {nine:x?}"));
}

/// Changes up to two bytes; returns the place of the first change.
fn differ(suite: &mut Suite<'_>, data: &mut Buffer) -> Option<usize> {
    let size = data.bytes().len();
    let ends = [0, size / 2, size - 1, suite.below(size)];
    let places = match suite.below(3) {
        0 => return None,
        1 => vec![suite.pick(&ends)],
        _ => vec![suite.pick(&ends), suite.below(size)],
    };
    let mut bytes = data.bytes().to_vec();
    let first = places.iter().copied().min();
    for at in places {
        bytes[at] = data.bytes()[at] ^ 1 << suite.below(8);
    }
    data.set(&bytes);
    first
}

fn compare(suite: &mut Suite<'_>, size: usize) {
    let (one, mut other) = (suite.buffer_anywhere(size), suite.buffer_anywhere(size));
    other.set(one.bytes());
    let difference = differ(suite, &mut other);
    let hints = suite.hints();
    let describe = || format!("Compare, {size} bytes, {hints:?}");
    let request = Request::compare(one.bytes(), other.bytes());
    if let Some(found) = suite.run(hints.apply_to_reader(request), describe) {
        suite.expect(found, difference, describe);
    }
}

fn compare_pattern(suite: &mut Suite<'_>, size: usize) {
    let pattern = suite.random.next();
    let mut data = suite.buffer_anywhere(size);
    data.set(&pattern.to_le_bytes().into_iter().cycle().take(size).collect::<Vec<u8>>());
    let difference = differ(suite, &mut data);
    let hints = suite.hints();
    let describe = || format!("Compare Pattern, {size} bytes, {hints:?}");
    let request = Request::compare_pattern(pattern, data.bytes());
    if let Some(found) = suite.run(hints.apply_to_reader(request), describe) {
        suite.expect(found, difference, describe);
    }
}

fn crc(suite: &mut Suite<'_>, size: usize) {
    let seed = suite.pick(&[0, u32::MAX, 0xdead_beef]);
    let mode = CrcMode { bypass_inversion: suite.below(2) == 1, bypass_data_reflection: suite.below(2) == 1 };
    let (source, mut target) = (suite.buffer_anywhere(size), suite.buffer_anywhere(size));
    let expected = oracle::crc32c(seed, source.bytes(), mode.bypass_inversion, mode.bypass_data_reflection);
    let hints = suite.hints();
    let describe = || format!("CRC Generation, {size} bytes, seed {seed:#x}, {mode:?}, {hints:?}");
    let request = Request::crc(seed, source.bytes()).with_mode(mode);
    if let Some(crc) = suite.run(hints.apply_to_reader(request), describe) {
        suite.expect(crc, expected, describe);
    }
    let describe = || format!("Copy with CRC, {size} bytes, seed {seed:#x}, {mode:?}, {hints:?}");
    let request = Request::copy_crc(seed, source.bytes(), target.bytes_mut()).with_mode(mode);
    if let Some(crc) = suite.run(hints.apply(request), describe) {
        suite.expect(crc, expected, describe);
        suite.expect_bytes(&target, source.bytes(), describe);
    }
    suite.expect_unchanged(&source, describe);
}

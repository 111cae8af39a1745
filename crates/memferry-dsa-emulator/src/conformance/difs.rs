//! DIF Check, Insert, Strip, Update.
//!
//! Masks of application tags are all ones or zeros, since the specification leaves other masks open.

use memferry_dsa::software::Mismatch;
use memferry_dsa::{
    DifBlock, DifErrors, DifFormat, DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags, Request,
};

use super::suite::{Buffer, Suite};
use super::{Thoroughness, oracle};

pub(super) fn run(suite: &mut Suite<'_>) {
    let counts: &[usize] = match suite.thoroughness {
        Thoroughness::Quick => &[1, 5],
        Thoroughness::Full => &[1, 2, 3, 9, 64, 300],
    };
    for block in DifBlock::ALL {
        for &count in counts {
            for _ in 0..suite.variants() {
                let format = DifFormat {
                    block,
                    guard_seed_ones: suite.below(2) == 1,
                    guard_inverted: suite.below(2) == 1,
                };
                let case = Case { format, count, source: source(suite), target: target(suite) };
                insert(suite, &case);
                check(suite, &case);
            }
        }
    }
}

#[derive(Debug)]
struct Case {
    format: DifFormat,
    count: usize,
    source: DifSource,
    target: DifTarget,
}

impl Case {
    fn describe(&self, name: &str) -> String {
        format!("{name}, {} blocks, {:?}, {:?}, {:?}", self.count, self.format, self.source, self.target)
    }
}

fn tags(suite: &mut Suite<'_>) -> DifTags {
    DifTags {
        // Close to the end, where counting wraps.
        reference: suite.pick(&[0, 0x1234_5678, u32::MAX - 2]),
        application_mask: suite.pick(&[0, 0, u16::MAX]),
        application: suite.pick(&[0, 0x1234, u16::MAX - 2]),
    }
}

fn source(suite: &mut Suite<'_>) -> DifSource {
    let tags = tags(suite);
    DifSource { flags: DifSourceFlags::from_bits(suite.random.next() as u8), tags }
}

fn target(suite: &mut Suite<'_>) -> DifTarget {
    let bits = suite.random.next() as u8 & 0b1111_1000;
    DifTarget { flags: DifTargetFlags::from_bits(bits), tags: tags(suite) }
}

fn insert(suite: &mut Suite<'_>, case: &Case) {
    let block = case.format.block.bytes() as usize;
    let counting = DifTargetFlags::APPLICATION_COUNTS | DifTargetFlags::REFERENCE_STAYS;
    let flags = DifTargetFlags::from_bits(case.target.flags.bits() & counting.bits());
    let made = DifTarget { flags, ..case.target };
    let data = suite.buffer_anywhere(block * case.count);
    let mut protected = suite.buffer_anywhere((block + 8) * case.count);
    let hints = suite.hints();
    let describe = || case.describe("DIF Insert");
    let request = Request::dif_insert(data.bytes(), protected.bytes_mut(), case.format, made);
    if let Some(next) = suite.run(hints.apply(request), describe) {
        suite.expect_bytes(&protected, &oracle::dif_insert(case.format, made, data.bytes()), describe);
        suite.expect(next, oracle::target_tags(made, case.count), describe);
    }
    suite.expect_unchanged(&data, describe);
}

/// Blocks with the fields that the source expects, perhaps with a bad one.
fn protected(suite: &mut Suite<'_>, case: &Case) -> Buffer {
    let (block, count) = (case.format.block.bytes() as usize, case.count);
    let flag = |has: DifSourceFlags, then: DifTargetFlags| match case.source.flags.contains(has) {
        true => then,
        false => DifTargetFlags::NONE,
    };
    let flags = flag(DifSourceFlags::APPLICATION_COUNTS, DifTargetFlags::APPLICATION_COUNTS)
        | flag(DifSourceFlags::REFERENCE_STAYS, DifTargetFlags::REFERENCE_STAYS);
    let like_source = DifTarget { flags, tags: case.source.tags };
    let data = suite.buffer_anywhere(block * count);
    let mut bytes = oracle::dif_insert(case.format, like_source, data.bytes());
    let field = suite.below(count) * (block + 8) + block;
    match suite.below(4) {
        0 => bytes[field + suite.below(8)] ^= 1,
        1 => bytes[field..field + 8].fill(0xff),
        2 => bytes[field - 1 - suite.below(block)] ^= 0x80,
        _ => {}
    }
    let mut protected = suite.buffer_anywhere(bytes.len());
    protected.set(&bytes);
    protected
}

fn check(suite: &mut Suite<'_>, case: &Case) {
    let Case { format, count, source, target: made } = *case;
    let block = format.block.bytes() as usize;
    let data = protected(suite, case);
    let (good, errors) = oracle::dif_check(format, source, data.bytes());
    let mismatch = Mismatch { bytes_completed: good * (block + 8), wrong: DifErrors::from_bits(errors) };
    let next = oracle::source_tags(source, count);
    let checked = if errors == 0 { Ok(next) } else { Err(mismatch) };
    let hints = suite.hints();

    let describe = || case.describe("DIF Check");
    let request = hints.apply_to_reader(Request::dif_check(data.bytes(), format, source));
    if let Some(found) = suite.run(request, describe) {
        suite.expect(found, checked, describe);
    }

    let describe = || case.describe("DIF Strip");
    let mut target = suite.buffer_anywhere(block * count);
    let mut expected = target.before().to_vec();
    expected[..good * block].copy_from_slice(&oracle::dif_strip(format, data.bytes())[..good * block]);
    let request = hints.apply(Request::dif_strip(data.bytes(), target.bytes_mut(), format, source));
    if let Some(found) = suite.run(request, describe) {
        suite.expect(found, checked, describe);
        suite.expect_bytes(&target, &expected, describe);
    }

    let describe = || case.describe("DIF Update");
    let mut target = suite.buffer_anywhere((block + 8) * count);
    let mut expected = target.before().to_vec();
    let written = good * (block + 8);
    expected[..written].copy_from_slice(&oracle::dif_update(format, made, data.bytes())[..written]);
    let request = Request::dif_update(data.bytes(), target.bytes_mut(), format, source, made);
    if let Some(found) = suite.run(hints.apply(request), describe) {
        suite.expect(found, checked.map(|next| (next, oracle::target_tags(made, count))), describe);
        suite.expect_bytes(&target, &expected, describe);
    }
    suite.expect_unchanged(&data, describe);
}

//! Data integrity fields, compared with a bit-by-bit reading of the specification's tables.

use proptest::prelude::*;

use super::super::dif::{self, Mismatch};
use super::super::guard::Guard;
use super::crc::guard_naive;
use super::{at_skew, pattern};
use crate::dif::{
    DifBlock, DifErrors, DifFormat, DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags,
};

/// One side of a descriptor: its flags and tags.
#[derive(Clone, Copy, Debug)]
struct Side {
    flags: u8,
    reference: u32,
    mask: u16,
    application: u16,
}

impl Side {
    fn tags(self) -> DifTags {
        DifTags { reference: self.reference, application: self.application, application_mask: self.mask }
    }

    fn source(self) -> DifSource {
        DifSource { flags: DifSourceFlags::from_bits(self.flags), tags: self.tags() }
    }

    fn target(self) -> DifTarget {
        DifTarget { flags: DifTargetFlags::from_bits(self.flags), tags: self.tags() }
    }

    fn advance(&mut self) {
        if self.flags & 0x80 == 0 {
            self.reference = self.reference.wrapping_add(1);
        }
        if self.flags & 0x10 != 0 {
            self.application = self.application.wrapping_add(1);
        }
    }

    fn same_as(self, tags: DifTags) -> bool {
        self.tags() == tags
    }
}

fn block_bytes(dif_flags: u8) -> usize {
    [512, 520, 4096, 4104][usize::from(dif_flags & 3)]
}

fn naive_guard(dif_flags: u8, block: &[u8]) -> u16 {
    let crc = guard_naive(if dif_flags & 4 != 0 { 0xffff } else { 0 }, block);
    if dif_flags & 8 != 0 { crc ^ 0xffff } else { crc }
}

fn be16(bytes: &[u8]) -> u16 {
    u16::from(bytes[0]) << 8 | u16::from(bytes[1])
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from(be16(bytes)) << 16 | u32::from(be16(&bytes[2..]))
}

/// The DIF status of a block, 0 if it is good.
fn naive_status(dif_flags: u8, side: Side, block: &[u8]) -> u8 {
    let (data, field) = block.split_at(block.len() - 8);
    let (guard, application, reference) = (be16(field), be16(&field[2..]), be32(&field[4..]));
    let all = field.iter().all(|byte| *byte == 0xff);
    let flag = |bit: u8| side.flags >> bit & 1 == 1;
    if all && flag(1) {
        return if flag(0) { 8 } else { 0 };
    }
    if application == 0xffff && (flag(2) || flag(3) && reference == 0xffff_ffff) {
        return 0;
    }
    let mut status = 0;
    if !flag(5) && guard != naive_guard(dif_flags, data) {
        status |= 1;
    }
    if side.mask != 0xffff && application != side.application & !side.mask {
        status |= 2;
    }
    if !flag(6) && reference != side.reference {
        status |= 4;
    }
    status
}

fn naive_field(dif_flags: u8, side: Side, data: &[u8]) -> [u8; 8] {
    let mut field = [0; 8];
    field[..2].copy_from_slice(&naive_guard(dif_flags, data).to_be_bytes());
    field[2..4].copy_from_slice(&(side.application & !side.mask).to_be_bytes());
    field[4..].copy_from_slice(&side.reference.to_be_bytes());
    field
}

/// A naive update: returns the bytes of the good blocks, the DIF status, and the written bytes.
fn naive_update(dif_flags: u8, source: &mut Side, target: &mut Side, data: &[u8]) -> (usize, u8, Vec<u8>) {
    let (mut completed, mut out) = (0, Vec::new());
    for block in data.chunks(block_bytes(dif_flags) + 8) {
        let status = naive_status(dif_flags, *source, block);
        if status != 0 {
            return (completed, status, out);
        }
        let (bytes, old) = block.split_at(block.len() - 8);
        let mut field = naive_field(dif_flags, *target, bytes);
        for (pass, part) in [(3, 2..4), (5, 0..2), (6, 4..8)] {
            if target.flags >> pass & 1 == 1 {
                field[part.clone()].copy_from_slice(&old[part]);
            }
        }
        out.extend(bytes);
        out.extend(field);
        completed += block.len();
        source.advance();
        target.advance();
    }
    (completed, 0, out)
}

fn outcome<T>(result: Result<T, Mismatch>, size: usize) -> (usize, u8, Option<T>) {
    match result {
        Ok(tags) => (size, 0, Some(tags)),
        Err(Mismatch { bytes_completed, wrong }) => (bytes_completed, wrong.bits(), None),
    }
}

/// Compares all operations on `data`, with every method, with the naive ones.
fn check_all(dif_flags: u8, source: Side, target: Side, data: &[u8], skew: usize) -> u8 {
    let (format, from, to) = (DifFormat::from_bits(dif_flags), source.source(), target.target());

    let (mut source_after, mut target_after) = (source, target);
    let (completed, status, updated) = naive_update(dif_flags, &mut source_after, &mut target_after, data);
    let size = block_bytes(dif_flags);
    let blocks = data.len() / (size + 8);
    let blank = vec![0xee; data.len()];
    let mut expected = blank.clone();
    expected[..updated.len()].copy_from_slice(&updated);

    for (name, how) in Guard::all() {
        let told = format!("{name}, flags {dif_flags:#x}, {source:x?} to {target:x?}");

        let (done, wrong, tags) = outcome(dif::check_with(how, format, &from, data), data.len());
        assert_eq!((done, wrong), (completed, status), "check, {told}");
        assert!(tags.is_none_or(|tags| source_after.same_as(tags)), "tags of check, {told}");

        let mut result = None;
        let out =
            at_skew(&blank, skew, |out| result = Some(dif::update_with(how, format, &from, &to, data, out)));
        let (done, wrong, tags) = outcome(result.unwrap(), data.len());
        assert_eq!((done, wrong), (completed, status), "update, {told}");
        assert!(out == expected, "bytes of update, {told}");
        let same = |(from, to)| source_after.same_as(from) && target_after.same_as(to);
        assert!(tags.is_none_or(same), "tags of update, {told}");

        let mut result = None;
        let out = at_skew(&blank[..blocks * size], skew, |out| {
            result = Some(dif::strip_with(how, format, &from, data, out));
        });
        let (done, wrong, tags) = outcome(result.unwrap(), data.len());
        assert_eq!((done, wrong), (completed, status), "strip, {told}");
        assert!(tags.is_none_or(|tags| source_after.same_as(tags)), "tags of strip, {told}");
        for (block, out) in data.chunks(size + 8).zip(out.chunks(size)).take(completed / (size + 8)) {
            assert!(out == &block[..size], "bytes of strip, {told}");
        }
        assert!(
            out[completed / (size + 8) * size..].iter().all(|byte| *byte == 0xee),
            "strip wrote more, {told}"
        );
    }
    status
}

/// Makes `blocks` blocks with the fields of `side`.
fn protect(dif_flags: u8, side: Side, blocks: usize, skew: usize) -> Vec<u8> {
    let size = block_bytes(dif_flags);
    let data = pattern(blocks * size, u64::from(side.reference));
    let (format, made) = (DifFormat::from_bits(dif_flags), side.target());

    let (mut after, mut expected) = (side, Vec::new());
    for block in data.chunks(size) {
        expected.extend(block);
        expected.extend(naive_field(dif_flags, after, block));
        after.advance();
    }
    for (name, how) in Guard::all() {
        let mut next = made.tags;
        let blank = vec![0; blocks * (size + 8)];
        let out = at_skew(&blank, skew, |out| next = dif::insert_with(how, format, &made, &data, out));
        assert!(out == expected, "bytes of insert, {name}, flags {dif_flags:#x}, {side:x?}");
        assert!(after.same_as(next), "tags of insert, {name}");
    }
    expected
}

#[test]
fn the_example() {
    let tags = DifTags { reference: 0x10, application: 0x1234, ..DifTags::default() };
    let (mut target, format) = ([0xff; 520], DifFormat::new(DifBlock::Bytes512));
    let next = dif::insert(format, &DifTarget { tags, ..DifTarget::default() }, &[0; 512], &mut target);
    assert_eq!(target[..512], [0; 512]);
    assert_eq!(target[512..], [0, 0, 0x12, 0x34, 0, 0, 0, 0x10]);
    assert_eq!(next, DifTags { reference: 0x11, ..tags });
    let source = DifSource { tags, ..DifSource::default() };
    assert_eq!(dif::check(format, &source, &target), Ok(next));
}

/// Each part of a field is wrong, alone and together with others.
#[test]
fn errors_combine() {
    let format = DifFormat::new(DifBlock::Bytes520);
    let tags = DifTags { reference: 1, application: 2, ..DifTags::default() };
    let source = DifSource { tags, ..DifSource::default() };
    let data = pattern(3 * 520, 1);
    let mut good = vec![0; 3 * 528];
    dif::insert(format, &DifTarget { tags, ..DifTarget::default() }, &data, &mut good);
    for wrong in 1..8 {
        let mut bad = good.clone();
        for (bit, byte) in [(1, 0), (2, 3), (4, 6)] {
            if wrong & bit != 0 {
                bad[528 + 520 + byte] ^= 0x10;
            }
        }
        let mismatch = Mismatch { bytes_completed: 528, wrong: DifErrors::from_bits(wrong) };
        assert_eq!(dif::check(format, &source, &bad), Err(mismatch));
        assert_eq!(dif::strip(format, &source, &bad, &mut [0; 3 * 520]), Err(mismatch));
        assert_eq!(
            dif::update(format, &source, &DifTarget::default(), &bad, &mut [0; 3 * 528]),
            Err(mismatch)
        );
    }
    // Damaged data is an error of the guard.
    let mut bad = good.clone();
    bad[2 * 528 + 519] ^= 1;
    let wrong = DifErrors::GUARD;
    assert_eq!(dif::check(format, &source, &bad), Err(Mismatch { bytes_completed: 1056, wrong }));
}

/// Every set of source flags, on fields with ones in every part.
#[test]
fn ones_under_every_source_flag() {
    for flags in 0..=0xffu8 {
        let side = Side { flags, reference: 3, mask: 0, application: 4 };
        let good = protect(0, side, 2, 0);
        for parts in 0..8 {
            let mut data = good.clone();
            for (bit, part) in [(1, 512..514), (2, 514..516), (4, 516..520)] {
                if parts & bit != 0 {
                    data[520..][part].fill(0xff);
                }
            }
            check_all(0, side, Side { flags: 0, ..side }, &data, 0);
        }
    }
}

/// Every set of target flags.
#[test]
fn every_target_flag() {
    for high in 0..32u8 {
        let source = Side { flags: 0x10, reference: u32::MAX, mask: 0x0f00, application: u16::MAX };
        let target = Side { flags: high << 3, reference: 7, mask: 0x00f0, application: 0x7ff };
        let data = protect(0xd, source, 3, 1);
        assert_eq!(check_all(0xd, source, target, &data, 9), 0);
    }
}

#[test]
#[should_panic(expected = "whole blocks")]
fn part_of_a_block() {
    let _ = dif::check(DifFormat::new(DifBlock::Bytes512), &DifSource::default(), &[0; 519]);
}

#[test]
#[should_panic(expected = "not more")]
fn target_of_another_size() {
    dif::insert(DifFormat::new(DifBlock::Bytes512), &DifTarget::default(), &[0; 512], &mut [0; 1040]);
}

fn tag16() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), Just(u16::MAX), Just(u16::MAX - 1), any::<u16>()]
}

fn tag32() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(u32::MAX), Just(u32::MAX - 1), any::<u32>()]
}

fn side(flags: impl Strategy<Value = u8>) -> impl Strategy<Value = Side> {
    (flags, tag32(), tag16(), tag16()).prop_map(|(flags, reference, mask, application)| Side {
        flags,
        reference,
        mask,
        application,
    })
}

proptest! {
    #[test]
    fn like_the_tables(
        dif_flags in 0..16u8,
        source in side(any::<u8>()),
        target in side((0..32u8).prop_map(|flags| flags << 3)),
        blocks in 0..5usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ones in prop::collection::vec((any::<prop::sample::Index>(), 0..8u8), 0..3),
        skew in 0..64usize,
    ) {
        let mut data = protect(dif_flags, source, blocks, skew);
        let size = block_bytes(dif_flags) + 8;
        for (block, parts) in ones.iter().filter(|_| blocks > 0) {
            let field = &mut data[block.index(blocks) * size..][size - 8..size];
            for (bit, part) in [(1, 0..2), (2, 2..4), (4, 4..8)] {
                if parts & bit != 0 {
                    field[part].fill(0xff);
                }
            }
        }
        for (place, bits) in damage.iter().filter(|_| blocks > 0) {
            // Mostly in fields, which have more cases.
            let mut at = place.index(data.len());
            if bits & 3 != 0 {
                at = at / size * size + size - 8 + at % 8;
            }
            data[at] ^= bits;
        }
        check_all(dif_flags, source, target, &data, skew);
    }
}

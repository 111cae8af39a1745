//! Invalid requests are refused, each with its reason, and write nothing.

use memferry_dsa::{
    Batch, ClientError, DifBlock, DifFormat, DifSource, DifTarget, DifTargetFlags, Invalid, Opcode, Outcome,
    Request,
};

use super::suite::Suite;

pub(super) fn run(suite: &mut Suite<'_>) {
    let mut refuse = Refusals { suite };
    let (source, mut target) = (vec![1u8; 8192], vec![0u8; 8192]);
    let format = DifFormat::new(DifBlock::Bytes512);
    let [a, b] = [&source[..520], &source[520..1040]];
    refuse.of(Request::copy(&source[..0], &mut target[..0]), Invalid::Empty(Opcode::Memmove));
    refuse.of(
        Request::copy(&source[..5], &mut target[..6]),
        Invalid::Length { operation: Opcode::Memmove, bytes: 6, bytes_needed: 5 },
    );
    refuse.of(
        Request::compare(a, &b[..1]),
        Invalid::Length { operation: Opcode::Compare, bytes: 1, bytes_needed: 520 },
    );
    refuse.of(
        Request::dif_check(&source[..519], format, DifSource::default()),
        Invalid::Blocks { operation: Opcode::DifCheck, bytes: 519, block_bytes: 520 },
    );
    refuse.of(
        Request::dif_insert(&source[..512], &mut target[..519], format, DifTarget::default()),
        Invalid::Length { operation: Opcode::DifInsert, bytes: 519, bytes_needed: 520 },
    );
    let passes = DifTarget { flags: DifTargetFlags::PASS_GUARD, ..DifTarget::default() };
    refuse.of(
        Request::dif_insert(&source[..512], &mut target[..520], format, passes),
        Invalid::DifFlags(Opcode::DifInsert),
    );
    refuse.of(
        Request::crc(0, &source).into_cache(),
        Invalid::Option { operation: Opcode::CrcGeneration, option: "target to put into the cache" },
    );
    refuse.of(
        Request::noop().block_on_fault(),
        Invalid::Option { operation: Opcode::Noop, option: "data that could fault" },
    );
    refuse.of(Request::apply_delta(&source[..11], &mut target[..8]), Invalid::DeltaSize(11));
    // Two targets in one allocation whose addresses differ by one more than a page.
    let (first, second) = target.split_at_mut(4097);
    refuse.of(
        Request::dualcast(&source[..100], &mut first[..100], &mut second[..100]),
        Invalid::DualcastAlignment,
    );
    let words = refuse.suite.buffer(8192, 0);
    let (old, new) = words.bytes().split_at(4096);
    refuse.of(Request::create_delta(old, new, &mut target[..79]), Invalid::DeltaRoom(70));
    refuse.of(
        Request::create_delta(&old[1..9], &new[..8], &mut target[..80]),
        Invalid::Alignment { operation: Opcode::CreateDelta, bytes: 8 },
    );
    let mut one = vec![0u8; 1040];
    // The target is before the source, and the device assumes a longer target than there is.
    let (strip_target, strip_source) = one.split_at_mut(512);
    refuse.of(
        Request::dif_strip(&strip_source[..520], strip_target, format, DifSource::default()),
        Invalid::Overlap(Opcode::DifStrip),
    );
    let mut batch = Batch::new();
    batch.add(Request::noop());
    batch.add(Request::drain());
    let refused = batch.check() == Err((1, Invalid::DrainInBatch));
    refuse.suite.require(refused, || "a batch took a drain".to_owned());
    let untouched = target.iter().all(|byte| *byte == 0);
    refuse.suite.require(untouched, || "a refused request has written".to_owned());
}

struct Refusals<'s, 'c> {
    suite: &'s mut Suite<'c>,
}

impl Refusals<'_, '_> {
    fn of<O: Outcome>(&mut self, request: Request<'_, O>, why: Invalid) {
        let error = self.suite.run_invalid(request);
        self.suite.expect(error, Some(ClientError::Invalid(why)), || format!("{why}"));
    }
}

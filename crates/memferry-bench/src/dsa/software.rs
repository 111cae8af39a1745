//! The operations in software beside the best alternative of each, in the same run.

use std::cell::RefCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use memferry_dsa::internals::software::{
    DELTA_BYTES_MAX, compare, compare_pattern, copy_crc, dif, dualcast, fill,
};
use memferry_dsa::software::{CrcMode, Delta, apply_delta, crc32c, create_delta};
use memferry_dsa::{DIF_BYTES, DifBlock, DifFormat, DifSource, DifTags, DifTarget};

use crate::harness::{Effort, Pairs, Random};

/// Times of one operation and of its peer.
#[derive(Clone, Debug)]
pub struct OperationTimes {
    /// Name of the operation.
    pub name: String,
    /// Name of its peer.
    pub peer: &'static str,
    /// Bytes that each call processes in one region.
    pub size_bytes: usize,
    /// Seconds per call.
    pub pairs: Pairs,
}

impl OperationTimes {
    /// Our bytes per second, one value per pair.
    pub fn bytes_per_second(&self) -> Vec<f64> {
        self.pairs.ours.iter().map(|seconds| self.size_bytes as f64 / seconds).collect()
    }

    /// The peer's bytes per second, one value per pair.
    pub fn peer_bytes_per_second(&self) -> Vec<f64> {
        self.pairs.peer.iter().map(|seconds| self.size_bytes as f64 / seconds).collect()
    }
}

/// The number of pairs, and the shortest duration of a sample; it has as many calls as that needs.
fn samples(effort: Effort) -> (usize, Duration) {
    effort.of((201, Duration::from_micros(400)), (1, Duration::ZERO))
}

/// Measures all operations; calls `measured` after each.
pub fn all(effort: Effort, mut measured: impl FnMut(&OperationTimes)) -> Vec<OperationTimes> {
    let mut rows = Vec::new();
    let mut add = |row: OperationTimes| {
        measured(&row);
        rows.push(row);
    };
    streams(effort, &mut add);
    deltas(effort, &mut add);
    fields(effort, &mut add);
    rows
}

/// Times both functions alternately. Both may write to the state.
fn measure<S>(
    effort: Effort,
    name: impl Into<String>,
    peer: &'static str,
    size_bytes: usize,
    state: &mut S,
    mut ours: impl FnMut(&mut S),
    mut theirs: impl FnMut(&mut S),
) -> OperationTimes {
    let mut once = |state: &mut S| {
        let started = Instant::now();
        ours(state);
        theirs(state);
        started.elapsed()
    };
    once(state); // also warms up
    let pair = once(state).max(Duration::from_nanos(50));
    let (pairs, sample) = samples(effort);
    let calls = (2 * sample.as_nanos() / pair.as_nanos()).clamp(1, 1 << 20) as u32;
    let state = RefCell::new(state);
    let time = |work: &mut dyn FnMut(&mut S)| {
        let mut state = state.borrow_mut();
        let started = Instant::now();
        for _ in 0..calls {
            work(&mut state);
        }
        started.elapsed().as_secs_f64() / f64::from(calls)
    };
    let pairs = Pairs::measure(pairs, || time(&mut ours), || time(&mut theirs));
    OperationTimes { name: name.into(), peer, size_bytes, pairs }
}

/// Pseudo-random bytes of a seed.
fn bytes(size_bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = vec![0; size_bytes];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

const PATTERN: u64 = 0x0123_4567_89ab_cdef;

fn streams(effort: Effort, add: &mut impl FnMut(OperationTimes)) {
    let sizes = effort.of(&[4 << 10, 64 << 10, 1 << 20, 64 << 20][..], &[4 << 10, 1 << 20]);
    for &size in sizes {
        let source = bytes(size, 1);
        let mut target = vec![0; size];
        let plain = CrcMode::default();
        add(measure(
            effort,
            "crc32c",
            "crc-fast",
            size,
            &mut (),
            |()| {
                black_box(crc32c(0, black_box(&source), plain));
            },
            |()| {
                black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, black_box(&source)));
            },
        ));
        add(measure(
            effort,
            "crc32c_seeded",
            "crc-fast",
            size,
            &mut (),
            |()| {
                black_box(crc32c(black_box(5), black_box(&source), plain));
            },
            |()| {
                black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, black_box(&source)));
            },
        ));
        let highest_first = CrcMode { bypass_data_reflection: true, ..plain };
        add(measure(
            effort,
            "crc32c_bypass_data_reflection",
            "crc-fast",
            size,
            &mut (),
            |()| {
                black_box(crc32c(0, black_box(&source), highest_first));
            },
            |()| {
                black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, black_box(&source)));
            },
        ));
        add(measure(
            effort,
            "copy_crc",
            "memcpy, then crc-fast",
            size,
            &mut target,
            |target| {
                black_box(copy_crc(black_box(&source), target, 0, plain));
            },
            |target| {
                target.copy_from_slice(black_box(&source));
                black_box(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, black_box(target)));
            },
        ));
        let same = source.clone();
        add(measure(
            effort,
            "compare",
            "memcmp",
            size,
            &mut (),
            |()| {
                black_box(compare(black_box(&source), black_box(&same)));
            },
            |()| {
                black_box(black_box(source.as_slice()) == black_box(same.as_slice()));
            },
        ));
        add(measure(
            effort,
            "fill",
            "memset",
            size,
            &mut target,
            |target| fill(black_box(PATTERN), black_box(target)),
            |target| black_box(target).fill(black_box(7)),
        ));
        fill(PATTERN, &mut target);
        let filled = target.clone();
        add(measure(
            effort,
            "compare_pattern",
            "memcmp",
            size,
            &mut (),
            |()| {
                black_box(compare_pattern(black_box(PATTERN), black_box(&filled)));
            },
            |()| {
                black_box(black_box(filled.as_slice()) == black_box(target.as_slice()));
            },
        ));
        add(measure(
            effort,
            "dualcast",
            "two memcpy",
            size,
            &mut (target, same),
            |(target_1, target_2)| dualcast(black_box(&source), target_1, target_2),
            |(target_1, target_2)| {
                target_1.copy_from_slice(black_box(&source));
                target_2.copy_from_slice(black_box(&source));
            },
        ));
    }
}

fn deltas(effort: Effort, add: &mut impl FnMut(OperationTimes)) {
    let size = DELTA_BYTES_MAX;
    let old = bytes(size, 2);
    // This many of 1000 words differ, at random places.
    for (name, per_mille) in
        [("equal", 0), ("1_percent", 10), ("10_percent", 100), ("half", 500), ("all", 1000)]
    {
        let mut new = old.clone();
        let mut random = Random(3);
        for word in new.chunks_exact_mut(8) {
            if random.next_u64() % 1000 < per_mille {
                word.iter_mut().for_each(|byte| *byte = !*byte);
            }
        }
        let mut delta = vec![0; size / 8 * 10];
        let mut target = vec![0; size];
        add(measure(
            effort,
            format!("create_delta_{name}"),
            "memcpy",
            size,
            &mut (&mut delta, &mut target),
            |(delta, _)| {
                black_box(create_delta(black_box(&old), black_box(&new), delta));
            },
            |(_, target)| target.copy_from_slice(black_box(&new)),
        ));
        let size_bytes = match create_delta(&old, &new, &mut delta) {
            Delta::Complete { size_bytes } => size_bytes,
            _ => continue, // a device does not accept an empty delta record
        };
        let delta = &delta[..size_bytes];
        let mut copy = vec![0; size];
        add(measure(
            effort,
            format!("apply_delta_{name}"),
            "memcpy",
            size,
            &mut (&mut target, &mut copy),
            |(target, _)| {
                black_box(apply_delta(black_box(delta), target)).ok();
            },
            |(_, copy)| copy.copy_from_slice(black_box(&new)),
        ));
    }
}

fn fields(effort: Effort, add: &mut impl FnMut(OperationTimes)) {
    for block in DifBlock::ALL {
        let format = DifFormat::new(block);
        let block_bytes = block.bytes() as usize;
        let blocks = if block_bytes < 4096 { 2048 } else { 256 };
        let data = bytes(blocks * block_bytes, 4);
        let mut protected = vec![0; blocks * (block_bytes + DIF_BYTES as usize)];
        let tags = DifTags { reference: 5, application: 6, ..DifTags::default() };
        let made = DifTarget { tags, ..DifTarget::default() };
        dif::insert(format, &made, &data, &mut protected);
        let source = DifSource { tags, ..DifSource::default() };
        let rules = DifTarget { tags: DifTags { application: 7, ..tags }, ..DifTarget::default() };
        let name = |operation| format!("dif_{operation}_{block_bytes}");
        let size = protected.len();
        let mut targets = (vec![0; size], vec![0; size]);
        let copy = |(_, copy): &mut (Vec<u8>, Vec<u8>)| copy.copy_from_slice(black_box(&protected));
        add(measure(
            effort,
            name("check"),
            "memcpy",
            size,
            &mut targets,
            |_| {
                black_box(dif::check(format, black_box(&source), black_box(&protected))).ok();
            },
            copy,
        ));
        add(measure(
            effort,
            name("insert"),
            "memcpy",
            size,
            &mut targets,
            |(target, _)| {
                black_box(dif::insert(format, black_box(&made), black_box(&data), target));
            },
            copy,
        ));
        add(measure(
            effort,
            name("strip"),
            "memcpy",
            size,
            &mut targets,
            |(target, _)| {
                let target = &mut target[..data.len()];
                black_box(dif::strip(format, black_box(&source), black_box(&protected), target)).ok();
            },
            copy,
        ));
        add(measure(
            effort,
            name("update"),
            "memcpy",
            size,
            &mut targets,
            |(target, _)| {
                black_box(dif::update(format, black_box(&source), black_box(&rules), &protected, target))
                    .ok();
            },
            copy,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The benchmark must not rot: every operation runs and has positive rates.
    #[test]
    fn every_operation_runs() {
        let mut measured = 0;
        let rows = all(Effort::Quick, |_| measured += 1);
        assert_eq!(rows.len(), measured);
        for row in &rows {
            let rates = [row.bytes_per_second(), row.peer_bytes_per_second()].concat();
            assert!(row.pairs.ratio() > 0.0 && rates.iter().all(|rate| *rate > 0.0), "{}", row.name);
        }
        for name in ["crc32c", "compare", "fill", "create_delta_all", "apply_delta_all", "dif_check_4096"] {
            assert!(rows.iter().any(|row| row.name == name), "{name} is not measured");
        }
    }
}

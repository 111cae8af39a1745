//! Messages between processes over shared memory, as in libfabric: ping-pong, and an all-reduce.
//!
//! A sender copies a message to segments in shared memory, and the receiver copies it from there: libfabric's segmentation
//! and reassembly. One core runs both sides, one after the other. In a ping-pong only one side works at a time, so that only
//! the transfer of a cache line between cores is missing. In the all-reduce the core runs all ranks in turn, so that the
//! time is the work of all ranks, not that of the slowest.
//!
//! Source: Kuper et al. (2024), appendix A and figure 17.

use super::host::{check, pieces};
use super::{CaseError, Host, Samples};

/// Bytes of a segment. Source: `SMR_SAR_SIZE` of libfabric's provider for shared memory.
const SEGMENT_BYTES: usize = 32 << 10;
/// The work for a message beside its copies: its header is written, seen and read. Assumed: two cache misses.
const HEADER_NS: f64 = 160.0;

/// The head of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    size_bytes: usize,
    number: usize,
}

/// Sends messages of a size there and back so many times; each time is a round trip.
///
/// # Errors
/// [`CaseError`], also if a message arrives with other bytes.
pub fn ping_pong(host: &Host, message_bytes: usize, round_trips: usize) -> Result<Samples, CaseError> {
    let mut samples = Samples::default();
    let mut shared = vec![0; message_bytes];
    let mut ends = [vec![0; message_bytes], vec![0; message_bytes]];
    let mut header = Header::default();
    for number in 0..round_trips {
        ends[0].iter_mut().enumerate().for_each(|(index, byte)| *byte = (index + number) as u8);
        ends[1].fill(0);
        let sent = ends[0].clone();
        let [first, second] = &mut ends;
        host.sample(&mut samples, 1, || {
            let mut send = |from: &[u8], to: &mut [u8]| -> Result<(), CaseError> {
                host.mover().copy(pieces(from, &mut shared, SEGMENT_BYTES))?;
                header = host.work(HEADER_NS, || Header { size_bytes: from.len(), number });
                host.mover().copy(pieces(&shared[..header.size_bytes], to, SEGMENT_BYTES))
            };
            send(first, second)?;
            // The answer is the message itself.
            send(second, first)
        })?;
        let is_right = ends.iter().all(|end| *end == sent) && header.number == number;
        check("messages", is_right, || format!("message {number} arrived with other bytes"))?;
    }
    Ok(samples)
}

/// Adds vectors of a size up over so many ranks, so many times; each time is one sum.
///
/// Each rank copies its vector to shared memory, adds its part of all vectors up, and copies the whole sum to its own memory.
///
/// # Errors
/// [`CaseError`], also if a sum is wrong.
///
/// # Panics
/// If a vector is not of whole numbers of 4 bytes, as many for each rank.
pub fn all_reduce(
    host: &Host,
    ranks: usize,
    vector_bytes: usize,
    add_ns: f64,
    rounds: usize,
) -> Result<Samples, CaseError> {
    assert!(vector_bytes.is_multiple_of(4 * ranks), "each rank adds as many numbers");
    let mut samples = Samples::default();
    let mut own = vec![vec![0; vector_bytes]; ranks];
    let mut shared = vec![vec![0; vector_bytes]; ranks];
    let mut sum = vec![0; vector_bytes];
    for round in 0..rounds {
        for (rank, vector) in own.iter_mut().enumerate() {
            let number = ((rank + 1) * (round + 1)) as f32;
            vector.chunks_mut(4).for_each(|bytes| bytes.copy_from_slice(&number.to_ne_bytes()));
        }
        host.sample(&mut samples, 1, || -> Result<(), CaseError> {
            for (own, shared) in own.iter().zip(&mut shared) {
                host.mover().copy(pieces(own, shared, SEGMENT_BYTES))?;
            }
            let part_bytes = vector_bytes / ranks;
            for (rank, sum) in sum.chunks_mut(part_bytes).enumerate() {
                host.work(add_ns, || add(&shared, rank * part_bytes, sum));
            }
            for own in &mut own {
                host.mover().copy(pieces(&sum, own, SEGMENT_BYTES))?;
            }
            Ok(())
        })?;
        let expected = ((1..=ranks).sum::<usize>() * (round + 1)) as f32;
        let is_right = own.iter().all(|sum| sum.chunks(4).all(|bytes| bytes == expected.to_ne_bytes()));
        check("messages", is_right, || format!("a sum of {ranks} ranks in round {round} is not {expected}"))?;
    }
    Ok(samples)
}

/// Adds the numbers of all vectors from `offset` on up.
fn add(vectors: &[Vec<u8>], offset: usize, sum: &mut [u8]) {
    for (index, sum) in sum.chunks_exact_mut(4).enumerate() {
        let at = offset + 4 * index;
        let number = |vector: &Vec<u8>| {
            f32::from_ne_bytes([vector[at], vector[at + 1], vector[at + 2], vector[at + 3]])
        };
        sum.copy_from_slice(&vectors.iter().map(number).sum::<f32>().to_ne_bytes());
    }
}

//! Packets of 512 bytes through the ordered pipeline: modelled with a device, and measured with a worker in its place.

use std::error::Error;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use memferry::internals::{CopyMethod, Hardware, Offload};
use memferry::mover::{CopyError, CopyMethods, CopyOptions, CopyReport, Mover, OperationError, Ordered};
use memferry::topology::Machine;
use memferry_dsa_emulator::DeviceCosts;

use super::Size;
use super::virtual_device::VirtualDevice;
use crate::harness::{Comparison, Pairs};

const PACKET_BYTES: usize = 512;
/// Packets of a burst: "typical burst size is 32".
///
/// Source: Kuper et al. (2024), section 6.4.
const BURST: usize = 32;
/// One burst is in flight while the core prepares the next.
const LEN_MAX: usize = 2 * BURST;
/// Share of its time that a core spends copying when it forwards packets of this size without a device.
///
/// Source: Kuper et al. (2024), section 6.4.
const COPYING_PART: f64 = 0.3;
/// What a core works on one descriptor beside submitting it. Assumed: an order of magnitude; not printed.
pub(crate) const DESCRIPTOR_NS: f64 = 100.0;
/// The profile of the paper's machine.
const PROFILE: &str = "spr-56c";

type Packet = (Vec<u8>, Vec<u8>);
type CopiedPacket = Result<(Vec<u8>, Vec<u8>, CopyReport), OperationError<Packet>>;
type Pipeline = Ordered<Vec<u8>, Vec<u8>>;

/// `ordered_512B`, modelled: nanoseconds of a core per packet through an [`Ordered`] pipeline, beside a copy by the core.
///
/// The device is emulated in virtual time. The core's rates and costs are those of the profile `spr-56c`, the device's
/// are [`DeviceCosts::sapphire_rapids`]. The copies and their order are real.
///
/// `ordered_512B_forwarding`: the same with as much other work per packet as in the paper, where copies took 30 % of the
/// core's time.
///
/// # Errors
/// The mover cannot be built, or a copy fails.
pub fn ordered_modelled() -> Result<[Comparison; 2], Box<dyn Error>> {
    let row =
        |name: &str, pairs| Comparison::new(name, "ns", format!("copying on the core of {PROFILE}"), pairs);
    Ok([
        row("ordered_512B", pipelined(PACKET_BYTES, false)?),
        row("ordered_512B_forwarding", forwarding(PACKET_BYTES)?),
    ])
}

/// Nanoseconds of a core for each packet of a size that it forwards, through an [`Ordered`] pipeline and by copying itself. The other
/// work for a packet is that of [`ordered_modelled`] at each size.
///
/// # Errors
/// The mover cannot be built, or a copy fails.
pub(crate) fn forwarding(packet_bytes: usize) -> Result<Pairs, Box<dyn Error>> {
    pipelined(packet_bytes, true)
}

fn pipelined(packet_bytes: usize, has_other_work: bool) -> Result<Pairs, Box<dyn Error>> {
    let machine = Arc::new(Machine::from_profile(PROFILE)?);
    let offload = Offload::of(&Hardware::of(&machine)?)?;
    let copy_ns = |bytes: usize| offload.core_s(bytes as f64) * 1e9;
    let other_ns = copy_ns(PACKET_BYTES) * (1.0 - COPYING_PART) / COPYING_PART;
    let other_ns = if has_other_work { other_ns } else { 0.0 };
    let device = VirtualDevice::new(DeviceCosts::sapphire_rapids(), DESCRIPTOR_NS)?;
    let ours = forwarded_ns(&machine, device, packet_bytes, other_ns)?;
    Ok(Pairs { ours: vec![ours], peer: vec![copy_ns(packet_bytes) + other_ns] })
}

/// Nanoseconds of the core per packet, over 100 bursts.
fn forwarded_ns(
    machine: &Arc<Machine>,
    device: VirtualDevice,
    packet_bytes: usize,
    other_ns: f64,
) -> Result<f64, Box<dyn Error>> {
    const BURSTS: usize = 100;
    let device = Arc::new(device);
    let mover = Mover::builder(machine.clone()).engine(device.clone()).build()?;
    let mut pipeline = Pipeline::new(mover, LEN_MAX, CopyOptions::default())?;
    let mut retired = Retired { packet_bytes, count: 0 };
    for burst in 0..BURSTS {
        let mut burst: Vec<Packet> =
            (0..BURST).map(|index| packet(burst * BURST + index, packet_bytes)).collect();
        device.work(other_ns * BURST as f64);
        while !burst.is_empty() {
            device.poll();
            while let Some(copied) = pipeline.retire() {
                retired.take(copied?)?;
            }
            if pipeline.room() == 0 {
                device.wait();
            }
            pipeline.submit_burst(&mut burst);
        }
    }
    while !pipeline.is_empty() {
        device.wait();
        while let Some(copied) = pipeline.retire() {
            retired.take(copied?)?;
        }
    }
    Ok(device.now_ns() / (BURSTS * BURST) as f64)
}

/// Checks packets that have left the pipeline: a model of wrong copies would be worthless.
struct Retired {
    packet_bytes: usize,
    count: usize,
}

impl Retired {
    fn take(&mut self, (_, target, report): (Vec<u8>, Vec<u8>, CopyReport)) -> Result<(), String> {
        if target != packet(self.count, self.packet_bytes).0 || report.dsa_bytes != self.packet_bytes as u64 {
            return Err(format!(
                "packet {} is out of order, has wrong bytes, or was not copied by the device",
                self.count
            ));
        }
        self.count += 1;
        Ok(())
    }
}

/// A packet filled with its number, and its target.
fn packet(number: usize, packet_bytes: usize) -> Packet {
    let bytes = number.to_le_bytes();
    ((0..packet_bytes).map(|index| bytes[index % bytes.len()]).collect(), vec![0; packet_bytes])
}

/// `ordered_512B_measured`: nanoseconds per packet through an [`Ordered`] pipeline with a worker, beside two threads that
/// copy half of the packets each by memcpy, without order.
///
/// Both use two CPUs. Without a device the pipeline cannot gain: the row shows its cost.
///
/// # Errors
/// The mover cannot be built, or a copy fails.
pub fn ordered_measured(size: Size) -> Result<Comparison, Box<dyn Error>> {
    let bursts_count = (size.round_bytes / PACKET_BYTES / BURST).max(1);
    let methods = CopyMethods::only(CopyMethod::Memcpy);
    let mover = Mover::builder(Arc::new(Machine::discover()?)).copy_methods(methods).build()?;
    let mut pipeline = Pipeline::new(mover, LEN_MAX, CopyOptions::default())?;
    let mut free: Vec<Packet> = (0..LEN_MAX).map(|number| packet(number, PACKET_BYTES)).collect();
    let mut failure: Option<CopyError> = None;
    let ours = || {
        let begin = Instant::now();
        let mut keep = |copied: CopiedPacket, free: &mut Vec<Packet>| match copied {
            Ok((source, target, _)) => free.push((source, target)),
            Err(error) => {
                failure = Some(error.error);
                free.push(packet(0, PACKET_BYTES));
            }
        };
        for _ in 0..bursts_count {
            while let Some(copied) = pipeline.retire() {
                keep(copied, &mut free);
            }
            while free.len() < BURST {
                let Some(copied) = pipeline.retire_wait() else { break };
                keep(copied, &mut free);
            }
            let mut burst = free.split_off(free.len().saturating_sub(BURST));
            pipeline.submit_burst(&mut burst);
        }
        while let Some(copied) = pipeline.retire_wait() {
            keep(copied, &mut free);
        }
        begin.elapsed().as_nanos() as f64 / (bursts_count * BURST) as f64
    };
    let mut halves = [0, 1]
        .map(|half| (0..LEN_MAX / 2).map(|index| packet(2 * index + half, PACKET_BYTES)).collect::<Vec<_>>());
    let peer = || {
        let barrier = Barrier::new(halves.len());
        let time = |packets: &mut Vec<Packet>| {
            barrier.wait();
            let begin = Instant::now();
            for _ in 0..bursts_count * BURST / LEN_MAX {
                packets.iter_mut().for_each(|(source, target)| black_box(target).copy_from_slice(source));
            }
            begin.elapsed().as_nanos() as f64
        };
        let longest = thread::scope(|scope| {
            let time = &time;
            let threads: Vec<_> = halves.iter_mut().map(|half| scope.spawn(move || time(half))).collect();
            let times = threads.into_iter().map(|thread| thread.join().expect("a copy does not panic"));
            times.fold(0.0, f64::max)
        });
        longest / (bursts_count * BURST) as f64
    };
    let pairs = Pairs::measure(size.rounds_count, ours, peer);
    if let Some(error) = failure {
        return Err(error.into());
    }
    Ok(Comparison::new("ordered_512B_measured", "ns", "two threads with memcpy", pairs))
}

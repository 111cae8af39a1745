//! Forwards packets of 64 to 1500 bytes from the buffers of a network card to those of a guest, in order.
//!
//! ```sh
//! cargo run --release -p memferry --example ordered
//! ```
//!
//! A switch looks at each packet's header and leaves the copying to a device. Packets may overtake each other inside of
//! it, and must not in the guest: they leave the pipeline in the order in which they came. The device here is emulated:
//! late, out of order, full and faulting.

use std::error::Error;
use std::sync::Arc;

use memferry::mover::{Consumer, CopyOptions, DsaEngine, DsaOptions, Mover, Ordered};
use memferry::topology::Machine;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

const PACKETS: usize = 10_000;
/// As many as a network card hands over at once.
const BURST: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let device = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::from_seed(1))?;
    let dsa = DsaEngine::new(vec![device.portal(0)], DsaOptions::default())?;
    let mover = Mover::builder(Arc::new(Machine::discover()?)).engine(Arc::new(dsa)).build()?;

    // The guest reads a packet as soon as it has it: into the cache with it.
    let options = CopyOptions { consumer: Consumer::CoresSoon, ..CopyOptions::default() };
    // One burst can be under way while the next is worked on.
    let mut pipeline = Ordered::<Vec<u8>, Vec<u8>>::new(mover.clone(), 2 * BURST, options)?;
    let mut guest = Guest::default();
    let mut header_bytes = 0;

    for first in (0..PACKETS).step_by(BURST) {
        // 1. What has arrived, up to the first that has not, is the guest's.
        while let Some(copied) = pipeline.retire() {
            let (_, packet, _) = copied?;
            guest.receive(&packet);
        }
        // 2. The next burst goes to the device, in batches; small packets are copied by a core.
        let numbers = first..PACKETS.min(first + BURST);
        let mut burst: Vec<_> = numbers.map(|number| (packet(number), vec![0; size(number)])).collect();
        // 3. While it copies, the core does its own work: here it looks at headers.
        header_bytes += burst.iter().map(|(packet, _)| packet.len().min(14)).sum::<usize>();
        pipeline.submit_burst(&mut burst);
        // The pipeline is full: the guest is slower than the network. Wait for the oldest.
        while !burst.is_empty() {
            if let Some(copied) = pipeline.retire_wait() {
                guest.receive(&copied?.1);
            }
            pipeline.submit_burst(&mut burst);
        }
    }
    while let Some(copied) = pipeline.retire_wait() {
        guest.receive(&copied?.1);
    }

    let stats = mover.stats();
    println!("{} packets, {} bytes, all in order", guest.packets_count, guest.bytes_count);
    println!("{header_bytes} bytes of headers were looked at meanwhile");
    for engine in stats.engines {
        println!(
            "{}: {} copies, {} bytes in {} batches",
            engine.name, engine.operations, engine.bytes, engine.batches
        );
    }
    assert_eq!(guest.packets_count, PACKETS);
    Ok(())
}

/// What is behind the switch.
#[derive(Default)]
struct Guest {
    packets_count: usize,
    bytes_count: usize,
}

impl Guest {
    fn receive(&mut self, packet: &[u8]) {
        assert!(packet == self::packet(self.packets_count), "out of order, or with other bytes");
        self.packets_count += 1;
        self.bytes_count += packet.len();
    }
}

/// From 64 to 1500 bytes, as in Ethernet.
fn size(number: usize) -> usize {
    64 + number * 131 % (1500 - 64 + 1)
}

/// A packet that says which one it is.
fn packet(number: usize) -> Vec<u8> {
    let bytes = number.to_le_bytes();
    (0..size(number)).map(|index| bytes[index % bytes.len()] ^ index as u8).collect()
}

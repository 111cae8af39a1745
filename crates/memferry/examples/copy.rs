//! Three ways to copy while the program computes: wait, await, and borrow.
//!
//! Run it with `cargo run -p memferry --example copy`. It copies with the CPU and with an emulated DSA device.

use std::error::Error;
use std::sync::Arc;

use memferry::mover::{CopyOptions, DsaEngine, DsaOptions, Mover};
use memferry::topology::Machine;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

fn main() -> Result<(), Box<dyn Error>> {
    // A mover always has CPU engines; accelerators are added, and asked first.
    let device = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none())?;
    let dsa = DsaEngine::new(vec![device.portal(0)], DsaOptions::default())?;
    let machine = Arc::new(Machine::discover()?);
    let mover = Mover::builder(machine).engine(Arc::new(dsa)).build()?;

    // A transfer owns its buffers and gives them back. What is copied may be shared.
    let source: Arc<[u8]> = (0..1 << 20).map(|index| index as u8).collect();
    let transfer = mover.copy(source.clone(), vec![0; source.len()], CopyOptions::default());
    println!("computing while {} bytes are copied ...", source.len());
    let (_, target, report) = transfer.wait()?;
    assert_eq!(target[..], source[..]);
    println!("wait:  {} bytes by DSA, {} by the CPU", report.dsa_bytes, report.cpu_bytes);

    // It is a future, too. The buffer of the first copy is the target of the second.
    let transfer = mover.copy(vec![7; target.len()], target, CopyOptions::default());
    let (_, target, _) = futures::executor::block_on(transfer)?;
    assert!(target.iter().all(|&byte| byte == 7));
    println!("await: done");

    // Dropping a transfer does not cancel it, and frees nothing before the device is done.
    drop(mover.copy(source.clone(), target, CopyOptions::default()));

    // Borrowed buffers: the scope does not end before its copies.
    let mut halves = vec![0; source.len()];
    let (front, back) = halves.split_at_mut(source.len() / 2);
    let (source_front, source_back) = source.split_at(front.len());
    mover.scope(|scope| {
        scope.copy(source_front, front);
        scope.copy(source_back, back);
    })?;
    assert_eq!(halves[..], source[..]);
    println!("scope: done");

    for engine in mover.stats().engines {
        println!("{}: {} copies, {} bytes", engine.name, engine.operations, engine.bytes);
    }
    Ok(())
}

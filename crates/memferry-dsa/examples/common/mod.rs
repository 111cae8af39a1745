//! The client of an example: of the hardware where there is one, else of the emulated device.

use memferry_dsa::{Client, ClientOptions};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

/// Says which, and opens it.
pub(crate) fn client() -> Result<Client, Box<dyn std::error::Error>> {
    let found = Client::discover(ClientOptions::default())?;
    if found.client.portals().len() > 0 {
        for portal in found.client.portals() {
            println!("on the hardware: {} by {:?}", portal.work_queue().name, portal.kind());
        }
        return Ok(found.client);
    }
    println!("on the emulated device, since there is no other that can be used:");
    for diagnostic in &found.diagnostics {
        println!("  {diagnostic}");
    }
    let device = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::none())?;
    Ok(Client::new(vec![device.portal(0)], ClientOptions::default()))
}

#[allow(dead_code)] // one example has a report instead
/// What the CPU did for the device, if anything.
pub(crate) fn tell(client: &Client) {
    let stats = client.stats();
    println!("{} descriptors submitted, {} requests done by the CPU", stats.submitted, stats.on_cpu_total());
}

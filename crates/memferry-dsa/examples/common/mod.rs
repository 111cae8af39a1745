//! The client of an example: of the hardware if there is a usable queue, else of the emulated device.

use memferry_dsa::{Client, ClientOptions};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

/// Opens the client and prints its device.
pub(crate) fn client() -> Result<Client, Box<dyn std::error::Error>> {
    let (client, diagnostics) = Client::discover(ClientOptions::default())?;
    if client.portals().len() > 0 {
        for portal in client.portals() {
            println!("on the hardware: {} by {:?}", portal.work_queue().name, portal.kind());
        }
        return Ok(client);
    }
    println!("on the emulated device, since no other is usable:");
    for diagnostic in diagnostics {
        println!("  {diagnostic}");
    }
    let device = Emulator::start(&DeviceConfig::four_engines(), FaultPlan::none())?;
    Ok(Client::new(vec![device.portal(0)], ClientOptions::default()))
}

/// Prints the number of requests that the CPU has run.
#[allow(dead_code)] // not used by the example of memferry-dsa-emulator
pub(crate) fn tell(client: &Client) {
    let stats = client.stats();
    println!("{} descriptors submitted, {} requests done by the CPU", stats.submitted, stats.on_cpu_total());
}

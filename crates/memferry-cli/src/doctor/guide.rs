//! The set-up of a DSA, step by step, with the state of each step on this machine.
//!
//! Source: Fürst 2024, 2.5 ("System Setup and Configuration").

use memferry::topology::Tier;
use memferry_dsa::system::{Device, Queue, QueueFilter};
use serde::Serialize;

use super::facts::Facts;

/// The state of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Done,
    /// To be done.
    Open,
    /// The machine does not show it, or shows it only after later steps.
    Unknown,
}

/// One setting or action.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Step {
    /// The number of the step in the source; some have several parts.
    pub(crate) number: u32,
    pub(crate) action: &'static str,
    pub(crate) command: &'static str,
    pub(crate) state: State,
    /// What the machine shows.
    pub(crate) found: String,
}

/// The steps on a machine.
pub(crate) fn steps(facts: &Facts) -> Vec<Step> {
    vec![
        memory_mode(facts),
        vt_d(facts),
        address_limit(facts),
        kernel(facts),
        boot_parameters(facts),
        detection(facts),
        accel_config(facts),
        configuration(facts),
        inspection(facts),
    ]
}

fn known(is_done: Option<bool>) -> State {
    is_done.map_or(State::Unknown, |is_done| if is_done { State::Done } else { State::Open })
}

fn memory_mode(facts: &Facts) -> Step {
    let machine = facts.machine.as_ref();
    let any = |is: fn(&memferry::topology::Node) -> bool| machine.is_some_and(|it| it.nodes().iter().any(is));
    let (state, found) = match () {
        () if any(|node| node.tier == Tier::Hbm) => (State::Done, "HBM has nodes of its own"),
        () if any(|node| node.side_cache_bytes.is_some()) => {
            (State::Open, "a faster memory is a cache of another")
        }
        () if !facts.dax.is_empty() => (State::Open, "a memory is a device instead of a node"),
        () => (State::Unknown, "no HBM is visible; most machines have none, and this step is not for them"),
    };
    let action = "BIOS: set 'Memory Hierarchy' to Flat, on a machine with HBM.";
    Step { number: 1, action, command: "memferry topology", state, found: found.to_owned() }
}

fn vt_d(facts: &Facts) -> Step {
    let found = match facts.iommu.is_in_firmware {
        Some(true) => "the firmware describes an IOMMU",
        Some(false) => "the firmware describes no IOMMU",
        None => "the firmware shows no tables",
    };
    Step {
        number: 1,
        action: "BIOS: set 'VT-d' to Enabled.",
        command: "ls /sys/class/iommu /sys/firmware/acpi/tables/DMAR",
        state: known(facts.iommu.is_in_firmware),
        found: found.to_owned(),
    }
}

fn address_limit(facts: &Facts) -> Step {
    let bits = facts.cpu.address_bits;
    Step {
        number: 1,
        action: "BIOS: set 'Limit CPU PA to 46 bits' to Disabled, if it is there.",
        command: "grep -m1 'address sizes' /proc/cpuinfo",
        state: known(bits.map(|bits| bits > 46)),
        found: bits.map_or("unknown".to_owned(), |bits| format!("physical addresses have {bits} bits")),
    }
}

fn kernel(facts: &Facts) -> Step {
    let version = facts.kernel.version;
    let has_driver = match facts.dsa.module_loaded {
        true => Some(true),
        false => facts.has_option("CONFIG_INTEL_IDXD"),
    };
    let is_new = version.map(|version| version >= (5, 18));
    let state = match (is_new, has_driver) {
        (Some(false), _) | (_, Some(false)) => State::Open,
        (Some(true), Some(true)) => State::Done,
        _ => State::Unknown,
    };
    let version =
        version.map_or("of unknown version".to_owned(), |(major, minor)| format!("{major}.{minor}"));
    let driver = match has_driver {
        Some(true) => "with idxd",
        Some(false) => "without idxd",
        None => "perhaps with idxd",
    };
    Step {
        number: 2,
        action: "Use a kernel with the driver idxd: 5.10 for the kernel itself, 5.18 for programs.",
        command: "uname -r; grep INTEL_IDXD /boot/config-$(uname -r)",
        state,
        found: format!("Linux {version}, {driver}"),
    }
}

fn boot_parameters(facts: &Facts) -> Step {
    let on = facts.is_booted_with("on", "off", "CONFIG_INTEL_IOMMU_DEFAULT_ON");
    let scalable = facts.is_booted_with("sm_on", "sm_off", "CONFIG_INTEL_IOMMU_SCALABLE_MODE_DEFAULT_ON");
    let found = match &facts.iommu.boot_values {
        None => "unknown".to_owned(),
        Some(values) if values.is_empty() && on == Some(true) => "not set, and on by default".to_owned(),
        Some(values) if values.is_empty() => "not set".to_owned(),
        Some(values) => format!("intel_iommu={}", values.join(",")),
    };
    Step {
        number: 2,
        action: "Add intel_iommu=on,sm_on to the boot parameters, and boot.",
        command: "grubby --update-kernel=ALL --args=intel_iommu=on,sm_on",
        state: known(on.zip(scalable).map(|(on, scalable)| on && scalable)),
        found,
    }
}

fn detection(facts: &Facts) -> Step {
    let devices = &facts.dsa.devices;
    let sharing = devices.iter().filter(|device| device.has_pasid != Some(false)).count();
    Step {
        number: 3,
        action: "Check that the driver found the devices, and that they share address spaces.",
        command: "dmesg | grep idxd; cat /sys/bus/dsa/devices/dsa*/pasid_enabled",
        state: known(Some(!devices.is_empty() && sharing == devices.len())),
        found: match devices.len() {
            0 if facts.pci.is_empty() => "no DSA".to_owned(),
            0 => format!("{} on the PCI bus, none with a driver", facts.pci.len()),
            number => format!("{number} with a driver, {sharing} of them share address spaces"),
        },
    }
}

fn accel_config(facts: &Facts) -> Step {
    let found = if facts.has_accel_config { "installed" } else { "not installed; memferry does not need it" };
    Step {
        number: 4,
        action: "Install accel-config, and look at the devices. `memferry topology` shows the same.",
        command: "accel-config list -i",
        state: known(Some(facts.has_accel_config)),
        found: found.to_owned(),
    }
}

fn configuration(facts: &Facts) -> Step {
    let devices = &facts.dsa.devices;
    let is_ready = |device: &&Device| device.is_enabled() && device.queues.iter().any(Queue::is_enabled);
    let ready = devices.iter().filter(is_ready).count();
    Step {
        number: 5,
        action: "Apply a configuration, and enable devices and queues. 8n1d1e1w is that of the source.",
        command: "memferry configure --profile 8n1d1e1w --apply",
        state: known(Some(ready > 0)),
        found: format!("{ready} of {} devices have an enabled queue", devices.len()),
    }
}

fn inspection(facts: &Facts) -> Step {
    let usable = facts.dsa.diagnose(&QueueFilter::default()).usable;
    let names: Vec<String> = usable.iter().map(|(_, queue)| queue.id.to_string()).collect();
    Step {
        number: 6,
        action: "Check that the queues are as configured, and that this user can use them.",
        command: "accel-config list; memferry topology",
        state: known(Some(!names.is_empty())),
        found: if names.is_empty() {
            "no usable queue".to_owned()
        } else {
            format!("usable: {}", names.join(", "))
        },
    }
}

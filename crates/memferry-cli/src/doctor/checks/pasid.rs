//! Devices that share no address spaces (`pasid_enabled` is 0): the problem that users report most, with many causes.

use super::device::joined;
use super::{Check, Problem};
use crate::doctor::facts::Facts;

/// The first kernel that shares address spaces. Source: Linux, arch/x86 (ENQCMD was disabled from 5.13 to 5.17).
const SINCE: (u32, u32) = (5, 18);
/// Bits of a physical address under the BIOS setting "Limit CPU PA to 46 bits". Sapphire Rapids has 52 without it.
const ADDRESS_BITS_LIMITED: u32 = 46;

/// Not all distributions have grubby, the tool of the command.
const ADD_PARAMETERS: &str = "Add intel_iommu=on,sm_on to the boot parameters (without grubby: to GRUB_CMDLINE_LINUX in \
    /etc/default/grub, then run update-grub), and boot again.";

const SHOW: &str = "cat /sys/bus/dsa/devices/dsa*/pasid_enabled";

/// The causes, in the order in which they prevent each other. Only the first that applies is reported.
const CAUSES: &[Check] = &[
    old_kernel,
    off_in_firmware,
    guest,
    iommu_off_at_boot,
    scalable_mode_off_at_boot,
    kernel_without_option,
    address_limit,
    five_level_paging,
    refused_by_platform,
];

pub(super) fn no_shared_addresses(facts: &Facts) -> Option<Problem> {
    let shut = facts.dsa.devices.iter().filter(|device| device.has_pasid == Some(false));
    let devices = joined(shut.map(|device| device.id.to_string()))?;
    let problem = CAUSES.iter().find_map(|cause| cause(facts))?;
    let cause =
        format!("Programs cannot share their address spaces with {devices}, because {}.", problem.cause);
    Some(Problem { cause, ..problem })
}

fn old_kernel(facts: &Facts) -> Option<Problem> {
    let version = facts.kernel.version.filter(|version| *version < SINCE)?;
    Some(
        Problem::error(
            "kernel-too-old",
            format!("Linux {}.{} cannot share them", version.0, version.1),
            "Use Linux 5.18 or newer, and do not unbind devices before 5.14, which can restart the machine.",
        )
        .command("uname -r")
        .source("intel/idxd-config 7 and 54; facebook/CacheLib 415"),
    )
}

fn off_in_firmware(facts: &Facts) -> Option<Problem> {
    if facts.is_guest() || facts.iommu.is_in_firmware != Some(false) {
        return None;
    }
    Some(
        Problem::error(
            "vt-d-off",
            "VT-d is off in the BIOS",
            "Enable VT-d in the BIOS, and boot with intel_iommu=on,sm_on.",
        )
        .command("ls /sys/firmware/acpi/tables/DMAR")
        .source("intel/idxd-config 5; Fürst 2024, 2.5, step 1"),
    )
}

fn guest(facts: &Facts) -> Option<Problem> {
    if !facts.is_guest() || facts.iommu.is_in_firmware != Some(false) {
        return None;
    }
    Some(
        Problem::error(
            "guest-without-iommu",
            "this virtual machine has no virtual IOMMU with scalable mode",
            "Give the guest one on the host; a device that is only passed through serves the guest's kernel alone.",
        )
        .command(SHOW)
        .source("intel/idxd-config 5 and 46"),
    )
}

fn iommu_off_at_boot(facts: &Facts) -> Option<Problem> {
    if facts.is_booted_with("on", "off", "CONFIG_INTEL_IOMMU_DEFAULT_ON") != Some(false) {
        return None;
    }
    Some(
        Problem::error("iommu-off-at-boot", "the kernel was booted without intel_iommu=on", ADD_PARAMETERS)
            .command("grubby --update-kernel=ALL --args=intel_iommu=on,sm_on && reboot")
            .source("Fürst 2024, 2.5, step 2; intel/idxd-config 5"),
    )
}

fn scalable_mode_off_at_boot(facts: &Facts) -> Option<Problem> {
    let option = "CONFIG_INTEL_IOMMU_SCALABLE_MODE_DEFAULT_ON";
    if facts.is_booted_with("sm_on", "sm_off", option) != Some(false) {
        return None;
    }
    Some(
        Problem::error(
            "scalable-mode-off-at-boot",
            "the kernel was booted without the scalable mode of the IOMMU (sm_on)",
            ADD_PARAMETERS,
        )
        .command("grubby --update-kernel=ALL --args=intel_iommu=on,sm_on && reboot")
        .source("intel/intel-technology-enabling-for-openshift 307"),
    )
}

fn kernel_without_option(facts: &Facts) -> Option<Problem> {
    let needed = ["CONFIG_INTEL_IOMMU_SVM", "CONFIG_INTEL_IDXD_SVM"];
    let missing = needed.into_iter().find(|option| facts.has_option(option) == Some(false))?;
    Some(
        Problem::error(
            "kernel-without-sharing",
            format!("the kernel was built without {missing}"),
            "Use a kernel with CONFIG_INTEL_IOMMU_SVM and CONFIG_INTEL_IDXD_SVM.",
        )
        .command("grep -e IOMMU_SVM -e IDXD_SVM /boot/config-$(uname -r)")
        .source("facebook/CacheLib 415"),
    )
}

fn address_limit(facts: &Facts) -> Option<Problem> {
    if facts.is_guest() || facts.cpu.address_bits != Some(ADDRESS_BITS_LIMITED) {
        return None;
    }
    Some(
        Problem::error(
            "address-limit",
            "the BIOS probably limits physical addresses to 46 bits",
            "Disable \"Limit CPU PA to 46 bits\" in the BIOS.",
        )
        .command("grep -m1 'address sizes' /proc/cpuinfo")
        .source("Fürst 2024, 2.5, step 1"),
    )
}

fn five_level_paging(facts: &Facts) -> Option<Problem> {
    if facts.has_flag("la57") != Some(true) {
        return None;
    }
    Some(
        Problem::error(
            "five-level-paging",
            "the IOMMU probably cannot follow page tables of five levels",
            "Add no5lvl to the kernel's boot parameters, and boot again.",
        )
        .command("grubby --update-kernel=ALL --args=no5lvl && reboot")
        .source("intel/qpl 50"),
    )
}

fn refused_by_platform(facts: &Facts) -> Option<Problem> {
    let (who, cure) = match facts.is_guest() {
        true => {
            ("the host of this virtual machine", "Ask for an IOMMU with scalable mode and PASID on the host.")
        }
        false => {
            ("the firmware", "Update the BIOS, and look for the line \"Unable to turn on user SVA feature\".")
        }
    };
    Some(
        Problem::error(
            "sharing-refused",
            format!("{who} refuses it although the kernel was booted for it"),
            cure,
        )
        .command("dmesg | grep -e idxd -e DMAR")
        .source("intel/idxd-config 46 and 78"),
    )
}

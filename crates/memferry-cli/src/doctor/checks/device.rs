//! Devices and their driver.

use memferry_dsa::system::{Device, Diagnostic, QueueFilter, QueueId};

use super::Problem;
use crate::doctor::facts::Facts;

/// The names of PCI functions without the driver `idxd`.
fn unbound(facts: &Facts, is_wanted: impl Fn(Option<&str>) -> bool) -> Option<String> {
    let functions = facts.pci.iter().filter(|function| is_wanted(function.driver.as_deref()));
    joined(functions.map(|function| function.address.clone()))
}

/// The names as one text; `None` without any.
pub(super) fn joined(names: impl IntoIterator<Item = String>) -> Option<String> {
    let names: Vec<String> = names.into_iter().collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// `dsa0 is`, `dsa0, dsa2 are`.
pub(super) fn are(names: &str) -> String {
    format!("{names} {}", if names.contains(',') { "are" } else { "is" })
}

/// The command that gives devices one queue for all engines, and enables them. `names` are those of devices or queues.
pub(super) fn configure(names: &str) -> String {
    let device = |name: &str| match name.parse::<QueueId>() {
        Ok(queue) => queue.device.to_string(),
        Err(_) => name.to_owned(),
    };
    let mut devices: Vec<String> = names.split(", ").map(device).collect();
    devices.dedup();
    format!("memferry configure --profile 1n1d1e1w --device {} --apply --force", devices.join(" --device "))
}

/// Devices and queues with a diagnostic. Those of devices without shared address spaces have a deeper cause.
pub(super) fn objects<T>(facts: &Facts, find: impl Fn(&Diagnostic) -> Option<T>) -> Vec<(String, T)> {
    let diagnosis = facts.dsa.diagnose(&QueueFilter::default());
    let is_shut = |object: &str| {
        let mut shut = facts.dsa.devices.iter().filter(|device| device.has_pasid == Some(false));
        shut.any(|device| {
            device.id.to_string() == object
                || device.queues.iter().any(|queue| queue.id.to_string() == object)
        })
    };
    let found = diagnosis.diagnostics.iter().filter_map(|found| Some((found.object()?, find(found)?)));
    found.filter(|(object, _)| !is_shut(object)).collect()
}

/// The names of the objects, and what was found of the first.
pub(super) fn first<T>(objects: Vec<(String, T)>) -> Option<(String, T)> {
    let names = joined(objects.iter().map(|(name, _)| name.clone()))?;
    Some((names, objects.into_iter().next()?.1))
}

pub(super) fn on_another_driver(facts: &Facts) -> Option<Problem> {
    let functions = unbound(facts, |driver| driver.is_some_and(|driver| driver != "idxd"))?;
    let cause = format!("The DSA at {functions} belongs to another driver than idxd, for example vfio-pci.");
    let first = functions.split(',').next().unwrap_or_default();
    Some(
        Problem::warning(
            "device-on-another-driver",
            cause,
            "Unbind it there and give it to idxd, unless a guest or SPDK uses it.",
        )
        .command(format!("driverctl unset-override {first}"))
        .source("spdk/spdk 2486 and 2571"),
    )
}

/// Whether there is a DSA on the bus that waits for the driver.
fn lacks_driver(facts: &Facts) -> Option<String> {
    let functions = unbound(facts, |driver| driver.is_none())?;
    (!facts.dsa.module_loaded).then_some(functions)
}

pub(super) fn kernel_without_driver(facts: &Facts) -> Option<Problem> {
    let functions = lacks_driver(facts)?;
    if facts.has_option("CONFIG_INTEL_IDXD") != Some(false) {
        return None;
    }
    let cause = format!("There is a DSA at {functions}, but the kernel was built without the driver idxd.");
    Some(
        Problem::error(
            "kernel-without-driver",
            cause,
            "Use a kernel with CONFIG_INTEL_IDXD and CONFIG_INTEL_IDXD_SVM.",
        )
        .command("grep INTEL_IDXD /boot/config-$(uname -r)")
        .source("facebook/CacheLib 415; Fürst 2024, 2.5, step 2"),
    )
}

pub(super) fn driver_not_loaded(facts: &Facts) -> Option<Problem> {
    let functions = lacks_driver(facts)?;
    if facts.has_option("CONFIG_INTEL_IDXD") == Some(false) {
        return None;
    }
    let cause = format!("There is a DSA at {functions}, but the driver idxd is not loaded.");
    Some(
        Problem::error("driver-not-loaded", cause, "Load the driver; in a container, on the host.")
            .command("modprobe idxd")
            .source("intel/intel-device-plugins-for-kubernetes 919"),
    )
}

pub(super) fn not_bound(facts: &Facts) -> Option<Problem> {
    let functions = unbound(facts, |driver| driver.is_none())?;
    if !facts.dsa.module_loaded || !facts.dsa.devices.is_empty() {
        return None;
    }
    let cause = format!("The driver idxd is loaded, but it did not take the DSA at {functions}.");
    Some(
        Problem::error(
            "device-not-bound",
            cause,
            "See the kernel log; a kernel that is older than the CPU does not know the device.",
        )
        .command("dmesg | grep -e idxd -e DMAR")
        .source("deepin-community/kernel 788; Fürst 2024, 2.5, step 3"),
    )
}

pub(super) fn halted(facts: &Facts) -> Option<Problem> {
    let is_halted = |found: &Diagnostic| matches!(found, Diagnostic::DeviceHalted { .. }).then_some(());
    let (devices, ()) = first(objects(facts, is_halted))?;
    Some(
        Problem::error(
            "device-halted",
            format!("{devices} stopped after an error and executes nothing."),
            "See the kernel log for DMAR faults, then reset the device by loading the driver again.",
        )
        .command("modprobe -r idxd && modprobe idxd")
        .source("intel/dsa-perf-micros 3"),
    )
}

pub(super) fn refused(facts: &Facts) -> Option<Problem> {
    let status = |found: &Diagnostic| match found {
        Diagnostic::DeviceDisabled { status, .. } => *status,
        _ => None,
    };
    let (devices, status) = first(objects(facts, status))?;
    let advice = status.advice().unwrap_or("see the kernel log");
    Some(
        Problem::error(
            "device-refused",
            format!("{} disabled, because the last command failed: {status}.", are(&devices)),
            format!("Correct the configuration ({advice}), and enable the device again."),
        )
        .command(configure(&devices))
        .source("intel/DML 40; intel/idxd-config 15 and 29"),
    )
}

pub(super) fn disabled(facts: &Facts) -> Option<Problem> {
    let is_disabled =
        |found: &Diagnostic| matches!(found, Diagnostic::DeviceDisabled { status: None, .. }).then_some(());
    let (devices, ()) = first(objects(facts, is_disabled))?;
    // To use some of the devices is a choice.
    let is_choice = !facts.dsa.diagnose(&QueueFilter::default()).usable.is_empty();
    Some(
        if is_choice { Problem::warning } else { Problem::error }(
            "device-disabled",
            format!("{} not enabled, as after each boot.", are(&devices)),
            "Apply a configuration; `memferry configure --list` shows the profiles.",
        )
        .command(configure(&devices))
        .source("Fürst 2024, 2.5, step 5; intel/DML 32"),
    )
}

pub(super) fn nothing_configured(facts: &Facts) -> Option<Problem> {
    let is_empty = |found: &Diagnostic| matches!(found, Diagnostic::NothingConfigured { .. }).then_some(());
    let (devices, ()) = first(objects(facts, is_empty))?;
    Some(
        Problem::error(
            "device-without-queue",
            format!("{} enabled, but without a work queue.", are(&devices)),
            "Configure queues, which disables the device first.",
        )
        .command(configure(&devices))
        .source("intel/DML 32"),
    )
}

pub(super) fn unreported_error(facts: &Facts) -> Option<Problem> {
    let error = |device: &Device| Some((device.id.to_string(), device.error?));
    let (devices, error) = first(facts.dsa.devices.iter().filter_map(error).collect())?;
    Some(
        Problem::warning(
            "device-error",
            format!("{devices} recorded an error that no completion record reports: {error}."),
            "Find the program that submitted the descriptor; enabling the device again clears the error.",
        )
        .command("cat /sys/bus/dsa/devices/dsa*/errors")
        .source("spdk/spdk 2503"),
    )
}

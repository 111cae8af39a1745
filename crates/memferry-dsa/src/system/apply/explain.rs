//! Remedies for writes that the driver refuses.
//!
//! Source: the conditions in Linux `drivers/dma/idxd/sysfs.c` (attributes) and `device.c` (binding).

use std::io;

use super::plan::{Action, Step};
use crate::system::status::CommandStatus;

/// The remedy for a write that was refused or had no effect.
pub(super) fn explain(step: &Step, error: &io::Error, status: Option<CommandStatus>) -> String {
    // The device's status is more precise than the error number.
    if let Some(advice) = status.and_then(CommandStatus::advice) {
        return about(step, advice);
    }
    let attribute = step.attribute();
    let binds = matches!(step.action, Action::Enable | Action::Disable);
    let sentence = match error.raw_os_error() {
        Some(libc::EACCES) => "only root may write there: run as root",
        Some(libc::EROFS) => {
            "sysfs is mounted read-only, as in most containers: configure the device on the host"
        }
        Some(libc::ENOENT) if binds => "the driver is not loaded: run `modprobe idxd`",
        Some(libc::ENOENT) => {
            "the kernel does not have this attribute, or the device is gone: remove the key"
        }
        Some(libc::ENODEV) if step.action == Action::Enable => {
            "the driver does not accept it: type and driver_name of a queue must be those of the driver (user and user)"
        }
        Some(libc::ENODEV) => "it is no longer bound to that driver: read the state again",
        Some(libc::EBUSY) => "it is in use or already bound: stop its users, or disable it first",
        Some(libc::ENXIO) if binds => {
            "the device refuses its configuration: check the configuration and the kernel log"
        }
        Some(libc::ENXIO) => "the queue is enabled: disable it first",
        Some(libc::EPERM) => permission(attribute, binds),
        Some(libc::EINVAL) => invalid(attribute),
        Some(libc::EOPNOTSUPP) => unsupported(attribute),
        Some(libc::ENOMEM) => "memory is short: free memory and try again",
        Some(libc::EIO) => "the device does not answer: see the kernel log",
        _ => "see the kernel log",
    };
    about(step, sentence)
}

fn about(step: &Step, sentence: &str) -> String {
    format!("{}: {sentence}", step.object)
}

fn permission(attribute: &str, binds: bool) -> &'static str {
    match attribute {
        _ if binds => "the driver does not allow it now: enable the device before its queues",
        "traffic_class_a" | "traffic_class_b" => {
            "up to version 2.0, traffic classes can be set only if idxd was loaded with tc_override=1: remove the key"
        }
        "use_read_buffer_limit" => "the device has no limit: set read_buffer_limit first",
        _ => "the device is enabled, or must not be configured (see configurable): disable it first",
    }
}

fn invalid(attribute: &str) -> &'static str {
    match attribute {
        "size" => {
            "all work queues together would have more entries than the device: make some queues smaller"
        }
        "threshold" => "the threshold must be 1 to the size, and only a shared queue has one",
        "mode" => "shared needs pasid_enabled = 1: boot with intel_iommu=on,sm_on, or use dedicated",
        "group_id" => "the device has no group of this number",
        "priority" => "priorities are 1 to 15",
        "type" => "types are user, kernel and none",
        "name" => "a name has 1 to 1024 bytes",
        "driver_name" => "the name of a driver is short, such as user or dmaengine",
        "max_transfer_size" => "it must be at most the device's max_transfer_size",
        "max_batch_size" => "it must be at most the device's max_batch_size",
        "op_config" => "it must be a subset of the device's op_cap",
        "read_buffers_allowed" => {
            "it must be at least 4 for each engine of the group and at most what others have not reserved"
        }
        "read_buffers_reserved" => "groups would reserve more read buffers than the device has",
        "read_buffer_limit" => "it must be at most the device's read buffers",
        "event_log_size" => "it must be 64 to 65535",
        "traffic_class_a" | "traffic_class_b" => "traffic classes are 0 to 7",
        "desc_progress_limit" | "batch_progress_limit" => "it must be 0 to 3",
        "bind" | "unbind" => "the device refuses its configuration: see the kernel log",
        _ => "the attribute does not accept this value",
    }
}

fn unsupported(attribute: &str) -> &'static str {
    match attribute {
        "block_on_fault" => "the device cannot block on faults, or page requests are disabled: set it to 0",
        "ats_disable" | "prs_disable" | "op_config" => {
            "the device does not support setting this: remove the key"
        }
        "name" | "type" => "this type of queue needs another IOMMU configuration: use type user",
        _ => "the device does not support this: remove the key",
    }
}

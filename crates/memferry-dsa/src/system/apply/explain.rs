//! What to change when the driver refuses a write.
//!
//! Source: the conditions in Linux `drivers/dma/idxd/sysfs.c` (attributes) and `device.c` (binding).

use std::io;

use super::plan::{Action, Step};
use crate::system::status::CommandStatus;

/// A sentence for a write that was refused.
pub(super) fn explain(step: &Step, error: &io::Error, status: Option<CommandStatus>) -> String {
    // The device's word says more than an error number.
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
        Some(libc::ENOENT) if binds => "that driver is gone: run `modprobe idxd`",
        Some(libc::ENOENT) => {
            "the kernel does not have this attribute, or the device is gone: leave the key out"
        }
        Some(libc::ENODEV) if step.action == Action::Enable => {
            "the driver does not take it: type and driver_name of a queue must be those of the driver (user and user)"
        }
        Some(libc::ENODEV) => "it is not bound to that driver any more: read the state again",
        Some(libc::EBUSY) => "it is in use or bound already: stop its users, or disable it first",
        Some(libc::ENXIO) if binds => "the device refuses; look at the configuration and into the kernel log",
        Some(libc::ENXIO) => "the queue is enabled: disable it first",
        Some(libc::EPERM) => permission(attribute, binds),
        Some(libc::EINVAL) => invalid(attribute),
        Some(libc::EOPNOTSUPP) => unsupported(attribute),
        Some(libc::ENOMEM) => "memory is short: free some and try again",
        Some(libc::EIO) => "the device does not answer: look into the kernel log",
        _ => "look into the kernel log",
    };
    about(step, sentence)
}

/// A sentence for a write that was taken without effect.
pub(super) fn explain_silence(step: &Step, status: Option<CommandStatus>) -> String {
    about(step, status.and_then(CommandStatus::advice).unwrap_or("look into the kernel log"))
}

fn about(step: &Step, sentence: &str) -> String {
    format!("{}: {sentence}", step.object)
}

fn permission(attribute: &str, binds: bool) -> &'static str {
    match attribute {
        _ if binds => "the driver does not allow it now: the device must be enabled before its queues",
        "traffic_class_a" | "traffic_class_b" => {
            "up to version 2.0, traffic classes can be set only if idxd was loaded with tc_override=1: leave the key out"
        }
        "use_read_buffer_limit" | "use_token_limit" => "the device has no limit: set read_buffer_limit first",
        _ => "the device is enabled, or must not be configured (see configurable): disable it first",
    }
}

fn invalid(attribute: &str) -> &'static str {
    match attribute {
        "size" => "all work queues together would have more entries than the device: make some smaller",
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
        "read_buffers_allowed" | "tokens_allowed" => {
            "it must be at least 4 for each engine of the group and at most what others have not reserved"
        }
        "read_buffers_reserved" | "tokens_reserved" => {
            "groups would reserve more read buffers than the device has"
        }
        "read_buffer_limit" | "token_limit" => "it must be at most the device's read buffers",
        "event_log_size" => "it must be 64 to 65535",
        "traffic_class_a" | "traffic_class_b" => "traffic classes are 0 to 7",
        "desc_progress_limit" | "batch_progress_limit" => "it must be 0 to 3",
        "bind" | "unbind" => "the device refuses its configuration: look into the kernel log",
        _ => "the value is not one that the attribute takes",
    }
}

fn unsupported(attribute: &str) -> &'static str {
    match attribute {
        "block_on_fault" => "the device cannot block on faults, or page requests are disabled: set it to 0",
        "ats_disable" | "prs_disable" | "op_config" => {
            "the device does not let this be set: leave the key out"
        }
        "name" | "type" => "this use of the queue needs another IOMMU set-up: use type user",
        _ => "the device does not support this: leave the key out",
    }
}

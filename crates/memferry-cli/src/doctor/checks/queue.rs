//! Work queues, and the ways of this process to submit to them.

use memferry_dsa::system::{CommandStatus, Device, Diagnostic, Queue, QueueFilter, QueueId};
use memferry_dsa::{Opcode, OperationSet, QueueMode};

use super::Problem;
use super::device::{are, configure, first, joined, objects};
use crate::doctor::facts::{Facts, Trial};

/// The queues with a diagnostic.
fn queues(facts: &Facts, is_wanted: impl Fn(&Diagnostic) -> bool) -> Option<String> {
    joined(objects(facts, |found| is_wanted(found).then_some(())).into_iter().map(|(name, ())| name))
}

/// The queues that this process can use.
fn usable(facts: &Facts) -> Vec<(&Device, &Queue)> {
    facts.dsa.diagnose(&QueueFilter::default()).usable
}

/// The queue as accel-config names it, `dsa0/wq0.0`: the first of `queues`.
fn path(queues: &str) -> String {
    let first = queues.split(',').next().unwrap_or_default();
    match first.parse::<QueueId>() {
        Ok(queue) => format!("{}/{queue}", queue.device),
        Err(_) => first.to_owned(),
    }
}

fn set_and_enable(queues: &str, setting: &str) -> String {
    let queue = path(queues);
    format!("accel-config config-wq {queue} {setting} && accel-config enable-wq {queue}")
}

pub(super) fn of_the_kernel(facts: &Facts) -> Option<Problem> {
    // One for the kernel beside one for programs is a choice.
    if !usable(facts).is_empty() {
        return None;
    }
    let queues = queues(facts, |found| matches!(found, Diagnostic::NotForUsers { .. }))?;
    Some(
        Problem::error(
            "queue-of-kernel",
            format!("{} for the kernel, and no queue of type user can be used.", are(&queues)),
            "Configure a queue of type user with driver_name user.",
        )
        .command(configure(&queues))
        .source("intel/idxd-config 49; intel/DML 17"),
    )
}

pub(super) fn without_name(facts: &Facts) -> Option<Problem> {
    let queues = queues(facts, |found| matches!(found, Diagnostic::NoName { .. }))?;
    Some(
        Problem::error(
            "queue-without-name",
            format!("The driver does not enable {queues}, because there is no name."),
            "Set the name, and enable the queue again.",
        )
        .command(set_and_enable(&queues, "--name=app"))
        .source("intel/idxd-config 49 (cmd_status 0x80040000)"),
    )
}

pub(super) fn of_another_driver(facts: &Facts) -> Option<Problem> {
    let queues = queues(facts, |found| matches!(found, Diagnostic::OtherDriver { .. }))?;
    Some(
        Problem::error(
            "queue-without-driver-name",
            format!("The driver does not enable {queues}, because driver_name is not user."),
            "Set driver_name to user, which files of older accel-config lack.",
        )
        .command(set_and_enable(&queues, "--driver-name=user"))
        .source("intel/idxd-config 40"),
    )
}

/// Queues that are disabled and have a name and a driver, with the status of the device.
fn disabled_queues(facts: &Facts) -> Vec<(String, Option<CommandStatus>)> {
    let explained = objects(facts, |found| {
        matches!(found, Diagnostic::NoName { .. } | Diagnostic::OtherDriver { .. }).then_some(())
    });
    let status = |found: &Diagnostic| match found {
        Diagnostic::QueueDisabled { status, .. } => Some(*status),
        _ => None,
    };
    let mut found = objects(facts, status);
    found.retain(|(name, _)| explained.iter().all(|(other, ())| other != name));
    found
}

pub(super) fn refused(facts: &Facts) -> Option<Problem> {
    let refused = disabled_queues(facts).into_iter().filter_map(|(name, status)| Some((name, status?)));
    let (queues, status) = first(refused.collect())?;
    let advice = status.advice().unwrap_or("see the kernel log");
    Some(
        Problem::error(
            "queue-refused",
            format!("{} disabled, because the last command of the device failed: {status}.", are(&queues)),
            format!("Correct the queue ({advice}), and enable it again."),
        )
        .command(configure(&queues))
        .source("intel/idxd-config 11, 29 and 45; Linux idxd.h, enum idxd_scmd_stat"),
    )
}

pub(super) fn disabled(facts: &Facts) -> Option<Problem> {
    let disabled = disabled_queues(facts).into_iter().filter(|(_, status)| status.is_none());
    let queues = joined(disabled.map(|(name, _)| name))?;
    Some(
        Problem::error(
            "queue-disabled",
            format!("{} configured and not enabled.", are(&queues)),
            "Enable it, for example with accel-config.",
        )
        .command(format!("accel-config enable-wq {}", path(&queues)))
        .source("Fürst 2024, 2.5, step 5 (the option -e)"),
    )
}

pub(super) fn without_engine(facts: &Facts) -> Option<Problem> {
    let lacks = |(device, queue): &(&Device, &Queue)| {
        queue.group.is_some_and(|group| device.engines.iter().all(|engine| engine.group != Some(group)))
    };
    let queues =
        joined(usable(facts).iter().filter(|pair| lacks(pair)).map(|(_, queue)| queue.id.to_string()))?;
    Some(
        Problem::error(
            "group-without-engine",
            format!("{} in a group without an engine, so descriptors are never executed.", are(&queues)),
            "Put an engine into the group of each queue.",
        )
        .command(configure(&queues))
        .source("intel/idxd-config 15"),
    )
}

pub(super) fn without_threshold(facts: &Facts) -> Option<Problem> {
    let queues = queues(facts, |found| matches!(found, Diagnostic::NoThreshold { .. }))?;
    Some(
        Problem::error(
            "queue-without-threshold",
            format!("{} shared with threshold 0, so the answer to every submission is Retry.", are(&queues)),
            "Set the threshold of a shared queue to its size.",
        )
        .command(configure(&queues))
        .source("Linux idxd.h, IDXD_SCMD_WQ_NO_THRESH; DSA specification 5.3"),
    )
}

pub(super) fn without_move(facts: &Facts) -> Option<Problem> {
    let lacks = |(device, queue): &(&Device, &Queue)| {
        let known = queue.operations.or(device.operations);
        known.is_some_and(|known| !OperationSet::of(&[Opcode::Memmove]).is_subset_of(known))
    };
    let queues =
        joined(usable(facts).iter().filter(|pair| lacks(pair)).map(|(_, queue)| queue.id.to_string()))?;
    Some(
        Problem::warning(
            "queue-without-move",
            format!("{} configured without Memory Move, so memferry copies nothing there.", are(&queues)),
            "Leave op_config as it is after boot, or add bit 3.",
        )
        .command("cat /sys/bus/dsa/devices/wq*/op_config")
        .source("DSA specification, WQCFG (operation configuration); Linux sysfs-driver-dma-idxd"),
    )
}

fn without_file_here(facts: &Facts, in_container: bool) -> Option<String> {
    if facts.container.is_here != in_container {
        return None;
    }
    queues(facts, |found| matches!(found, Diagnostic::NoFile { .. }))
}

pub(super) fn not_in_container(facts: &Facts) -> Option<Problem> {
    let queues = without_file_here(facts, true)?;
    let first = queues.split(',').next().unwrap_or_default();
    Some(
        Problem::error(
            "queue-not-in-container",
            format!("{} enabled, but this container has no file /dev/dsa/{first}.", are(&queues)),
            "Start the container with the file, and with SYS_RAWIO if it should map queues.",
        )
        .command(format!("docker run --device /dev/dsa/{first} --cap-add SYS_RAWIO ..."))
        .source("ceph/ceph-nvmeof 987; intel/idxd-config 73"),
    )
}

pub(super) fn without_file(facts: &Facts) -> Option<Problem> {
    let queues = without_file_here(facts, false)?;
    Some(
        Problem::error(
            "queue-without-file",
            format!("{} enabled, but without a file in /dev/dsa.", are(&queues)),
            "Start udev, which makes the file, and let it process the device.",
        )
        .command("udevadm trigger --subsystem-match=dsa")
        .source("intel/idxd-config 8"),
    )
}

pub(super) fn without_permission(facts: &Facts) -> Option<Problem> {
    let queues = queues(facts, |found| matches!(found, Diagnostic::NoPermission { .. }))?;
    let first = queues.split(',').next().unwrap_or_default();
    Some(
        Problem::error(
            "queue-without-permission",
            format!("This user may not open {queues}."),
            "Give the user access to the file, and make it permanent with a udev rule for the subsystem dsa.",
        )
        .command(format!("chmod 0666 /dev/dsa/{first}"))
        .source("intel/qpl 26 and 33; intel/idxd-config 16"),
    )
}

pub(super) fn in_use(facts: &Facts) -> Option<Problem> {
    let queues = queues(facts, |found| matches!(found, Diagnostic::InUse { .. }))?;
    Some(
        Problem::warning(
            "queue-in-use",
            format!("{} dedicated and in use by another process.", are(&queues)),
            "Use another queue, or configure it as shared, which any number of processes can open.",
        )
        .command("fuser -v /dev/dsa/*")
        .source("Linux drivers/dma/idxd/cdev.c (EBUSY); intel/DTO 10"),
    )
}

pub(super) fn failing(facts: &Facts) -> Option<Problem> {
    let error = |trial: &Trial| Some((trial.queue.to_string(), trial.error.clone()?));
    let (queues, error) = first(facts.trials.iter().filter_map(error).collect())?;
    Some(
        Problem::error(
            "queue-fails",
            format!("A No-op fails in {queues}: {error}."),
            "See the kernel log for DMAR faults, and reset the device by loading the driver again.",
        )
        .command("dmesg | grep -e idxd -e DMAR")
        .source("intel/dsa-perf-micros 2 and 3; ofiwg/libfabric 10187"),
    )
}

pub(super) fn on_another_node(facts: &Facts) -> Option<Problem> {
    let machine = facts.machine.as_ref()?;
    let own: Vec<u32> =
        machine.nodes().iter().filter(|node| !node.allowed_cpus.is_empty()).map(|node| node.id.0).collect();
    let usable = usable(facts);
    let nodes: Vec<u32> = usable.iter().filter_map(|(device, _)| device.node).collect();
    if nodes.is_empty() || nodes.len() < usable.len() || nodes.iter().any(|node| own.contains(node)) {
        return None;
    }
    Some(
        Problem::warning(
            "queue-on-another-node",
            format!("The usable queues are on node {}, and the CPUs of this process are not.", nodes[0]),
            "Enable the device of the node of these CPUs, or run on CPUs of that node.",
        )
        .command(format!("numactl --cpunodebind={} PROGRAM", nodes[0]))
        .source("intel/DML 33; intel/qpl 17 and 58"),
    )
}

pub(super) fn not_mappable(facts: &Facts) -> Option<Problem> {
    let diagnosis = facts.dsa.diagnose(&QueueFilter::default());
    diagnosis.diagnostics.iter().find(|found| matches!(found, Diagnostic::NoRawIo { .. }))?;
    Some(
        Problem::warning(
            "no-raw-io",
            "This process lacks CAP_SYS_RAWIO and cannot map queues, so each submission is a system call (write).",
            "Give the program the capability, or the pod SYS_RAWIO, if its small copies should be fast.",
        )
        .command("setcap cap_sys_rawio+ep $(command -v memferry)")
        .source("intel/intel-device-plugins-for-kubernetes 1779 (INTEL-SA-01084)"),
    )
}

pub(super) fn without_instruction(facts: &Facts) -> Option<Problem> {
    let lacks = |mode: Option<QueueMode>| match mode? {
        QueueMode::Shared => (facts.has_flag("enqcmd") == Some(false)).then_some("ENQCMD"),
        QueueMode::Dedicated => (facts.has_flag("movdir64b") == Some(false)).then_some("MOVDIR64B"),
    };
    let (queues, instruction) = first(
        (usable(facts).iter())
            .filter_map(|(_, queue)| Some((queue.id.to_string(), lacks(queue.mode)?)))
            .collect(),
    )?;
    Some(
        Problem::warning(
            "no-submission-instruction",
            format!(
                "The CPU shows no {instruction}, so each submission to {queues} is a system call (write)."
            ),
            "In a virtual machine, let the host pass the instruction on, for example with `-cpu host`.",
        )
        .command("grep -m1 -ow -e enqcmd -e movdir64b /proc/cpuinfo")
        .source("Intel SDM, ENQCMD and MOVDIR64B"),
    )
}

pub(super) fn without_wait(facts: &Facts) -> Option<Problem> {
    if facts.has_flag("waitpkg") != Some(false)
        || without_instruction(facts).is_some()
        || usable(facts).is_empty()
    {
        return None;
    }
    Some(
        Problem::warning(
            "no-wait-instruction",
            "The CPU shows no UMWAIT, so threads that wait for a copy spin.",
            "In a virtual machine, let the host pass WAITPKG on, for example with `-cpu host`.",
        )
        .command("grep -m1 -ow waitpkg /proc/cpuinfo")
        .source("Kuper et al. 2024, figure 11; Intel SDM, UMWAIT"),
    )
}

//! The summary of `--stats`: descriptors, retries and statuses of each device.

use std::fmt::{self, Write};

use memferry_dsa::QueueMode;
use memferry_dsa::system::DeviceId;
use memferry_dsa_emulator::shared::{ClientReport, QueueAt, Server, Submitted};
use memferry_dsa_emulator::{DeviceCounters, QUEUES_MAX};

/// Returns a line for each device, each of its used queues, each process that used the queue, and each completion
/// status.
pub(crate) fn summary(devices: &[DeviceId], shared: &Server) -> String {
    let mut text = String::new();
    let clients = shared.client_reports();
    for (index, id) in devices.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = device(&mut text, index, *id, shared, &clients);
    }
    text
}

fn device(
    text: &mut String,
    index: usize,
    id: DeviceId,
    shared: &Server,
    clients: &[ClientReport],
) -> fmt::Result {
    let counters = shared.counters(index);
    let DeviceCounters { accepted, retried, dropped, .. } = counters;
    if accepted + retried + dropped == 0 {
        return writeln!(text, "{id}: nothing was submitted");
    }
    writeln!(
        text,
        "{id}: {accepted} descriptors accepted, {retried} retries, {dropped} lost, {} bytes",
        counters.bytes_done
    )?;
    for number in 0..QUEUES_MAX {
        let Some(at) = QueueAt::new(index, number) else { continue };
        let report = shared.queue_report(at);
        let (accepted, retried, dropped) = (report.accepted, report.retried, report.dropped);
        if accepted + retried + dropped == 0 {
            continue;
        }
        let queue = id.queue(number as u32);
        writeln!(text, "  {queue}: {accepted} accepted, {retried} retries, {dropped} lost")?;
        if report.mode == Some(QueueMode::Dedicated) && retried > 0 {
            writeln!(
                text,
                "    ENQCMD to a dedicated queue is never accepted: use MOVDIR64B, or a shared queue"
            )?;
        }
        let mut others = accepted;
        for ClientReport { process, program, queues } in clients {
            let Some(Submitted { accepted, retried, dropped }) = queues.get(&at) else { continue };
            writeln!(
                text,
                "    {program} ({process}): {accepted} accepted, {retried} retries, {dropped} lost"
            )?;
            others = others.saturating_sub(*accepted);
        }
        if others > 0 {
            writeln!(text, "    others: {others} accepted")?;
        }
    }
    if counters.members > 0 {
        writeln!(text, "  with {} members of batches:", counters.members)?;
    }
    for (status, count) in &counters.completed {
        writeln!(text, "  {count:>10} ended: {status}")?;
    }
    for (count, what) in [
        (counters.aborted + counters.in_flight(), "did not end"),
        (counters.members_abandoned, "members not started, behind a fence and a failure"),
        (counters.page_requests, "pages brought in by the operating system"),
        (counters.records_lost, "completion records that could not be written"),
    ] {
        if count > 0 {
            writeln!(text, "  {count:>10} {what}")?;
        }
    }
    if let Some(error) = shared.take_error(index) {
        let more = if error.overflow { "; there were more" } else { "" };
        let (operation, queue) = (error.operation.unwrap_or(0), id.queue(error.queue.unwrap_or(0)));
        writeln!(text, "  error register: {}, operation {operation:#04x}, {queue}{more}", error.status)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use memferry_dsa::{Descriptor, Submission};
    use memferry_dsa_emulator::shared::{Client, DeviceSetup, Options};
    use std::ops::ControlFlow;
    use std::time::Duration;

    use memferry_dsa_emulator::{Capabilities, CheckedMemory, OPERATIONS, dedicated_queue, shared_queue};

    use super::*;

    /// Executes descriptors until none is in flight.
    #[allow(unsafe_code)]
    fn execute(state: &Server, client: &Client) {
        // SAFETY: the descriptors of this test are no-ops and ones with an invalid operation: none names memory.
        let memory = unsafe { CheckedMemory::open() }.unwrap();
        let mut left = 1000;
        let check = || {
            left -= 1;
            match left == 0 || state.counters(0).in_flight() == 0 {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(Duration::from_millis(100)),
            }
        };
        client.engine(0).run(&memory, check).unwrap();
    }

    #[test]
    fn each_count_has_its_line() {
        let state = Server::create(&Options::default()).unwrap();
        let devices = [DeviceId(0), DeviceId(2), DeviceId(4)];
        for (device, id) in devices.iter().enumerate() {
            let (operations, capabilities) = (OPERATIONS, Capabilities::ALL);
            let engine_groups = [Some(0), None, None, None];
            state.enable_device(
                device,
                &DeviceSetup { number: id.0, operations, capabilities, engine_groups },
            );
            let [shared, dedicated] = [0, 1].map(|queue| QueueAt::new(device, queue).unwrap());
            state.enable_queue(shared, 0, &shared_queue("", 2)).unwrap();
            state.enable_queue(dedicated, 0, &dedicated_queue("", 1)).unwrap();
        }
        let client = state.join(std::process::id()).unwrap();
        let [shared, dedicated] = [0, 1].map(|queue| QueueAt::new(0, queue).unwrap());
        for _ in 0..3 {
            let _ = client.enqcmd(shared, &mut Descriptor::noop().to_words()); // the third time it is full
        }
        let mut unknown = Descriptor::noop().to_words();
        unknown[0] |= 0xff << 56;
        client.movdir64b(dedicated, &mut unknown);
        client.movdir64b(dedicated, &mut unknown);
        execute(&state, &client);
        let second = QueueAt::new(1, 1).unwrap();
        for _ in 0..1000 {
            assert_eq!(client.enqcmd(second, &mut Descriptor::noop().to_words()), Submission::Retry);
        }
        let told = summary(&devices, &state);
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        let program = format!("{} ({})", name.trim_end(), std::process::id());
        assert!(!told.contains("others"), "{told}");
        for line in [
            "dsa0: 3 descriptors accepted, 1 retries, 1 lost, 0 bytes",
            "  wq0.0: 2 accepted, 1 retries, 0 lost",
            &format!("    {program}: 2 accepted, 1 retries, 0 lost"),
            "  wq0.1: 1 accepted, 0 retries, 1 lost",
            &format!("    {program}: 1 accepted, 0 retries, 1 lost"),
            "           2 ended: success (status 0x01)",
            "dsa2: 0 descriptors accepted, 1000 retries, 0 lost, 0 bytes",
            "  wq2.1: 0 accepted, 1000 retries, 0 lost",
            "    ENQCMD to a dedicated queue is never accepted: use MOVDIR64B, or a shared queue",
            &format!("    {program}: 0 accepted, 1000 retries, 0 lost"),
            "dsa4: nothing was submitted",
        ] {
            assert!(told.lines().any(|found| found == line), "{line:?} is not in:\n{told}");
        }
        assert!(told.contains("1 ended: the operation is not supported"), "{told}");
        assert!(told.contains("error register: ") && told.contains("wq0.1; there were more"), "{told}");
    }
}

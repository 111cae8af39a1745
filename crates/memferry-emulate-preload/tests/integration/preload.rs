//! Unmodified programs with the preloaded library, with and without patched call sites.

use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use memferry_dsa_emulator::shared::Options;
use memferry_dsa_emulator::{DeviceCosts, FaultPlan};
use serde_json::{Value, json};

use crate::common::{Machine, told};

const USES_DSA: &str = env!("CARGO_BIN_EXE_uses_dsa");

fn runs(way: &str, options: &Options) -> Output {
    let machine = Machine::new(options);
    let output = machine.program(USES_DSA, &[way]).output().unwrap();
    assert!(output.status.success(), "{way}, {options:?}: {}", told(&output));
    machine.state.reap();
    assert!(machine.state.processes().is_empty());
    for device in 0..2 {
        let counters = machine.state.counters(device);
        assert_eq!(counters.in_flight(), 0, "{way}: {counters:?}");
    }
    output
}

/// A test for each way, with and without patched call sites.
macro_rules! ways {
    ($($name:ident $way:literal)*) => {
        $(
            #[test]
            fn $name() {
                for patches in [true, false] {
                    runs($way, &Options { patches, ..Options::default() });
                }
            }
        )*
    };
}

ways! {
    every_instruction "instructions"
    registers_and_flags "registers"
    waiting "waits"
    threads_at_one_site "threads"
    forks "forks"
    children_alone "heirs"
    programs_that_are_started "spawns"
    own_handlers "handlers"
    handlers_on_their_own_stack "stacks"
    interrupted_system_calls "interrupts"
    garbage_addresses "garbage"
    mappings_that_are_no_portals "useless"
    a_portal_mapped_twice "twice"
    a_portal_that_is_unmapped "unmapped"
    blocked_signals "blocked"
    confined_to_a_cpu "confined"
    closed_descriptors "closed"
    ends_of_pipes "pipes"
    pending_signals "pending"
    many_portals "many"
    another_program_with_work_in_flight "execs"
    a_portal_that_is_moved "moved"
    handlers_past_the_hooks "past-the-hooks"
    handlers_while_a_function_waits "suspended"
}

/// Concurrent first executions of a site are rare, so the test repeats them.
#[test]
fn threads_at_a_site_that_is_being_patched() {
    (0..15).for_each(|_| _ = runs("threads", &Options::default()));
}

#[test]
fn a_first_thread_that_ends_first() {
    for patches in [true, false] {
        let output = runs("leaves", &Options { patches, ..Options::default() });
        assert_eq!(String::from_utf8_lossy(&output.stdout), "left\n", "{}", told(&output));
    }
}

#[test]
fn devices_with_modelled_times() {
    let timing = Some(DeviceCosts::sapphire_rapids());
    runs("many", &Options { timing, ..Options::default() });
    runs("instructions", &Options { timing, ..Options::default() });
}

#[test]
fn devices_with_faults() {
    for seed in 0..5 {
        // The program does not resume after page faults, and takes Retry for a full queue.
        let fault_plan =
            FaultPlan { page_faults_per_mille: 0, retries_per_mille: 0, ..FaultPlan::from_seed(seed) };
        runs("instructions", &Options { fault_plan: fault_plan.clone(), ..Options::default() });
        runs("threads", &Options { fault_plan, ..Options::default() });
    }
}

/// Patching happens. All other tests would pass without it.
#[test]
fn sites_are_patched() {
    for (patches, found) in [(true, "patched\n"), (false, "as it was\n")] {
        let machine = Machine::new(&Options { patches, ..Options::default() });
        let output = machine.program(USES_DSA, &["code"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), found, "{}", told(&output));
    }
}

/// Once the answer of membarrier was ignored: a site was patched although a thread might execute half of the old
/// instruction.
#[test]
fn without_membarrier_sites_are_not_patched() {
    stays_as_it_was("code-without-membarrier");
}

/// The slow path of a trampoline returns to another address than the call's, which a shadow stack refuses.
#[test]
fn with_shadow_stacks_sites_are_not_patched() {
    stays_as_it_was("code-with-shadow-stack");
}

fn stays_as_it_was(way: &str) {
    let machine = Machine::new(&Options::default());
    let output = machine.program(USES_DSA, &[way]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "as it was\n", "{}", told(&output));
}

#[test]
fn unhandled_signals_kill_the_program() {
    for patches in [true, false] {
        for (way, signal) in [
            ("dies-of-ud2", libc::SIGILL),
            ("dies-of-null", libc::SIGSEGV),
            ("dies-of-int3", libc::SIGTRAP),
            ("dies-of-kill", libc::SIGSEGV),
            ("dies-of-portal", libc::SIGSEGV),
            ("ignores", libc::SIGSEGV),
        ] {
            let machine = Machine::new(&Options { patches, ..Options::default() });
            let output = machine.program(USES_DSA, &[way]).output().unwrap();
            assert_eq!(output.status.signal(), Some(signal), "{way}: {}", told(&output));
        }
    }
}

/// Without a server, the library does nothing.
#[test]
fn no_emulation() {
    let machine = Machine::new(&Options::default());
    let mut program = machine.program(USES_DSA, &["instructions"]);
    let output = program.env("MEMFERRY_EMULATE_SOCKET", "/nonexistent").output().unwrap();
    let has_dsa = memferry_dsa::internals::instructions::CpuFeatures::detect().enqcmd;
    // A CPU whose hypervisor hides ENQCMD executes it all the same, and faults: the thread has no PASID.
    let is_refused = matches!(output.status.signal(), Some(libc::SIGILL | libc::SIGSEGV));
    assert!(has_dsa || is_refused, "{}", told(&output));
}

/// A socket that is not a server of this version is an error message.
#[test]
fn another_version() {
    let machine = Machine::new(&Options::default());
    let mut program = machine.program(USES_DSA, &["dies-of-ud2"]);
    let output = program.env("MEMFERRY_EMULATE_SOCKET", "/dev/null").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("of one build"), "{}", told(&output));
}

#[test]
fn without_memory_for_a_thread_a_queue_cannot_be_mapped() {
    let machine = Machine::new(&Options::default());
    let output = machine.program(USES_DSA, &["poor"]).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("raise its limits"), "{}", told(&output));
}

/// A program executes another one without the library. Its queue entries are removed.
#[test]
fn a_program_that_becomes_another_leaves_nothing() {
    let machine = Machine::new(&Options::default());
    let mut program = machine.program(USES_DSA, &["execs-bare"]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let name = format!("/proc/{}/comm", program.id());
    let is_another = || std::fs::read_to_string(&name).unwrap() == "cat\n";
    // The kernel changes the name some microseconds before the addresses by which the server tells programs apart.
    let started = Instant::now();
    while !is_another() || machine.state.reap() == 0 {
        assert!(program.try_wait().unwrap().is_none(), "it ends when its input does");
        assert!(started.elapsed() < Duration::from_secs(60), "the server does not see that it is gone");
        std::thread::yield_now();
    }
    // The next client does not wait for clients that are gone.
    assert!(machine.state.processes().is_empty());
    let output = machine.program(USES_DSA, &["after-exec"]).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert_eq!(machine.state.counters(0).in_flight(), 0);
}

/// Descriptors are executed although the trace cannot be written.
#[test]
fn a_trace_that_cannot_be_opened() {
    let directory = tempfile::tempdir().unwrap();
    let machine = Machine::new(&Options { trace: Some(directory.path().to_owned()), ..Options::default() });
    let output = machine.program(USES_DSA, &["instructions"]).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("the trace cannot be written"), "{}", told(&output));
}

/// The trace has each descriptor and each completion, with all their fields.
#[test]
fn a_trace_tells_everything() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let machine = Machine::new(&Options { trace: Some(file.path().to_owned()), ..Options::default() });
    let output = machine.program(USES_DSA, &["traced"]).output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    let printed = String::from_utf8(output.stdout).unwrap();
    let (thread, source) = printed.trim().split_once(' ').unwrap();
    machine.state.write_trace().unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Lines are found by their content: the threads of the two devices write in any order.
    let find = |event: &str, operation: &str, queue: &str| {
        let is_it = |line: &&Value| {
            line["event"] == event && line["operation"] == operation && line["queue"] == queue
        };
        lines.iter().find(is_it).unwrap_or_else(|| panic!("no {event} of {operation} in {queue}:\n{text}"))
    };
    let batch = find("descriptor", "Batch", "wq0.0");
    assert_eq!((&batch["way"], batch["thread"].to_string().as_str()), (&json!("enqcmd"), thread));
    assert_eq!((&batch["operands"]["count"], &batch["pasid"]), (&json!(2), &json!(1)));
    assert!(batch["time_ns"].as_u64() >= batch["submitted_ns"].as_u64(), "{batch}");
    let copy = find("descriptor", "Memory Move", "wq0.0");
    assert_eq!((&copy["batch"], &copy["member"]), (&batch["id"], &json!(0)));
    assert_eq!(copy["operands"]["source"].as_str(), Some(source));
    assert_eq!(copy["flags"], json!(["completion_address_valid", "request_completion"]));
    assert_eq!(&copy["raw"].as_str().unwrap()[..16], "010000000c000003", "the submitter is the batch's");
    let copied = find("completion", "Memory Move", "wq0.0");
    assert_eq!(
        (&copied["id"], &copied["status"], &copied["record"]),
        (&copy["id"], &json!(1), &json!("written"))
    );
    let refused = find("completion", "No-op", "wq0.0");
    assert_eq!(
        (&refused["status"], &refused["results"]["invalid_flags"]),
        (&json!(0x11), &json!(["check_result"]))
    );
    let failed = find("completion", "Batch", "wq0.0");
    assert_eq!((&failed["status"], &failed["bytes_completed"]), (&json!(5), &json!(2)));
    assert!(failed["duration_ns"].as_u64() >= copied["duration_ns"].as_u64(), "{text}");
    assert_eq!(find("descriptor", "No-op", "wq0.1")["way"], "movdir64b");
    assert_eq!(lines.len(), 8, "{text}");
}

/// Many processes append to one file. No line is torn or missing.
#[test]
fn a_trace_of_many() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let machine = Machine::new(&Options { trace: Some(file.path().to_owned()), ..Options::default() });
    let programs: Vec<_> = (0..3).map(|_| machine.program(USES_DSA, &["threads"]).spawn().unwrap()).collect();
    for mut program in programs {
        assert!(program.wait().unwrap().success());
    }
    machine.state.write_trace().unwrap();
    let text = std::fs::read_to_string(file.path()).unwrap();
    let mut open = std::collections::HashSet::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let id = (line["process"].as_u64(), line["id"].as_u64());
        match line["event"].as_str() {
            Some("descriptor") => assert!(open.insert(id), "{line}"),
            _ => assert!(open.remove(&id), "{line}"),
        }
    }
    assert_eq!((text.lines().count(), open.len()), (3 * 4 * 300 * 2, 0));
}

//! Programs that know nothing of the emulation, with the library preloaded: with patched call sites and without.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::os::unix::process::ExitStatusExt;

use common::{Machine, told};
use memferry_dsa::emulator::shared::Options;
use memferry_dsa::emulator::{Nasty, Timing};

const USES_DSA: &str = env!("CARGO_BIN_EXE_uses_dsa");

fn runs(way: &str, options: &Options) {
    let machine = Machine::new(options);
    let output = machine.program(USES_DSA, &[way]).output().unwrap();
    assert!(output.status.success(), "{way}, {options:?}: {}", told(&output));
    machine.state.reap();
    assert!(machine.state.processes().is_empty());
    for device in 0..2 {
        let counters = machine.state.counters(device);
        assert_eq!(counters.in_flight(), 0, "{way}: {counters:?}");
    }
}

/// Each way in all kinds of emulation.
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
    own_handlers "handlers"
    handlers_on_their_own_stack "stacks"
    garbage_addresses "garbage"
    a_portal_mapped_twice "twice"
    a_portal_that_is_unmapped "unmapped"
    blocked_signals "blocked"
    closed_descriptors "closed"
    many_portals "many"
    another_program_with_work_in_flight "execs"
    a_portal_that_is_moved "moved"
    handlers_past_the_hooks "past-the-hooks"
    handlers_while_a_function_waits "suspended"
}

/// The first pass of a site by many threads at once is a matter of luck: often.
#[test]
fn threads_at_a_site_that_is_being_patched() {
    (0..15).for_each(|_| runs("threads", &Options::default()));
}

#[test]
fn devices_that_take_their_time() {
    let timing = Some(Timing::sapphire_rapids());
    runs("many", &Options { timing, ..Options::default() });
    runs("instructions", &Options { timing, ..Options::default() });
}

#[test]
fn nasty_devices() {
    for seed in 0..5 {
        // The program does not resume what a page fault has cut short, and takes Retry for a full queue.
        let nasty = Nasty { page_faults_per_mille: 0, retries_per_mille: 0, ..Nasty::from_seed(seed) };
        runs("instructions", &Options { nasty: nasty.clone(), ..Options::default() });
        runs("threads", &Options { nasty, ..Options::default() });
    }
}

/// That patching happens at all: everything would work without it.
#[test]
fn sites_are_patched() {
    for (patches, found) in [(true, "patched\n"), (false, "as it was\n")] {
        let machine = Machine::new(&Options { patches, ..Options::default() });
        let output = machine.program(USES_DSA, &["code"]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), found, "{}", told(&output));
    }
}

#[test]
fn deaths_are_the_programs_own() {
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

/// Without a state file, the library is not there.
#[test]
fn no_emulation() {
    let machine = Machine::new(&Options::default());
    let mut program = machine.program(USES_DSA, &["instructions"]);
    let output = program.env("MEMFERRY_EMULATE_STATE", "/nonexistent").output().unwrap();
    let has_dsa = memferry_dsa::instructions::CpuFeatures::detect().enqcmd;
    assert!(has_dsa || output.status.signal() == Some(libc::SIGILL), "{}", told(&output));
}

/// A state file of another version is refused with a sentence.
#[test]
fn another_version() {
    let machine = Machine::new(&Options::default());
    let mut program = machine.program(USES_DSA, &["dies-of-ud2"]);
    let output = program.env("MEMFERRY_EMULATE_STATE", "/dev/null").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("of one build"), "{}", told(&output));
}

/// The measurement, small, so that it does not rot.
#[test]
fn submissions_are_measured() {
    let machine = Machine::new(&Options::default());
    let output = machine.program(env!("CARGO_BIN_EXE_submit_cost"), &["50", "2"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for name in ["bare_trap_ns ", "submit_ns "] {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        assert!(line.is_some_and(|value| value.parse::<f64>().is_ok_and(|ns| ns > 0.0)), "{}", told(&output));
    }
}

//! The library beside other preloaded libraries: its exports, its imports, and the order of loading.

use std::path::Path;
use std::process::Command;

use memferry_dsa_emulator::shared::Options;
use memferry_testing::{Needs, skip};

use crate::common::{Machine, library, told};

/// A library of glibc's own that takes the place of mmap, munmap, mremap and malloc.
const OTHER: &str = "/lib/x86_64-linux-gnu/libmemusage.so";

/// The exported symbols.
const EXPORTS: [&str; 28] = [
    "__sysv_signal",
    "bsd_signal",
    "epoll_pwait",
    "execl",
    "execle",
    "execlp",
    "execv",
    "execve",
    "execveat",
    "execvp",
    "execvpe",
    "fexecve",
    "memferry_emulated_instructions",
    "mmap",
    "mmap64",
    "mremap",
    "munmap",
    "posix_spawn",
    "posix_spawnp",
    "ppoll",
    "pselect",
    "pthread_sigmask",
    "sigaction",
    "signal",
    "sigprocmask",
    "sigsuspend",
    "ssignal",
    "sysv_signal",
];

/// Returns the names of the library's dynamic symbols.
fn symbols(which: &str) -> Option<Vec<String>> {
    let Ok(output) =
        Command::new("nm").args(["--dynamic", "--format=just-symbols", which]).arg(library()).output()
    else {
        skip(Needs::Program("nm"), "nm is not installed");
        return None;
    };
    assert!(output.status.success(), "{}", told(&output));
    let names = String::from_utf8(output.stdout).unwrap();
    Some(names.lines().map(|name| name.split('@').next().unwrap().to_owned()).collect())
}

/// Other symbols could replace functions of the program.
#[test]
fn only_hooks_are_exported() {
    let Some(mut found) = symbols("--defined-only") else { return };
    found.sort();
    assert_eq!(found, EXPORTS);
}

/// Another library may replace memcpy by one that submits to the device, and so calls this library.
#[test]
fn memory_is_copied_without_others() {
    let Some(found) = symbols("--undefined-only") else { return };
    for name in ["memcpy", "memmove", "memset", "memcmp", "bcmp"] {
        assert!(!found.iter().any(|found| found == name), "{name} comes from another library");
    }
}

/// The library works before and behind another one with the same hooks.
///
/// MEMUSAGE_PROG_NAME keeps the other library's malloc inactive. At process exit that malloc switches back to libc's,
/// and memory that an engine thread frees then is an invalid pointer.
#[test]
fn either_order() {
    if !Path::new(OTHER).exists() {
        return skip(Needs::Program("libmemusage.so"), format!("there is no {OTHER}"));
    }
    let summary = |program: &mut Command| {
        let output = program.output().unwrap();
        assert!(output.status.success(), "{program:?}: {}", told(&output));
        told(&output).contains("Memory usage summary")
    };
    assert!(summary(Command::new("true").env("LD_PRELOAD", OTHER)), "it can be preloaded");
    let ours = library();
    for order in [format!("{OTHER}:{}", ours.display()), format!("{}:{OTHER}", ours.display())] {
        for way in ["instructions", "forks", "handlers", "unmapped", "moved", "threads"] {
            let machine = Machine::new(&Options::default());
            let mut program = machine.program(env!("CARGO_BIN_EXE_uses_dsa"), &[way]);
            assert!(!summary(program.env("LD_PRELOAD", &order).env("MEMUSAGE_PROG_NAME", "none of ours")));
        }
    }
}

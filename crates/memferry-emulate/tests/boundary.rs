//! A second user inside one emulation that root runs: nobody, who attacks all that he can write.
//!
//! The queues' memory was once one file that every process could write. Another user rewrote queued descriptors, which the
//! supervisor, as root, then executed on a root process' memory; had the trace written to a path of his own; cut the file,
//! so that the supervisor died of SIGBUS; and killed it by random bytes, with an overflow.

mod emulator;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use emulator::{emulate, is_available, is_root, preload, text};
use memferry_testing::{Needs, skip};

/// Runs an attack of `programs/boundary.py`, by which root submits in both ways.
fn attack(name: &str, arguments: &[&str], options: &str) {
    if !is_root() {
        return skip(Needs::Root, "only root can become somebody else");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(Needs::Program("python3"), "there is no python3");
    }
    if !is_available() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/boundary.py");
    for (way, preload) in [("written", String::new()), ("mapped", preload())] {
        let mut program = vec!["python3", script, name, way];
        program.extend(arguments);
        let output = emulate(&format!("{options} {preload} --stats"), &program).output().unwrap();
        let told = text(&output);
        assert!(output.status.success() && told.contains("done True"), "{name}, {way}: {told}");
    }
}

#[test]
fn queued_descriptors_are_their_submitters_alone() {
    attack("redirect", &[], "");
}

#[test]
fn the_trace_is_written_to_one_path() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let [chosen, other] = ["chosen", "others"].map(|name| directory.path().join(name));
    let [chosen, other] = [&chosen, &other].map(|path| path.to_str().unwrap());
    attack("path", &[chosen, other], &format!("--trace {chosen}"));
    let trace = fs::read_to_string(chosen).unwrap();
    assert!(trace.contains("Memory Move") && trace.ends_with("}\n"), "{trace}");
}

#[test]
fn memory_that_processes_share_keeps_its_size() {
    attack("truncate", &[], "");
}

#[test]
fn random_bytes_harm_nobody_for_long() {
    attack("garbage", &[], "");
}

//! Attacks by a second user (nobody) inside an emulation that root runs.
//!
//! Once the memory of the queues was one file that every process could write. Another user could rewrite queued
//! descriptors, which the supervisor then executed as root on the memory of a root process; redirect the trace to any
//! path; truncate the file, so that the supervisor died of SIGBUS; and kill it by random bytes, which caused an
//! overflow.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use memferry_testing::{Needs, skip};

use crate::emulator::{emulate, is_available, is_root, text};

/// Runs an attack of `programs/boundary.py`, once for each way in which root submits.
fn attack(name: &str, arguments: &[&str], options: &str) {
    if !is_root() {
        return skip(Needs::Root, "only root can become another user");
    }
    if Command::new("python3").arg("--version").output().is_err() {
        return skip(Needs::Program("python3"), "there is no python3");
    }
    if !is_available() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/boundary.py");
    for (way, preload) in [("written", ""), ("mapped", "--preload")] {
        let mut program = vec!["python3", script, name, way];
        program.extend(arguments);
        let output = emulate(&format!("{options} {preload} --stats"), &program).output().unwrap();
        let told = text(&output);
        assert!(output.status.success() && told.contains("done True"), "{name}, {way}: {told}");
    }
}

#[test]
fn queued_descriptors_cannot_be_rewritten() {
    attack("redirect", &[], "");
}

#[test]
fn the_trace_cannot_be_redirected() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let [chosen, other] = ["chosen", "others"].map(|name| directory.path().join(name));
    let [chosen, other] = [&chosen, &other].map(|path| path.to_str().unwrap());
    attack("path", &[chosen, other], &format!("--trace {chosen}"));
    let trace = fs::read_to_string(chosen).unwrap();
    assert!(trace.contains("Memory Move") && trace.ends_with("}\n"), "{trace}");
}

#[test]
fn shared_memory_cannot_be_truncated() {
    attack("truncate", &[], "");
}

#[test]
fn random_bytes_do_no_lasting_harm() {
    attack("garbage", &[], "");
}

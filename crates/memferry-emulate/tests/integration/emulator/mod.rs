//! Runs programs on emulated devices, by the example `emulate`: any program, or the test program itself.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use memferry_testing::{Needs, skip};

/// Set for the test program when it runs on emulated devices.
const INSIDE: &str = "MEMFERRY_TEST_INSIDE";

/// The example with the command line, which Cargo builds beside the tests.
fn example() -> PathBuf {
    example_file("emulate")
}

/// The file of an example.
pub(crate) fn example_file(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.is_file(), "{} is missing: cargo build -p memferry-emulate --examples", path.display());
    path
}

/// `emulate OPTIONS -- PROGRAM`; words are separated by spaces.
pub(crate) fn emulate(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(example());
    command.args(options.split_whitespace()).arg("--").args(program).stdin(Stdio::null());
    // A shell makes background processes ignore these signals, and exec(2) keeps ignored signals ignored.
    // SAFETY: signal(2) is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            [libc::SIGINT, libc::SIGQUIT]
                .into_iter()
                .for_each(|signal| _ = libc::signal(signal, libc::SIG_DFL));
            Ok(())
        });
    }
    command
}

/// Like [`emulate`], with a shell script.
pub(crate) fn emulate_script(options: &str, script: &str) -> Command {
    emulate(options, &["sh", "-c", script])
}

/// Whether this machine can run programs on emulated devices. If not, the calling test is skipped.
pub(crate) fn is_available() -> bool {
    static OUTPUT: OnceLock<Output> = OnceLock::new();
    let output = OUTPUT.get_or_init(|| emulate("", &["true"]).output().unwrap());
    if !output.status.success() {
        skip(Needs::Namespaces, String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// Whether Python is installed; if not, the calling test is skipped.
pub(crate) fn has_python() -> bool {
    let is_installed = Command::new("python3").arg("--version").output().is_ok();
    if !is_installed {
        skip(Needs::Program("python3"), "python3 is not installed; `cargo xtask setup` does it");
    }
    is_installed
}

/// Runs the calling test a second time, on emulated devices. Returns true in that second run.
///
/// # Panics
/// If the second run fails.
pub(crate) fn is_inside(options: &str, test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !is_available() {
        return false;
    }
    let this = std::env::current_exe().unwrap();
    let mut command = emulate(options, &[this.to_str().unwrap(), test, "--exact", "--nocapture"]);
    let output = command.env(INSIDE, "1").output().unwrap();
    let told = text(&output);
    assert!(output.status.success() && told.contains("1 passed"), "on emulated devices:\n{told}");
    false
}

/// Standard output and standard error.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// A user without special rights.
pub(crate) const USER: u32 = 54_321;

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}

/// Runs a script on emulated devices as another user; only root can. The run is in a mount namespace in which all users
/// may open `/dev/fuse`, as in most distributions.
pub(crate) fn run_as_user(options: &str, script: &str) -> Option<Output> {
    if !is_root() {
        skip(Needs::Root, "only root can become another user");
        return None;
    }
    // Other users may not be able to read the target directory.
    let directory =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let place = directory.path();
    let copy = place.join("emulate");
    fs::copy(example(), &copy).unwrap();
    let command = emulate(options, &["sh", "-c", script]);
    let outer = format!(
        "set -e; mkdir {0}/m; mount -t tmpfs none {0}/m; mknod -m 666 {0}/m/fuse c 10 229
        mount --bind {0}/m/fuse /dev/fuse
        exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$0\" \"$@\"",
        place.display()
    );
    let mut unshared = Command::new("unshare");
    unshared.args(["--mount", "sh", "-c", &outer]).arg(&copy).args(command.get_args());
    let output = unshared.output().unwrap();
    if text(&output).contains("namespace") && output.status.code() == Some(125) {
        skip(Needs::Namespaces, text(&output));
        return None;
    }
    Some(output)
}

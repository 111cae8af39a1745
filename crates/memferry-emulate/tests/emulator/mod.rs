//! Running programs on emulated devices: the example `emulate`, and this test program itself.

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

/// The example, which Cargo builds beside the tests.
fn example() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples/emulate");
    assert!(path.is_file(), "{} is missing: cargo build -p memferry-emulate --examples", path.display());
    path
}

/// The preload library, which Cargo builds as a dependency of the tests.
fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.with_file_name("libmemferry_emulate_preload.so");
    assert!(path.is_file(), "{} is missing: cargo build -p memferry-emulate-preload", path.display());
    path
}

/// The option that has the library preloaded.
pub(crate) fn preload() -> String {
    format!("--preload {}", library().display())
}

/// `emulate OPTIONS -- PROGRAM`; words are separated by spaces.
pub(crate) fn emulate(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(example());
    command.args(options.split_whitespace()).arg("--").args(program).stdin(Stdio::null());
    // Shells have what they start in the background ignore these, and what is ignored stays so over exec.
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

/// The same with a script of the shell.
pub(crate) fn emulate_script(options: &str, script: &str) -> Command {
    emulate(options, &["sh", "-c", script])
}

/// Whether programs can be run on emulated devices here; if not, the calling test is skipped.
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

/// Runs the test that calls it a second time, on emulated devices. True in that second run.
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

/// All that was printed.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Nobody in particular.
pub(crate) const USER: u32 = 54_321;

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}

/// Runs a script on emulated devices as another user; as root only, who can become one. Where `/dev/fuse` is root's
/// alone, the run is in a mount namespace whose `/dev/fuse` is everybody's, as distributions have it.
pub(crate) fn run_as_user(options: &str, script: &str) -> Option<Output> {
    if !is_root() {
        skip(Needs::Root, "only root can become somebody else");
        return None;
    }
    // Neither the target directory nor the test's may be readable for others.
    let directory =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let place = directory.path();
    let copy = place.join("emulate");
    fs::copy(example(), &copy).unwrap();
    let built = library();
    let options = match options.split_once(&*built.to_string_lossy()) {
        Some((before, after)) => {
            let copy = place.join("library.so");
            fs::copy(&built, &copy).unwrap();
            format!("{before}{}{after}", copy.display())
        }
        None => options.to_owned(),
    };
    let command = emulate(&options, &["sh", "-c", script]);
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

//! Runs by users other than root: they are root in a user namespace, or keep their user.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use memferry_testing::{Needs, skip};

use crate::emulator::{USER, emulate, has_python, is_root, run_as_user as run, text};

#[test]
fn a_user_is_root_on_the_emulated_machine() {
    let script = "set -e
        [ $(id -u) = 0 ] && [ $(cat /sys/bus/dsa/devices/dsa0/state) = enabled ]
        echo wq0.0 > /sys/bus/dsa/drivers/user/unbind
        [ ! -e /dev/dsa/wq0.0 ] && echo x > /dev/null
        exec 9>/dev/dsa/wq0.1
        exit 5";
    let Some(output) = run("", script) else { return };
    assert_eq!(output.status.code(), Some(5), "{}", text(&output));
}

#[test]
fn a_kept_user_may_use_and_not_configure() {
    let script = format!(
        "[ $(id -u) = {USER} ] || exit 1
        [ $(cat /sys/bus/dsa/devices/wq0.0/state) = enabled ] || exit 2
        (echo wq0.0 > /sys/bus/dsa/drivers/user/unbind) 2>/dev/null && exit 3
        exec 9>/dev/dsa/wq0.0 || exit 4
        exit 6"
    );
    let Some(output) = run("--keep-user", &script) else { return };
    assert_eq!(output.status.code(), Some(6), "{}", text(&output));
}

/// The supervisor executes written descriptors on the memory of the writer, which it may access as its ancestor.
#[test]
fn descriptors_of_a_user_are_executed() {
    for options in ["", "--keep-user"] {
        let script = "exec 9>/dev/dsa/wq0.0
            printf '\\000%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 \
                1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 >&9 || exit 1
            sleep 0.3; exit 7";
        let Some(output) = run(&format!("{options} --stats"), script) else { return };
        let told = text(&output);
        assert_eq!(output.status.code(), Some(7), "{told}");
        assert!(told.contains("1 ended: success"), "{told}");
    }
}

/// The driver requires CAP_SYS_RAWIO for a mapping, since a vulnerability of the hardware was found.
#[test]
fn a_kept_user_cannot_map() {
    if !has_python() {
        return;
    }
    let script = "exec python3 -c \"
import mmap, os
try:
    mmap.mmap(os.open('/dev/dsa/wq0.0', os.O_RDWR), 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)
except OSError as error:
    print('errno', error.errno)
\"";
    let Some(output) = run("--keep-user --preload", script) else { return };
    assert_eq!(text(&output), "errno 1\n");
}

/// A queue cannot be mapped while no engine thread can be started; later it can. The test needs a user, because root is
/// exempt from the limit.
#[test]
fn a_program_without_threads_to_spare() {
    let script = "exec python3 -c \"
import mmap, os, resource
f = os.open('/dev/dsa/wq0.0', os.O_RDWR)
limit = resource.RLIMIT_NPROC
before = resource.getrlimit(limit)
for soft in (1, before[0]):
    resource.setrlimit(limit, (soft, before[1]))
    try:
        mmap.mmap(f, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE)
        print('mapped')
    except OSError as error:
        print('errno', error.errno)
\"";
    if !has_python() {
        return;
    }
    let Some(output) = run("--preload", script) else { return };
    let told = text(&output);
    assert!(output.status.success() && told.starts_with("errno 1\nmapped\n"), "{told}");
    assert!(told.contains("ulimit -u"), "{told}");
}

/// The supervisor cannot start an engine for written descriptors. The error is not EAGAIN, for which a program would
/// retry for ever.
#[test]
fn a_supervisor_without_threads_to_spare() {
    let script = "exec 9>/dev/dsa/wq0.0
        prlimit --pid $PPID --nproc=1:1 || exit 9
        printf '\\000%.0s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 \
            1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 >&9 && exit 1
        exit 8";
    let Some(output) = run("", script) else { return };
    let told = text(&output);
    assert_eq!(output.status.code(), Some(8), "{told}");
    assert!(told.contains("ulimit -u"), "{told}");
}

#[test]
fn without_fuse_it_says_what_to_do() {
    if !is_root() {
        return skip(Needs::Root, "only root can become another user");
    }
    let hide = "mount -t tmpfs none /mnt && : > /mnt/fuse && chmod 600 /mnt/fuse && mount --bind /mnt/fuse /dev/fuse";
    let directory =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let copy = directory.path().join("emulate");
    fs::copy(emulate("", &["true"]).get_program(), &copy).unwrap();
    let script =
        format!("{hide} && exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$0\" -- true");
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script]).arg(&copy).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output).contains("chmod 666 /dev/fuse"), "{}", text(&output));
}

#[test]
fn without_user_namespaces_it_says_what_to_do() {
    if !is_root() {
        return skip(Needs::Root, "only root can become another user");
    }
    // The limit is counted in each user namespace, so it is set in one of its own, and for a user inside.
    let directory =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let copy = directory.path().join("emulate");
    fs::copy(emulate("", &["true"]).get_program(), &copy).unwrap();
    let script = format!(
        "set -e; mkdir {0}/m; mount -t tmpfs none {0}/m; mknod -m 666 {0}/m/fuse c 10 229
        mount --bind {0}/m/fuse /dev/fuse
        exec unshare --user --map-root-user sh -c 'echo 0 > /proc/sys/user/max_user_namespaces || exit 99
            exec setpriv --bounding-set -sys_admin --inh-caps -sys_admin \"$0\" -- true' \"$0\"",
        directory.path().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(&copy).process_group(0);
    let output = command.output().unwrap();
    if output.status.code() == Some(99) {
        let why = format!("the limit of user namespaces cannot be set here: {}", text(&output));
        return skip(Needs::Root, why);
    }
    assert_eq!(output.status.code(), Some(125), "{}", text(&output));
    assert!(text(&output).contains("sysctl user.max_user_namespaces"), "{}", text(&output));
}

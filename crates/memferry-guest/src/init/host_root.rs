//! The host's folders as the root of the guest.
//!
//! ```text
//! image: /init, its libraries, /modules, /plan.json
//!   1. load modules, mount the host's root directory read-only
//!   2. mount the guest's own /proc, /sys, /dev, /tmp and /run over those of the host, then shared folders
//!   3. remove the image's files, which frees their memory
//!   4. make the host's root directory the root, and become the same program there
//! ```
//!
//! So a program finds its libraries and data where they are on the host, and nothing is copied.
//!
//! Source: Linux `Documentation/filesystems/9p.rst`; switch_root(8).

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::modules::load_all;
use super::mount;
use crate::plan::{self, PlanPersistent, PlanProgram};

/// The mount point of the host's root directory.
const HOST: &str = "/host";
/// The same without the guest's own directories.
const WHOLE_HOST: &str = "/whole-host";
/// Options of all 9p mounts: the largest messages that QEMU has, which are the fastest.
const OPTIONS: &str = "trans=virtio,version=9p2000.L,msize=512000";

/// Moves process 1 to the host's folders. `text` is the plan.
pub(super) fn enter(
    program: &PlanProgram,
    persistent: Option<&PlanPersistent>,
    text: &[u8],
) -> Result<Infallible, String> {
    load_all(&program.modules)?;
    if let Some(memory) = persistent {
        load_all(&memory.modules)?;
    }
    for directory in [HOST, WHOLE_HOST] {
        fs::create_dir_all(directory).map_err(|error| format!("{directory}: {error}"))?;
    }
    let host = Path::new(HOST);
    mount(plan::ROOT_TAG, host, "9p", libc::MS_RDONLY, &format!("{OPTIONS},cache=loose")).map_err(
        |error| {
            let advice = "the kernel needs 9p over virtio, built in or as modules of its package";
            format!("cannot mount the host's folders: {error}; {advice}")
        },
    )?;
    bind(host, Path::new(WHOLE_HOST))?;
    mount_own(host)?;
    for path in &program.visible {
        let (from, at) = (inside(Path::new(WHOLE_HOST), Path::new(path)), inside(host, Path::new(path)));
        make_mount_point(&at, from.is_dir()).map_err(|error| format!("{}: {error}", at.display()))?;
        bind(&from, &at)?;
    }
    detach(WHOLE_HOST)?;
    for share in &program.shares {
        let at = inside(host, Path::new(&share.path));
        make_mount_point(&at, true).map_err(|error| format!("{}: {error}", at.display()))?;
        let flags = if share.is_read_only { libc::MS_RDONLY } else { 0 };
        // Mapped files can be written, and written bytes reach the host at once or at the end.
        mount(&share.tag, &at, "9p", flags, &format!("{OPTIONS},cache=mmap"))
            .map_err(|error| format!("cannot mount the shared folder {}: {error}", at.display()))?;
    }
    let kept = inside(host, Path::new(plan::PLAN_IN_HOST));
    let parent = kept.parent().expect("it has a parent");
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(&kept, text))
        .map_err(|error| format!("{}: {error}", kept.display()))?;
    free_image();
    become_root(host)?;
    let error = Command::new(&program.init).env_clear().exec();
    Err(format!("cannot start {}: {error}", program.init.display()))
}

/// The guest's own directories, over those of the host.
fn mount_own(host: &Path) -> Result<(), String> {
    for (kind, at, options) in [
        ("proc", "/proc", ""),
        ("sysfs", "/sys", ""),
        ("debugfs", "/sys/kernel/debug", ""),
        ("cgroup2", "/sys/fs/cgroup", ""),
        ("devtmpfs", "/dev", ""),
        ("devpts", "/dev/pts", "mode=620,ptmxmode=666"),
        ("tmpfs", "/dev/shm", "mode=1777"),
        ("tmpfs", "/tmp", "mode=1777"),
        ("tmpfs", "/run", "mode=755"),
    ] {
        let target = inside(host, Path::new(at));
        // Those in /dev are new, the others exist.
        let made = if target.is_dir() { Ok(()) } else { fs::create_dir(&target) };
        made.and_then(|()| mount(kind, &target, kind, 0, options))
            .map_err(|error| format!("cannot mount {kind} on {at}: {error}"))?;
    }
    for (name, to) in [("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")] {
        // Programs that want them say so.
        let _ = symlink(format!("/proc/self/{to}"), host.join("dev").join(name));
    }
    Ok(())
}

/// A path of the host below `root`.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Makes a directory or an empty file, if it does not exist.
fn make_mount_point(at: &Path, is_directory: bool) -> io::Result<()> {
    if is_directory {
        return fs::create_dir_all(at);
    }
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    File::options().create(true).append(true).open(at).map(drop)
}

fn bind(from: &Path, to: &Path) -> Result<(), String> {
    mount(from, to, "none", libc::MS_BIND, "")
        .map_err(|error| format!("cannot bind {} to {}: {error}", from.display(), to.display()))
}

fn detach(at: &str) -> Result<(), String> {
    let path = CString::new(at).expect("a constant without NUL");
    // SAFETY: the string is live and ends in NUL.
    let code = unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    if code == 0 { Ok(()) } else { Err(format!("cannot unmount {at}: {}", io::Error::last_os_error())) }
}

/// Removes the files of the image. What remains takes memory and does no harm.
fn free_image() {
    for entry in fs::read_dir("/").into_iter().flatten().flatten() {
        let path = entry.path();
        if path == Path::new(HOST) {
            continue;
        }
        let _ = match entry.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
            _ => fs::remove_file(path),
        };
    }
}

/// Makes a mount point the root directory.
fn become_root(new: &Path) -> Result<(), String> {
    let moved =
        std::env::set_current_dir(new).and_then(|()| mount(".", Path::new("/"), "none", libc::MS_MOVE, ""));
    // SAFETY: the string is live and ends in NUL.
    let changed = moved.and_then(|()| match unsafe { libc::chroot(c".".as_ptr()) } {
        0 => std::env::set_current_dir("/"),
        _ => Err(io::Error::last_os_error()),
    });
    changed.map_err(|error| format!("cannot change the root directory: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_keep_their_place_below_a_root() {
        assert_eq!(inside(Path::new("/host"), Path::new("/tmp/a")), Path::new("/host/tmp/a"));
        assert_eq!(inside(Path::new("/host"), Path::new("/")), Path::new("/host/"));
    }
}

//! A private view of `/dev` and `/sys` for this process and its descendants.
//!
//! A directory that gets a new entry is covered by a file system in memory whose entries are the real ones, bound one
//! by one, so that everything else is as it was. Nothing is visible outside, and all of it vanishes with the last
//! process.
//!
//! Source: mount_namespaces(7), user_namespaces(7).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::error::{Error, limit};
use crate::system;

/// Where what belongs to us lies in the private `/dev`.
pub(crate) const PRIVATE: &str = "/dev/.memferry";

/// What the processes in the namespace are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Inside {
    /// User and group that own the files, as seen inside.
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Moves this process, which must have one thread, into namespaces of its own.
///
/// Root needs a mount namespace only; anybody else needs a user namespace around it, in which he is root unless
/// `keep_user`.
pub(crate) fn enter(keep_user: bool) -> Result<Inside, Error> {
    let (user, group) = system::identity();
    let root = Inside { user: 0, group: 0 };
    if user == 0 {
        match system::unshare(libc::CLONE_NEWNS) {
            Ok(()) => {
                let failed = |source| Error::Mount { path: "/".into(), source };
                return isolate().map_err(failed).map(|()| root);
            }
            // Root in a container may lack the privilege, and may still have user namespaces.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(Error::Namespace { source: error, advice: "look into the kernel log" }),
        }
    }
    // Some kernels refuse the namespace, AppArmor makes one in which nothing is allowed.
    let refused = |source| Error::Namespace { advice: why_refused(&source, Path::new("/proc/sys")), source };
    system::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS).map_err(refused)?;
    let inside = if keep_user { Inside { user, group } } else { root };
    let map = |file: &str, line: String| fs::write(file, line).map_err(refused);
    map("/proc/self/setgroups", "deny".to_owned())?;
    map("/proc/self/uid_map", format!("{} {user} 1", inside.user))?;
    map("/proc/self/gid_map", format!("{} {group} 1", inside.group))?;
    isolate().map_err(refused)?;
    Ok(inside)
}

fn isolate() -> io::Result<()> {
    // What is mounted outside later still appears here; nothing goes the other way.
    system::mount(Path::new("none"), Path::new("/"), "", libc::MS_REC | libc::MS_SLAVE, "")
}

const NOT_ALLOWED: &str = "user namespaces are not allowed here: run as root, or, in a container, start it with \
    --privileged or --security-opt seccomp=unconfined --security-opt apparmor=unconfined";

/// What forbids user namespaces, where the kernel tells in its `settings`.
fn why_refused(error: &io::Error, settings: &Path) -> &'static str {
    let says = |file: &str, text: &str| {
        fs::read_to_string(settings.join(file)).is_ok_and(|found| found.trim() == text)
    };
    if says("kernel/unprivileged_userns_clone", "0") {
        return "user namespaces are off: as root, `sysctl kernel.unprivileged_userns_clone=1`, or run as root";
    }
    if says("kernel/apparmor_restrict_unprivileged_userns", "1") {
        return "AppArmor restricts user namespaces: as root, \
            `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or run as root";
    }
    if says("user/max_user_namespaces", "0") || error.raw_os_error() == Some(libc::ENOSPC) {
        return "there may be no more user namespaces: as root, raise `sysctl user.max_user_namespaces`, or run as root";
    }
    NOT_ALLOWED
}

/// Opens `/dev/fuse` and mounts what it serves below [`PRIVATE`].
///
/// It must be opened inside: the kernel ties it to the user namespace.
pub(crate) fn mount_fuse(inside: Inside) -> Result<File, Error> {
    let fuse = open_fuse()?;
    let at = tree();
    fs::create_dir_all(&at).map_err(|source| Error::Mount { path: at.clone(), source })?;
    // Permissions are the kernel's to check; processes of other users in here are as welcome as root's.
    let options = format!(
        "fd={},rootmode=40755,user_id={},group_id={},allow_other,default_permissions",
        fuse.as_raw_fd(),
        inside.user,
        inside.group
    );
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount("memferry", &at, "fuse", flags, &options)?;
    Ok(fuse)
}

/// Opens `/dev/fuse`; also to see, before anything else, whether it can be done.
pub(crate) fn open_fuse() -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|source| Error::Fuse {
        advice: match source.kind() {
            ErrorKind::PermissionDenied => {
                "this user may not open it: as root, `chmod 666 /dev/fuse`, as distributions have it, or run as root"
            }
            _ => "load the module with `modprobe fuse`, or start the container with --device /dev/fuse",
        },
        source,
    })
}

fn tree() -> PathBuf {
    Path::new(PRIVATE).join("tree")
}

/// Covers `/dev`, with an empty [`PRIVATE`] in it.
pub(crate) fn cover_dev() -> Result<(), Error> {
    cover(Path::new("/dev"), &["dsa", "char"])?;
    fs::create_dir(PRIVATE).map_err(|source| Error::Mount { path: PRIVATE.into(), source })
}

/// Puts the directories of the tree, which must be served by now, where programs look for them. `buses` are those of
/// `/sys/devices`.
pub(crate) fn place(buses: &[String]) -> Result<(), Error> {
    for (directory, hidden) in [("/sys/bus", vec!["dsa"]), ("/sys/module", vec!["idxd"])] {
        cover(Path::new(directory), &hidden)?;
    }
    let hidden: Vec<&str> = buses.iter().map(String::as_str).collect();
    cover(Path::new("/sys/devices"), &hidden)?;
    let mut places = vec![
        ("bus".to_owned(), "/sys/bus/dsa".to_owned()),
        ("module".to_owned(), "/sys/module/idxd".to_owned()),
        ("dev".to_owned(), "/dev/dsa".to_owned()),
        ("char".to_owned(), "/dev/char".to_owned()),
    ];
    places.extend(buses.iter().map(|bus| (format!("devices/{bus}"), format!("/sys/devices/{bus}"))));
    for (source, target) in places {
        let target = Path::new(&target);
        fs::create_dir(target).map_err(|source| Error::Mount { path: target.to_owned(), source })?;
        mount(tree().join(source), target, "", libc::MS_BIND, "")?;
    }
    // The whole is of no use to programs, and would show everything a second time.
    system::unmount_lazily(&tree()).map_err(|source| Error::Mount { path: tree(), source })
}

/// The links in the real `/dev/char`, to be shown again.
pub(crate) fn character_links() -> Vec<(String, String)> {
    let entries = fs::read_dir("/dev/char").into_iter().flatten().flatten();
    let link = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        Some((entry.file_name().into_string().ok()?, target.into_os_string().into_string().ok()?))
    };
    entries.filter_map(link).collect()
}

/// Covers a directory by one in memory with the same entries, but for those that are hidden.
fn cover(directory: &Path, hidden: &[&str]) -> Result<(), Error> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Mount { path, source }
    };
    // What is below the cover stays reachable through the working directory alone.
    let before = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    std::env::set_current_dir(directory).map_err(failed(directory))?;
    let entries: io::Result<Vec<fs::DirEntry>> = fs::read_dir(".").and_then(Iterator::collect);
    let entries = entries.map_err(failed(directory))?;
    mount("memferry", directory, "tmpfs", libc::MS_NOSUID, "mode=755,size=256m")?;
    for entry in entries {
        let name = entry.file_name();
        if hidden.iter().any(|hidden| name == *hidden) {
            continue;
        }
        let target = directory.join(&name);
        match uncover(&entry, &target) {
            Err(error) if limit(&error).is_some() => return Err(failed(&target)(error)),
            // What vanished meanwhile, or cannot be bound, is missing; nobody here may need it.
            Err(_) => _ = fs::remove_file(&target).or_else(|_| fs::remove_dir(&target)),
            Ok(()) => {}
        }
    }
    // It may be gone in the meantime, like that of any process.
    std::env::set_current_dir(&before).or_else(|_| std::env::set_current_dir("/")).map_err(failed(&before))
}

/// Makes one entry of a covered directory appear again; `entry` is relative to the directory below.
fn uncover(entry: &fs::DirEntry, target: &Path) -> io::Result<()> {
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        return symlink(fs::read_link(entry.path())?, target);
    }
    if kind.is_dir() {
        fs::create_dir(target)?;
    } else {
        File::create(target)?;
    }
    system::mount(&entry.path(), target, "", libc::MS_BIND | libc::MS_REC, "")
}

fn mount(
    source: impl AsRef<Path>,
    target: &Path,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> Result<(), Error> {
    system::mount(source.as_ref(), target, kind, flags, options)
        .map_err(|source| Error::Mount { path: target.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_setting() {
        let settings = tempfile::tempdir().unwrap();
        fs::create_dir(settings.path().join("kernel")).unwrap();
        fs::create_dir(settings.path().join("user")).unwrap();
        let advice = |error: i32| why_refused(&io::Error::from_raw_os_error(error), settings.path());
        assert_eq!(advice(libc::EPERM), NOT_ALLOWED, "a kernel without any of them");
        assert!(advice(libc::ENOSPC).contains("user.max_user_namespaces"));
        for (file, fine, refusing) in [
            ("kernel/unprivileged_userns_clone", "1", "0"),
            ("kernel/apparmor_restrict_unprivileged_userns", "0", "1"),
            ("user/max_user_namespaces", "63000", "0"),
        ] {
            let set = |value: &str| fs::write(settings.path().join(file), format!("{value}\n")).unwrap();
            set(fine);
            assert_eq!(advice(libc::EPERM), NOT_ALLOWED, "{file}");
            set(refusing);
            let told = advice(libc::EPERM);
            assert!(told.contains(&file.replace('/', ".")) && told.contains("sysctl"), "{told}");
            set(fine);
        }
    }
}

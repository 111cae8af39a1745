//! A private view of `/dev` and `/sys` for this process and its descendants.
//!
//! A directory that gets a new entry is replaced by a tmpfs, in which the real entries are bind mounts. All other
//! entries stay as they are. The view is invisible outside and disappears with its last process.
//!
//! Source: mount_namespaces(7), user_namespaces(7).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use crate::error::{Error, limit};

/// The directory of this crate's own files, in the private `/dev`.
pub(crate) const PRIVATE: &str = "/dev/.memferry";

/// The user of the namespace, who owns the queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InnerUser {
    /// As seen inside, like the group.
    pub(crate) user: u32,
    pub(crate) group: u32,
}

/// Moves this process, which must have one thread, into namespaces of its own.
///
/// Root needs a mount namespace only. Other users need a user namespace too, in which they are root unless `keep_user`.
pub(crate) fn enter(keep_user: bool) -> Result<InnerUser, Error> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let root = InnerUser { user: 0, group: 0 };
    if user == 0 {
        match unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from) {
            Ok(()) => {
                return isolate().map_err(Error::mount("/")).map(|()| root);
            }
            // Root in a container may lack the privilege and still be allowed user namespaces.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
            Err(error) => return Err(Error::Namespace { source: error, advice: "see the kernel log" }),
        }
    }
    // Some kernels refuse the namespace. AppArmor grants one in which nothing is allowed.
    let refused = |source| Error::Namespace { advice: why_refused(&source, Path::new("/proc/sys")), source };
    let user_and_mounts = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
    unshare(user_and_mounts).map_err(|error| refused(error.into()))?;
    let inner = if keep_user { InnerUser { user, group } } else { root };
    let map = |file: &str, line: String| fs::write(file, line).map_err(refused);
    map("/proc/self/setgroups", "deny".to_owned())?;
    map("/proc/self/uid_map", format!("{} {user} 1", inner.user))?;
    map("/proc/self/gid_map", format!("{} {group} 1", inner.group))?;
    isolate().map_err(refused)?;
    Ok(inner)
}

fn isolate() -> io::Result<()> {
    // Later mounts outside still appear here, but mounts here do not appear outside.
    attach(Path::new("none"), Path::new("/"), "", MsFlags::MS_REC | MsFlags::MS_SLAVE, "")
}

const NOT_ALLOWED: &str = "user namespaces are not allowed here: run as root, or, in a container, start it with \
    --privileged or --security-opt seccomp=unconfined --security-opt apparmor=unconfined";

/// Returns advice on refused user namespaces, by the kernel's `settings`.
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
        return "the limit of user namespaces is reached: as root, raise `sysctl user.max_user_namespaces`, or run as root";
    }
    NOT_ALLOWED
}

/// Opens `/dev/fuse` and mounts its file system below [`PRIVATE`].
///
/// It must be opened inside, because the kernel binds it to the user namespace.
pub(crate) fn mount_fuse(inner: InnerUser) -> Result<File, Error> {
    let fuse = open_fuse()?;
    let at = tree();
    fs::create_dir_all(&at).map_err(Error::mount(&at))?;
    // The kernel checks permissions, and admits processes of all users in the namespace.
    let options = format!(
        "fd={},rootmode=40755,user_id={},group_id={},allow_other,default_permissions",
        fuse.as_raw_fd(),
        inner.user,
        inner.group
    );
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount("memferry", &at, "fuse", flags, &options)?;
    Ok(fuse)
}

/// Opens `/dev/fuse`. A run also calls it early, to fail before anything else is done.
pub(crate) fn open_fuse() -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|source| Error::Fuse {
        advice: match source.kind() {
            ErrorKind::PermissionDenied => {
                "this user may not open it: as root, `chmod 666 /dev/fuse`, the mode of most distributions, or run as root"
            }
            _ => "load the module with `modprobe fuse`, or start the container with --device /dev/fuse",
        },
        source,
    })
}

fn tree() -> PathBuf {
    Path::new(PRIVATE).join("tree")
}

/// Replaces `/dev` by a tmpfs with an empty [`PRIVATE`].
pub(crate) fn replace_dev() -> Result<(), Error> {
    replace_by_tmpfs(Path::new("/dev"), &["dsa", "char"])?;
    // All users of the namespace load the preload library from it, whatever the umask is.
    fs::create_dir(PRIVATE)
        .and_then(|()| fs::set_permissions(PRIVATE, fs::Permissions::from_mode(0o755)))
        .map_err(Error::mount(PRIVATE))
}

/// Binds the directories of the served tree to the paths of the kernel. `buses` are the directories in `/sys/devices`, and
/// `functions` the PCI addresses below them.
pub(crate) fn bind_tree(buses: &[String], functions: &[String]) -> Result<(), Error> {
    for (directory, hidden) in [("/sys/bus", vec!["dsa"]), ("/sys/module", vec!["idxd"])] {
        replace_by_tmpfs(Path::new(directory), &hidden)?;
    }
    let hidden: Vec<&str> = buses.iter().map(String::as_str).collect();
    replace_by_tmpfs(Path::new("/sys/devices"), &hidden)?;
    let mut places = vec![
        ("bus".to_owned(), "/sys/bus/dsa".to_owned()),
        ("module".to_owned(), "/sys/module/idxd".to_owned()),
        ("dev".to_owned(), "/dev/dsa".to_owned()),
        ("char".to_owned(), "/dev/char".to_owned()),
    ];
    places.extend(buses.iter().map(|bus| (format!("devices/{bus}"), format!("/sys/devices/{bus}"))));
    for (source, target) in places {
        let target = Path::new(&target);
        fs::create_dir(target).map_err(Error::mount(target))?;
        mount(tree().join(source), target, "", MsFlags::MS_BIND, "")?;
    }
    link_functions(buses, functions)?;
    // Programs do not need the tree itself.
    umount2(&tree(), MntFlags::MNT_DETACH).map_err(Error::mount(tree()))
}

/// Adds PCI functions to those of this machine.
fn link_functions(buses: &[String], functions: &[String]) -> Result<(), Error> {
    let directory = Path::new("/sys/bus/pci/devices");
    if directory.exists() {
        let hidden: Vec<&str> = functions.iter().map(String::as_str).collect();
        replace_by_tmpfs(directory, &hidden)?;
    } else {
        // A machine without PCI: the directory is made in the tmpfs on `/sys/bus`.
        fs::create_dir_all(directory).map_err(Error::mount(directory))?;
    }
    for (bus, function) in buses.iter().zip(functions) {
        let link = directory.join(function);
        symlink(format!("../../../devices/{bus}/{function}"), &link).map_err(Error::mount(&link))?;
    }
    Ok(())
}

/// Returns the links in the real `/dev/char`, which the served one repeats.
pub(crate) fn character_links() -> Vec<(String, String)> {
    let entries = fs::read_dir("/dev/char").into_iter().flatten().flatten();
    let link = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok()?;
        Some((entry.file_name().into_string().ok()?, target.into_os_string().into_string().ok()?))
    };
    entries.filter_map(link).collect()
}

/// Mounts a tmpfs on a directory, with the same entries except the hidden ones.
fn replace_by_tmpfs(directory: &Path, hidden: &[&str]) -> Result<(), Error> {
    // The replaced directory stays reachable through the working directory only.
    let before = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    std::env::set_current_dir(directory).map_err(Error::mount(directory))?;
    let entries: io::Result<Vec<fs::DirEntry>> = fs::read_dir(".").and_then(Iterator::collect);
    let entries = entries.map_err(Error::mount(directory))?;
    mount("memferry", directory, "tmpfs", MsFlags::MS_NOSUID, "mode=755,size=256m")?;
    for entry in entries {
        let name = entry.file_name();
        if hidden.iter().any(|hidden| name == *hidden) {
            continue;
        }
        let target = directory.join(&name);
        match bind_entry(&entry, &target) {
            Err(error) if limit(&error).is_some() => return Err(Error::mount(&target)(error)),
            // An entry that has disappeared or cannot be bound is left out.
            Err(_) => _ = fs::remove_file(&target).or_else(|_| fs::remove_dir(&target)),
            Ok(()) => {}
        }
    }
    // The directory may have been removed.
    std::env::set_current_dir(&before)
        .or_else(|_| std::env::set_current_dir("/"))
        .map_err(Error::mount(&before))
}

/// Makes an entry of a replaced directory visible again. The path of `entry` is relative to the replaced directory.
fn bind_entry(entry: &fs::DirEntry, target: &Path) -> io::Result<()> {
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        return symlink(fs::read_link(entry.path())?, target);
    }
    if kind.is_dir() {
        fs::create_dir(target)?;
    } else {
        File::create(target)?;
    }
    attach(&entry.path(), target, "", MsFlags::MS_BIND | MsFlags::MS_REC, "")
}

/// mount(2).
fn attach(source: &Path, target: &Path, kind: &str, flags: MsFlags, options: &str) -> io::Result<()> {
    Ok(nix::mount::mount(Some(source), target, Some(kind), flags, Some(options))?)
}

fn mount(
    source: impl AsRef<Path>,
    target: &Path,
    kind: &str,
    flags: MsFlags,
    options: &str,
) -> Result<(), Error> {
    attach(source.as_ref(), target, kind, flags, options).map_err(Error::mount(target))
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
        assert_eq!(advice(libc::EPERM), NOT_ALLOWED, "a kernel without these settings");
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

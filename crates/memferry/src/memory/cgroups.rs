//! Memory limits of the cgroups of this process.
//!
//! The kernel kills a process that exceeds them, whatever the machine has free, and throttles it before that, above
//! `memory.high`. Unreadable files set no limit, as on machines without cgroups.
//!
//! Sources: Linux `Documentation/admin-guide/cgroup-v2.rst`, "Memory Interface Files";
//! `Documentation/admin-guide/cgroup-v1/memory.rst`.

use std::fs;
use std::path::{Path, PathBuf};

use super::room::Place;
use crate::topology::sysfs::CGROUPS;

/// A version of the cgroup hierarchy. Machines in transition have both mounted.
struct Version {
    /// Below the root.
    mount: &'static str,
    /// Files of limits; the lowest counts.
    limits: &'static [&'static str],
    usage: &'static str,
    /// The line of `memory.stat` with the inactive page cache, descendants included.
    inactive: &'static str,
}

const VERSION_2: Version = Version {
    mount: "",
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    inactive: "inactive_file ",
};
const VERSION_1: Version = Version {
    mount: "memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file ",
};

/// The cgroups of this process that have a limit, with all ancestors. `root` is `/`.
pub(super) fn limits(root: &Path) -> Vec<Place> {
    let Ok(own) = fs::read_to_string(root.join("proc/self/cgroup")) else { return Vec::new() };
    let mut places = Vec::new();
    for line in own.lines() {
        // hierarchy:controllers:path
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let version = match controllers {
            "" if hierarchy == "0" => VERSION_2,
            _ if controllers.split(',').any(|controller| controller == "memory") => VERSION_1,
            _ => continue,
        };
        let mount = root.join(CGROUPS).join(version.mount);
        let Some(path) = visible(&mount, path) else { continue };
        for cgroup in path.ancestors() {
            places.extend(version.limit(&mount.join(cgroup), cgroup));
        }
    }
    places
}

/// The path of this process' cgroup below the mount; `None` outside the cgroup namespace. In a container it may be a path
/// of the host, while the container's cgroup is mounted as the root: then the root counts.
fn visible(mount: &Path, path: &str) -> Option<PathBuf> {
    let path = PathBuf::from(path.trim_start_matches('/'));
    if path.iter().any(|part| part == "..") {
        return None;
    }
    Some(if mount.join(&path).is_dir() { path } else { PathBuf::new() })
}

impl Version {
    /// The limit of a cgroup and its available memory, if it has a limit.
    ///
    /// Usage includes the page cache. The kernel reclaims its inactive part at the limit, so it counts as available, like
    /// in MemAvailable. Otherwise a process that has read large files would get no memory.
    fn limit(&self, directory: &Path, name: &Path) -> Option<Place> {
        let read = |file: &str| fs::read_to_string(directory.join(file)).ok();
        let bytes = |file: &str| read(file)?.trim().parse::<u64>().ok();
        // Without a limit, version 2 has `max`, and version 1 a number above the memory of any machine.
        let limits = self.limits.iter().filter_map(|file| bytes(file));
        let limit_bytes = limits.min().filter(|&bytes| bytes < i64::MAX as u64 / 2)?;
        let usage_bytes = bytes(self.usage)?;
        let inactive_bytes = read("memory.stat")
            .and_then(|stat| stat.lines().find_map(|line| line.strip_prefix(self.inactive)?.parse().ok()));
        let used_bytes = usage_bytes.saturating_sub(inactive_bytes.unwrap_or(0));
        let name = format!("cgroup /{}", name.display());
        Some(Place::new(name, limit_bytes, limit_bytes.saturating_sub(used_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Tree {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("proc/self")).unwrap();
            Tree(root)
        }

        fn own(&self, lines: &str) {
            fs::write(self.0.path().join("proc/self/cgroup"), lines).unwrap();
        }

        fn cgroup(&self, version: &Version, path: &str, limit: &str, usage_kib: u64) {
            self.file(version, path, version.limits[0], &format!("{limit}\n"));
            self.file(version, path, version.usage, &format!("{}\n", usage_kib << 10));
        }

        fn file(&self, version: &Version, path: &str, file: &str, text: &str) {
            let directory = self.0.path().join(CGROUPS).join(version.mount).join(path);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(file), text).unwrap();
        }

        /// Name and KiB to be had of the tightest limit.
        fn tightest(&self) -> Option<(String, u64)> {
            let places = limits(self.0.path());
            places
                .into_iter()
                .map(|place| (place.name.clone(), place.room() >> 10))
                .min_by_key(|&(_, kib)| kib)
        }
    }

    fn kib(kib: u64) -> String {
        (kib << 10).to_string()
    }

    #[test]
    fn of_version_2() {
        let tree = Tree::new();
        let slice = |room| Some(("cgroup /slice".to_owned(), room));
        // A thirty-second of 16000 KiB stays free: 500.
        tree.cgroup(&VERSION_2, "slice", &kib(16000), 10000);
        tree.cgroup(&VERSION_2, "slice/ours", "max", 9000);
        tree.own("4:cpu:/elsewhere\n0::/slice/ours\n");
        assert_eq!(tree.tightest(), slice(5500));

        // The inactive page cache is to be had, and no more than that.
        let stat = format!("anon 5\ninactive_file {}\nactive_file 7\n", 1000 << 10);
        tree.file(&VERSION_2, "slice", "memory.stat", &stat);
        assert_eq!(tree.tightest(), slice(6500));

        tree.cgroup(&VERSION_2, "slice/ours", &kib(3200), 3200);
        assert_eq!(tree.tightest(), Some(("cgroup /slice/ours".to_owned(), 0)));

        for unlimited in ["0::/\n", "0::/../slice\n", "0::/gone\n", "4:cpu:/slice\n", "0:\n", ""] {
            tree.own(unlimited);
            assert_eq!(tree.tightest(), None, "{unlimited:?}");
        }
        // Inside a namespace the own cgroup is the root that can be seen.
        tree.own("0::/\n");
        tree.cgroup(&VERSION_2, "", &kib(3200), 100);
        assert_eq!(tree.tightest(), Some(("cgroup /".to_owned(), 3000)));
    }

    /// A process that goes past it is throttled until it seems to hang.
    #[test]
    fn throttling_limits_too() {
        let tree = Tree::new();
        tree.own("0::/ours\n");
        for (max, high, room) in [("max", kib(3200), Some(2900)), (&kib(1600), kib(3200), Some(1350))] {
            tree.cgroup(&VERSION_2, "ours", max, 200);
            tree.file(&VERSION_2, "ours", "memory.high", &format!("{high}\n"));
            assert_eq!(tree.tightest().map(|(_, room)| room), room, "{max} {high}");
        }
        tree.file(&VERSION_2, "ours", "memory.max", "max\n");
        tree.file(&VERSION_2, "ours", "memory.high", "max\n");
        assert_eq!(tree.tightest(), None);
    }

    #[test]
    fn of_version_1() {
        let tree = Tree::new();
        // PAGE_COUNTER_MAX in bytes: no limit.
        let unlimited = "9223372036854771712";
        tree.cgroup(&VERSION_1, "", unlimited, 70000);
        tree.cgroup(&VERSION_1, "docker/abc", &kib(3200), 200);
        tree.own("5:cpu,memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n");
        assert_eq!(tree.tightest(), Some(("cgroup /docker/abc".to_owned(), 2900)));
        let stat = format!("inactive_file 0\ntotal_inactive_file {}\n", 50 << 10);
        tree.file(&VERSION_1, "docker/abc", "memory.stat", &stat);
        assert_eq!(tree.tightest(), Some(("cgroup /docker/abc".to_owned(), 2950)));

        tree.own("5:memory:/docker\n");
        assert_eq!(tree.tightest(), None, "a cgroup further down is not ours");
        tree.own("5:memorymore:/docker/abc\n");
        assert_eq!(tree.tightest(), None, "another controller");

        // A container that sees its own cgroup as the root, and is told the host's path.
        tree.cgroup(&VERSION_1, "", &kib(6400), 200);
        tree.own("5:memory:/docker/host/path\n");
        assert_eq!(tree.tightest(), Some(("cgroup /".to_owned(), 6000)));
    }

    /// Machines on their way from one version to the other limit memory in either.
    #[test]
    fn of_both() {
        let tree = Tree::new();
        tree.cgroup(&VERSION_1, "a", &kib(6400), 200);
        tree.cgroup(&VERSION_2, "b", &kib(3200), 200);
        tree.own("5:memory:/a\n0::/b\n");
        assert_eq!(limits(tree.0.path()).len(), 2);
        assert_eq!(tree.tightest(), Some(("cgroup /b".to_owned(), 2900)));
    }
}

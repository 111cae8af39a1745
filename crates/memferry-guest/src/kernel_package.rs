//! Fetches a kernel package for the guest from this machine's own Debian or Ubuntu archive, with its modules.
//!
//! Nothing is installed, see [`apt`](crate::apt).

use std::fs;
use std::path::{Path, PathBuf};

use crate::apt::{Apt, Release, archive};
use crate::error::Error;
use crate::kernel::{self, Version};
use crate::tools::{self, Call};

const ADVICE: &str = "install a kernel of Linux 6.12 or later (Ubuntu: `sudo apt-get install linux-image-generic`; Debian: \
     `sudo apt-get install linux-image-amd64`, until Debian 12 from backports), or set MEMFERRY_NUMA_KERNEL to the image of one \
     with NUMA and HMAT";

/// The kernel packages of a distribution.
#[derive(Debug, PartialEq)]
struct KernelPackages {
    /// The suite of this machine's sources; identifies the archive.
    base: String,
    /// The suites with a kernel that is new enough.
    suites: Vec<String>,
    /// Suffix of the package names.
    flavour: &'static str,
    /// Key ring that the distribution signs its archive with.
    keys: &'static str,
}

/// A kernel package, unpacked.
pub(crate) struct Unpacked {
    pub(crate) version: Version,
    pub(crate) image: PathBuf,
    /// The directory below which its modules are.
    pub(crate) files: PathBuf,
}

/// Fetches the newest suitable kernel package and unpacks it below `directory`.
pub(crate) fn fetch(directory: &Path) -> Result<Unpacked, Error> {
    for program in ["apt-get", "apt-cache", "dpkg"] {
        if !tools::is_installed(program) {
            return Err(failure(&format!("{program} is not installed, so no kernel can be fetched")));
        }
    }
    let packages = kernel_packages(&Release::of_this_machine())
        .ok_or_else(|| failure("memferry does not know where this distribution has kernel packages"))?;
    let apt = Apt::new(directory)?;
    let indices = apt.indices()?;
    let archive = archive(&indices, &packages.base, "main")
        .ok_or_else(|| failure(&format!("no apt source has {}", packages.base)))?;
    apt.limit_to(&packages.source(archive))?;

    let suites = packages.suites.join(" and ");
    let unreachable = |what: &str| {
        Error::Kernel(format!(
            "no kernel for the guest: cannot fetch {what}, see above; check the network, or {ADVICE}"
        ))
    };
    apt.update().map_err(|_| unreachable(&format!("the list of {suites}")))?;
    let names = apt.call("apt-cache").args(["pkgnames", "linux-image-"]).output()?;
    let (version, package) = newest(&names, packages.flavour)
        .ok_or_else(|| failure(&format!("{suites} has no kernel of Linux {} or later", kernel::OLDEST)))?;
    // Ubuntu has the modules in a package of their own.
    let modules = apt.call("apt-cache").args(["pkgnames", "linux-modules-"]).output()?;
    let modules = modules_package(package, &modules);
    let unpacked = directory.join("unpacked");
    for package in [package].into_iter().chain(modules.as_deref()) {
        apt.call("apt-get").args(["-q", "download", package]).run().map_err(|_| unreachable(package))?;
        let deb = find(directory, |name| name.starts_with(package) && name.ends_with(".deb"))?;
        Call::new("dpkg").args(["-x".as_ref(), deb.as_os_str(), unpacked.as_os_str()]).run()?;
    }
    let image = find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz-"))?;
    Ok(Unpacked { version, image, files: unpacked })
}

fn failure(why: &str) -> Error {
    Error::Kernel(format!("no kernel for the guest: {why}; {ADVICE}"))
}

impl KernelPackages {
    /// A source file for apt in the deb822 format.
    fn source(&self, archive: &str) -> String {
        let suites = self.suites.join(" ");
        format!(
            "Types: deb\nURIs: {archive}\nSuites: {suites}\nComponents: main\nArchitectures: amd64\nSigned-By: {}\n",
            self.keys
        )
    }
}

/// The kernel packages of a distribution.
///
/// Debian up to 12 has a new enough kernel in its backports, later releases have one in the release itself. Ubuntu's
/// kernels come with updates of the release.
fn kernel_packages(release: &Release) -> Option<KernelPackages> {
    let (base, keys) = (release.field("VERSION_CODENAME")?, release.keys()?);
    if release.field("ID")? == "ubuntu" {
        let suites = vec![base.clone(), format!("{base}-updates")];
        return Some(KernelPackages { base, suites, flavour: "-generic", keys });
    }
    // Testing has no VERSION_ID.
    let is_old = release.field("VERSION_ID").and_then(|id| id.parse::<u32>().ok()).is_some_and(|id| id <= 12);
    let suite = if is_old { format!("{base}-backports") } else { base.clone() };
    Some(KernelPackages { base, suites: vec![suite], flavour: "-amd64", keys })
}

/// The newest package, if it is new enough. Ubuntu calls an image unsigned if another package signs it.
fn newest<'a>(names: &'a str, flavour: &str) -> Option<(Version, &'a str)> {
    let versions = names.lines().filter_map(|name| {
        let rest = name.strip_prefix("linux-image-")?;
        let version = rest.strip_prefix("unsigned-").unwrap_or(rest).strip_suffix(flavour)?;
        // Without other flavours, such as 6.12.9-cloud-amd64.
        let is_flavour = |part: &str| !part.starts_with(|first: char| first.is_ascii_digit());
        if version.split('-').any(is_flavour) {
            return None;
        }
        Some((Version::parse(version)?, name))
    });
    versions.filter(|(version, _)| version.is_new_enough()).max()
}

/// The package with the modules of a kernel package, if the archive has one.
fn modules_package(image: &str, names: &str) -> Option<String> {
    let rest = image.strip_prefix("linux-image-")?;
    let wanted = format!("linux-modules-{}", rest.strip_prefix("unsigned-").unwrap_or(rest));
    names.lines().any(|name| name == wanted).then_some(wanted)
}

/// The first file in a directory whose name matches.
fn find(directory: &Path, is_it: impl Fn(&str) -> bool) -> Result<PathBuf, Error> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found = entries.filter(|entry| entry.file_name().to_str().is_some_and(&is_it));
    found
        .next()
        .map(|entry| entry.path())
        .ok_or_else(|| failure(&format!("the package left none in {}", directory.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_have_kernels_in_these_suites() {
        let of = |id: &str, number: &str, name: &str| {
            kernel_packages(&Release::parse(format!(
                "PRETTY_NAME=\"x\"\nID={id}\nVERSION_ID=\"{number}\"\nVERSION_CODENAME={name}\n"
            )))
        };
        assert_eq!(of("debian", "12", "bookworm").unwrap().suites, ["bookworm-backports"]);
        assert_eq!(of("debian", "13", "trixie").unwrap().suites, ["trixie"]);
        assert_eq!(of("debian", "", "forky").unwrap().suites, ["forky"]);
        let ubuntu = of("ubuntu", "24.04", "noble").unwrap();
        assert_eq!((ubuntu.suites.len(), ubuntu.flavour), (2, "-generic"));
        assert!(ubuntu.source("scheme://host").contains("\nSuites: noble noble-updates\nComponents: main\n"));
        assert_eq!(of("fedora", "42", "x"), None);
        assert_eq!(kernel_packages(&Release::parse(String::new())), None);
    }

    #[test]
    fn the_newest_package_that_is_new_enough() {
        let names = "linux-image-6.1.0-9-amd64\nlinux-image-6.12.9+deb12-amd64\nlinux-image-amd64\n\
                     linux-image-6.12.95+deb12-amd64\nlinux-image-6.12.95+deb12-amd64-unsigned\n\
                     linux-image-6.12.96+deb12-cloud-amd64\nlinux-image-7.0.1+deb12-rt-amd64\n\
                     linux-image-unsigned-6.14.0-22-generic\n";
        assert_eq!(newest(names, "-amd64").unwrap().1, "linux-image-6.12.95+deb12-amd64");
        assert_eq!(newest(names, "-generic").unwrap().1, "linux-image-unsigned-6.14.0-22-generic");
        assert_eq!(newest("linux-image-6.11.0-9-generic\n", "-generic"), None);
    }

    #[test]
    fn modules_of_ubuntu_are_a_package() {
        let names = "linux-modules-6.14.0-22-generic\nlinux-modules-extra-6.14.0-22-generic\n";
        let modules = modules_package("linux-image-unsigned-6.14.0-22-generic", names);
        assert_eq!(modules.as_deref(), Some("linux-modules-6.14.0-22-generic"));
        assert_eq!(modules_package("linux-image-6.12.95+deb12-amd64", names), None);
    }
}

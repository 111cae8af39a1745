//! Fetches a kernel package for the guest from this machine's own Debian or Ubuntu archive, with its modules.
//!
//! Nothing is installed and apt's own state does not change: apt runs with a state directory and a source file of our own.
//! apt checks the signatures against the key ring of the distribution.
//!
//! Source: `apt-get(8)`, `sources.list(5)`, `os-release(5)`.

use std::fs;
use std::path::{Path, PathBuf};

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
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let packages = kernel_packages(&release)
        .ok_or_else(|| failure("memferry does not know where this distribution has kernel packages"))?;
    let create = |path: &str| fs::create_dir_all(directory.join(path));
    let not_written = |error| Error::Kernel(format!("cannot write below {}: {error}", directory.display()));
    create("state/lists/partial")
        .and_then(|()| create("cache/archives/partial"))
        .and_then(|()| fs::write(directory.join("state/status"), ""))
        .map_err(not_written)?;
    let state = |program: &str| state(Call::new(program).directory(directory), directory);
    let uris = state("apt-get").args(["--print-uris", "update"]).output()?;
    let archive = archive(&uris, &packages.base)
        .ok_or_else(|| failure(&format!("no apt source has {}", packages.base)))?;
    fs::write(directory.join("memferry.sources"), packages.source(archive)).map_err(not_written)?;
    let apt = |program: &str| source(state(program), directory);

    let suites = packages.suites.join(" and ");
    let unreachable = |what: &str| {
        Error::Kernel(format!(
            "no kernel for the guest: cannot fetch {what}, see above; check the network, or {ADVICE}"
        ))
    };
    // By default apt only warns about a list that it cannot fetch.
    apt("apt-get")
        .args(["-q", "-o", "APT::Update::Error-Mode=any", "update"])
        .run()
        .map_err(|_| unreachable(&format!("the list of {suites}")))?;
    let names = apt("apt-cache").args(["pkgnames", "linux-image-"]).output()?;
    let (version, package) = newest(&names, packages.flavour)
        .ok_or_else(|| failure(&format!("{suites} has no kernel of Linux {} or later", kernel::OLDEST)))?;
    // Ubuntu has the modules in a package of their own.
    let modules = apt("apt-cache").args(["pkgnames", "linux-modules-"]).output()?;
    let modules = modules_package(package, &modules);
    let unpacked = directory.join("unpacked");
    for package in [package].into_iter().chain(modules.as_deref()) {
        apt("apt-get").args(["-q", "download", package]).run().map_err(|_| unreachable(package))?;
        let deb = find(directory, |name| name.starts_with(package) && name.ends_with(".deb"))?;
        Call::new("dpkg").args(["-x".as_ref(), deb.as_os_str(), unpacked.as_os_str()]).run()?;
    }
    let image = find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz-"))?;
    Ok(Unpacked { version, image, files: unpacked })
}

fn failure(why: &str) -> Error {
    Error::Kernel(format!("no kernel for the guest: {why}; {ADVICE}"))
}

/// Runs apt with a state and a cache of our own.
fn state(call: Call, directory: &Path) -> Call {
    let at = |name: &str, path: &str| format!("{name}={}", directory.join(path).display());
    let options = [
        at("Dir::State", "state"),
        at("Dir::State::status", "state/status"),
        at("Dir::Cache", "cache"),
        // apt's unprivileged user cannot write to this user's cache: apt would go on as root and warn.
        "APT::Sandbox::User=root".to_owned(),
    ];
    call.args(options.iter().flat_map(|option| ["-o", option]))
}

/// Limits apt to our source, and to signed packages.
fn source(call: Call, directory: &Path) -> Call {
    let options = [
        format!("Dir::Etc::sourcelist={}", directory.join("memferry.sources").display()),
        "Dir::Etc::sourceparts=-".to_owned(),
        "Acquire::AllowInsecureRepositories=false".to_owned(),
        "APT::Get::AllowUnauthenticated=false".to_owned(),
    ];
    call.args(options.iter().flat_map(|option| ["-o", option]))
}

/// The archive with the component `main` of a suite, from the output of `apt-get --print-uris update`.
///
/// Other archives have suites of the same name, but no such component.
fn archive<'a>(uris: &'a str, suite: &str) -> Option<&'a str> {
    let index = format!("/dists/{suite}/main/binary-");
    uris.lines().find_map(|line| Some(line.strip_prefix('\'')?.split_once(&index)?.0))
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

/// The kernel packages of the distribution that `release`, the content of os-release, names.
///
/// Debian up to 12 has a new enough kernel in its backports, later releases have one in the release itself. Ubuntu's
/// kernels come with updates of the release.
fn kernel_packages(release: &str) -> Option<KernelPackages> {
    let field = |name: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    let base = field("VERSION_CODENAME")?;
    match field("ID")?.as_str() {
        "debian" => {
            // Testing has no VERSION_ID.
            let is_old = field("VERSION_ID").and_then(|id| id.parse::<u32>().ok()).is_some_and(|id| id <= 12);
            let suite = if is_old { format!("{base}-backports") } else { base.clone() };
            let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
            Some(KernelPackages { base, suites: vec![suite], flavour: "-amd64", keys })
        }
        "ubuntu" => {
            let suites = vec![base.clone(), format!("{base}-updates")];
            let keys = "/usr/share/keyrings/ubuntu-archive-keyring.gpg";
            Some(KernelPackages { base, suites, flavour: "-generic", keys })
        }
        _ => None,
    }
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
    fn the_archive_is_the_one_with_the_suite() {
        let uris = "'scheme://other/dists/bookworm/InRelease' other 0 \n\
                    'scheme://other/dists/bookworm/nonfree/binary-amd64/Packages.xz' other 0 \n\
                    'scheme://host/x/dists/bookworm-updates/main/binary-amd64/Packages.xz' host 0 \n\
                    'scheme://host/y/dists/bookworm/main/binary-amd64/Packages.xz' host 0 \n";
        assert_eq!(archive(uris, "bookworm"), Some("scheme://host/y"));
        assert_eq!(archive(uris, "trixie"), None);
    }

    #[test]
    fn distributions_have_kernels_in_these_suites() {
        let of = |id: &str, number: &str, name: &str| {
            kernel_packages(&format!(
                "PRETTY_NAME=\"x\"\nID={id}\nVERSION_ID=\"{number}\"\nVERSION_CODENAME={name}\n"
            ))
        };
        assert_eq!(of("debian", "12", "bookworm").unwrap().suites, ["bookworm-backports"]);
        assert_eq!(of("debian", "13", "trixie").unwrap().suites, ["trixie"]);
        assert_eq!(of("debian", "", "forky").unwrap().suites, ["forky"]);
        let ubuntu = of("ubuntu", "24.04", "noble").unwrap();
        assert_eq!((ubuntu.suites.len(), ubuntu.flavour), (2, "-generic"));
        assert!(ubuntu.source("scheme://host").contains("\nSuites: noble noble-updates\nComponents: main\n"));
        assert_eq!(of("fedora", "42", "x"), None);
        assert_eq!(kernel_packages(""), None);
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

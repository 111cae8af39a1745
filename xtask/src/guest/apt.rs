//! Which of this machine's own archives has a kernel for the guest.
//!
//! Nothing is installed and apt's own state is not touched: the archive that the machine already trusts is asked with a
//! state of its own, and apt checks signatures against the key of the original entry.
//!
//! Source: `sources.list(5)`, both formats; `os-release(5)`.

use std::fs;
use std::path::{Path, PathBuf};

use super::kernel::{self, Version};
use crate::shell::{self, Call, Failure};

const ADVICE: &str = "set MEMFERRY_NUMA_KERNEL to a kernel image of Linux 6.12 or later with HMAT and NUMA";

/// An archive as an entry of the machine's sources names it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Archive {
    uri: String,
    suites: Vec<String>,
    components: Vec<String>,
    /// As in the entry: a path, fingerprints, or a whole key.
    signed_by: Option<String>,
}

/// Which kernels a distribution has, and where.
#[derive(Debug, PartialEq)]
struct Wanted {
    /// The suite that the machine has, by which its archive is recognised.
    base: String,
    suites: Vec<String>,
    /// How names of packages end.
    flavour: &'static str,
}

/// Fetches the newest kernel package that will do, and unpacks it below `directory`; returns the image.
pub(crate) fn fetch(directory: &Path) -> Result<(Version, PathBuf), Failure> {
    for program in ["apt-get", "apt-cache", "dpkg"] {
        if !shell::is_installed(program) {
            return Err(Failure(format!(
                "no kernel for the guest: {program} is not installed, so that none can be fetched; {ADVICE}"
            )));
        }
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let wanted = wanted(&release).ok_or_else(|| {
        Failure(format!("no kernel for the guest: it is not known where this distribution has one; {ADVICE}"))
    })?;
    let archive = archives().into_iter().find(|archive| archive.has(&wanted.base)).ok_or_else(|| {
        Failure(format!("no kernel for the guest: no apt source has {}; {ADVICE}", wanted.base))
    })?;

    let create = |path: &str| fs::create_dir_all(directory.join(path));
    create("state/lists/partial")
        .and_then(|()| create("cache/archives/partial"))
        .and_then(|()| fs::write(directory.join("state/status"), ""))
        .and_then(|()| fs::write(directory.join("memferry.sources"), archive.source(&wanted.suites)))
        .map_err(|error| Failure(format!("{}: {error}", directory.display())))?;
    let apt = |program: &str| options(shell::program(program).directory(directory), directory);

    let suites = wanted.suites.join(" and ");
    let unreachable = |what: &str| {
        Failure(format!(
            "no kernel for the guest: {what} could not be fetched, see above; is there a network? otherwise {ADVICE}"
        ))
    };
    // A list that cannot be fetched is an error only if apt is told so.
    apt("apt-get")
        .args(["-q", "-o", "APT::Update::Error-Mode=any", "update"])
        .run()
        .map_err(|_| unreachable(&format!("the list of {suites}")))?;
    let names = apt("apt-cache").args(["pkgnames", "linux-image-"]).output()?;
    let (version, package) = newest(&names, wanted.flavour).ok_or_else(|| {
        Failure(format!(
            "no kernel for the guest: {suites} has none of Linux {} or later; {ADVICE}",
            kernel::OLDEST
        ))
    })?;
    apt("apt-get").args(["-q", "download", package]).run().map_err(|_| unreachable(package))?;
    let deb = find(directory, |name| name.starts_with(package) && name.ends_with(".deb"))?;
    let unpacked = directory.join("unpacked");
    shell::program("dpkg").args(["-x".as_ref(), deb.as_os_str(), unpacked.as_os_str()]).run()?;
    let image = find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz-"))?;
    Ok((version, image))
}

/// A state, a cache and sources of our own, and no package without a signature.
fn options(call: Call, directory: &Path) -> Call {
    let at = |name: &str, path: &str| format!("{name}={}", directory.join(path).display());
    let options = [
        at("Dir::State", "state"),
        at("Dir::State::status", "state/status"),
        at("Dir::Cache", "cache"),
        at("Dir::Etc::sourcelist", "memferry.sources"),
        "Dir::Etc::sourceparts=-".to_owned(),
        "Acquire::AllowInsecureRepositories=false".to_owned(),
        "APT::Get::AllowUnauthenticated=false".to_owned(),
        // apt's unprivileged user cannot write into this user's cache, and apt would do without it and warn.
        "APT::Sandbox::User=root".to_owned(),
    ];
    call.args(options.iter().flat_map(|option| ["-o", option]))
}

impl Archive {
    /// Whether it is a distribution's own: others have suites of the same name, but no such component.
    fn has(&self, suite: &String) -> bool {
        self.suites.contains(suite) && self.components.iter().any(|component| component == "main")
    }

    /// As a file of the deb822 format.
    fn source(&self, suites: &[String]) -> String {
        let mut text = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nArchitectures: amd64\n",
            self.uri,
            suites.join(" ")
        );
        if let Some(key) = &self.signed_by {
            text += &format!("Signed-By: {key}\n");
        }
        text
    }
}

/// The archives in this machine's sources.
fn archives() -> Vec<Archive> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let more = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    files.extend(more.map(|entry| entry.path()));
    files.sort();
    let mut archives = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => archives.extend(text.lines().filter_map(one_line)),
            Some("sources") => archives.extend(stanzas(&text).iter().flat_map(|stanza| deb822(stanza))),
            _ => {}
        }
    }
    archives
}

/// `deb [signed-by=/a/key arch=amd64] URI SUITE COMPONENT...`
fn one_line(line: &str) -> Option<Archive> {
    let line = line.split('#').next()?.trim();
    let mut rest = line.strip_prefix("deb")?.strip_prefix([' ', '\t'])?.trim_start();
    let mut signed_by = None;
    if let Some(bracket) = rest.strip_prefix('[') {
        let (options, after) = bracket.split_once(']')?;
        signed_by = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            // Several are separated by commas here, by spaces in the other format.
            .map(|keys| keys.replace(',', " "));
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    let (uri, suite) = (words.next()?, words.next()?);
    is_fetched(&uri).then(|| Archive { uri, suites: vec![suite], components: words.collect(), signed_by })
}

/// Paragraphs as lists of a field's name, in small letters, and its value, which may have several lines.
fn stanzas(text: &str) -> Vec<Vec<(String, String)>> {
    let mut stanzas = vec![Vec::<(String, String)>::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let stanza = stanzas.last_mut().expect("there is one from the start");
        if line.trim().is_empty() {
            stanzas.push(Vec::new());
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = stanza.last_mut() {
                *value += &format!("\n{line}");
            }
        } else if let Some((name, value)) = line.split_once(':') {
            stanza.push((name.trim().to_lowercase(), value.trim().to_owned()));
        }
    }
    stanzas.retain(|stanza| !stanza.is_empty());
    stanzas
}

/// One archive for each URI of a stanza.
fn deb822(stanza: &[(String, String)]) -> Vec<Archive> {
    let field = |name: &str| stanza.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str());
    let words = |name: &str| -> Vec<String> {
        field(name).unwrap_or("").split_whitespace().map(str::to_owned).collect()
    };
    let is_off = field("enabled").is_some_and(|value| value.eq_ignore_ascii_case("no"));
    if is_off || !words("types").iter().any(|kind| kind == "deb") {
        return Vec::new();
    }
    let uris = words("uris").into_iter().filter(|uri| is_fetched(uri));
    uris.map(|uri| Archive {
        uri,
        suites: words("suites"),
        components: words("components"),
        signed_by: field("signed-by").map(str::to_owned),
    })
    .collect()
}

fn is_fetched(uri: &str) -> bool {
    !uri.starts_with("cdrom:")
}

/// Debian up to 12 has a kernel that is new enough in its backports, later ones in themselves. Ubuntu's come with
/// updates of the release.
fn wanted(release: &str) -> Option<Wanted> {
    let field = |name: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        Some(value.trim_matches('"').to_owned())
    };
    let base = field("VERSION_CODENAME")?;
    match field("ID")?.as_str() {
        "debian" => {
            // Testing has no number.
            let has_old =
                field("VERSION_ID").and_then(|id| id.parse::<u32>().ok()).is_some_and(|id| id <= 12);
            let suite = if has_old { format!("{base}-backports") } else { base.clone() };
            Some(Wanted { base, suites: vec![suite], flavour: "-cloud-amd64" })
        }
        "ubuntu" => {
            let suites = vec![base.clone(), format!("{base}-updates")];
            Some(Wanted { base, suites, flavour: "-generic" })
        }
        _ => None,
    }
}

/// The newest of the packages that is new enough. Ubuntu calls its images unsigned where another package signs them.
fn newest<'a>(names: &'a str, flavour: &str) -> Option<(Version, &'a str)> {
    let versions = names.lines().filter_map(|name| {
        let rest = name.strip_prefix("linux-image-")?;
        let version = rest.strip_prefix("unsigned-").unwrap_or(rest).strip_suffix(flavour)?;
        Some((Version::parse(version)?, name))
    });
    versions.filter(|(version, _)| version.is_new_enough()).max()
}

/// The file in a directory whose name is so.
fn find(directory: &Path, is_it: impl Fn(&str) -> bool) -> Result<PathBuf, Failure> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found = entries.filter(|entry| entry.file_name().to_str().is_some_and(&is_it));
    found.next().map(|entry| entry.path()).ok_or_else(|| {
        Failure(format!("no kernel for the guest: none was unpacked in {}; {ADVICE}", directory.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_of_one_line() {
        let archive =
            one_line("deb [arch=amd64 signed-by=/a,/b] scheme://host/x bookworm main contrib # why").unwrap();
        assert_eq!((archive.uri.as_str(), archive.signed_by.as_deref()), ("scheme://host/x", Some("/a /b")));
        assert_eq!((archive.suites.as_slice(), archive.components.len()), (&["bookworm".to_owned()][..], 2));
        assert_eq!(one_line("deb scheme://host/x sid main").unwrap().signed_by, None);
        for line in ["", "# deb x y z", "deb-src x y z", "deb x", "deb [arch=amd64 x y", "deb cdrom:[x]/ y z"]
        {
            assert_eq!(one_line(line), None, "{line}");
        }
    }

    #[test]
    fn the_format_of_paragraphs() {
        let text = "# Comment\nTypes: deb deb-src\nURIs: scheme://host/x scheme://other/x\nSuites: trixie\n\
                    # inside\n trixie-updates\nComponents: main\nSigned-By:\n -----BEGIN\n .\n -----END\n\n\
                    Types: deb\nEnabled: no\nURIs: scheme://off\nSuites: trixie\n\nTypes: deb-src\nURIs: scheme://src\n";
        let archives: Vec<Archive> = stanzas(text).iter().flat_map(|stanza| deb822(stanza)).collect();
        assert_eq!(
            archives.iter().map(|archive| archive.uri.as_str()).collect::<Vec<_>>(),
            ["scheme://host/x", "scheme://other/x"]
        );
        assert_eq!(archives[0].suites, ["trixie", "trixie-updates"]);
        let source = archives[0].source(&["trixie-backports".to_owned()]);
        assert!(source.contains("\nSuites: trixie-backports\n"), "{source}");
        // A key in the entry is repeated as it stands there, and understood again.
        let again = deb822(&stanzas(&source)[0]).remove(0);
        assert_eq!(again.signed_by, archives[0].signed_by);
        assert!(again.signed_by.unwrap().ends_with("-----END"));
    }

    #[test]
    fn where_distributions_have_kernels() {
        let of = |id: &str, number: &str, name: &str| {
            wanted(&format!("PRETTY_NAME=\"x\"\nID={id}\nVERSION_ID=\"{number}\"\nVERSION_CODENAME={name}\n"))
        };
        assert_eq!(of("debian", "12", "bookworm").unwrap().suites, ["bookworm-backports"]);
        assert_eq!(of("debian", "13", "trixie").unwrap().suites, ["trixie"]);
        assert_eq!(of("debian", "", "forky").unwrap().suites, ["forky"]);
        let ubuntu = of("ubuntu", "24.04", "noble").unwrap();
        assert_eq!((ubuntu.suites.len(), ubuntu.flavour), (2, "-generic"));
        assert_eq!(of("fedora", "42", "x"), None);
        assert_eq!(wanted(""), None);
    }

    #[test]
    fn the_newest_package_that_is_new_enough() {
        let names = "linux-image-6.1.0-9-cloud-amd64\nlinux-image-6.12.9+deb12-cloud-amd64\nlinux-image-cloud-amd64\n\
                     linux-image-6.12.95+deb12-cloud-amd64\nlinux-image-6.12.95+deb12-cloud-amd64-unsigned\n\
                     linux-image-7.0.1+deb12-rt-amd64\nlinux-image-unsigned-6.14.0-22-generic\n";
        assert_eq!(newest(names, "-cloud-amd64").unwrap().1, "linux-image-6.12.95+deb12-cloud-amd64");
        assert_eq!(newest(names, "-generic").unwrap().1, "linux-image-unsigned-6.14.0-22-generic");
        assert_eq!(newest("linux-image-6.11.0-9-generic\n", "-generic"), None);
    }
}

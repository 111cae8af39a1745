//! The guest's kernel: from `MEMFERRY_NUMA_KERNEL`, from the cache, installed on this machine, or fetched with apt.
//!
//! Shared folders need the modules of 9p; persistent memory needs those of NVDIMMs and ext4. They are taken from the package of
//! the kernel and kept beside it, unpacked, with a list of them in the order of loading.
//!
//! QEMU boots the ELF image inside a bzImage faster than the bzImage, which unpacks itself under emulation.
//!
//! Source: Linux `Documentation/arch/x86/boot.rst`.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::modules::{Module, Modules};
use crate::tools;

const VARIABLE: &str = "MEMFERRY_NUMA_KERNEL";
/// Oldest suitable version: 6.1 has one memory tier, and versions before 6.9 have no weighted interleave. 6.12 is the first
/// later release with long-term support.
pub(crate) const OLDEST: &str = "6.12";
/// The ELF image in the directory of a kept kernel.
const IMAGE: &str = "vmlinux";
/// The list of modules in the same directory.
const LIST: &str = "modules.json";
/// The modules of shared folders.
const FOLDERS: [&str; 2] = ["9pnet_virtio", "9p"];
/// The modules of persistent memory, and of a file system with DAX.
const PERSISTENT: [&str; 3] = ["nfit", "nd_pmem", "ext4"];
/// Checksums of ext4 until Linux 6.15, which it asks for by another name.
const CHECKSUMS: &str = "crc32c_generic";
pub(crate) const ELF: &[u8] = b"\x7fELF";

/// The numbers of a version, compared in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(Vec<u32>);

impl Version {
    pub(crate) fn parse(text: &str) -> Option<Version> {
        if !text.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        numbers.map(|digits| digits.parse().ok()).collect::<Option<_>>().map(Version)
    }

    pub(crate) fn is_new_enough(&self) -> bool {
        Version::parse(OLDEST).is_some_and(|oldest| *self >= oldest)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

/// A kernel for guests.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    pub(crate) image: PathBuf,
    /// Modules of shared folders, in the order of loading, without those that are built in.
    pub(crate) folders: Vec<PathBuf>,
    /// The same of persistent memory; `None` if the kernel has no support for it.
    pub(crate) persistent: Option<Vec<PathBuf>>,
}

/// The list of modules of a kept kernel.
#[derive(Serialize, Deserialize)]
struct ModuleList {
    folders: Vec<String>,
    persistent: Option<Vec<String>>,
}

impl Kernel {
    /// The kernel of the variable `MEMFERRY_NUMA_KERNEL`, a kept one, an installed one, or one that apt fetches now.
    ///
    /// A kernel of the variable is unpacked to the directory `scratch`.
    ///
    /// # Errors
    /// No kernel is suitable, or it cannot be read, fetched or unpacked. The text says what to do.
    pub fn find(scratch: &Path) -> Result<Kernel, Error> {
        if let Some(file) = std::env::var_os(VARIABLE) {
            return of_user(Path::new(&file), scratch);
        }
        let directory = tools::cache()?;
        let mut old = None;
        for (version, kept) in kept(&directory).into_iter().rev() {
            match kept {
                Kept::Complete(kernel) => return Ok(kernel),
                Kept::WithoutList => old = old.or(Some(version)),
            }
        }
        if let Some(version) = old {
            eprintln!(
                "the kernel {version} in {} is from an earlier version of memferry, without the modules of persistent memory; \
                 it is replaced",
                directory.display()
            );
        }
        crate::scratch::remove_stale(&directory, "apt-");
        let work = directory.join(format!("apt-{}", std::process::id()));
        let stored = store_new(&directory, &work);
        // Remaining files of apt do no harm.
        let _ = fs::remove_dir_all(&work);
        stored
    }
}

fn of_user(file: &Path, scratch: &Path) -> Result<Kernel, Error> {
    let failed = |error: &dyn fmt::Display| Error::Kernel(format!("{VARIABLE}={}: {error}", file.display()));
    let bytes = fs::read(file).map_err(|error| failed(&error))?;
    let mut image = file.to_owned();
    if !bytes.starts_with(ELF) {
        image = scratch.join(IMAGE);
        let unpacked = extract(&bytes).map_err(|error| failed(&error))?;
        fs::write(&image, unpacked).map_err(|error| failed(&error))?;
    }
    // Its modules are built in; if not, the guest says what is missing.
    Ok(Kernel { image, folders: Vec::new(), persistent: Some(Vec::new()) })
}

/// A kept kernel.
#[derive(Debug, PartialEq)]
enum Kept {
    Complete(Kernel),
    /// By an earlier version of memferry, without a list of modules.
    WithoutList,
}

/// The kept kernels, newest last.
fn kept(directory: &Path) -> Vec<(Version, Kept)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut kept: Vec<_> = entries
        .filter_map(|entry| {
            let version = Version::parse(entry.file_name().to_str()?)?;
            let is_kernel = version.is_new_enough() && is_elf(&entry.path().join(IMAGE));
            is_kernel.then(|| (version, kernel_in(&entry.path()).map_or(Kept::WithoutList, Kept::Complete)))
        })
        .collect();
    kept.sort_by(|(a, _), (b, _)| a.cmp(b));
    kept
}

/// The kernel in a directory; `None` without a list of modules.
fn kernel_in(directory: &Path) -> Option<Kernel> {
    let list: ModuleList = serde_json::from_slice(&fs::read(directory.join(LIST)).ok()?).ok()?;
    let files = |names: Vec<String>| names.iter().map(|name| directory.join(file_of(name))).collect();
    Some(Kernel {
        image: directory.join(IMAGE),
        folders: files(list.folders),
        persistent: list.persistent.map(files),
    })
}

fn file_of(module: &str) -> String {
    format!("{module}.ko")
}

fn is_elf(file: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(file).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == ELF
}

/// Keeps a kernel that is installed, or else one that apt fetches into `work`.
fn store_new(directory: &Path, work: &Path) -> Result<Kernel, Error> {
    if let Some((version, image, files)) = installed(Path::new("/")).pop() {
        return store(directory, work, &version, &image, &files);
    }
    eprintln!("fetching a kernel for the guest into {}, once", directory.display());
    let fetched = crate::kernel_package::fetch(work)?;
    store(directory, work, &fetched.version, &fetched.image, &fetched.files)
}

/// The installed kernels below `root` that are readable, new enough and have shared folders, newest last. Each with its
/// image and the directory of its modules.
fn installed(root: &Path) -> Vec<(Version, PathBuf, PathBuf)> {
    let entries = fs::read_dir(root.join("lib/modules")).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let (name, modules) = (entry.file_name(), entry.path());
            let version = Version::parse(name.to_str()?).filter(Version::is_new_enough)?;
            let in_boot = root.join("boot").join(format!("vmlinuz-{}", name.to_str()?));
            let image = [in_boot, modules.join("vmlinuz")].into_iter().find(|it| File::open(it).is_ok())?;
            let has_folders = FOLDERS.iter().all(|name| Modules::below(&modules).has(name));
            has_folders.then_some((version, image, modules))
        })
        .collect();
    found.sort();
    found
}

/// Unpacks image and modules to a directory of their own in `directory`.
fn store(
    directory: &Path,
    work: &Path,
    version: &Version,
    image: &Path,
    files: &Path,
) -> Result<Kernel, Error> {
    let failed =
        |file: &Path, error: &dyn fmt::Display| Error::Kernel(format!("{}: {error}", file.display()));
    let unfinished = work.join("kernel");
    fs::create_dir_all(&unfinished).map_err(|error| failed(&unfinished, &error))?;
    let write = |name: &str, bytes: Vec<u8>| {
        let file = unfinished.join(name);
        fs::write(&file, bytes).map_err(|error| failed(&file, &error))
    };
    let read = |file: &Path| fs::read(file).map_err(|error| failed(file, &error));
    write(IMAGE, extract(&read(image)?).map_err(|error| failed(image, &error))?)?;
    let modules = Modules::below(files);
    let checksums = [CHECKSUMS].into_iter().filter(|name| modules.has(name));
    let folders = modules.in_order(&FOLDERS)?.unwrap_or_default();
    let persistent = modules.in_order(&checksums.chain(PERSISTENT).collect::<Vec<_>>())?;
    for module in folders.iter().chain(persistent.iter().flatten()) {
        write(&file_of(&module.name), module.bytes.clone())?;
    }
    let names = |modules: &[Module]| modules.iter().map(|module| module.name.clone()).collect();
    let list = ModuleList { folders: names(&folders), persistent: persistent.as_deref().map(names) };
    let list = serde_json::to_vec(&list).map_err(|error| failed(&unfinished, &error))?;
    write(LIST, list)?;
    // The rename makes the complete directory appear at once, also if two processes do this at the same time.
    let kept = directory.join(version.to_string());
    if kernel_in(&kept).is_none() && kept.exists() {
        // If it fails, so does the next rename.
        let _ = fs::rename(&kept, work.join("replaced"));
    }
    let renamed = fs::rename(&unfinished, &kept);
    match (renamed, kernel_in(&kept)) {
        (_, Some(kernel)) => Ok(kernel),
        (Err(error), None) => Err(failed(&kept, &error)),
        (Ok(()), None) => Err(failed(&kept, &"its list of modules is gone; run this once more")),
    }
}

/// The ELF image in a bzImage.
fn extract(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let failure = |why: &str| Error::Kernel(format!("the guest cannot boot this kernel image: {why}"));
    if bytes.get(0x202..0x206) != Some(b"HdrS") {
        return Err(failure("it is neither an ELF file nor a bzImage"));
    }
    let number = |at: usize| -> Option<usize> {
        let field = bytes.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(field)).ok()
    };
    // setup_sects, payload_offset, payload_length. 0 sectors mean 4.
    let sectors = match bytes.get(0x1f1) {
        Some(0) | None => 4,
        Some(&sectors) => usize::from(sectors),
    };
    let payload = number(0x248).zip(number(0x24c)).and_then(|(offset, length)| {
        let start = (sectors + 1) * 512 + offset;
        bytes.get(start..start.checked_add(length)?)
    });
    let payload = payload.filter(|payload| payload.len() > 8).ok_or_else(|| failure("it is cut short"))?;
    if payload.starts_with(ELF) {
        return Ok(payload.to_vec());
    }
    // The build appends the size of the image, as gzip does by itself.
    let (body, size) = payload.split_at(payload.len() - 4);
    let (program, package, body) = match payload {
        [0x1f, 0x8b, ..] => ("gzip", "gzip", payload),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => ("xz", "xz-utils", body),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", "zstd", body),
        [0x02, 0x21, 0x4c, 0x18, ..] => ("lz4", "lz4", body),
        _ => {
            let magic: Vec<String> = payload[..6].iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(failure(&format!("its compression, {}, is not supported", magic.join(" "))));
        }
    };
    if !tools::is_installed(program) {
        return Err(failure(&format!("`{program}` is missing; install the package {package}")));
    }
    let image = unpack(program, body).map_err(|error| failure(&format!("{program}: {error}")))?;
    if !image.starts_with(ELF)
        || image.len() as u64 != u64::from(u32::from_le_bytes(size.try_into().expect("4 bytes")))
    {
        return Err(failure(&format!("{program} did not unpack all of it")));
    }
    Ok(image)
}

pub(crate) fn unpack(program: &str, body: &[u8]) -> std::io::Result<Vec<u8>> {
    unpack_with(program, &["-d", "-c", "-q"], body)
}

fn unpack_with(program: &str, arguments: &[&str], body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut child =
        Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().expect("it is piped");
    std::thread::scope(|scope| {
        // The write fails if the program stops reading; the caller checks the size of the result.
        scope.spawn(move || input.write_all(body));
        child.wait_with_output().map(|output| output.stdout)
    })
}

#[cfg(test)]
mod tests {
    use memferry_testing::{Needs, skip};

    use super::*;

    /// A bzImage with a header and `payload` only.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 0x400];
        bytes[0x1f1] = 1;
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend_from_slice(payload);
        bytes
    }

    fn packed(program: &str, size_added: u32) -> Vec<u8> {
        let kernel: Vec<u8> =
            ELF.iter().copied().chain((0..100_000u32).map(|n| (n.wrapping_mul(n) >> 7) as u8)).collect();
        let file = std::env::temp_dir()
            .join(format!("memferry-kernel-{program}-{size_added}-{}", std::process::id()));
        fs::write(&file, &kernel).unwrap();
        let output = Command::new(program).args(["-c", "-q"]).arg(&file).output().unwrap();
        fs::remove_file(&file).unwrap();
        let mut payload = output.stdout;
        if program != "gzip" {
            payload.extend_from_slice(&(kernel.len() as u32 + size_added).to_le_bytes());
        }
        payload
    }

    #[test]
    fn every_compression_is_unpacked() {
        assert_eq!(extract(&image(b"\x7fELF12345")).unwrap(), b"\x7fELF12345");
        for program in ["gzip", "xz", "zstd"] {
            if !tools::is_installed(program) {
                skip(Needs::Program(program), format!("{program} is not installed"));
                continue;
            }
            assert_eq!(extract(&image(&packed(program, 0))).unwrap().len(), 100_004, "{program}");
        }
    }

    #[test]
    fn broken_images_are_explained() {
        let zeros = [0; 0x300];
        let mut short = image(b"\x7fELF12345");
        short.truncate(0x404);
        let mut far = image(b"\x7fELF12345");
        far[0x248..0x250].fill(0xff);
        for (bytes, words) in [
            (&b""[..], "neither an ELF file nor a bzImage"),
            (&zeros, "neither an ELF file nor a bzImage"),
            (&image(b""), "cut short"),
            (&short, "cut short"),
            (&far, "cut short"),
            (&image(b"BZh91AY&SY"), "42 5a 68 39 31 41"),
            (&image(b"\x1f\x8bnonsense-nonsense"), "gzip did not unpack all of it"),
        ] {
            let error = extract(bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        if tools::is_installed("zstd") {
            let error = extract(&image(&packed("zstd", 1))).unwrap_err().to_string();
            assert!(error.contains("did not unpack all"), "{error}");
        }
    }

    #[test]
    fn versions_compare_by_number() {
        let version = |text| Version::parse(text).unwrap();
        assert!(
            version("6.12.95+deb12.1") > version("6.12.95+deb12") && version("6.12.9") < version("6.12.10")
        );
        assert!(version("6.12").is_new_enough() && version("7.0").is_new_enough());
        assert!(!version("6.11.99").is_new_enough());
        assert_eq!(version("6.12.95+deb12").to_string(), "6.12.95.12");
        for text in ["", "cloud", "99999999999.1"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_newest_kept_kernel_comes_last() {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in [
            ("6.12.9", "\x7fELF"),
            ("6.12.10", "\x7fELF"),
            ("6.12.11", "half"),
            ("6.1", "\x7fELF"),
            ("run-7", "\x7fELF"),
        ] {
            fs::create_dir(directory.path().join(name)).unwrap();
            fs::write(directory.path().join(name).join(IMAGE), content).unwrap();
        }
        fs::write(directory.path().join("6.12.9").join(LIST), r#"{"folders": ["9p"]}"#).unwrap();
        let kept = kept(directory.path());
        let names: Vec<_> = kept.iter().map(|(version, _)| version.to_string()).collect();
        assert_eq!(names, ["6.12.9", "6.12.10"]);
        let Kept::Complete(kernel) = &kept[0].1 else { panic!("it has a list") };
        assert_eq!((kernel.folders.len(), kernel.persistent.as_ref()), (1, None));
        assert_eq!(kept[1].1, Kept::WithoutList);
    }

    /// A root directory with an installed kernel: its image, and the given files of its modules.
    fn root_with(version: &str, modules: &[(&str, &[u8])]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("boot")).unwrap();
        fs::write(root.path().join(format!("boot/vmlinuz-{version}")), image(b"\x7fELF12345")).unwrap();
        for (name, content) in modules {
            let file = root.path().join("lib/modules").join(version).join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        root
    }

    fn names(files: &[PathBuf]) -> Vec<&str> {
        files.iter().map(|it| it.file_name().unwrap().to_str().unwrap()).collect()
    }

    #[test]
    fn an_installed_kernel_is_kept_with_its_modules() {
        let gzip = |content: &[u8]| unpack_with("gzip", &["-c"], content).unwrap();
        let packed = gzip(b"\x7fELF net\0depends=netfs\0");
        let folders: [(&str, &[u8]); 4] = [
            ("kernel/fs/9p/9p.ko", b"\x7fELF 9p\0depends=9pnet,netfs\0"),
            ("kernel/net/9p/9pnet.ko.gz", &packed),
            ("kernel/net/9p/9pnet_virtio.ko", b"\x7fELF virtio\0depends=9pnet\0"),
            ("modules.builtin", b"kernel/fs/netfs/netfs.ko\n"),
        ];
        let persistent: [(&str, &[u8]); 5] = [
            ("kernel/crypto/crc32c_generic.ko", b"\x7fELF\0depends=\0"),
            ("kernel/nfit.ko", b"\x7fELF\0depends=libnvdimm\0"),
            ("kernel/libnvdimm.ko", b"\x7fELF\0depends=\0"),
            ("kernel/nd_pmem.ko", b"\x7fELF\0depends=libnvdimm\0"),
            ("kernel/ext4.ko", b"\x7fELF\0depends=\0"),
        ];
        let cache = tempfile::tempdir().unwrap();
        // What an earlier version of memferry kept.
        let old = cache.path().join("6.12.4.64");
        fs::create_dir(&old).unwrap();
        fs::write(old.join(IMAGE), "\x7fELF").unwrap();
        for (modules, expected) in [
            ([&folders[..], &persistent].concat(), Some(5)),
            (folders.to_vec(), None),
            ([&folders[..], &persistent[..4]].concat(), None),
        ] {
            let root = root_with("6.12.4-amd64", &modules);
            let (version, image, files) = installed(root.path()).pop().expect("it has folders");
            let work = cache.path().join("apt-1");
            let kernel = store(cache.path(), &work, &version, &image, &files).unwrap();
            assert_eq!(fs::read(&kernel.image).unwrap(), b"\x7fELF12345");
            assert_eq!(names(&kernel.folders), ["9pnet.ko", "9pnet_virtio.ko", "9p.ko"]);
            assert!(fs::read(&kernel.folders[0]).unwrap().starts_with(b"\x7fELF net\0"));
            assert_eq!(kernel.persistent.as_ref().map(Vec::len), expected);
            if let Some(persistent) = &kernel.persistent {
                let order = ["crc32c_generic.ko", "libnvdimm.ko", "nfit.ko", "nd_pmem.ko", "ext4.ko"];
                assert_eq!(names(persistent), order);
            }
            assert_eq!(kept(cache.path()).pop().unwrap().1, Kept::Complete(kernel));
            fs::remove_dir_all(&old).unwrap();
            fs::remove_dir_all(work).unwrap();
        }
    }

    #[test]
    fn an_unsuitable_installed_kernel_is_passed_over() {
        let old: [(&str, &[u8]); 1] =
            [("modules.builtin", b"k/netfs.ko\nk/9pnet.ko\nk/9pnet_virtio.ko\nk/9p.ko\n")];
        assert_eq!(installed(root_with("6.13.0", &old).path()).len(), 1);
        assert_eq!(installed(root_with("6.1.0-9-amd64", &old).path()), []);
        assert_eq!(
            installed(root_with("6.13.0", &[("modules.builtin", b"k/netfs.ko\nk/9pnet.ko\n")]).path()),
            []
        );
        assert_eq!(installed(Path::new("/nowhere")), []);
    }
}

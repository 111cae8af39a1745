//! The guest's kernel: from `MEMFERRY_NUMA_KERNEL`, from the cache, or fetched with apt.
//!
//! QEMU boots the ELF image inside a bzImage faster than the bzImage, which unpacks itself under emulation.
//!
//! Source: Linux `Documentation/arch/x86/boot.rst`.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::apt;
use crate::shell::{self, Failure};

const VARIABLE: &str = "MEMFERRY_NUMA_KERNEL";
/// Oldest suitable version: 6.1 has one memory tier, and versions before 6.9 have no weighted interleave. 6.12 is the first
/// later release with long-term support.
pub(crate) const OLDEST: &str = "6.12";
const KEPT: &str = "vmlinux-";
const ELF: &[u8] = b"\x7fELF";

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

/// The kernel file that QEMU boots. A kernel of the user is unpacked to the directory `scratch`.
pub(crate) fn find(scratch: &Path) -> Result<PathBuf, Failure> {
    if let Some(file) = std::env::var_os(VARIABLE) {
        let file = PathBuf::from(file);
        let failed = |error: &dyn fmt::Display| Failure(format!("{VARIABLE}={}: {error}", file.display()));
        let bytes = fs::read(&file).map_err(|error| failed(&error))?;
        if bytes.starts_with(ELF) {
            return Ok(file);
        }
        let image = extract(&bytes).map_err(|failure| failed(&failure))?;
        let unpacked = scratch.join("vmlinux");
        return fs::write(&unpacked, image).map(|()| unpacked).map_err(|error| failed(&error));
    }
    let directory = shell::cache("numa").map_err(|why| Failure(format!("{why}; or set {VARIABLE}")))?;
    if let Some((_, kept)) = kept(&directory).pop() {
        return Ok(kept);
    }
    super::remove_stale(&directory, "apt-");
    let work = directory.join(format!("apt-{}", std::process::id()));
    let fetched = fetch(&directory, &work);
    // Remaining files of apt do no harm.
    let _ = fs::remove_dir_all(&work);
    fetched
}

/// The cached kernels, newest last.
fn kept(directory: &Path) -> Vec<(Version, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut kept: Vec<_> = entries
        .filter_map(|entry| {
            Some((Version::parse(entry.file_name().to_str()?.strip_prefix(KEPT)?)?, entry.path()))
        })
        .filter(|(version, path)| version.is_new_enough() && is_elf(path))
        .collect();
    kept.sort();
    kept
}

fn is_elf(file: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(file).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == ELF
}

fn fetch(directory: &Path, work: &Path) -> Result<PathBuf, Failure> {
    eprintln!("fetching a kernel for the guest into {}, once", directory.display());
    let (version, image) = apt::fetch(work)?;
    let failed = |error| Failure(format!("{}: {error}", image.display()));
    let elf = extract(&fs::read(&image).map_err(failed)?)
        .map_err(|failure| Failure(format!("{}: {failure}", image.display())))?;
    // The rename makes the complete file appear at once, also if two processes do this at the same time.
    let (unfinished, kept) = (work.join("vmlinux"), directory.join(format!("{KEPT}{version}")));
    fs::write(&unfinished, elf).and_then(|()| fs::rename(&unfinished, &kept)).map_err(failed)?;
    Ok(kept)
}

/// The ELF image in a bzImage.
fn extract(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let failure = |why: &str| Failure(format!("the guest cannot boot this kernel image: {why}"));
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
    if !shell::is_installed(program) {
        return Err(failure(&format!(
            "`{program}` is missing; run `cargo xtask setup` or install {package}"
        )));
    }
    let image = unpack(program, body).map_err(|error| failure(&format!("{program}: {error}")))?;
    if !image.starts_with(ELF)
        || image.len() as u64 != u64::from(u32::from_le_bytes(size.try_into().expect("4 bytes")))
    {
        return Err(failure(&format!("{program} did not unpack all of it")));
    }
    Ok(image)
}

fn unpack(program: &str, body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut child = Command::new(program)
        .args(["-d", "-c", "-q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
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
            if !shell::is_installed(program) {
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
        if shell::is_installed("zstd") {
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
    fn the_newest_cached_kernel_comes_last() {
        let directory = std::env::temp_dir().join(format!("memferry-kept-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        for (name, content) in [
            ("vmlinux-6.12.9", "\x7fELF"),
            ("vmlinux-6.12.10", "\x7fELF"),
            ("vmlinux-6.12.11", "half"),
            ("vmlinux-6.1", "\x7fELF"),
            ("other", "\x7fELF"),
        ] {
            fs::write(directory.join(name), content).unwrap();
        }
        let names: Vec<_> = kept(&directory).into_iter().map(|(version, _)| version.to_string()).collect();
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(names, ["6.12.9", "6.12.10"]);
    }
}

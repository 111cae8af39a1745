//! The guest's root file system: a cpio archive that the kernel unpacks at boot.
//!
//! Source: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`, the `newc` format.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::plan;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// A cpio archive under construction. Adding a file adds its directories. The kernel unpacks concatenated archives.
#[derive(Debug, Default)]
pub struct Image {
    bytes: Vec<u8>,
    paths: BTreeSet<PathBuf>,
}

impl Image {
    /// Creates an archive with the console, which a guest needs; [`default`](Image::default) is empty.
    pub fn new() -> Image {
        let mut image = Image::default();
        // The kernel opens it as the standard streams of process 1, before file systems are mounted.
        image.directories(Path::new("dev/console"));
        image.entry("dev/console", CHARACTER_DEVICE, (5, 1), &[]);
        image
    }

    /// Adds an empty directory, a mount point.
    pub fn directory(&mut self, path: &str) {
        self.directories(&Path::new(path).join("in it"));
    }

    /// Adds a file; the first file of a path stays.
    pub fn file(&mut self, path: &str, content: &[u8]) {
        let path = path.trim_start_matches('/');
        if self.paths.insert(PathBuf::from(path)) {
            self.directories(Path::new(path));
            self.entry(path, PROGRAM, (0, 0), content);
        }
    }

    /// Adds a program of this machine at `path`, without symbols and debug information, and the libraries that it loads at
    /// their own paths. Returns the size of the program.
    ///
    /// # Errors
    /// A file cannot be read, or a library is missing.
    pub fn program(&mut self, path: &str, program: &Path) -> Result<u64, Error> {
        let content = loaded_part(read(program)?);
        self.file(path, &content);
        for library in libraries(program)? {
            self.file(&library, &read(Path::new(&library))?);
        }
        Ok(content.len() as u64)
    }

    /// Adds modules of the kernel below [`MODULES`](plan::MODULES), and returns their names.
    pub(crate) fn modules(&mut self, files: &[PathBuf]) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            self.file(&format!("{}/{name}", plan::MODULES), &read(file)?);
            names.push(name);
        }
        Ok(names)
    }

    /// The bytes of the archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn directories(&mut self, path: &Path) {
        let mut above: Vec<&Path> = path.ancestors().skip(1).filter(|path| *path != Path::new("")).collect();
        above.reverse();
        for directory in above {
            if self.paths.insert(directory.to_owned()) {
                self.entry(&directory.to_string_lossy(), DIRECTORY, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        let inode = self.paths.len() as u32;
        let size = u32::try_from(content.len()).expect("`read` refuses files of 4 GiB and more");
        let name_size = path.len() as u32 + 1;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    let bytes = fs::read(file)
        .map_err(|error| Error::Image(format!("cannot copy {} into the guest: {error}", file.display())))?;
    if u32::try_from(bytes.len()).is_err() {
        return Err(Error::Image(format!("{} is too large for the guest", file.display())));
    }
    Ok(bytes)
}

/// Paths of the loader and the libraries of a program.
fn libraries(program: &Path) -> Result<Vec<String>, Error> {
    let output =
        Command::new("ldd").arg(program).env("LC_ALL", "C").output().map_err(|error| {
            Error::Image(format!("cannot run `ldd`: {error}; install the package libc-bin"))
        })?;
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        return Err(Error::Image(format!("a library of {} is missing: {}", program.display(), line.trim())));
    }
    // A static program has no libraries, and ldd fails for it.
    Ok(text.lines().filter_map(library).collect())
}

/// The path in `libc.so.6 => /lib/libc.so.6 (0x...)` or `/lib64/ld-linux-x86-64.so.2 (0x...)`.
fn library(line: &str) -> Option<String> {
    let path = line.rsplit_once("=>").map_or(line, |(_, path)| path).trim();
    let (path, address) = path.rsplit_once(' ')?;
    (path.starts_with('/') && address.starts_with("(0x")).then(|| path.to_owned())
}

/// The part of an ELF file that the kernel and the dynamic linker read: without sections such as symbols and debug
/// information, which are behind the segments. Other files stay as they are.
///
/// Source: ELF-64 object file format 1.5.
fn loaded_part(mut file: Vec<u8>) -> Vec<u8> {
    const MAGIC: &[u8] = b"\x7fELF\x02\x01";
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?)));
    let long = |at: usize| usize::try_from(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?)).ok();
    let end = || {
        let (headers, size, count) = (long(32)?, half(54)?, half(56)?);
        let mut end = headers.checked_add(size * count)?;
        for number in 0..count {
            let header = headers + number * size;
            end = end.max(long(header + 8)?.checked_add(long(header + 32)?)?);
        }
        Some(end)
    };
    let end = end().filter(|&end| file.starts_with(MAGIC) && end <= file.len() && end >= 64);
    if let Some(end) = end {
        file.truncate(end);
        // The table of sections: its offset, the number of entries, the section with their names.
        file[40..48].fill(0);
        file[60..64].fill(0);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, modes and contents, read by code that shares nothing with the writer.
    fn entries(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let mut at = 0;
        loop {
            assert_eq!(&archive[at..at + 6], b"070701");
            let field = |n: usize| {
                let digits = &archive[at + 6 + 8 * n..at + 14 + 8 * n];
                u32::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name_at = at + 110;
            let name = String::from_utf8(archive[name_at..name_at + name_size - 1].to_vec()).unwrap();
            assert_eq!(archive[name_at + name_size - 1], 0);
            let content_at = (name_at + name_size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(content_at, archive.len());
                return entries;
            }
            entries.push((name, mode, archive[content_at..content_at + size].to_vec()));
            at = (content_at + size).next_multiple_of(4);
        }
    }

    #[test]
    fn directories_come_before_their_files() {
        let mut image = Image::new();
        image.directory("proc");
        image.file("/a/b/odd", b"12345");
        image.file("/a/b/odd", b"again");
        image.file("a/empty", b"");
        let entries = entries(&image.finish());
        let names: Vec<_> = entries.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["dev", "dev/console", "proc", "a", "a/b", "a/b/odd", "a/empty"]);
        assert_eq!((entries[1].1, entries[2].1), (CHARACTER_DEVICE, DIRECTORY));
        assert_eq!(entries[5].2, b"12345");
    }

    #[test]
    fn libraries_of_a_program() {
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007ffc)"), None);
        assert_eq!(library("\tstatically linked"), None);
        assert_eq!(library("\tlibc.so.6 => /lib/libc.so.6 (0x00007f)"), Some("/lib/libc.so.6".into()));
        assert_eq!(library("\t/lib64/ld.so.2 (0x00007f)"), Some("/lib64/ld.so.2".into()));
        let this = libraries(&std::env::current_exe().unwrap()).unwrap();
        assert!(this.is_empty() || this.iter().any(|path| path.contains("libc")), "{this:?}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = Image::new().program("bin/x", Path::new("/nowhere/x")).unwrap_err().to_string();
        assert!(error.contains("cannot copy /nowhere/x into the guest"), "{error}");
    }

    #[test]
    fn a_program_runs_without_its_sections() {
        let this = std::env::current_exe().unwrap();
        let whole = fs::read(&this).unwrap();
        let part = loaded_part(whole.clone());
        assert!(part.len() < whole.len(), "{} of {}", part.len(), whole.len());
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("copy");
        fs::copy(&this, &copy).unwrap();
        fs::write(&copy, part).unwrap();
        let run = || Command::new(&copy).args(["--list", "a_program_runs"]).output();
        let output = loop {
            match run() {
                // Another test has forked while the file was open, and its child has not called exec yet.
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                outcome => break outcome.unwrap(),
            }
        };
        assert!(String::from_utf8_lossy(&output.stdout).contains("a_program_runs"), "{output:?}");
    }

    #[test]
    fn other_files_stay_as_they_are() {
        let mut cut = b"\x7fELF\x02\x01".to_vec();
        assert_eq!(loaded_part(cut.clone()), cut);
        // More program headers than the file has.
        cut.resize(100, 0xff);
        assert_eq!(loaded_part(cut.clone()), cut);
        assert_eq!(loaded_part(b"#!/bin/sh\n".to_vec()), b"#!/bin/sh\n");
        assert_eq!(loaded_part(Vec::new()), b"");
    }
}

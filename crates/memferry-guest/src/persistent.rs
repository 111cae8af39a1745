//! Persistent memory of a guest: files of the host that QEMU maps as NVDIMMs, each with a file system for DAX.
//!
//! ```text
//!       0   nothing
//!   4 KiB   the block that makes Linux manage the rest in pages (fsdax mode)
//!   2 MiB   ext4, with blocks of the size of a page
//! ```
//!
//! Source: QEMU `docs/nvdimm.txt`; Linux `drivers/nvdimm/pfn.h`, `pfn_devs.c` and `core.c`, for the block that
//! `ndctl create-namespace --mode fsdax` makes; mke2fs(8).

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::image::Image;
use crate::kernel::Kernel;
use crate::layout::Layout;
use crate::plan::PlanPersistent;
use crate::tools;

/// The program that makes the file system, and the package of Debian and Ubuntu that has it.
const MAKE: (&str, &str) = ("mkfs.ext4", "e2fsprogs");
/// Such programs are for root, whose PATH has these directories.
const DIRECTORIES_OF_ROOT: [&str; 2] = ["/usr/sbin", "/sbin"];
const PAGE: u64 = 4096;
const BLOCK_AT: u64 = 4096;
/// Aligned as the kernel wants it, to large pages.
const FILES_AT: u64 = 2 << 20;
const SIGNATURE: &[u8; 16] = b"NVDIMM_PFN_INFO\0";

/// The files of a guest's persistent memory. They are locked until this value is dropped: two guests with one file would
/// destroy its file system.
#[derive(Debug)]
pub struct PersistentMemory {
    files: Vec<(PathBuf, File)>,
    /// Modules of the kernel, in the order of loading.
    modules: Vec<PathBuf>,
}

impl PersistentMemory {
    /// The files `pmem0`, `pmem1` and so on in `directory`, one for each region of the layout. Missing ones are made, with an
    /// empty file system.
    ///
    /// # Errors
    /// The kernel has no support for persistent memory, a file has another size, is in use, or cannot be made.
    pub fn open(layout: &Layout, kernel: &Kernel, directory: &Path) -> Result<PersistentMemory, Error> {
        if layout.regions.is_empty() {
            return Ok(PersistentMemory { files: Vec::new(), modules: Vec::new() });
        }
        let modules = kernel.persistent.clone().ok_or_else(|| {
            failed(&kernel.image, "this kernel has no support for persistent memory (nfit, nd_pmem, ext4); remove its directory \
                 to fetch another, or name one with MEMFERRY_NUMA_KERNEL")
        })?;
        fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
        let sizes = layout.regions.iter().map(|region| region.size_mib << 20);
        let files = sizes.enumerate().map(|(number, size_bytes)| {
            let path = directory.join(format!("pmem{number}"));
            Ok((path.clone(), open(&path, size_bytes)?))
        });
        Ok(PersistentMemory { files: files.collect::<Result<_, Error>>()?, modules })
    }

    /// Adds the modules of the kernel to the guest's image, and returns the work of process 1.
    ///
    /// # Errors
    /// A module cannot be read.
    pub fn plan(&self, image: &mut Image) -> Result<Option<PlanPersistent>, Error> {
        let modules = image.modules(&self.modules)?;
        Ok((!self.files.is_empty()).then_some(PlanPersistent { modules, count: self.files.len() }))
    }

    /// The paths of the files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }
}

fn failed(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::PersistentMemory(format!("{}: {why}", path.display()))
}

/// Opens and locks a file, or makes it.
fn open(path: &Path, size_bytes: u64) -> Result<File, Error> {
    let options = || {
        let mut options = File::options();
        options.read(true).write(true);
        options
    };
    match options().create_new(true).open(path) {
        Ok(file) => {
            let made = lock(&file, path).and_then(|()| make(&file, path, size_bytes));
            if made.is_err() {
                // The error that matters is that of `made`.
                let _ = fs::remove_file(path);
            }
            made.map(|()| file)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let file = options().open(path).map_err(|error| failed(path, error))?;
            lock(&file, path)?;
            check(&file, path, size_bytes)?;
            Ok(file)
        }
        Err(error) => Err(failed(path, error)),
    }
}

fn lock(file: &File, path: &Path) -> Result<(), Error> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => failed(
            path,
            "another guest has this persistent memory; wait for its end, or name another directory",
        ),
        TryLockError::Error(error) => failed(path, error),
    })
}

fn make(file: &File, path: &Path, size_bytes: u64) -> Result<(), Error> {
    let (program, package) = MAKE;
    let program = tools::path_of(program, &DIRECTORIES_OF_ROOT)
        .ok_or_else(|| Error::NotInstalled { programs: vec![program], packages: vec![package] })?;
    file.set_len(size_bytes).map_err(|error| failed(path, error))?;
    // All inodes are written here, since otherwise a thread of the guest's kernel does it while a program runs.
    let options = format!("offset={FILES_AT},lazy_itable_init=0,lazy_journal_init=0,nodiscard");
    let output = Command::new(&program)
        .args(["-q", "-F", "-b", "4096", "-m", "0", "-N", "16384", "-E", &options])
        .arg(path)
        .arg(format!("{}k", (size_bytes - FILES_AT) >> 10))
        .output()
        .map_err(|error| failed(&program, error))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(failed(path, format!("{} failed: {}", program.display(), why.trim())));
    }
    // Last: a file without it is not complete.
    file.write_all_at(&block(size_bytes), BLOCK_AT).map_err(|error| failed(path, error))
}

fn check(file: &File, path: &Path, size_bytes: u64) -> Result<(), Error> {
    let found_bytes = file.metadata().map_err(|error| failed(path, error))?.len();
    let mut signature = [0; SIGNATURE.len()];
    let is_complete = match file.read_exact_at(&mut signature, BLOCK_AT) {
        Ok(()) => signature == *SIGNATURE,
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => false,
        Err(error) => return Err(failed(path, error)),
    };
    if !is_complete {
        return Err(failed(
            path,
            "it is no persistent memory of a guest, or its making was interrupted; remove it or name another directory",
        ));
    }
    if found_bytes != size_bytes {
        let (found, needed) = (found_bytes >> 20, size_bytes >> 20);
        let why = format!(
            "it has {found} MiB, and the guest {needed} MiB of persistent memory; name another directory"
        );
        return Err(failed(path, why));
    }
    Ok(())
}

/// The block for fsdax mode, `struct nd_pfn_sb` of version 1.4, little-endian. Descriptions of pages are in the guest's RAM.
fn block(size_bytes: u64) -> Vec<u8> {
    const IN_RAM: u32 = 1;
    const BYTES: usize = 4096;
    const DESCRIPTION_BYTES: u16 = 64;
    let mut block = Vec::with_capacity(BYTES);
    block.extend_from_slice(SIGNATURE);
    // An id of its own, and that of the namespace, which is none.
    block.extend_from_slice(b"memferry's fsdax");
    block.extend_from_slice(&[0; 16]);
    block.extend_from_slice(&0_u32.to_le_bytes());
    for version in [1_u16, 4] {
        block.extend_from_slice(&version.to_le_bytes());
    }
    for number in [FILES_AT, (size_bytes - FILES_AT) / PAGE] {
        block.extend_from_slice(&number.to_le_bytes());
    }
    // Mode, padding at both ends, alignment, size of a page.
    for number in [IN_RAM, 0, 0, FILES_AT as u32, PAGE as u32] {
        block.extend_from_slice(&number.to_le_bytes());
    }
    block.extend_from_slice(&DESCRIPTION_BYTES.to_le_bytes());
    block.resize(BYTES - 8, 0);
    let sum = checksum(&block);
    block.extend_from_slice(&sum.to_le_bytes());
    block
}

/// Fletcher's checksum of 32-bit words; a checksum of zeros may follow the bytes.
fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")));
    let add = |(low, high): (u32, u64), word: u32| {
        let low = low.wrapping_add(word);
        (low, high.wrapping_add(low.into()))
    };
    // The two words of the checksum itself, as zeros.
    let (low, high) = words.chain([0, 0]).fold((0, 0), add);
    high << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use memferry_testing::{Needs, skip};

    use super::*;

    const SIZE_BYTES: u64 = 128 << 20;

    /// The guests of the tests show that Linux takes it.
    #[test]
    fn the_block_has_the_layout_of_linux() {
        let block = block(SIZE_BYTES);
        assert_eq!(block.len(), 4096);
        let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        assert_eq!(
            (&block[..16], number(56), number(64)),
            (&SIGNATURE[..], FILES_AT, (SIZE_BYTES - FILES_AT) / 4096)
        );
        assert_eq!(block[72..94], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 16, 0, 0, 64, 0]);
        // Computed by hand: after the words 1 and 2, low is 3, and high 1 + 3 + 3 + 3.
        assert_eq!(checksum(&[1, 0, 0, 0, 2, 0, 0, 0]), 10 << 32 | 3);
        assert_eq!(number(4088), checksum(&block[..4088]));
    }

    #[test]
    fn a_file_is_made_once_and_locked() {
        if tools::path_of(MAKE.0, &DIRECTORIES_OF_ROOT).is_none() {
            return skip(Needs::Program(MAKE.0), "it is not installed");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pmem0");
        let file = open(&path, SIZE_BYTES).unwrap();
        let mut magic = [0; 2];
        file.read_exact_at(&mut magic, FILES_AT + 1024 + 56).unwrap();
        assert_eq!((file.metadata().unwrap().len(), magic), (SIZE_BYTES, [0x53, 0xef]), "ext4");
        let error = open(&path, SIZE_BYTES).unwrap_err().to_string();
        assert!(error.contains("another guest has this persistent memory"), "{error}");
        file.write_all_at(b"content", 3 << 20).unwrap();
        drop(file);
        let mut content = [0; 7];
        open(&path, SIZE_BYTES).unwrap().read_exact_at(&mut content, 3 << 20).unwrap();
        assert_eq!(&content, b"content", "it was made again");
        let error = open(&path, 2 * SIZE_BYTES).unwrap_err().to_string();
        assert!(error.contains("it has 128 MiB, and the guest 256 MiB"), "{error}");
    }

    #[test]
    fn other_files_are_refused_and_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pmem0");
        for content in [vec![], vec![7; 100_000]] {
            fs::write(&path, &content).unwrap();
            let error = open(&path, content.len() as u64).unwrap_err().to_string();
            assert!(error.contains("it is no persistent memory of a guest"), "{error}");
            assert!(fs::read(&path).unwrap() == content);
        }
    }

    #[test]
    fn a_kernel_without_modules_is_refused() {
        let layout = |profile| Layout::of(profile, 0).unwrap();
        let kernel = Kernel { image: "/k/vmlinux".into(), folders: Vec::new(), persistent: None };
        let directory = tempfile::tempdir().unwrap();
        let error = PersistentMemory::open(&layout("made-up-fsdax-node"), &kernel, directory.path());
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("/k/vmlinux: this kernel has no support"), "{error}");
        let none = PersistentMemory::open(&layout("made-up-cxl-node"), &kernel, directory.path()).unwrap();
        assert_eq!((none.paths().count(), none.plan(&mut Image::new()).unwrap()), (0, None));
    }
}

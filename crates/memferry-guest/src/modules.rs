//! Modules of a kernel: found in a directory, in the order of loading, unpacked.
//!
//! Source: modinfo(8), modules.builtin in `Documentation/kbuild/kbuild.rst`, `scripts/mod/modpost.c` for `depends`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::kernel::{ELF, unpack};

/// What is before the names of the modules that a module needs, in its section `.modinfo`.
const DEPENDS: &[u8] = b"\0depends=";

/// The modules below a directory, and the names of those that are built into the kernel.
#[derive(Debug)]
pub(crate) struct Modules {
    directory: PathBuf,
    /// `modules.builtin`: a path of each, which ends in `/NAME.ko`.
    built_in: String,
}

/// A module, unpacked.
#[derive(Debug, PartialEq)]
pub(crate) struct Module {
    /// Its name, with underscores.
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

impl Modules {
    pub(crate) fn below(directory: &Path) -> Modules {
        let built_in = find(directory, &|name| name == "modules.builtin");
        let built_in = built_in.and_then(|file| fs::read_to_string(file).ok()).unwrap_or_default();
        Modules { directory: directory.to_owned(), built_in: normal(&built_in) }
    }

    fn is_built_in(&self, name: &str) -> bool {
        self.built_in.contains(&format!("/{name}.ko\n"))
    }

    /// Whether the kernel has a module, as a file or built in.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.is_built_in(name) || self.file(name).is_some()
    }

    /// Modules and those that they need, in the order of loading, without built-in ones; `None` if one is missing.
    ///
    /// # Errors
    /// One cannot be read or unpacked.
    pub(crate) fn in_order(&self, names: &[&str]) -> Result<Option<Vec<Module>>, Error> {
        let mut order = Vec::new();
        for name in names {
            if !self.add(name, &mut order)? {
                return Ok(None);
            }
        }
        Ok(Some(order))
    }

    /// Adds what a module needs, then the module; false if one of them is missing. The kernel's build refuses cycles.
    fn add(&self, name: &str, order: &mut Vec<Module>) -> Result<bool, Error> {
        if self.is_built_in(name) || order.iter().any(|module| module.name == name) {
            return Ok(true);
        }
        let Some(file) = self.file(name) else { return Ok(false) };
        let bytes = read(&file)?;
        for needed in needed_by(&bytes) {
            if !self.add(&needed, order)? {
                return Ok(false);
            }
        }
        order.push(Module { name: name.to_owned(), bytes });
        Ok(true)
    }

    /// The file of a module, packed or not.
    fn file(&self, name: &str) -> Option<PathBuf> {
        let beginning = format!("{name}.ko");
        find(&self.directory, &|file| {
            let rest = normal(file);
            rest.strip_prefix(&beginning).is_some_and(|rest| ["", ".xz", ".zst", ".gz"].contains(&rest))
        })
    }
}

/// Files of modules have hyphens where names may have underscores.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// The first file below a directory whose name matches.
fn find(directory: &Path, is_it: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let kind = entry.file_type().ok()?;
        if kind.is_dir() {
            if let Some(found) = find(&entry.path(), is_it) {
                return Some(found);
            }
        } else if kind.is_file() && entry.file_name().to_str().is_some_and(is_it) {
            return Some(entry.path());
        }
    }
    None
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Kernel(format!("{}: {error}", file.display()));
    let bytes = fs::read(file).map_err(|error| failed(&error))?;
    let program = match file.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => Some("xz"),
        Some("zst") => Some("zstd"),
        Some("gz") => Some("gzip"),
        _ => None,
    };
    let bytes = match program {
        Some(program) => unpack(program, &bytes).map_err(|error| failed(&error))?,
        None => bytes,
    };
    if bytes.starts_with(ELF) { Ok(bytes) } else { Err(failed(&"it is no kernel module")) }
}

/// The names of the modules that a module needs.
fn needed_by(module: &[u8]) -> Vec<String> {
    let found = module.windows(DEPENDS.len()).position(|window| window == DEPENDS);
    let rest = found.map_or(&[][..], |at| &module[at + DEPENDS.len()..]);
    let list = rest.split(|&byte| byte == 0).next().unwrap_or_default();
    let names = list.split(|&byte| byte == b',').filter(|name| !name.is_empty());
    names.map(|name| normal(&String::from_utf8_lossy(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let file = directory.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        directory
    }

    fn names(modules: &Modules, wanted: &[&str]) -> Option<Vec<String>> {
        let order = modules.in_order(wanted).unwrap();
        order.map(|order| order.into_iter().map(|module| module.name).collect())
    }

    #[test]
    fn modules_come_after_those_that_they_need() {
        let directory = directory(&[
            ("fs/ext4.ko", "\x7fELF\0license=GPL\0depends=jbd2,crc-16\0rest"),
            ("fs/jbd2.ko", "\x7fELF\0depends=crc_16\0"),
            ("lib/crc-16.ko", "\x7fELF\0depends=\0"),
            ("lib/lonely.ko", "\x7fELF\0depends=missing\0"),
            ("lib/no.ko", "text"),
            ("modules.builtin", "kernel/fs/netfs/netfs.ko\nkernel/lib/crc-32.ko\n"),
        ]);
        let modules = Modules::below(directory.path());
        assert_eq!(names(&modules, &["ext4", "jbd2"]).unwrap(), ["crc_16", "jbd2", "ext4"]);
        assert_eq!(names(&modules, &["netfs", "crc_32"]).unwrap(), [""; 0], "they are built in");
        assert_eq!(names(&modules, &["ext4", "lonely"]), None);
        assert_eq!(names(&modules, &["etfs"]), None);
        assert!(modules.has("netfs") && modules.has("crc_16") && !modules.has("missing"));
        let error = modules.in_order(&["no"]).unwrap_err().to_string();
        assert!(error.contains("no.ko: it is no kernel module"), "{error}");
    }
}

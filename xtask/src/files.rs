//! Files of chores that install or pack something. Errors name the file.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::shell::Failure;

pub(crate) fn failed(action: &str, file: &Path, error: &dyn fmt::Display) -> Failure {
    Failure(format!("cannot {action} {}: {error}", file.display()))
}

pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| failed("read", file, &error))
}

/// Writes a file, and makes its directory.
pub(crate) fn write(file: &Path, content: &[u8]) -> Result<(), Failure> {
    let directory = file.parent().expect("files are in directories");
    let written = fs::create_dir_all(directory).and_then(|()| fs::write(file, content));
    written.map_err(|error| failed("write", file, &error))
}

/// Copies a file to a new one: a program that has the old one mapped keeps it.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let content = fs::read(from).map_err(|error| failed("read", from, &error))?;
    let _ = fs::remove_file(to);
    write(to, &content)
}

pub(crate) fn link(target: &str, link: &Path) -> Result<(), Failure> {
    let _ = fs::remove_file(link);
    symlink(target, link).map_err(|error| failed("make", link, &error))
}

/// Makes an empty directory; removes what was there.
pub(crate) fn empty_directory(directory: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", directory, &error));
        }
        _ => {}
    }
    fs::create_dir_all(directory).map_err(|error| failed("make", directory, &error))
}

/// The files below a directory, sorted by path.
pub(crate) fn files_below(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    fn add(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() { add(&path, files)? } else { files.push(path) }
        }
        Ok(())
    }
    let mut files = Vec::new();
    add(directory, &mut files).map_err(|error| failed("list", directory, &error))?;
    files.sort();
    Ok(files)
}

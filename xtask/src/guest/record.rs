//! What a kernel shows of its machine, as one JSON object: `{"path": "content", "path": {"link": "target"}}`.
//!
//! To be replaced by `memferry::topology::Recording`, which reads and writes this very format.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use serde_json::{Map, Value, json};

/// Directories below the root, with everything in them, and files.
const TREES: &[&str] = &[
    "sys/devices/system/node",
    "sys/devices/system/cpu",
    "sys/devices/virtual/memory_tiering",
    "sys/kernel/mm/numa",
    "sys/kernel/mm/mempolicy",
    "sys/bus/dax",
    "sys/bus/dsa",
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/self/status",
    "proc/sys/kernel/hostname",
    "proc/sys/kernel/osrelease",
    "proc/sys/kernel/numa_balancing",
];
/// Larger files are not about the topology; no file of sysfs is longer than a page.
const BYTES_MAX: usize = 64 << 10;

/// The recording of `root`. What cannot be read is left out: sysfs has files that only take.
pub(crate) fn of(root: &Path) -> Map<String, Value> {
    let mut recording = Map::new();
    for tree in TREES {
        record(root, tree, &mut recording);
    }
    recording
}

fn record(root: &Path, path: &str, recording: &mut Map<String, Value>) {
    let full = root.join(path);
    let Ok(metadata) = fs::symlink_metadata(&full) else { return };
    if metadata.is_symlink() {
        if let Ok(target) = fs::read_link(&full) {
            recording.insert(path.to_owned(), json!({ "link": target.to_string_lossy() }));
        }
    } else if metadata.is_dir() {
        let entries = fs::read_dir(&full).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        for name in names {
            record(root, &format!("{path}/{name}"), recording);
        }
    } else if metadata.is_file()
        && let Ok(mut text) = fs::read_to_string(&full)
        && text.len() <= BYTES_MAX
    {
        if path == "proc/cpuinfo" {
            // The others are alike, and long.
            text.truncate(text.find("\n\n").map_or(text.len(), |end| end + 1));
        }
        recording.insert(path.to_owned(), Value::String(text));
    }
}

/// Writes the recording to a serial line as one line.
pub(crate) fn send(root: &Path, line: &str) -> io::Result<()> {
    let mut text = serde_json::to_vec(&of(root)).map_err(io::Error::other)?;
    text.push(b'\n');
    let mut line = File::options().write(true).open(line)?;
    // SAFETY: the descriptor is open for as long as `line` lives, and `mode` is a live plain struct that the first call
    // fills before the others read it.
    unsafe {
        let mut mode: libc::termios = std::mem::zeroed();
        if libc::tcgetattr(line.as_raw_fd(), &mut mode) == 0 {
            libc::cfmakeraw(&mut mode);
            libc::tcsetattr(line.as_raw_fd(), libc::TCSANOW, &mode);
        }
    }
    line.write_all(&text)?;
    // SAFETY: as above; no memory is involved.
    unsafe { libc::tcdrain(line.as_raw_fd()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_machine() {
        let recording = of(Path::new("/"));
        let cpuinfo = recording["proc/cpuinfo"].as_str().unwrap();
        assert!(!cpuinfo.contains("\n\n"), "only the first CPU");
        assert!(recording["sys/devices/system/cpu/online"].as_str().unwrap().starts_with('0'));
        for (path, content) in &recording {
            assert!(content.is_string() || content["link"].is_string(), "{path}: {content}");
        }
    }
}

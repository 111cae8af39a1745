//! The preload library: embedded here, written into the private `/dev`, and named to the dynamic linker there.
//!
//! The file is on a file system in memory that disappears with the namespace. Source:
//! `docs/decisions/embedded-library.md`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::namespace::PRIVATE;

/// Empty only in builds that are checked and not linked.
static LIBRARY: &[u8] = memferry_emulate_embed::preload_library!();

/// Its file name. `ldd` and error messages of the dynamic linker show it.
const NAME: &str = "libmemferry_emulate_preload.so";

/// Writes the library, which all users of the namespace may load, and returns the value of `LD_PRELOAD` that loads it
/// behind the libraries in `before`: libraries of the user see calls first, as without the emulation.
pub(crate) fn install(before: Option<&OsStr>) -> io::Result<OsString> {
    let path = Path::new(PRIVATE).join(NAME);
    fs::write(&path, LIBRARY)?;
    // Independent of the umask.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o555))?;
    let mut value = before.unwrap_or_default().to_owned();
    if !value.is_empty() {
        value.push(":");
    }
    value.push(path);
    Ok(value)
}

//! The preload library: embedded here, written into the private `/dev`, and named to the dynamic linker there.
//!
//! The file is on a file system in memory that disappears with the namespace. The user's own `LD_PRELOAD` is for the
//! program: this process executes itself again without it.
//!
//! Source: `docs/decisions/embedded-library.md`; ld.so(8).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::namespace::PRIVATE;

/// Empty only in builds that are checked and not linked.
static LIBRARY: &[u8] = memferry_emulate_embed::preload_library!(memferry_emulate_preload);

/// Its file name. `ldd` and error messages of the dynamic linker show it.
const NAME: &str = "libmemferry_emulate_preload.so";

/// The variable of the dynamic linker.
const PRELOAD: &str = "LD_PRELOAD";
/// The value that the user has set, while this process runs without it.
const SAVED: &str = "MEMFERRY_EMULATE_LD_PRELOAD";

/// Executes this program again without the libraries that the user preloads, if there are any.
///
/// Such a library would act on the emulated devices in this process, too. For example, one that replaces `memcpy` by a
/// submission would open a queue in the thread that answers requests to open queues, and wait for itself.
///
/// Returns if there is nothing to leave out, or if the program cannot be executed again.
pub(crate) fn leave_out_libraries() {
    let Some(value) = std::env::var_os(PRELOAD).filter(|value| !value.is_empty()) else { return };
    // A preload library of an outer emulation puts itself there again.
    if std::env::var_os(SAVED).is_some() {
        return;
    }
    // By its path, because the kernel names the process by it; a replaced program has none.
    let path = std::env::current_exe().ok().filter(|path| path.exists());
    let mut arguments = std::env::args_os();
    let mut command = Command::new(path.unwrap_or_else(|| "/proc/self/exe".into()));
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let error = command.args(arguments).env_remove(PRELOAD).env(SAVED, value).exec();
    eprintln!(
        "memferry: cannot run without the libraries in LD_PRELOAD: {error}; they run in memferry's own processes too"
    );
}

/// Sets the environment of the program: the libraries of the user, and `library` behind them.
pub(crate) fn set_environment(command: &mut Command, library: Option<OsString>) {
    let value = std::env::var_os(SAVED).or_else(|| std::env::var_os(PRELOAD)).unwrap_or_default();
    let paths = [Some(value), library].into_iter().flatten().filter(|path| !path.is_empty());
    let value = paths.collect::<Vec<_>>().join(OsStr::new(":"));
    match value.is_empty() {
        true => command.env_remove(PRELOAD),
        false => command.env(PRELOAD, value),
    };
    command.env_remove(SAVED);
}

/// Writes the library, which all users of the namespace may load, and returns its path. It comes behind the libraries of the
/// user, which see calls first, as without the emulation.
pub(crate) fn install() -> io::Result<OsString> {
    let path = Path::new(PRIVATE).join(NAME);
    fs::write(&path, LIBRARY)?;
    // Independent of the umask.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o555))?;
    Ok(path.into())
}

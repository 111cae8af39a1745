//! Modules of the kernel, loaded from the image.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::plan;

/// Loads modules of the image, in this order.
pub(super) fn load_all(names: &[String]) -> Result<(), String> {
    names.iter().try_for_each(|name| {
        load(&Path::new(plan::MODULES).join(name)).map_err(|error| format!("module {name}: {error}"))
    })
}

fn load(file: &Path) -> io::Result<()> {
    let file = File::open(file)?;
    // SAFETY: the descriptor is open, and the parameters are an empty string that ends in NUL.
    let code = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

//! The C program of the benchmark, as a loaded library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = include_str!("hits.c");

/// The loaded program, with its cache filled.
pub(super) struct Program {
    handle: *mut c_void,
    hits: unsafe extern "C" fn(*const u32, usize, usize) -> c_int,
    block_bytes: usize,
}

impl Program {
    /// Compiles the program with `cc` against the library below `prefix`, loads it, and fills its cache.
    pub(super) fn load(prefix: &Path, keys_count: usize, block_bytes: usize) -> Result<Program, String> {
        let header = prefix.join("include/memferry.h");
        if !header.is_file() {
            return Err(format!(
                "there is no {}; run `cargo xtask install-c --prefix {}`, or pass another --prefix",
                header.display(),
                prefix.display()
            ));
        }
        let directory =
            tempfile::tempdir().map_err(|error| format!("cannot make a temporary directory: {error}"))?;
        let source = directory.path().join("hits.c");
        std::fs::write(&source, SOURCE)
            .map_err(|error| format!("cannot write {}: {error}", source.display()))?;
        let built = directory.path().join("hits.so");
        let libraries = prefix.join("lib");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-std=gnu11", "-shared", "-fPIC"]).arg(&source).arg("-o").arg(&built);
        compiler.arg("-I").arg(prefix.join("include")).arg("-L").arg(&libraries).arg("-lmemferry");
        compiler.arg(format!("-Wl,-rpath,{}", libraries.display()));
        let output = compiler
            .output()
            .map_err(|error| format!("cannot run cc: {error}; install a C compiler, such as gcc"))?;
        if !output.status.success() {
            return Err(format!("cc failed: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let path = CString::new(built.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: a C string. The initialisers of the library are those of Rust's standard library.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: after a failed call, it returns a C string.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(format!("cannot load the program: {}", why.to_string_lossy()));
        }
        // SAFETY: hits.c defines the functions with these types.
        let (set_up, hits) = unsafe {
            (
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(usize, usize) -> c_int>(symbol(
                    handle,
                    c"bench_set_up",
                )?),
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const u32, usize, usize) -> c_int>(
                    symbol(handle, c"bench_hits")?,
                ),
            )
        };
        // From here on the drop frees what was made.
        let program = Program { handle, hits, block_bytes };
        // SAFETY: a function of the program, called once.
        program.check("setting up the cache", unsafe { set_up(keys_count, block_bytes) })?;
        Ok(program)
    }

    /// Makes hits on the blocks `keys`, which are below the number of blocks.
    pub(super) fn hits(&self, keys: &[u32]) -> Result<(), String> {
        // SAFETY: the array has this length, and the cache is set up.
        let status = unsafe { (self.hits)(keys.as_ptr(), keys.len(), self.block_bytes) };
        self.check("a hit", status)
    }

    fn check(&self, what: &str, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        let message = symbol(self.handle, c"mf_error_message")?;
        // SAFETY: the library below defines the function, which returns a C string.
        let message = unsafe {
            CStr::from_ptr(std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(message)())
        };
        Err(format!("{what} failed in C with status {status}: {}", message.to_string_lossy()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(tear_down) = symbol(self.handle, c"bench_tear_down") {
            // SAFETY: hits.c defines it. Handles that were not made are refused. The library stays loaded: its threads run on.
            let _status =
                unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(tear_down)() };
        }
    }
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: an open library and a C string.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if symbol.is_null() { Err(format!("the program has no {}", name.to_string_lossy())) } else { Ok(symbol) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let error = Program::load(Path::new("/nowhere"), 1, 4096).err().unwrap();
        assert!(error.contains("/nowhere/include/memferry.h") && error.contains("install-c"), "{error}");
    }
}

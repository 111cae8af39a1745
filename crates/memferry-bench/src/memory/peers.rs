//! The same loops in C, compiled at run time for this CPU.
//!
//! They are functions of a shared library in this process, so that both sides use the same memory and the same threads: the
//! place of pages and CPUs cannot make a difference.

use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;
use std::{fs, io};

use super::chain::{Chain, Line};
use super::kernels::LINE_BYTES;

const SOURCE: &str = include_str!("peers.c");
/// Optimised as a user of STREAM would; all of the CPU's vectors.
const FLAGS: [&str; 5] = ["-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared"];
const WORD_BYTES: usize = size_of::<u64>();

type ReadLoop = unsafe extern "C" fn(*const u64, usize) -> u64;
type WriteLoop = unsafe extern "C" fn(*mut u64, usize, u64);
type CopyLoop = unsafe extern "C" fn(*mut f64, *const f64, usize);
type MixLoop = unsafe extern "C" fn(*mut u64, usize) -> u64;
type FollowLoop = unsafe extern "C" fn(*const Line, usize) -> *const Line;

/// The loops in C. Their library stays loaded until the process ends.
#[derive(Debug)]
pub struct Peers {
    read: ReadLoop,
    write: WriteLoop,
    copy: CopyLoop,
    mix: MixLoop,
    follow: FollowLoop,
    compiler: String,
}

/// The reason for rows without a peer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoPeers {
    /// The compiler cannot be started.
    #[error("{compiler} cannot be run ({source}); install a C compiler, such as gcc")]
    NoCompiler {
        /// Its name.
        compiler: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The compiler failed.
    #[error("{compiler} failed: {message}")]
    NotCompiled {
        /// Its name.
        compiler: String,
        /// Its output.
        message: String,
    },
    /// The library cannot be built in a temporary directory.
    #[error(
        "no library can be built in a temporary directory ({0}); set TMPDIR to a directory with free space"
    )]
    Directory(#[from] io::Error),
    /// The library cannot be loaded.
    #[error(
        "the compiled library cannot be loaded ({0}); set TMPDIR to a directory without noexec, and use a memferry that is \
         linked dynamically"
    )]
    NotLoaded(String),
}

impl Peers {
    /// Compiles the loops with `compiler`, such as `cc`, and loads them.
    ///
    /// # Errors
    /// [`NoPeers`]
    pub fn compile(compiler: &str) -> Result<Peers, NoPeers> {
        let directory = tempfile::tempdir()?;
        let source = directory.path().join("peers.c");
        fs::write(&source, SOURCE)?;
        let library = directory.path().join("peers.so");
        let run = |command: &mut Command| {
            let failed = |source| NoPeers::NoCompiler { compiler: compiler.to_owned(), source };
            command.output().map_err(failed)
        };
        let output = run(Command::new(compiler).args(FLAGS).arg(&source).arg("-o").arg(&library))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
            return Err(NoPeers::NotCompiled { compiler: compiler.to_owned(), message });
        }
        let version = run(Command::new(compiler).arg("--version"))?;
        let version = String::from_utf8_lossy(&version.stdout);
        let version = version.lines().next().unwrap_or(compiler).trim();
        Peers::load(&library, format!("{version}, {}", FLAGS[..3].join(" ")))
    }

    fn load(library: &Path, compiler: String) -> Result<Peers, NoPeers> {
        let path = CString::new(library.as_os_str().as_bytes()).map_err(io::Error::from)?;
        // SAFETY: the library has no constructors, and the path ends with a zero.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).ok_or_else(|| NoPeers::NotLoaded(loader_message()))?;
        let symbol = |name: &CStr| {
            // SAFETY: the handle is that of a loaded library, and the name ends with a zero.
            let symbol = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
            NonNull::new(symbol).ok_or_else(|| NoPeers::NotLoaded(loader_message()))
        };
        let symbols = [c"peer_read", c"peer_write", c"peer_copy", c"peer_mix", c"peer_follow"].map(symbol);
        let [read, write, copy, mix, follow] = symbols;
        // SAFETY: the functions of peers.c have these types, and the library is never unloaded.
        unsafe {
            Ok(Peers {
                read: std::mem::transmute::<NonNull<c_void>, ReadLoop>(read?),
                write: std::mem::transmute::<NonNull<c_void>, WriteLoop>(write?),
                copy: std::mem::transmute::<NonNull<c_void>, CopyLoop>(copy?),
                mix: std::mem::transmute::<NonNull<c_void>, MixLoop>(mix?),
                follow: std::mem::transmute::<NonNull<c_void>, FollowLoop>(follow?),
                compiler,
            })
        }
    }

    /// The compiler's version and options.
    pub fn compiler(&self) -> &str {
        &self.compiler
    }

    /// [`Loops::read`](super::kernels::Loops::read) of whole words.
    pub(super) fn read(&self, bytes: &[u8]) -> u64 {
        let words_count = words_count(bytes);
        // SAFETY: it reads that many words from an aligned address.
        unsafe { (self.read)(bytes.as_ptr().cast(), words_count) }
    }

    /// Writes each word.
    pub(super) fn write(&self, bytes: &mut [u8], value: u8) {
        let words_count = words_count(bytes);
        // SAFETY: it writes that many words from an aligned address on.
        unsafe {
            (self.write)(bytes.as_mut_ptr().cast(), words_count, u64::from_ne_bytes([value; WORD_BYTES]))
        }
    }

    /// Copies each word. Panics if the lengths differ.
    pub(super) fn copy(&self, source: &[u8], target: &mut [u8]) {
        let words_count = words_count(source);
        assert_eq!(words_count, self::words_count(target), "a copy is as long as its source");
        // SAFETY: it reads and writes that many words from aligned addresses on, and a shared and an exclusive borrow do
        // not overlap.
        unsafe { (self.copy)(target.as_mut_ptr().cast(), source.as_ptr().cast(), words_count) }
    }

    /// [`Loops::mix`](super::kernels::Loops::mix).
    pub(super) fn mix(&self, bytes: &mut [u8]) -> u64 {
        words_count(bytes);
        // SAFETY: it reads and writes the words of that many pairs of lines from an aligned address on.
        unsafe { (self.mix)(bytes.as_mut_ptr().cast(), bytes.len() / (2 * LINE_BYTES)) }
    }

    /// [`Chain::follow`].
    pub(super) fn follow(&self, chain: &Chain, from: usize, steps: usize) -> usize {
        // SAFETY: it begins at a line of the chain, whose pointers all lead to lines of the chain.
        chain.number(unsafe { (self.follow)(chain.address(from), steps) })
    }
}

/// The number of words. Panics if the bytes are not whole words at an aligned address.
fn words_count(bytes: &[u8]) -> usize {
    let is_aligned = bytes.as_ptr().cast::<u64>().is_aligned();
    assert!(is_aligned && bytes.len().is_multiple_of(WORD_BYTES), "whole words, aligned");
    bytes.len() / WORD_BYTES
}

fn loader_message() -> String {
    // SAFETY: the message, if there is one, ends with a zero and stays until the next call of this thread.
    let message = unsafe { libc::dlerror().as_ref().map(|message| CStr::from_ptr(message)) };
    message.map_or("unknown reason".to_owned(), |message| message.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use memferry::memory::{Binding, HugePages, Mapping};
    use memferry::topology::Machine;
    use memferry_testing::{Needs, skip};

    use super::*;
    use crate::harness::Random;
    use crate::memory::kernels::{self, Loops};

    /// The C loops do what ours do, so that they are compared with equal work.
    #[test]
    fn the_loops_in_c_do_the_same() {
        let peers = match Peers::compile("cc") {
            Ok(peers) => peers,
            Err(why) => return skip(Needs::Program("cc"), why),
        };
        assert!(peers.compiler().contains("-O3"), "{}", peers.compiler());
        let machine = Machine::discover().unwrap();
        let mapping = || Mapping::new(&machine, 1 << 20, Binding::Any).unwrap();
        let mut random = Random(3);
        let (mut source, mut ours, mut theirs) = (mapping(), mapping(), mapping());
        source.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);

        let loops = Loops::fastest(&source);
        assert_eq!(peers.read(&source), loops.read(&source));
        peers.copy(&source, &mut theirs);
        assert!(source[..] == theirs[..]);
        ours.copy_from_slice(&source);
        assert_eq!(peers.mix(&mut theirs), loops.mix(&mut ours));
        assert!(ours[..] == theirs[..] && source[..] != theirs[..]);
        peers.write(&mut theirs, 9);
        kernels::write(&mut ours, 9);
        assert!(ours[..] == theirs[..]);

        let node = machine.nodes().iter().find(|node| node.has_memory() && node.is_allowed).unwrap().id;
        let chain = Chain::new(&machine, node, 1 << 20, HugePages::AsSystem, 5).unwrap();
        for steps in [0, 1, 15, 16, 17, 1000] {
            assert_eq!(peers.follow(&chain, 77, steps), chain.follow(77, steps), "{steps} steps");
        }
    }

    #[test]
    fn reasons_for_no_peers() {
        let error = Peers::compile("no-such-compiler").unwrap_err().to_string();
        assert!(error.contains("no-such-compiler cannot be run") && error.contains("install"), "{error}");
        let error = Peers::compile("false").unwrap_err().to_string();
        assert!(error.contains("false failed"), "{error}");
        let error = Peers::load(Path::new("/nowhere/peers.so"), String::new()).unwrap_err().to_string();
        assert!(error.contains("/nowhere/peers.so") && error.contains("TMPDIR"), "{error}");
    }
}

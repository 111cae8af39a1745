//! Environments of new programs: each has this library in `LD_PRELOAD`.
//!
//! ```text
//! LD_PRELOAD=/lib/user.so   ->   LD_PRELOAD=/lib/user.so:/dev/.memferry/libmemferry_emulate_preload.so
//! no LD_PRELOAD             ->   LD_PRELOAD=/dev/.memferry/libmemferry_emulate_preload.so
//! ```
//!
//! The library comes last, so libraries of the user see calls first, as without the emulation.
//!
//! A changed environment is built on the stack, or in mapped pages if it is large: the caller may be a signal handler or
//! a child of vfork, where malloc is not safe.
//!
//! Source: ld.so(8).

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::{process, sys};

/// Pointers to strings, ended by a null, as exec takes them.
pub(super) type Strings = *const *const c_char;

const VARIABLE: &[u8] = b"LD_PRELOAD=";
/// Words of an environment that is built on the stack: a thread with a small stack has room for it, and few environments
/// are larger.
const STACK_WORDS: usize = 768;

/// The path of this library, as the dynamic linker knows it. Written once by `prepare`.
static LIBRARY: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());

/// Asks the dynamic linker for the path of this library, which must not be done in a signal handler.
pub(super) fn prepare() {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let here = prepare as fn() as *const libc::c_void;
    // SAFETY: it fills in the structure. Zeros are valid in it.
    let found = unsafe {
        libc::dladdr(here, found.as_mut_ptr());
        found.assume_init()
    };
    // ORDERING: Release pairs with the Acquire in `library`: the string is complete.
    LIBRARY.store(found.dli_fname.cast_mut(), Ordering::Release);
}

/// The path of this library; `None` if it is unknown, or if this process does not see the file: it would not be loaded.
fn library() -> Option<&'static CStr> {
    // ORDERING: Acquire pairs with the Release in `prepare`: the string is complete.
    let path = LIBRARY.load(Ordering::Acquire);
    if path.is_null() {
        return None;
    }
    // SAFETY: the dynamic linker keeps the string as long as the library is loaded.
    let path = unsafe { CStr::from_ptr(path) };
    // SAFETY: it reads the path.
    let answer =
        unsafe { sys::call(libc::SYS_access, [path.as_ptr() as usize, libc::R_OK as usize, 0, 0, 0, 0]) };
    (answer == 0).then_some(path)
}

/// Calls a function with an environment that loads this library: the given one, or a changed copy of it.
///
/// # Safety
/// `environment` is null, or an environment that does not change during the call.
pub(super) unsafe fn with_library(environment: Strings, call: impl FnOnce(Strings) -> c_int) -> c_int {
    if !process::is_active() {
        return call(environment);
    }
    // SAFETY: by the contract of this function.
    let Some(change) = (unsafe { Change::of(environment) }) else { return call(environment) };
    let words = change.words();
    if words <= STACK_WORDS { on_stack(&change, call) } else { in_pages(&change, words, call) }
}

/// A function of its own, so that an unchanged environment takes no stack.
#[inline(never)]
fn on_stack(change: &Change<'_>, call: impl FnOnce(Strings) -> c_int) -> c_int {
    let mut room = [0usize; STACK_WORDS];
    call(change.build(&mut room))
}

/// After a successful exec in a child of vfork, the pages stay mapped in its parent.
fn in_pages(change: &Change<'_>, words: usize, call: impl FnOnce(Strings) -> c_int) -> c_int {
    let bytes = words * size_of::<usize>();
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let Ok(pages) = usize::try_from(unsafe { sys::mmap(0, bytes, protection, flags, -1, 0) }) else {
        return call(change.environment); // exec needs more memory than this
    };
    // SAFETY: the pages were just mapped, with this length, and nothing else refers to them.
    let room = unsafe { std::slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(pages), words) };
    let answer = call(change.build(room));
    // SAFETY: the pages were mapped above, and the call has returned.
    unsafe { sys::munmap(pages, bytes) };
    answer
}

/// How an environment must change to load this library.
struct Change<'a> {
    environment: Strings,
    /// Number of its strings.
    count: usize,
    /// The position of the variable that the dynamic linker uses, which is the last one; `count` if there is none.
    position: usize,
    /// The libraries of the user.
    before: &'a [u8],
    library: &'a [u8],
}

impl<'a> Change<'a> {
    /// `None`: the environment already loads the library, or the library is not to be loaded.
    ///
    /// # Safety
    /// As [`with_library`].
    unsafe fn of(environment: Strings) -> Option<Change<'a>> {
        let (mut count, mut found) = (0, None);
        // SAFETY: the environment ends with a null and consists of strings. It does not change meanwhile.
        unsafe {
            while !environment.is_null() && !(*environment.add(count)).is_null() {
                let text = CStr::from_ptr(*environment.add(count)).to_bytes();
                found = text.strip_prefix(VARIABLE).map(|value| (count, value)).or(found);
                count += 1;
            }
        }
        let (position, before) = found.unwrap_or((count, b""));
        let library = library()?.to_bytes();
        let is_there = before.split(|byte| matches!(byte, b':' | b' ')).any(|path| path == library);
        (!is_there).then_some(Change { environment, count, position, before, library })
    }

    /// Words of the new environment: the pointers, and then the variable.
    fn words(&self) -> usize {
        let text = VARIABLE.len() + self.before.len() + 1 + self.library.len() + 1;
        self.count + 2 + text.div_ceil(size_of::<usize>())
    }

    /// Builds the new environment in zeroed memory of [`words`](Self::words).
    fn build(&self, room: &mut [usize]) -> Strings {
        let (pointers, text) = room.split_at_mut(self.count + 2);
        for (at, pointer) in pointers[..self.count].iter_mut().enumerate() {
            // SAFETY: the environment has `count` strings.
            *pointer = unsafe { *self.environment.add(at) }.expose_provenance();
        }
        pointers[self.position] = text.as_mut_ptr().expose_provenance();
        let separator: &[u8] = if self.before.is_empty() { b"" } else { b":" };
        let bytes = [VARIABLE, self.before, separator, self.library].into_iter().flatten();
        for (at, byte) in bytes.enumerate() {
            text[at / size_of::<usize>()] |= usize::from(*byte) << (at % size_of::<usize>() * 8);
        }
        pointers.as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The strings of a changed environment.
    fn changed(strings: &[&CStr], library: &str) -> Vec<String> {
        let mut pointers: Vec<*const c_char> = strings.iter().map(|string| string.as_ptr()).collect();
        pointers.push(ptr::null());
        let value = strings
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, string)| Some((at, string.to_bytes().strip_prefix(VARIABLE)?)));
        let (position, before) = value.unwrap_or((strings.len(), b""));
        let environment = pointers.as_ptr();
        let change =
            Change { environment, count: strings.len(), position, before, library: library.as_bytes() };
        let mut room = vec![0; change.words()];
        let built = change.build(&mut room);
        let mut texts = Vec::new();
        // SAFETY: it was built as an environment, and `room` lives.
        unsafe {
            while !(*built.add(texts.len())).is_null() {
                texts.push(CStr::from_ptr(*built.add(texts.len())).to_str().unwrap().to_owned());
            }
        }
        texts
    }

    #[test]
    fn the_library_is_appended() {
        assert_eq!(changed(&[], "/x.so"), ["LD_PRELOAD=/x.so"]);
        assert_eq!(changed(&[c"A=1", c"B"], "/x.so"), ["A=1", "B", "LD_PRELOAD=/x.so"]);
        assert_eq!(changed(&[c"LD_PRELOAD=", c"B"], "/x.so"), ["LD_PRELOAD=/x.so", "B"]);
        assert_eq!(
            changed(&[c"A=1", c"LD_PRELOAD=/u.so:v.so", c"B=2"], "/0123456.so"),
            ["A=1", "LD_PRELOAD=/u.so:v.so:/0123456.so", "B=2"]
        );
    }
}

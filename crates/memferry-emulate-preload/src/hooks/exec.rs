//! Hooks of exec and posix_spawn: a new program loads this library too, whatever environment it is given.
//!
//! libc's functions call each other without going through hooks, so each function has its own. Those that take the
//! arguments one by one are stubs, because Rust cannot define functions with variable arguments.
//!
//! The hooks are async-signal-safe, and usable in a child of vfork, like the functions. They cannot reach programs that
//! libc itself starts (`system`, `popen`): those get the environment of this program.

use std::arch::naked_asm;
use std::ffi::c_char;
use std::mem::transmute;

use libc::{c_int, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use super::environment::{Strings, with_library};
use super::next::Next;
use crate::sys;

type Execve = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type Execveat = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
type Fexecve = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const posix_spawn_file_actions_t,
    *const posix_spawnattr_t,
    Strings,
    Strings,
) -> c_int;

static EXECVE: Next = Next::new(c"execve");
static EXECVPE: Next = Next::new(c"execvpe");
static EXECVEAT: Next = Next::new(c"execveat");
static FEXECVE: Next = Next::new(c"fexecve");
static POSIX_SPAWN: Next = Next::new(c"posix_spawn");
static POSIX_SPAWNP: Next = Next::new(c"posix_spawnp");

/// See [`super::prepare`].
pub(super) fn prepare() {
    [&EXECVE, &EXECVPE, &EXECVEAT, &FEXECVE, &POSIX_SPAWN, &POSIX_SPAWNP]
        .iter()
        .for_each(|next| _ = next.address());
    super::environment::prepare();
}

/// The environment of this program.
fn own_environment() -> Strings {
    unsafe extern "C" {
        static mut environ: Strings;
    }
    // SAFETY: libc's functions read the pointer in the same way, without a lock.
    unsafe { (&raw const environ).read() }
}

/// execve(2) for all hooks that take a path. Not a hook itself: calls of one could reach another library.
///
/// # Safety
/// As execve(2).
unsafe fn execute(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let call = |environment: Strings| match EXECVE.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Execve>(next)(path, arguments, environment) },
        None => {
            let arguments = [path as usize, arguments as usize, environment as usize, 0, 0, 0];
            // SAFETY: passed on.
            sys::to_libc(unsafe { sys::call(libc::SYS_execve, arguments) }) as c_int
        }
    };
    // SAFETY: the caller passes an environment.
    unsafe { with_library(environment, call) }
}

/// # Safety
/// As execve(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: passed on.
    unsafe { execute(path, arguments, environment) }
}

/// # Safety
/// As execv(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { execute(path, arguments, own_environment()) }
}

/// execvpe(3) for all hooks that search a file in PATH.
///
/// # Safety
/// As execvpe(3).
unsafe fn find_and_execute(file: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let call = |environment: Strings| match EXECVPE.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Execve>(next)(file, arguments, environment) },
        None => sys::to_libc(-(libc::ENOSYS as isize)) as c_int, // libc always has it
    };
    // SAFETY: the caller passes an environment.
    unsafe { with_library(environment, call) }
}

/// # Safety
/// As execvpe(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: passed on.
    unsafe { find_and_execute(file, arguments, environment) }
}

/// # Safety
/// As execvp(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { find_and_execute(file, arguments, own_environment()) }
}

/// # Safety
/// As execveat(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    let call = |environment: Strings| match EXECVEAT.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe {
            transmute::<usize, Execveat>(next)(directory, path, arguments, environment, flags)
        },
        None => {
            let (directory, path) = (directory as usize, path as usize);
            let arguments = [directory, path, arguments as usize, environment as usize, flags as usize, 0];
            // SAFETY: passed on.
            sys::to_libc(unsafe { sys::call(libc::SYS_execveat, arguments) }) as c_int
        }
    };
    // SAFETY: the caller passes an environment.
    unsafe { with_library(environment, call) }
}

/// # Safety
/// As fexecve(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn fexecve(file: c_int, arguments: Strings, environment: Strings) -> c_int {
    let call = |environment: Strings| match FEXECVE.address() {
        // SAFETY: the symbol has this type; the rest is passed on.
        Some(next) => unsafe { transmute::<usize, Fexecve>(next)(file, arguments, environment) },
        None => sys::to_libc(-(libc::ENOSYS as isize)) as c_int, // libc always has it
    };
    // SAFETY: the caller passes an environment.
    unsafe { with_library(environment, call) }
}

/// Hooks of the two functions that start a child.
macro_rules! spawns {
    ($($name:ident $next:ident)*) => {
        $(
            /// # Safety
            /// As the function of that name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(crate) unsafe extern "C" fn $name(
                child: *mut pid_t,
                file: *const c_char,
                actions: *const posix_spawn_file_actions_t,
                attributes: *const posix_spawnattr_t,
                arguments: Strings,
                environment: Strings,
            ) -> c_int {
                let call = |environment: Strings| match $next.address() {
                    // SAFETY: the symbol has this type; the rest is passed on.
                    Some(next) => unsafe {
                        transmute::<usize, Spawn>(next)(child, file, actions, attributes, arguments, environment)
                    },
                    None => libc::ENOSYS, // libc always has it
                };
                // SAFETY: the caller passes an environment.
                unsafe { with_library(environment, call) }
            }
        )*
    };
}
spawns! { posix_spawn POSIX_SPAWN  posix_spawnp POSIX_SPAWNP }

/// Stubs that collect the arguments behind the first one in an array, as the vector functions want them: the registers
/// are pushed below the arguments on the stack, in the place of the return address.
macro_rules! lists {
    ($($name:ident = $function:ident)*) => {
        $(
            /// # Safety
            /// As the function of that name. The arguments behind `first` are not declared.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub(crate) unsafe extern "C" fn $name(path: *const c_char, first: *const c_char) -> c_int {
                naked_asm!(
                    "pop rax", // the return address
                    "push r9",
                    "push r8",
                    "push rcx",
                    "push rdx",
                    "push rsi",
                    "mov rsi, rsp",
                    "push rax", // the stack is aligned for a call
                    "call {function}",
                    "pop rcx",
                    "add rsp, 40",
                    "push rcx",
                    "ret",
                    function = sym $function,
                )
            }
        )*
    };
}
lists! { execl = list  execlp = find_list  execle = list_and_environment }

/// execl(3) with its arguments in an array.
///
/// # Safety
/// As execl(3).
unsafe extern "C" fn list(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { execute(path, arguments, own_environment()) }
}

/// execlp(3) with its arguments in an array.
///
/// # Safety
/// As execlp(3).
unsafe extern "C" fn find_list(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { find_and_execute(file, arguments, own_environment()) }
}

/// execle(3) with its arguments in an array: the environment is behind the null that ends them.
///
/// # Safety
/// As execle(3).
unsafe extern "C" fn list_and_environment(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller has passed arguments, a null and an environment.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execute(path, arguments, (*end.add(1)).cast())
    }
}

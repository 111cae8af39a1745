//! Programs with the preload library, on this machine and on emulated devices.

mod common;
mod emulated;
mod notes;
mod place;
mod programs;
mod python;
mod redis;
mod scripts;

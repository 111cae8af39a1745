//! The tests of programs on emulated devices: linking one program takes less time than linking many.

mod address_spaces;
mod boundary;
mod clients;
mod emulator;
mod foreign;
mod hardware_path;
mod inside;
mod pci;
mod preloads;
mod requests;
mod supervision;
mod unprivileged;
mod vendors;

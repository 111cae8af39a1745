//! The PCI functions of the devices, for programs that read their configuration space.

use std::fs;
use std::path::Path;
use std::process::Command;

use memferry_testing::{Needs, skip};

use crate::emulator::{emulate, emulate_script, is_available, is_inside, text};

const FUNCTIONS: &str = "/sys/bus/pci/devices";

#[test]
fn the_functions_are_among_those_of_the_machine() {
    if !is_inside("--devices 2", "pci::the_functions_are_among_those_of_the_machine") {
        return;
    }
    let names = fs::read_dir(FUNCTIONS).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    for name in ["0000:6a:01.0", "0000:6f:01.0"] {
        assert!(names.iter().any(|found| found == name), "{names:?}");
    }
    // Also the real ones, whose links were copied.
    for name in &names {
        let vendor = fs::read_to_string(Path::new(FUNCTIONS).join(name).join("vendor")).unwrap();
        assert!(vendor.starts_with("0x"), "{name}: {vendor}");
    }
    let function = Path::new(FUNCTIONS).join("0000:6f:01.0");
    let config = fs::read(function.join("config")).unwrap();
    assert_eq!((config.len(), &config[..4]), (4096, &[0x86, 0x80, 0x25, 0x0b][..]));
    assert!(function.join("dsa2/wq2.0/size").is_file(), "the device is below its function");
    let refused = fs::OpenOptions::new().write(true).open(function.join("config")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
}

/// The functions of this machine stay visible.
#[test]
fn the_functions_of_the_machine_stay() {
    if !is_available() {
        return;
    }
    let output = emulate("", &["ls", FUNCTIONS]).output().unwrap();
    let told = text(&output);
    assert!(output.status.success(), "{told}");
    for entry in fs::read_dir(FUNCTIONS).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap();
        assert!(told.lines().any(|line| line == name), "{name} is not in:\n{told}");
    }
}

/// The tools of the distribution.
#[test]
fn setpci_and_lspci() {
    if Command::new("setpci").arg("--version").output().is_err() {
        return skip(Needs::Program("setpci"), "setpci is not installed; `cargo xtask setup` does it");
    }
    if !is_available() {
        return;
    }
    let read = |register: &str| {
        let output = emulate("", &["setpci", "-s", "6a:01.0", register]).output().unwrap();
        assert!(output.status.success(), "{register}: {}", text(&output));
        text(&output).trim().to_owned()
    };
    for (register, value) in [
        ("0.l", "0b258086"),
        ("168.l", "00000000"),        // TPH Requester Control
        ("ECAP_TPH+8.l", "00000000"), // the same
        ("ECAP_ATS+6.w", "8000"),
        ("ECAP_PASID+6.w", "0005"),
        ("ECAP_PRI+4.w", "0001"),
        ("CAP_MSIX+2.w", "8008"),
    ] {
        assert_eq!(read(register), value, "{register}");
    }
    let listed = emulate_script("", "lspci -D -n; lspci -s 6a:01.0 -vvv").output().unwrap();
    let told = text(&listed);
    assert!(listed.status.success(), "{told}");
    for part in [
        "0000:6a:01.0 0880: 8086:0b25",
        "Root Complex Integrated Endpoint",
        "MSI-X: Enable+ Count=9",
        "Process Address Space ID (PASID)",
        "PASIDCtl: Enable+",
        "Page Request Interface (PRI)",
        "[size=64K]",
        "[size=128K]",
    ] {
        assert!(told.contains(part), "{part:?} is not in:\n{told}");
    }
    assert!(!told.contains("pcilib"), "{told}");
}

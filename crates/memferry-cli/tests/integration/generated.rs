//! What the command generates from its own definition: completions and manual pages.

use std::fs;
use std::process::Command;

use crate::support::{FAILURE, USAGE, fails, prints, text};

#[test]
fn bash_completes_commands_options_and_values() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("memferry");
    fs::write(&script, prints(&["completions", "bash"])).unwrap();
    let replies = |words: &str| {
        let last = words.rsplit(' ').next().unwrap();
        let complete = format!(
            "set -eu; source '{}'; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _memferry memferry '{last}' \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[*]}}\"",
            script.display()
        );
        let output = Command::new("bash").args(["-c", &complete]).output().unwrap();
        assert!(output.status.success(), "{words}: {}", text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    };
    assert_eq!(replies("memferry topo"), "topology");
    assert_eq!(replies("memferry emulate --ti"), "--timing");
    assert_eq!(replies("memferry sql --dsa emu"), "emulated");
    assert_eq!(replies("memferry bench soa"), "soak");
}

#[test]
fn each_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = prints(&["completions", shell]);
        assert!(script.contains("topology") && script.contains("json"), "{shell}:\n{script}");
    }
    fails(&["completions", "csh"], USAGE, &["csh"]);
}

#[test]
fn manual_pages_replace_older_ones() {
    let directory = tempfile::tempdir().unwrap();
    let man = directory.path().join("share/man1");
    let path = man.to_str().unwrap();
    let printed = prints(&["man", path]);
    let pages = fs::read_dir(&man).unwrap().count();
    assert_eq!(printed, format!("{pages} pages written to {path}\n"));
    let page = fs::read_to_string(man.join("memferry-sql.1")).unwrap();
    for part in [".TH memferry-sql 1", ".SH OPTIONS", "\\-\\-prefetch", "memferry 0."] {
        assert!(page.contains(part), "{part} is not in:\n{page}");
    }
    fs::write(man.join("memferry-sql.1"), "an older one").unwrap();
    prints(&["man", path]);
    assert_eq!(fs::read_to_string(man.join("memferry-sql.1")).unwrap(), page);
}

#[test]
fn pages_need_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    fails(
        &["man", file.to_str().unwrap()],
        FAILURE,
        &["cannot write the manual pages to", "choose a directory"],
    );
    fails(&["man"], USAGE, &["required arguments"]);
}

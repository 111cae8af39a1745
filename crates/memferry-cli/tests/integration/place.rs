//! `memferry place` as users see it. The crate memferry-offload tests the library, also on several nodes.

use std::process::Command;

use memferry::Machine;
use memferry_testing::{Needs, skip};

use crate::support::{USAGE, memferry, text};

fn with_memory() -> usize {
    Machine::discover().unwrap().nodes().iter().filter(|node| node.has_memory() && node.is_allowed).count()
}

/// There is nothing to choose, and the program runs as it is.
#[test]
fn one_node_is_said_plainly() {
    if with_memory() > 1 {
        return skip(Needs::Nodes, "this machine has several nodes");
    }
    let output = memferry(&["place", "--", "sh", "-c", "echo ran $LD_PRELOAD; exit 5"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(5), "ran\n".to_owned()));
    let told = text(&output.stderr);
    assert!(told.contains("one node with memory (node 0), so there is nothing to place"), "{told}");
}

#[test]
fn mistakes_are_named() {
    let error = |arguments: &[&str]| {
        let output = memferry(&[&["place"], arguments, &["--", "true"]].concat()).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let cases: [(&[&str], &str); 6] = [
        (&["--nodes", "977"], "no node 977"),
        (&["--weights", "977=3"], "no node 977"),
        (&["--weights", "0=0"], "from 1 to 255"),
        (&["--weights", "0=256"], "from 1 to 255"),
        (&["--on", "977"], "no node 977"),
        (&["--file", "x=odd"], "a pattern and a policy"),
    ];
    for (arguments, words) in cases {
        let (status, told) = error(arguments);
        assert!(status == Some(USAGE) && told.contains(words), "{arguments:?}: {status:?} {told}");
    }
}

#[test]
fn a_missing_program_has_the_status_of_a_shell() {
    let status = |program: &str| -> Option<i32> {
        let mut command: Command = memferry(&["place", "--", program]);
        command.output().unwrap().status.code()
    };
    assert_eq!((status("a-name-that-nobody-uses"), status("/tmp")), (Some(127), Some(126)));
}

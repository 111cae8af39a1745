//! The command line of `memferry place`. [`plan`] chooses nodes and weights, the crate `memferry-offload` executes the
//! program.

mod plan;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use anyhow::{Context, Result};
use memferry::internals::{interleave_weights, parse_id_list};
use memferry::topology::NodeId;
use memferry_offload::Summary;
use memferry_offload::place::{Options, Policy, execute, execute_plainly};

use crate::error::usage;
use crate::options::size_bytes;
use crate::topology;

const AFTER_HELP: &str = "\
POLICY: `interleave` puts memory on several nodes by weights; `first-touch` leaves each page on the node of the thread that
touches it first; `leave` does nothing; `replicate`, for files only, copies a read-only mapping to the node of the process.

Weights: those of --weights, or the bandwidths of a calibration or of a published profile of such a machine (--calibration),
or the kernel's (/sys/kernel/mm/mempolicy/weighted_interleave), or equal ones.

The program takes the place of this command. Memory that is smaller than --min-size, stacks, memory of threads with a policy
of their own, and all memory after the program has mapped a GPU or a network adapter are left alone. Static and 32-bit
programs, programs of another C library and setuid programs get a note and run without the library.

Examples:
  memferry place -- sort big.txt
  memferry place --weights 0=3,8=1 -- ./server
  memferry place --policy leave --file '*.gguf=interleave' -- llama-server -m big.gguf
  memferry place --policy leave --file '*.gguf=replicate' --on 0 -- llama-server -m big.gguf

Exit status: that of the program, or its signal; 127 if the program does not exist, 126 if it cannot be run, 125 if the
library cannot be written or the process has a memory policy already, 2 for a node that cannot be used.";

/// Runs a program and chooses the nodes of its large memory: weighted interleaving, copies of files, first touch.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Policy of large allocations (malloc) and anonymous mappings: interleave, first-touch or leave.
    #[arg(long, value_name = "POLICY", value_parser = memory_policy, default_value = "interleave")]
    policy: Policy,
    /// Another policy of large allocations by malloc and its relatives.
    #[arg(long, value_name = "POLICY", value_parser = memory_policy)]
    heap: Option<Policy>,
    /// Another policy of large anonymous mappings (mmap).
    #[arg(long, value_name = "POLICY", value_parser = memory_policy)]
    anonymous: Option<Policy>,
    /// Policy of mapped files by name, such as `*.gguf=interleave`, first-touch or replicate; can be repeated. A pattern
    /// with a slash is compared with the whole path.
    #[arg(long = "file", value_name = "PATTERN=POLICY", value_parser = clap::builder::ValueParser::new(file_policy))]
    files: Vec<(OsString, Policy)>,
    /// Smaller memory is left alone.
    #[arg(long, value_name = "SIZE", value_parser = size_bytes, default_value = "2MiB")]
    min_size: u64,
    /// The nodes to interleave over, such as 0-3,8 [default: all nodes with memory that this process may use].
    #[arg(long, value_name = "LIST", value_parser = node_list)]
    nodes: Option<NodeList>,
    /// The nodes to interleave over, with weights from 1 to 255, such as 0=3,8=1.
    #[arg(long, value_name = "NODE=WEIGHT,...", value_parser = weights, conflicts_with_all = ["nodes", "calibration"])]
    weights: Option<Weights>,
    /// Weights by bandwidth: a file of `memferry calibrate --out FILE`, or a published profile of such a machine [env:
    /// MEMFERRY_CALIBRATION].
    #[arg(long, value_name = "FILE")]
    calibration: Option<String>,
    /// Runs the program on the CPUs of this node only, as replicas need.
    #[arg(long, value_name = "NODE")]
    on: Option<u32>,
    /// Interleaves all memory by the policy of the process, without choosing: stacks and small memory, too. Also for
    /// static programs.
    #[arg(long, conflicts_with_all = ["heap", "anonymous", "files", "policy", "min_size", "with_devices"])]
    whole: bool,
    /// Places memory although the program uses a GPU, a network adapter or the like.
    #[arg(long)]
    with_devices: bool,
    /// Summary at exit: a file to which each process appends a line of JSON, `none`, or `stderr`, of the first process.
    #[arg(long, value_name = "FILE|stderr|none", default_value = "stderr")]
    summary: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Nodes as a list of numbers.
#[derive(Clone, Debug)]
struct NodeList(Vec<u32>);

/// Nodes with weights.
#[derive(Clone, Debug)]
struct Weights(Vec<(u32, u32)>);

/// Executes the program in place of this process.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (program, rest) = arguments.program.split_first().context("name a program after --")?;
    let calibrated = arguments.weights.is_none();
    let machine = match calibrated {
        true => topology::open_calibrated(None, arguments.calibration.as_deref())?,
        false => memferry::Machine::discover()?,
    };
    let chosen = match (&arguments.weights, &arguments.nodes) {
        (Some(Weights(weights)), _) => plan::Chosen::Weights(weights),
        (None, Some(NodeList(nodes))) => plan::Chosen::Nodes(nodes),
        (None, None) => plan::Chosen::All,
    };
    let on = arguments.on.map(NodeId);
    let cpus = on.map(|node| plan::cpus_of(&machine, node)).transpose().map_err(usage)?;
    let kernel_weights = interleave_weights(&machine).ok();
    let plan = plan::choose(&machine, chosen, kernel_weights.as_ref()).map_err(usage)?;
    if let Some(sentence) = plan::only_one_node(&machine) {
        eprintln!("memferry place: {sentence}, so there is nothing to place; the program runs as it is");
        return Err(execute_plainly(program, rest).into());
    }
    let is_of_kernel = plan.pattern != memferry_offload::place::Pattern::Stripes;
    if arguments.whole && !is_of_kernel {
        return Err(usage(
            "the policy of a process uses the kernel's weights, which are others; leave out --whole, or have root write the \
             weights to /sys/kernel/mm/mempolicy/weighted_interleave (Linux 6.9)",
        ));
    }
    eprintln!("memferry place: {}", plan.note);
    let options = Options {
        arguments: rest.to_vec(),
        weights: plan.weights,
        pattern: plan.pattern,
        heap: arguments.heap.unwrap_or(arguments.policy),
        anonymous: arguments.anonymous.unwrap_or(arguments.policy),
        files: arguments.files.clone(),
        size_bytes_min: arguments.min_size.max(4096),
        near: plan.near,
        with_devices: arguments.with_devices,
        cpus,
        whole: arguments.whole,
        summary: match arguments.summary.to_str() {
            Some("none") => Summary::None,
            Some("stderr") => Summary::Stderr,
            _ => Summary::File(arguments.summary.clone()),
        },
        ..Options::new(program)
    };
    Err(execute(&options).into())
}

fn policy(text: &str) -> Option<Policy> {
    let all = [Policy::Leave, Policy::Interleave, Policy::FirstTouch, Policy::Replicate];
    all.into_iter().find(|policy| policy.name() == text)
}

fn memory_policy(text: &str) -> Result<Policy, String> {
    match policy(text) {
        Some(Policy::Replicate) => {
            Err("only files can be replicated, by --file 'PATTERN=replicate'".to_owned())
        }
        Some(policy) => Ok(policy),
        None => Err("a policy is interleave, first-touch or leave".to_owned()),
    }
}

fn file_policy(text: &str) -> Result<(OsString, Policy), String> {
    let wrong = "a file has a pattern and a policy, such as *.gguf=interleave, first-touch or replicate";
    let (pattern, name) = text.rsplit_once('=').ok_or(wrong)?;
    let policy = policy(name).filter(|&policy| policy != Policy::Leave).ok_or(wrong)?;
    if pattern.is_empty() || pattern.contains('\n') {
        return Err(wrong.to_owned());
    }
    Ok((OsString::from_vec(OsString::from(pattern).as_bytes().to_vec()), policy))
}

fn node_list(text: &str) -> Result<NodeList, String> {
    let nodes = parse_id_list(text).filter(|nodes| !nodes.is_empty());
    nodes.map(NodeList).ok_or("a list of nodes is like 0-3,8, see `memferry topology`".to_owned())
}

fn weights(text: &str) -> Result<Weights, String> {
    let mut weights = Vec::new();
    for pair in text.split(',') {
        let wrong = || "weights are like 0=3,8=1: a node and a number from 1 to 255".to_owned();
        let (node, weight) = pair.split_once('=').ok_or_else(wrong)?;
        let node = node.trim().parse::<u32>().map_err(|_| wrong())?;
        let weight = weight.trim().parse::<u32>().map_err(|_| wrong())?;
        if !(1..=255).contains(&weight) {
            return Err(format!(
                "the weight of node {node} is {weight}; weights are from 1 to 255, and a node without \
                memory of the program is left out"
            ));
        }
        if weights.iter().any(|&(known, _)| known == node) {
            return Err(format!("node {node} has two weights; give it one"));
        }
        weights.push((node, weight));
    }
    weights.sort_unstable();
    Ok(Weights(weights))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use memferry_offload::place::SIZE_BYTES_MIN;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = ["place"].into_iter().chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn options_are_read() {
        let line = "--heap first-touch --file *.gguf=replicate --file /a=b/*=interleave --weights 8=1,0=3 -- true -x";
        let arguments = parse(line).unwrap();
        assert_eq!((arguments.policy, arguments.heap), (Policy::Interleave, Some(Policy::FirstTouch)));
        assert_eq!(arguments.weights.unwrap().0, [(0, 3), (8, 1)]);
        let expected = [("*.gguf", Policy::Replicate), ("/a=b/*", Policy::Interleave)];
        assert_eq!(arguments.files, expected.map(|(pattern, policy)| (pattern.into(), policy)));
        assert_eq!((arguments.min_size, arguments.program.len()), (SIZE_BYTES_MIN, 2));
        assert_eq!(parse("--nodes 0-2,8 -- true").unwrap().nodes.unwrap().0, [0, 1, 2, 8]);
    }

    #[test]
    fn invalid_lines_are_refused() {
        for (wrong, words) in [
            ("", "PROGRAM"),
            ("true", "unexpected"),
            ("--weights 0=0 -- true", "the weight of node 0 is 0; weights are from 1 to 255"),
            ("--weights 0=256 -- true", "from 1 to 255"),
            ("--weights 0=1,0=2 -- true", "two weights"),
            ("--weights 0 -- true", "weights are like"),
            ("--weights 0=1 --nodes 0 -- true", "cannot be used with"),
            ("--nodes x -- true", "a list of nodes"),
            ("--policy replicate -- true", "only files can be replicated"),
            ("--policy odd -- true", "a policy is"),
            ("--file a -- true", "a pattern and a policy"),
            ("--file a=leave -- true", "a pattern and a policy"),
            ("--file =interleave -- true", "a pattern and a policy"),
            ("--min-size 0 -- true", "above 0"),
            ("--whole --heap interleave -- true", "cannot be used with"),
        ] {
            let error = parse(wrong).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(words), "{wrong}: {error}");
        }
    }
}

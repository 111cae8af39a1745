//! The settings, from environment variables. `memferry place` sets them from its options and from the machine.
//!
//! | variable | values |
//! |---|---|
//! | `MEMFERRY_PLACE` | `on` (default), `off` |
//! | `MEMFERRY_PLACE_WEIGHTS` | the nodes of interleaved memory and their weights: `0=3,8=1` |
//! | `MEMFERRY_PLACE_PATTERN` | `even`, `kernel` (the kernel's weights are the requested ones) or `stripes` |
//! | `MEMFERRY_PLACE_HEAP`, `MEMFERRY_PLACE_ANONYMOUS` | `interleave`, `first-touch` or `leave` (default) |
//! | `MEMFERRY_PLACE_FILES` | lines `PATTERN=POLICY`: `interleave`, `first-touch` or `replicate` |
//! | `MEMFERRY_PLACE_MIN_SIZE` | bytes of the smallest range that is placed |
//! | `MEMFERRY_PLACE_NEAR` | the nodes of replicas by CPUs: `0-13,56=0;14-27=1` |
//! | `MEMFERRY_PLACE_DEVICES` | `on`: memory is placed although the program uses a GPU or the like |
//! | `MEMFERRY_PLACE_WHOLE` | `on`: the process has a policy by `memferry place --whole`; the library only reports |
//! | `MEMFERRY_PLACE_SUMMARY` | `none` (default), `stderr`, or a file to which each process appends a JSON line |
//! | `MEMFERRY_PLACE_ROOT` | the id of the first process |

use std::env;
use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::sys::{self, NODES_MAX, Nodes};

/// The policy of a kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// No policy of this library.
    Leave,
    /// On several nodes, by weights.
    Interleave,
    /// On the node of the thread that touches a page first.
    FirstTouch,
    /// A copy on the node of the process. For files only.
    Replicate,
}

impl Policy {
    fn parse(text: &str) -> Option<Policy> {
        Some(match text {
            "leave" => Policy::Leave,
            "interleave" => Policy::Interleave,
            "first-touch" => Policy::FirstTouch,
            "replicate" => Policy::Replicate,
            _ => return None,
        })
    }
}

/// The way to interleave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Equal weights, by the kernel.
    Even,
    /// The kernel's weights, by the kernel.
    Kernel,
    /// Other weights, by ranges of this library.
    Stripes,
}

/// Where the summary goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Summary {
    None,
    Stderr,
    File(CString),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// Nodes, ascending, with their weights from 1 to 255.
    pub(crate) weights: Vec<(u32, u32)>,
    pub(crate) nodes: Nodes,
    pub(crate) pattern: Pattern,
    pub(crate) heap: Policy,
    pub(crate) anonymous: Policy,
    /// Patterns of paths; the first that matches decides.
    pub(crate) files: Vec<(Vec<u8>, Policy)>,
    pub(crate) size_bytes_min: usize,
    /// CPUs, and the node for their copies.
    pub(crate) near: Vec<(Vec<u32>, u32)>,
    pub(crate) with_devices: bool,
    /// The policy of the process interleaves all its memory.
    pub(crate) is_whole: bool,
    pub(crate) summary: Summary,
    /// The first process of the tree, which writes to standard error.
    pub(crate) is_root: bool,
}

impl Settings {
    /// Reads the environment. `None`: the library is off.
    ///
    /// # Errors
    /// A sentence about an invalid value.
    pub(crate) fn from_environment() -> Result<Option<Settings>, String> {
        Settings::read(|name| env::var_os(name), sys::process())
    }

    fn read(variable: impl Fn(&str) -> Option<OsString>, process: u32) -> Result<Option<Settings>, String> {
        let bytes = |name: &str| variable(name).filter(|value| !value.is_empty()).map(OsString::into_vec);
        let text = |name: &str| bytes(name).map(|value| String::from_utf8_lossy(&value).into_owned());
        let is_on = |name: &str, default: bool| match text(name).as_deref() {
            None => Ok(default),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(_) => Err(format!("{name} must be on or off")),
        };
        if !is_on("MEMFERRY_PLACE", true)? {
            return Ok(None);
        }
        let weights = text("MEMFERRY_PLACE_WEIGHTS").as_deref().and_then(weights).ok_or(
            "MEMFERRY_PLACE_WEIGHTS must be nodes with weights from 1 to 255, such as 0=3,8=1; start the program by \
             `memferry place`",
        )?;
        let pattern = match text("MEMFERRY_PLACE_PATTERN").as_deref() {
            Some("even") => Pattern::Even,
            Some("kernel") => Pattern::Kernel,
            Some("stripes") | None => Pattern::Stripes,
            Some(_) => return Err("MEMFERRY_PLACE_PATTERN must be even, kernel or stripes".to_owned()),
        };
        let policy = |name: &str| match text(name) {
            None => Ok(Policy::Leave),
            Some(value) => (Policy::parse(&value).filter(|&policy| policy != Policy::Replicate))
                .ok_or(format!("{name} must be interleave, first-touch or leave")),
        };
        let files = match bytes("MEMFERRY_PLACE_FILES") {
            None => Vec::new(),
            Some(lines) => (lines.split(|&byte| byte == b'\n').map(file_rule).collect::<Option<_>>())
                .ok_or("MEMFERRY_PLACE_FILES must be lines PATTERN=interleave, first-touch or replicate")?,
        };
        let size_bytes_min = match text("MEMFERRY_PLACE_MIN_SIZE") {
            None => 2 << 20,
            Some(value) => (value.parse().ok().filter(|bytes| (sys::PAGE..=usize::MAX / 2).contains(bytes)))
                .ok_or("MEMFERRY_PLACE_MIN_SIZE must be a number from 4096")?,
        };
        let near = match text("MEMFERRY_PLACE_NEAR") {
            None => Vec::new(),
            Some(value) => (value.split(';').map(near).collect::<Option<_>>()).ok_or(
                "MEMFERRY_PLACE_NEAR must be lists of CPUs with their nodes, such as 0-13=0;14-27=1",
            )?,
        };
        let summary = match variable("MEMFERRY_PLACE_SUMMARY") {
            None => Summary::None,
            Some(value) if value.is_empty() || value == "none" => Summary::None,
            Some(value) if value == "stderr" => Summary::Stderr,
            Some(value) => Summary::File(CString::new(value.as_bytes()).unwrap_or_default()),
        };
        let root = text("MEMFERRY_PLACE_ROOT").and_then(|id| id.parse::<u32>().ok());
        Ok(Some(Settings {
            nodes: Nodes::of(weights.iter().map(|&(node, _)| node)),
            weights,
            pattern,
            heap: policy("MEMFERRY_PLACE_HEAP")?,
            anonymous: policy("MEMFERRY_PLACE_ANONYMOUS")?,
            files,
            size_bytes_min,
            near,
            with_devices: is_on("MEMFERRY_PLACE_DEVICES", false)?,
            is_whole: is_on("MEMFERRY_PLACE_WHOLE", false)?,
            summary,
            is_root: root.is_none_or(|id| id == process),
        }))
    }

    /// The policy of a file.
    pub(crate) fn of_file(&self, path: &[u8]) -> Policy {
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let found = self.files.iter().find(|(pattern, _)| {
            let whole = pattern.contains(&b'/');
            is_match(pattern, if whole { path } else { name })
        });
        found.map_or(Policy::Leave, |&(_, policy)| policy)
    }

    /// The only node that is near all of these CPUs, if there is one.
    pub(crate) fn near_node(&self, cpus: &[u64]) -> Option<u32> {
        let mut nodes = (0..cpus.len() * 64).filter(|cpu| cpus[cpu / 64] >> (cpu % 64) & 1 == 1).map(|cpu| {
            self.near.iter().find(|(list, _)| list.contains(&(cpu as u32))).map(|&(_, node)| node)
        });
        let first = nodes.next()??;
        nodes.all(|node| node == Some(first)).then_some(first)
    }
}

fn weights(text: &str) -> Option<Vec<(u32, u32)>> {
    let mut weights = (text.split(',').map(|pair| {
        let (node, weight) = pair.split_once('=')?;
        let node = node.parse::<u32>().ok().filter(|&node| (node as usize) < NODES_MAX)?;
        let weight = weight.parse::<u32>().ok().filter(|weight| (1..=255).contains(weight))?;
        Some((node, weight))
    }))
    .collect::<Option<Vec<_>>>()?;
    weights.sort_unstable();
    Some(weights)
}

fn file_rule(line: &[u8]) -> Option<(Vec<u8>, Policy)> {
    let at = line.iter().rposition(|&byte| byte == b'=')?;
    let policy = std::str::from_utf8(&line[at + 1..]).ok().and_then(Policy::parse)?;
    (at > 0 && policy != Policy::Leave).then(|| (line[..at].to_vec(), policy))
}

fn near(text: &str) -> Option<(Vec<u32>, u32)> {
    let (list, node) = text.split_once('=')?;
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some((cpus, node.parse().ok()?))
}

/// Whether a text matches a pattern: `*` is any bytes, `?` one.
fn is_match(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut in_text) = (0, 0);
    // The last star, and the end of the bytes that it has taken.
    let mut star: Option<(usize, usize)> = None;
    while in_text < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, in_text));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[in_text] => {
                at += 1;
                in_text += 1;
            }
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                (at, in_text) = (place + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHTS: (&str, &str) = ("MEMFERRY_PLACE_WEIGHTS", "8=1,0=3");

    fn read(variables: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let find =
            |name: &str| variables.iter().find(|(found, _)| *found == name).map(|(_, value)| value.into());
        Settings::read(find, 7)
    }

    #[test]
    fn variables_become_settings() {
        assert_eq!(read(&[("MEMFERRY_PLACE", "off")]), Ok(None));
        let default = read(&[WEIGHTS]).unwrap().unwrap();
        assert_eq!(default.weights, [(0, 3), (8, 1)]);
        assert_eq!((default.heap, default.anonymous, default.is_root), (Policy::Leave, Policy::Leave, true));
        let set = read(&[
            WEIGHTS,
            ("MEMFERRY_PLACE_PATTERN", "kernel"),
            ("MEMFERRY_PLACE_HEAP", "interleave"),
            ("MEMFERRY_PLACE_ANONYMOUS", "first-touch"),
            ("MEMFERRY_PLACE_FILES", "*.gguf=replicate\n/a=b/*=interleave"),
            ("MEMFERRY_PLACE_MIN_SIZE", "65536"),
            ("MEMFERRY_PLACE_NEAR", "0-1,4=0;2-3=8"),
            ("MEMFERRY_PLACE_DEVICES", "on"),
            ("MEMFERRY_PLACE_SUMMARY", "/tmp/x"),
            ("MEMFERRY_PLACE_ROOT", "8"),
        ]);
        let set = set.unwrap().unwrap();
        assert_eq!((set.pattern, set.size_bytes_min, set.with_devices), (Pattern::Kernel, 65536, true));
        assert_eq!((set.heap, set.anonymous, set.is_root), (Policy::Interleave, Policy::FirstTouch, false));
        assert_eq!(set.near, [(vec![0, 1, 4], 0), (vec![2, 3], 8)]);
        assert_eq!(set.summary, Summary::File(c"/tmp/x".to_owned()));
        for (path, policy) in [
            ("/models/big.gguf", Policy::Replicate),
            ("/a=b/c/d", Policy::Interleave),
            ("/models/big.bin", Policy::Leave),
        ] {
            assert_eq!(set.of_file(path.as_bytes()), policy, "{path}");
        }
        let near = |mask: u64| set.near_node(&[mask, 0]);
        assert_eq!([near(0b1_0011), near(0b0_1100), near(0b0_0110)], [Some(0), Some(8), None]);
        assert_eq!([near(0), near(1 << 9)], [None, None]);
    }

    #[test]
    fn invalid_values_are_named() {
        for (name, value) in [
            ("MEMFERRY_PLACE", "yes"),
            ("MEMFERRY_PLACE_WEIGHTS", "0=0"),
            ("MEMFERRY_PLACE_WEIGHTS", "0=256"),
            ("MEMFERRY_PLACE_WEIGHTS", "1024=1"),
            ("MEMFERRY_PLACE_WEIGHTS", ""),
            ("MEMFERRY_PLACE_PATTERN", "odd"),
            ("MEMFERRY_PLACE_HEAP", "replicate"),
            ("MEMFERRY_PLACE_FILES", "*.gguf"),
            ("MEMFERRY_PLACE_FILES", "=replicate"),
            ("MEMFERRY_PLACE_MIN_SIZE", "0"),
            ("MEMFERRY_PLACE_NEAR", "0-x=1"),
            ("MEMFERRY_PLACE_DEVICES", "1"),
        ] {
            assert!(read(&[(name, value), WEIGHTS]).unwrap_err().contains(name), "{name}={value}");
        }
    }

    #[test]
    fn patterns_are_those_of_a_shell() {
        for (pattern, text, expected) in [
            ("*.gguf", "a.gguf", true),
            ("*.gguf", "a.gguf.part", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaxxbxb", true),
            ("*a*b", "xxaxxbxc", false),
            ("", "", true),
            ("*", "", true),
        ] {
            assert_eq!(is_match(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}

//! Mixes of copying processes, and their text.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use memferry::topology::NodeId;

/// Limit of the processes of a mix.
const PROCESSES_MAX: usize = 1024;

/// The executor of a process's copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The core of the process.
    Core,
    /// The DSA queues that the process can use.
    Device,
}

/// A kind of process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Executes the copies.
    pub by: By,
    /// The nodes of sources and targets; `None`: the first node with CPUs and memory, for both.
    pub nodes: Option<(NodeId, NodeId)>,
}

/// Processes of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Processes {
    /// Their number.
    pub count: usize,
    /// Their kind.
    pub kind: Kind,
}

/// Processes that copy at the same time. As text, such as `device:0:8+4*core:0:8`: a device from node 0 to node 8, beside four
/// cores.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mix(Vec<Processes>);

impl Mix {
    /// The processes by kind, at least one.
    pub fn kinds(&self) -> &[Processes] {
        &self.0
    }

    /// The number of processes.
    pub fn count(&self) -> usize {
        self.0.iter().map(|processes| processes.count).sum()
    }

    /// A name for one kind beside the others, such as `device_beside_4core`.
    pub(super) fn name_of(&self, kind: &Processes) -> String {
        let word = |it: &Processes| it.to_string().replace('*', "").replace(':', "_");
        let others: Vec<String> = self.0.iter().filter(|it| *it != kind).map(word).collect();
        match others.is_empty() {
            true => word(kind),
            false => format!("{}_beside_{}", word(kind), others.join("_and_")),
        }
    }
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self.by {
            By::Core => "core",
            By::Device => "device",
        })?;
        self.nodes.map_or(Ok(()), |(source, target)| write!(f, ":{source}:{target}"))
    }
}

impl Display for Processes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.count > 1 {
            write!(f, "{}*", self.count)?;
        }
        write!(f, "{}", self.kind)
    }
}

impl Display for Mix {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&words.join("+"))
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let mut parts = text.split(':');
        let by = match parts.next() {
            Some("core") => By::Core,
            Some("device") => By::Device,
            _ => return Err(format!("{text:?} is neither core nor device")),
        };
        let wrong =
            || format!("{text:?} does not name a source and a target node; write it such as core:0:8");
        let nodes = parts.map(|part| part.parse().map(NodeId)).collect::<Result<Vec<_>, _>>();
        let nodes = match nodes.map_err(|_| wrong())?[..] {
            [] => None,
            [source, target] => Some((source, target)),
            _ => return Err(wrong()),
        };
        Ok(Kind { by, nodes })
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Mix, String> {
        let processes = |part: &str| -> Result<Processes, String> {
            let (count, kind) = match part.split_once('*') {
                None => (1, part),
                Some((count, kind)) => {
                    (count.parse().map_err(|_| format!("{count:?} is not a number"))?, kind)
                }
            };
            Ok(Processes { count, kind: kind.parse()? })
        };
        let mut kinds: Vec<Processes> = Vec::new();
        for part in text.split('+') {
            let new = processes(part.trim())?;
            match kinds.iter_mut().find(|old| old.kind == new.kind) {
                Some(old) => old.count = old.count.saturating_add(new.count),
                None => kinds.push(new),
            }
        }
        let total = kinds.iter().fold(0usize, |sum, it| sum.saturating_add(it.count));
        if kinds.iter().any(|it| it.count == 0) || total > PROCESSES_MAX {
            return Err(format!("a mix has 1 to {PROCESSES_MAX} processes, and at least one of each kind"));
        }
        Ok(Mix(kinds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for (text, same) in [
            ("core", "core"),
            ("device:0:8+4*core:0:8", "device:0:8+4*core:0:8"),
            ("core + core + device", "2*core+device"),
        ] {
            let mix: Mix = text.parse().unwrap();
            assert_eq!(mix.to_string(), same);
        }
        let mix: Mix = "device+4*core:0:8".parse().unwrap();
        assert_eq!(mix.count(), 5);
        assert_eq!(mix.name_of(&mix.kinds()[1]), "4core_0_8_beside_device");
    }

    #[test]
    fn wrong_texts_say_what_is_wrong() {
        for (text, words) in [
            ("", "neither core nor device"),
            ("gpu", "neither core nor device"),
            ("x*core", "\"x\" is not a number"),
            ("0*core", "1 to 1024"),
            ("1025*core", "1 to 1024"),
            ("core:0", "a source and a target"),
            ("core:0:8:9", "a source and a target"),
            ("core:a:b", "a source and a target"),
        ] {
            let error = text.parse::<Mix>().unwrap_err();
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }
}

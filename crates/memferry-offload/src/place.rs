//! Runs an unmodified program whose large mappings are placed on chosen nodes: the library behind `memferry place`.
//!
//! ```text
//! memferry place ── exec ──▶ PROGRAM ── preloads libmemferry_place.so ──▶ memferry-place-preload: mbind
//!               └─ with `whole`: set_mempolicy before the exec, also for programs that load no library
//! ```
//!
//! The decisions, and the ways that were not taken: `docs/decisions/placement-of-programs.md`.

use std::ffi::OsString;

use crate::scheduling::{self, ProcessPolicy};
use crate::start::Start;
use crate::{Error, Summary, library};

/// The default of [`Options::size_bytes_min`]: a huge page. Arenas of small allocations are smaller: CPython's have 1 MiB.
pub const SIZE_BYTES_MIN: u64 = 2 << 20;

/// The policy of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Policy {
    /// None: the kernel's default, or the program's own policy.
    Leave,
    /// On several nodes, by weights.
    Interleave,
    /// On the node of the thread that touches a page first.
    FirstTouch,
    /// A copy on the node of the process. For files only.
    Replicate,
}

impl Policy {
    /// Its name for options and for the library.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Leave => "leave",
            Policy::Interleave => "interleave",
            Policy::FirstTouch => "first-touch",
            Policy::Replicate => "replicate",
        }
    }
}

/// The way to interleave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Pattern {
    /// Equal weights, by the kernel.
    Even,
    /// By the kernel, whose weights are the requested ones.
    Kernel,
    /// By ranges that the library binds: the kernel's weights differ, or it has none.
    Stripes,
}

impl Pattern {
    fn name(self) -> &'static str {
        match self {
            Pattern::Even => "even",
            Pattern::Kernel => "kernel",
            Pattern::Stripes => "stripes",
        }
    }
}

/// The options of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The program: a path, or a name in PATH.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The nodes of interleaved memory, with weights from 1 to 255.
    pub weights: Vec<(u32, u32)>,
    /// The way to interleave.
    pub pattern: Pattern,
    /// The policy of large allocations by malloc and its relatives.
    pub heap: Policy,
    /// The policy of large anonymous mappings.
    pub anonymous: Policy,
    /// Policies of files by patterns of their paths. The first that matches decides.
    pub files: Vec<(OsString, Policy)>,
    /// Smaller ranges are left alone.
    pub size_bytes_min: u64,
    /// Lists of CPUs, and the node of copies for a process that runs on them.
    pub near: Vec<(String, u32)>,
    /// Places memory although the program uses a GPU or the like.
    pub with_devices: bool,
    /// The program runs on these CPUs only.
    pub cpus: Option<Vec<u32>>,
    /// Interleaves the memory of the whole process, by the policy of the process.
    pub whole: bool,
    /// The summary at the exit of a process.
    pub summary: Summary,
}

impl Options {
    /// Options for a program without arguments: nothing is placed yet.
    pub fn new(program: impl Into<OsString>) -> Options {
        Options {
            program: program.into(),
            arguments: Vec::new(),
            weights: Vec::new(),
            pattern: Pattern::Even,
            heap: Policy::Leave,
            anonymous: Policy::Leave,
            files: Vec::new(),
            size_bytes_min: SIZE_BYTES_MIN,
            near: Vec::new(),
            with_devices: false,
            cpus: None,
            whole: false,
            summary: Summary::default(),
        }
    }

    /// The variables of the library.
    fn environment(&self) -> Vec<(&'static str, Option<OsString>)> {
        let join = |parts: Vec<String>, with: &str| (!parts.is_empty()).then(|| parts.join(with).into());
        let mut files = OsString::new();
        for (pattern, policy) in &self.files {
            if !files.is_empty() {
                files.push("\n");
            }
            files.push(pattern);
            files.push("=");
            files.push(policy.name());
        }
        let pairs = |pairs: &[(u32, u32)]| -> Vec<String> {
            pairs.iter().map(|(node, weight)| format!("{node}={weight}")).collect()
        };
        let near = self.near.iter().map(|(cpus, node)| format!("{cpus}={node}")).collect();
        // The whole process has a policy already.
        let of = |policy: Policy| if self.whole { Policy::Leave } else { policy }.name().into();
        vec![
            ("MEMFERRY_PLACE_WEIGHTS", join(pairs(&self.weights), ",")),
            ("MEMFERRY_PLACE_PATTERN", Some(self.pattern.name().into())),
            ("MEMFERRY_PLACE_HEAP", Some(of(self.heap))),
            ("MEMFERRY_PLACE_ANONYMOUS", Some(of(self.anonymous))),
            ("MEMFERRY_PLACE_FILES", Some(files).filter(|files| !files.is_empty() && !self.whole)),
            ("MEMFERRY_PLACE_MIN_SIZE", Some(self.size_bytes_min.to_string().into())),
            ("MEMFERRY_PLACE_NEAR", join(near, ";")),
            ("MEMFERRY_PLACE_DEVICES", self.with_devices.then(|| "on".into())),
            ("MEMFERRY_PLACE_WHOLE", self.whole.then(|| "on".into())),
            ("MEMFERRY_PLACE_SUMMARY", Some(self.summary.variable())),
            ("MEMFERRY_PLACE_ROOT", Some(std::process::id().to_string().into())),
        ]
    }
}

/// Executes the program in place of this process. Returns only if that fails.
///
/// A program that cannot load the library gets a note and runs without it, as in [`execute`](crate::execute). With
/// `MEMFERRY_PLACE=off` every program runs without it.
pub fn execute(options: &Options) -> Error {
    match schedule(options) {
        Ok(()) => start(options.whole).execute(&options.program, &options.arguments, options.environment()),
        Err(error) => error,
    }
}

/// Executes a program as it is: there is nothing to place.
pub fn execute_plainly(program: &OsString, arguments: &[OsString]) -> Error {
    start(false).execute_plainly(program, arguments)
}

fn start(whole: bool) -> Start {
    let loss = match whole {
        true => "so it prints no summary; the policy of the process holds without the library",
        false => {
            "so the library cannot place its memory; it runs without that (--whole interleaves all its memory by the \
             policy of the process, which needs no library)"
        }
    };
    Start { library: &library::PLACE, off: "MEMFERRY_PLACE", loss, rules: "" }
}

/// Sets the policy and the CPUs of this process.
fn schedule(options: &Options) -> Result<(), Error> {
    // Before anything changes: a program that does not exist is the first error.
    memferry_emulate::Program::find(&options.program)?;
    if let Some(policy) = scheduling::own_policy() {
        return Err(Error::OwnPolicy { policy });
    }
    let failed = |what| move |source| Error::Schedule { what, source };
    if let Some(cpus) = &options.cpus {
        scheduling::confine(cpus).map_err(failed("CPUs"))?;
    }
    if options.whole {
        let policy = match options.pattern {
            Pattern::Kernel => ProcessPolicy::WeightedInterleave,
            Pattern::Even | Pattern::Stripes => ProcessPolicy::Interleave,
        };
        let nodes = options.weights.iter().map(|&(node, _)| node);
        scheduling::set_policy(policy, nodes).map_err(failed("memory policy"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_variables() {
        let options = Options {
            weights: vec![(0, 3), (8, 1)],
            pattern: Pattern::Stripes,
            heap: Policy::Interleave,
            files: vec![("*.gguf".into(), Policy::Replicate), ("/a=b/*".into(), Policy::Interleave)],
            near: vec![("0-13,56".into(), 0), ("14-27".into(), 8)],
            ..Options::new("true")
        };
        let value = |options: &Options, name| {
            let variables = options.environment();
            variables.into_iter().find(|(found, _)| *found == name).unwrap().1
        };
        let text = |name| value(&options, name).unwrap().into_string().unwrap();
        assert_eq!(text("MEMFERRY_PLACE_WEIGHTS"), "0=3,8=1");
        assert_eq!(text("MEMFERRY_PLACE_PATTERN"), "stripes");
        assert_eq!(text("MEMFERRY_PLACE_HEAP"), "interleave");
        assert_eq!(text("MEMFERRY_PLACE_ANONYMOUS"), "leave");
        assert_eq!(text("MEMFERRY_PLACE_FILES"), "*.gguf=replicate\n/a=b/*=interleave");
        assert_eq!(text("MEMFERRY_PLACE_NEAR"), "0-13,56=0;14-27=8");
        assert_eq!(value(&options, "MEMFERRY_PLACE_DEVICES"), None);
        let whole = Options { whole: true, ..options };
        assert_eq!(value(&whole, "MEMFERRY_PLACE_FILES"), None);
        assert_eq!(value(&whole, "MEMFERRY_PLACE_HEAP"), Some("leave".into()));
    }

    #[test]
    fn missing_programs_have_the_status_of_a_shell() {
        let code = |program: &str| execute(&Options::new(program)).exit_code();
        assert_eq!((code("a-name-that-nobody-uses"), code("/")), (127, 126));
    }
}

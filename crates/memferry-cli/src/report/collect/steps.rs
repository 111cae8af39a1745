//! The steps of a collection, in the order of their worth: the time may not suffice for the last ones.

/// Something to find out about the machine.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) needs: Needs,
    /// What the process prints or writes.
    pub(super) gives: Gives,
    arguments: &'static [&'static str],
}

/// What the machine must have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Needs {
    Nothing,
    /// A queue of a DSA that this user may use.
    Device,
    /// Two nodes with memory.
    Nodes,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Gives {
    /// JSON on standard output, kept as the file `NAME.json`.
    Output,
    /// The profile of the machine, and the record of its check.
    Profile,
    /// A record.
    Record,
}

const fn step(name: &'static str, needs: Needs, gives: Gives, arguments: &'static [&'static str]) -> Step {
    Step { name, needs, gives, arguments }
}

const fn bench(name: &'static str, needs: Needs, arguments: &'static [&'static str]) -> Step {
    step(name, needs, Gives::Record, arguments)
}

pub(super) const STEPS: [Step; 27] = [
    step("topology", Needs::Nothing, Gives::Output, &["topology", "--json"]),
    step("doctor", Needs::Nothing, Gives::Output, &["doctor", "--json"]),
    step("calibrate", Needs::Nothing, Gives::Profile, &["calibrate", "--check"]),
    bench("memory", Needs::Nothing, &["bench", "memory"]),
    bench("submit", Needs::Nothing, &["bench", "submit"]),
    bench("routes", Needs::Device, &["bench", "routes"]),
    bench("qdp", Needs::Nothing, &["bench", "qdp"]),
    bench("qdp-decide", Needs::Nodes, &["bench", "qdp", "--decide"]),
    bench("operations", Needs::Device, &["bench", "operations"]),
    bench("threads", Needs::Nothing, &["bench", "threads"]),
    bench("mover", Needs::Nothing, &["bench", "mover"]),
    bench("dsa", Needs::Device, &["bench", "dsa", "--dsa", "system"]),
    bench("engines", Needs::Device, &["bench", "engines"]),
    bench("queues", Needs::Device, &["bench", "queues"]),
    bench("latency", Needs::Device, &["bench", "latency"]),
    bench("wait", Needs::Device, &["bench", "wait"]),
    bench("depth", Needs::Device, &["bench", "depth"]),
    bench("pages", Needs::Device, &["bench", "pages"]),
    bench("faults", Needs::Device, &["bench", "faults"]),
    bench("remote", Needs::Nodes, &["bench", "remote"]),
    bench("target", Needs::Device, &["bench", "target"]),
    bench("pollution", Needs::Nothing, &["bench", "pollution"]),
    bench("interference", Needs::Device, &["bench", "interference"]),
    bench("processes", Needs::Nothing, &["bench", "processes"]),
    bench("priority", Needs::Device, &["bench", "priority"]),
    bench("atomics", Needs::Nothing, &["bench", "atomics"]),
    bench("cache", Needs::Nothing, &["bench", "cache"]),
];

impl Step {
    /// The arguments of the process, which runs in the directory of the collection.
    pub(super) fn arguments(&self, quick: bool) -> Vec<&'static str> {
        let files: &[&str] = match self.gives {
            Gives::Output => return self.arguments.to_vec(),
            Gives::Profile => &["--out", PROFILE, "--results", RECORDS],
            Gives::Record => &["--out", RECORDS],
        };
        let quick: &[&str] = if quick { &["--quick"] } else { &[] };
        [self.arguments, files, quick].concat()
    }
}

/// The profile of the machine, and the directory of the records, below the directory of the collection.
pub(super) const PROFILE: &str = "profile.json";
pub(super) const RECORDS: &str = "records";

//! The options of the papers' benchmarks: the values of axes, and where they run.

use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use memferry::bench::{Axes, Data, Effort, Pages, Way};
use memferry::mover::Route;
use memferry::topology::NodeId;
use memferry_dsa::measure::load::Work;
use serde::de::value::{Error as WordError, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::error::usage;
use crate::options::size_bytes;

/// Enough for every interval that one could want.
const ITERATIONS_MAX: usize = 100_000;

/// Where a benchmark runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum On {
    /// On this machine: its cores, and the DSA queues that it has.
    Machine,
    /// On the emulated device with its timing model, in virtual time.
    Emulated,
    /// In the model.
    Model,
}

impl On {
    /// What the names of its records end with.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            On::Machine => "",
            On::Emulated => "-emulated",
            On::Model => "-modelled",
        }
    }
}

/// One value of an axis, not yet read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Word(String);

/// What can be said on the command line and in a file alike. An axis that is left out has the papers' values.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct Options {
    /// Where to run it [default: machine; model with --machine].
    #[arg(long, value_enum)]
    on: Option<On>,
    /// The machine of the model, or whose devices are emulated: the name of a profile (see `memferry topology`), or a JSON
    /// file.
    #[arg(long, value_name = "PROFILE")]
    pub(super) machine: Option<String>,
    /// Few values and short: to see that it works, not for the record.
    #[arg(long)]
    pub(super) quick: bool,
    /// Values of each figure [default: 10; 2 with --quick].
    #[arg(long, value_name = "N")]
    iterations: Option<usize>,
    /// Who works: core, shared, dedicated, or any in the model.
    #[arg(long, value_name = "WAY,...", value_delimiter = ',')]
    ways: Option<Vec<Word>>,
    /// What is done, such as copy or crc.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    operations: Option<Vec<Word>>,
    /// Sizes of descriptors, such as 4KiB.
    #[arg(long, value_name = "SIZE,...", value_delimiter = ',')]
    sizes: Option<Vec<Word>>,
    /// Descriptors of a submission.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    batches: Option<Vec<Word>>,
    /// Threads that submit.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    submitters: Option<Vec<Word>>,
    /// Submissions that each has under way.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    depths: Option<Vec<Word>>,
    /// Queues that submitters are spread over.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    queues: Option<Vec<Word>>,
    /// Entries of each queue.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    entries: Option<Vec<Word>>,
    /// Engines behind the queues.
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    engines: Option<Vec<Word>>,
    /// Who shares in a copy: single, push-pull, socket, smart, all, adaptive, or none.
    #[arg(long, value_name = "ROUTE,...", value_delimiter = ',')]
    routes: Option<Vec<Word>>,
    /// Nodes of the sources.
    #[arg(long, value_name = "NODE,...", value_delimiter = ',')]
    sources: Option<Vec<Word>>,
    /// Nodes of the targets.
    #[arg(long, value_name = "NODE,...", value_delimiter = ',')]
    targets: Option<Vec<Word>>,
    /// Pages of the targets: touched, huge, absent-block, absent-resume.
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    pages: Option<Vec<Word>>,
    /// Where a core finds its data: any, memory, cached-source, cached-target, cached.
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    data: Option<Vec<Word>>,
    /// Priorities of two queues, such as 15-1, or any.
    #[arg(long, value_name = "N-N,...", value_delimiter = ',')]
    priorities: Option<Vec<Word>>,
}

impl Options {
    /// Those of a TOML file.
    ///
    /// # Errors
    /// The sentence names the file, and line and column of what is wrong in it.
    pub(super) fn read(file: &Path) -> Result<Options> {
        let path = file.display();
        let text =
            fs::read_to_string(file).with_context(|| format!("the options cannot be read from {path}"))?;
        toml::from_str(&text).map_err(|error| {
            usage(format!("{path} holds no options as `memferry bench submit --help` lists them: {error}"))
        })
    }

    /// These, and others where these say nothing.
    pub(super) fn or(self, other: Options) -> Options {
        Options {
            on: self.on.or(other.on),
            machine: self.machine.or(other.machine),
            quick: self.quick || other.quick,
            iterations: self.iterations.or(other.iterations),
            ways: self.ways.or(other.ways),
            operations: self.operations.or(other.operations),
            sizes: self.sizes.or(other.sizes),
            batches: self.batches.or(other.batches),
            submitters: self.submitters.or(other.submitters),
            depths: self.depths.or(other.depths),
            queues: self.queues.or(other.queues),
            entries: self.entries.or(other.entries),
            engines: self.engines.or(other.engines),
            routes: self.routes.or(other.routes),
            sources: self.sources.or(other.sources),
            targets: self.targets.or(other.targets),
            pages: self.pages.or(other.pages),
            data: self.data.or(other.data),
            priorities: self.priorities.or(other.priorities),
        }
    }

    /// # Errors
    /// Iterations that are none or too many; a machine that is not here cannot be measured, and a model needs one.
    pub(super) fn on(&self) -> Result<On> {
        if self.iterations.is_some_and(|iterations| !(1..=ITERATIONS_MAX).contains(&iterations)) {
            return Err(usage(format!("--iterations is a number from 1 to {ITERATIONS_MAX}")));
        }
        match (self.on, &self.machine) {
            (None, None) => Ok(On::Machine),
            (None, Some(_)) => Ok(On::Model),
            (Some(On::Machine), Some(_)) => {
                Err(usage("another machine cannot be measured here; leave out --on machine, or --machine"))
            }
            (Some(On::Model), None) => {
                Err(usage("the model needs --machine PROFILE; see `memferry topology`"))
            }
            (Some(on), _) => Ok(on),
        }
    }

    pub(super) fn effort(&self) -> Effort {
        let effort = if self.quick { Effort::QUICK } else { Effort::FULL };
        Effort { iterations: self.iterations.unwrap_or(effort.iterations), ..effort }
    }

    /// A benchmark's axes with these values; `ways` says which of the ways there are where it runs.
    pub(super) fn axes(&self, own: Axes, ways: impl Fn(&[Way]) -> Vec<Way>) -> Result<Axes> {
        let own_ways = ways(&own.ways);
        Ok(Axes {
            ways: values("ways", &self.ways, own_ways, named)?,
            operations: values("operations", &self.operations, own.operations, operation)?,
            sizes_bytes: values("sizes", &self.sizes, own.sizes_bytes, size_bytes)?,
            batches: values("batches", &self.batches, own.batches, counted)?,
            submitters: values("submitters", &self.submitters, own.submitters, counted)?,
            depths: values("depths", &self.depths, own.depths, counted)?,
            queues: values("queues", &self.queues, own.queues, counted)?,
            entries: values("entries", &self.entries, own.entries, |word| counted(word).map(Some))?,
            engines: values("engines", &self.engines, own.engines, |word| counted(word).map(Some))?,
            routes: values("routes", &self.routes, own.routes, route)?,
            sources: values("sources", &self.sources, own.sources, node)?,
            targets: values("targets", &self.targets, own.targets, node)?,
            pages: values("pages", &self.pages, own.pages, named)?,
            data: values("data", &self.data, own.data, named)?,
            priorities: values("priorities", &self.priorities, own.priorities, priorities)?,
        })
    }

    /// What a record says: every value of every axis, whoever chose it.
    pub(super) fn record(&self, on: On, axes: &Axes, effort: &Effort) -> Value {
        let on = match on {
            On::Machine => "machine",
            On::Emulated => "emulated",
            On::Model => "model",
        };
        let nodes =
            |nodes: &[Option<NodeId>]| nodes.iter().map(|node| node.map(|node| node.0)).collect::<Vec<_>>();
        let route = |route: &Option<Route>| route.map(|route| format!("{route:?}"));
        json!({
            "on": on,
            "machine": self.machine,
            "quick": self.quick,
            "iterations": effort.iterations,
            "ways": axes.ways.iter().map(Way::to_string).collect::<Vec<_>>(),
            "operations": axes.operations.iter().map(Work::to_string).collect::<Vec<_>>(),
            "sizes": axes.sizes_bytes,
            "batches": axes.batches,
            "submitters": axes.submitters,
            "depths": axes.depths,
            "queues": axes.queues,
            "entries": axes.entries,
            "engines": axes.engines,
            "routes": axes.routes.iter().map(route).collect::<Vec<_>>(),
            "sources": nodes(&axes.sources),
            "targets": nodes(&axes.targets),
            "pages": axes.pages.iter().map(Pages::to_string).collect::<Vec<_>>(),
            "data": axes.data.iter().map(Data::to_string).collect::<Vec<_>>(),
            "priorities": axes.priorities,
            "profile": if cfg!(debug_assertions) { "dev" } else { "release" },
        })
    }
}

/// The values of an option, or those that there are without it.
fn values<T>(
    option: &str,
    words: &Option<Vec<Word>>,
    own: Vec<T>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>> {
    let Some(words) = words else { return Ok(own) };
    if words.is_empty() {
        return Err(usage(format!("--{option} has no values; leave it out for the papers'")));
    }
    let wrong = |word: &Word, why| usage(format!("--{option}: {:?} is none: {why}", word.0));
    words.iter().map(|word| read(word.0.trim()).map_err(|why| wrong(word, why))).collect()
}

/// A variant by its name.
fn named<T: DeserializeOwned>(word: &str) -> Result<T, String> {
    let word: StrDeserializer<'_, WordError> = word.into_deserializer();
    T::deserialize(word).map_err(|error| error.to_string())
}

fn operation(word: &str) -> Result<Work, String> {
    let found = Work::ALL.into_iter().find(|work| work.name() == word);
    found.ok_or_else(|| format!("there are {}", Work::ALL.map(Work::name).join(", ")))
}

fn route(word: &str) -> Result<Option<Route>, String> {
    if word == "none" { Ok(None) } else { named(word).map(Some) }
}

fn node(word: &str) -> Result<Option<NodeId>, String> {
    match word {
        "any" => Ok(None),
        _ => word.parse().map(|node| Some(NodeId(node))).map_err(|_| "a node is a number, or any".to_owned()),
    }
}

fn priorities(word: &str) -> Result<Option<(u8, u8)>, String> {
    let priority = |word: &str| word.parse().ok().filter(|priority| (1..=15).contains(priority));
    let Some((first, second)) = word.split_once('-') else {
        return if word == "any" { Ok(None) } else { Err(PRIORITIES.to_owned()) };
    };
    priority(first).zip(priority(second)).map(Some).ok_or_else(|| PRIORITIES.to_owned())
}

const PRIORITIES: &str = "priorities are two numbers from 1 to 15, such as 15-1";

fn counted<T: FromStr + PartialEq + Default>(word: &str) -> Result<T, String> {
    let number = word.parse().ok().filter(|number| *number != T::default());
    number.ok_or_else(|| "counts are whole numbers from 1 on".to_owned())
}

impl FromStr for Word {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Word, Self::Err> {
        Ok(Word(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        Ok(Word(match Either::deserialize(deserializer)? {
            Either::Number(number) => number.to_string(),
            Either::Text(text) => text,
        }))
    }
}

#[cfg(test)]
mod tests {
    use memferry::bench::benchmark;

    use super::*;

    fn options(toml: &str) -> Options {
        toml::from_str(toml).unwrap()
    }

    fn axes(options: &Options) -> Result<Axes> {
        options.axes((benchmark("submit").unwrap().axes)(true), <[Way]>::to_vec)
    }

    #[test]
    fn the_command_line_comes_before_the_file() {
        let file = options("sizes = ['64KiB', 4096]\nbatches = [8]\nquick = true\non = 'emulated'");
        let line = options(
            "sizes = ['1 MiB']\nroutes = ['none', 'push-pull']\ntargets = ['any', 8]\ndata = ['cached']\n\
                            priorities = ['any', '15-1']",
        );
        let both = line.or(file);
        let axes = axes(&both).unwrap();
        assert_eq!((axes.sizes_bytes, axes.batches), (vec![1 << 20], vec![8]));
        assert_eq!(axes.routes, [None, Some(Route::PushPull)]);
        assert_eq!(axes.targets, [None, Some(NodeId(8))]);
        assert_eq!((axes.data, axes.priorities), (vec![Data::Cached], vec![None, Some((15, 1))]));
        assert_eq!((both.on().unwrap(), both.effort()), (On::Emulated, Effort::QUICK));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (toml, words) in [
            ("sizes = ['big']", ["--sizes", "big"]),
            ("batches = [0]", ["--batches", "from 1 on"]),
            ("ways = ['bus']", ["--ways", "dedicated"]),
            ("operations = ['sort']", ["--operations", "compare-pattern"]),
            ("targets = ['x']", ["--targets", "number"]),
            ("pages = []", ["--pages", "no values"]),
            ("data = ['l2']", ["--data", "cached-source"]),
            ("priorities = ['16-1']", ["--priorities", "15-1"]),
            ("priorities = ['3']", ["--priorities", "15-1"]),
        ] {
            let error = axes(&options(toml)).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{toml}: {error}");
        }
        assert!(toml::from_str::<Options>("size = [1]").unwrap_err().to_string().contains("size"));
    }

    #[test]
    fn places() {
        assert_eq!(options("").on().unwrap(), On::Machine);
        assert_eq!(options("machine = 'spr-56c'").on().unwrap(), On::Model);
        assert!(options("on = 'machine'\nmachine = 'spr-56c'").on().is_err());
        assert!(options("on = 'model'").on().is_err());
        assert!(options("iterations = 0").on().is_err() && options("iterations = 1000000").on().is_err());
        assert_eq!(options("on = 'emulated'\nmachine = 'spr-56c'").on().unwrap(), On::Emulated);
    }
}

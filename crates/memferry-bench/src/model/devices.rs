//! Advice for programs that copy with devices: who copies, in which direction, and how the devices are configured.
//!
//! A workload is a list of streams of copies, in TOML. Sizes are numbers of bytes or texts such as `"64 KiB"`.
//!
//! ```toml
//! [[streams]]
//! name = "pages"
//! size = "4 KiB"
//! threads = 4                # that copy at the same time; 1 by default
//! in-flight = 16             # copies of each thread; 1, the default, waits for each copy
//! source = 0                 # nodes; optional
//! target = 8
//! ```
//!
//! | guideline | section | here |
//! |---|---|---|
//! | G2 | 6.1 | below [`Thresholds`] a core copies: they differ for copies that are waited for and for others |
//! | G4 | 6.2 | the memory that takes writes faster is the target; one memory for both ends is the worst case |
//! | G5, G6 | 6.3 | every [`Shape`] of groups, engines and queues is computed; the smallest of the best is chosen |
//!
//! Source: Kuper et al., "A Quantitative Analysis and Guideline of Data Streaming Accelerator in Intel 4th Gen Xeon
//! Scalable Processors" (2024).

use std::fs;

use memferry::internals::{Endpoints, Hardware, Offload, copies_s, device_shares};
use memferry::model::ModelError;
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};
use memferry_dsa::internals::device_time::{AbsentPages, DeviceLoad, QueueLoad, SubmitterLoad, run};
use memferry_dsa::internals::system::{EngineSettings, GroupSettings, QueueSettings};
use memferry_dsa::system::{Config, DeviceId, Limits};
use memferry_dsa::{DeviceCosts, QueueMode};
use serde::{Deserialize, Serialize};

use super::tables::Bytes;

/// The copies of a program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    streams: Vec<Stream>,
}

/// Copies of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Stream {
    name: String,
    size: Bytes,
    #[serde(default = "one")]
    threads: usize,
    #[serde(default = "one")]
    in_flight: usize,
    source: Option<NodeId>,
    target: Option<NodeId>,
}

fn one() -> usize {
    1
}

/// G2: the sizes from which a device is no slower than a core.
#[derive(Copy, Clone, Debug, PartialEq, Serialize)]
pub struct Thresholds {
    /// If a thread waits for each copy.
    pub waited_bytes: u64,
    /// If copies are in flight while the thread works on.
    pub asynchronous_bytes: u64,
}

/// G5 and G6: the configuration of each device.
#[derive(Copy, Clone, Debug, PartialEq, Serialize)]
pub struct Shape {
    /// Devices; threads are divided among them.
    pub devices: usize,
    /// Whether each stream has its own group, or all share one.
    pub is_group_per_stream: bool,
    /// Engines of each group.
    pub engines_of_group: usize,
    /// Whether each thread has its own dedicated queue, or all threads of a group one shared queue.
    pub is_dedicated: bool,
}

/// The advice for a stream. Rates are modelled, in bytes per second over all threads.
#[derive(Clone, Debug, Serialize)]
pub struct StreamAdvice {
    /// Its name.
    pub name: String,
    /// Whether devices copy it (G2).
    pub is_by_device: bool,
    /// The rate of its threads without a device.
    pub cores_rate: f64,
    /// With one engine and one shared queue, as a device is often configured; none if cores copy.
    pub plain_rate: Option<f64>,
    /// With the advised configuration.
    pub rate: f64,
    /// What its memories mean (G4); empty if nodes or their rates are not known.
    pub direction: String,
}

/// The advice for a workload.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceAdvice {
    /// Sizes from which devices should copy.
    pub thresholds: Thresholds,
    /// One for each stream.
    pub streams: Vec<StreamAdvice>,
    /// The configuration; none if cores should copy everything.
    pub shape: Option<Shape>,
    /// Mean gain of the device's streams over the plain configuration, geometric.
    pub gain: f64,
    /// The configuration as settings of the driver.
    #[serde(skip)]
    pub config: Config,
}

/// The configuration that a device often has, with which others are compared.
const PLAIN: Shape =
    Shape { devices: 1, is_group_per_stream: false, engines_of_group: 1, is_dedicated: false };

/// A larger configuration has to gain more than this.
const EQUAL_RATIO: f64 = 1.02;

/// Entries for nearly the maximum throughput of a queue (G6, section 6.3).
const ENTRIES_ENOUGH: usize = 32;

impl Workload {
    /// Reads a workload from a TOML file.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`Toml`](ModelError::Toml), [`Scenario`](ModelError::Scenario).
    pub fn read(path: &str) -> Result<Workload, ModelError> {
        let text =
            fs::read_to_string(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
        Workload::parse(path, &text)
    }

    /// Parses a workload; errors call it `name`.
    ///
    /// # Errors
    /// [`ModelError::Toml`], [`Scenario`](ModelError::Scenario).
    pub fn parse(name: &str, text: &str) -> Result<Workload, ModelError> {
        let toml_error = |source| ModelError::Toml { name: name.to_owned(), source: Box::new(source) };
        let workload: Workload = toml::from_str(text).map_err(toml_error)?;
        let is_wrong = |it: &Stream| {
            it.size.0 == 0 || !(1..=1024).contains(&it.threads) || !(1..=1024).contains(&it.in_flight)
        };
        let what = match &workload.streams[..] {
            [] => "it has no streams".to_owned(),
            streams => match streams.iter().find(|it| is_wrong(it)) {
                Some(it) => {
                    format!("stream {} has no bytes, or threads or in-flight outside 1 to 1024", it.name)
                }
                None => return Ok(workload),
            },
        };
        Err(ModelError::Scenario { what })
    }

    /// Computes the advice for a machine.
    ///
    /// # Errors
    /// [`ModelError::Unknown`]: the machine lacks a device, its rate or a cost. [`Node`](ModelError::Node).
    pub fn advise(&self, machine: &Machine) -> Result<DeviceAdvice, ModelError> {
        let hardware = Hardware::of(machine)?;
        let offload = Offload::of(&hardware)?;
        let thresholds = Thresholds {
            waited_bytes: offload.break_even_waited_bytes().ceil() as u64,
            asynchronous_bytes: offload.break_even_pipelined_bytes().ceil() as u64,
        };
        let is_by_device = |stream: &Stream| {
            let Thresholds { waited_bytes, asynchronous_bytes } = thresholds;
            stream.size.0 >= if stream.in_flight == 1 { waited_bytes } else { asynchronous_bytes }
        };
        let by_device: Vec<&Stream> = self.streams.iter().filter(|it| is_by_device(it)).collect();
        let advisor = Advisor { machine, hardware: &hardware, costs: offload.costs()?, streams: by_device };
        let plain = advisor.rates(&PLAIN);
        let (shape, rates) = advisor.best(&plain);
        let mut plain_and_best = plain.iter().zip(&rates);
        let mut streams = Vec::new();
        for stream in &self.streams {
            let cores_rate = cores_rate(machine, &hardware, &offload, stream)?;
            let device = if is_by_device(stream) { plain_and_best.next() } else { None };
            streams.push(StreamAdvice {
                name: stream.name.clone(),
                is_by_device: device.is_some(),
                cores_rate,
                plain_rate: device.map(|(plain, _)| *plain),
                rate: device.map_or(cores_rate, |(_, rate)| *rate),
                direction: direction(machine, &hardware, stream)?,
            });
        }
        let has_device = !advisor.streams.is_empty();
        Ok(DeviceAdvice {
            thresholds,
            streams,
            shape: has_device.then_some(shape),
            gain: mean_gain(&plain, &rates),
            config: if has_device { advisor.config(&shape) } else { Config::default() },
        })
    }
}

/// Geometric mean of the ratios.
fn mean_gain(plain: &[f64], rates: &[f64]) -> f64 {
    let logs: f64 = plain.iter().zip(rates).map(|(plain, rate)| (rate / plain).ln()).sum();
    (logs / plain.len().max(1) as f64).exp()
}

/// Rate of the threads of a stream if each copies itself.
fn cores_rate(
    machine: &Machine,
    hardware: &Hardware,
    offload: &Offload,
    stream: &Stream,
) -> Result<f64, ModelError> {
    let bytes = stream.size.0 as f64;
    let alone = stream.threads as f64 * bytes / offload.core_s(bytes);
    let (Some(source), Some(target)) = (stream.source, stream.target) else { return Ok(alone) };
    let cpus = machine.node(source)?.cpu_node;
    match copies_s(hardware, cpus, (source, target), stream.threads, bytes) {
        Ok(seconds) => Ok(stream.threads as f64 * bytes / seconds),
        // More threads than the node has cores, or memories of unknown rates.
        Err(ModelError::Unknown { .. } | ModelError::Scenario { .. }) => Ok(alone),
        Err(error) => Err(error),
    }
}

/// G4: what the memories at the two ends of a stream mean for it.
fn direction(machine: &Machine, hardware: &Hardware, stream: &Stream) -> Result<String, ModelError> {
    let (Some(source), Some(target)) = (stream.source, stream.target) else { return Ok(String::new()) };
    let rates = |node: NodeId| -> Result<Option<(f64, f64)>, ModelError> {
        let link = machine.link(machine.node(node)?.cpu_node, node);
        let memory = hardware.memories.iter().find(|it| it.node == node).and_then(|it| it.rate);
        let of = |link: Option<u64>| link.map(|rate| rate as f64).or(memory);
        Ok(of(link.read_bytes_per_s).zip(of(link.write_bytes_per_s)))
    };
    if source == target {
        return Ok(match rates(source)? {
            Some((rate, _)) => format!(
                "each byte passes node {source} twice, which limits all copies there to {:.1} GB/s; a target on \
                 another node has the bandwidth of both",
                rate / 2e9
            ),
            None => "a target on another node has the bandwidth of both".to_owned(),
        });
    }
    let (Some(from), Some(to)) = (rates(source)?, rates(target)?) else { return Ok(String::new()) };
    let (this_way, other_way) = (from.0.min(to.1), to.0.min(from.1));
    Ok(match () {
        () if this_way > EQUAL_RATIO * other_way => format!(
            "the right way: memories allow {:.1} GB/s from node {source} to {target}, {:.1} back",
            this_way / 1e9,
            other_way / 1e9
        ),
        () if other_way > EQUAL_RATIO * this_way => format!(
            "the slow way: memories allow {:.1} GB/s from node {source} to {target}, {:.1} back; if the program may \
             choose, it writes on node {source}",
            this_way / 1e9,
            other_way / 1e9
        ),
        () => format!("both ways alike: memories allow {:.1} GB/s", this_way / 1e9),
    })
}

struct Advisor<'a> {
    machine: &'a Machine,
    hardware: &'a Hardware,
    costs: DeviceCosts,
    /// Those that devices copy.
    streams: Vec<&'a Stream>,
}

/// A queue: its group, its submitters as (stream, number of the thread), its entries.
struct Queue {
    group: usize,
    streams: Vec<usize>,
    entries: usize,
}

impl Advisor<'_> {
    /// Devices of known rate, the nearest to the first stream's source first.
    fn devices(&self) -> Vec<usize> {
        let first = self.streams.first();
        let endpoints = Endpoints {
            source_node: first.and_then(|it| it.source),
            target_node: first.and_then(|it| it.target),
            size_bytes: usize::MAX,
            turn: 0,
        };
        device_shares(Route::All, self.machine, endpoints).into_iter().map(|share| share.engine).collect()
    }

    fn groups(&self, shape: &Shape) -> usize {
        if shape.is_group_per_stream { self.streams.len() } else { 1 }
    }

    /// The queues of the device with this number; threads take devices in turn.
    fn queues(&self, shape: &Shape, device: usize) -> Vec<Queue> {
        let mut queues: Vec<Queue> = Vec::new();
        let threads = self.streams.iter().enumerate().flat_map(|(index, it)| vec![index; it.threads]);
        for stream in threads.skip(device).step_by(shape.devices) {
            let group = if shape.is_group_per_stream { stream } else { 0 };
            match queues.iter_mut().find(|queue| queue.group == group && !shape.is_dedicated) {
                Some(queue) => queue.streams.push(stream),
                None => queues.push(Queue { group, streams: vec![stream], entries: 0 }),
            }
        }
        let most = Limits::dsa_1_0().entries as usize / queues.len().max(1);
        for queue in &mut queues {
            let in_flight = queue.streams.iter().map(|stream| self.streams[*stream].in_flight).sum::<usize>();
            queue.entries = in_flight.clamp(most.min(ENTRIES_ENOUGH), most.max(1));
        }
        queues
    }

    /// Rate of each stream.
    fn rates(&self, shape: &Shape) -> Vec<f64> {
        let mut rates = vec![0.0; self.streams.len()];
        for device in 0..shape.devices {
            for (rate, of_device) in rates.iter_mut().zip(self.rates_of(shape, device)) {
                *rate += of_device;
            }
        }
        // Memories limit what all streams reach together; each stream has its share of what it could do.
        let memories = &self.hardware.memories;
        let uses = |stream: &Stream, node| {
            [stream.source, stream.target].iter().filter(|end| **end == Some(node)).count() as f64
        };
        let overloads: Vec<(NodeId, f64)> = (memories.iter())
            .filter_map(|memory| {
                let used = self.streams.iter().zip(&rates).map(|(it, rate)| rate * uses(it, memory.node));
                Some((memory.node, used.sum::<f64>() / memory.rate?))
            })
            .collect();
        for (rate, stream) in rates.iter_mut().zip(&self.streams) {
            let of_stream = overloads.iter().filter(|(node, _)| uses(stream, *node) > 0.0);
            *rate /= of_stream.map(|(_, overload)| *overload).fold(1.0, f64::max);
        }
        rates
    }

    fn rates_of(&self, shape: &Shape, device: usize) -> Vec<f64> {
        let queues = self.queues(shape, device);
        let submit_ns =
            if shape.is_dedicated { self.costs.submit_dedicated_ns } else { self.costs.submit_shared_ns };
        let loads: Vec<QueueLoad> = (queues.iter())
            .map(|&Queue { group, entries, .. }| QueueLoad { group, entries, priority: 10, submit_ns })
            .collect();
        let owners: Vec<(usize, usize)> = (queues.iter().enumerate())
            .flat_map(|(queue, it)| it.streams.iter().map(move |stream| (queue, *stream)))
            .collect();
        let groups = vec![shape.engines_of_group; self.groups(shape)];
        let mut repetitions = vec![256; owners.len()];
        let mut rates = Vec::new();
        // Again with numbers for which all last equally long: what ends early leaves the others alone.
        for _ in 0..2 {
            let submitter = |(&(queue, stream), &repetitions): (&(usize, usize), &usize)| SubmitterLoad {
                queue,
                bytes: self.streams[stream].size.0,
                batch: 1,
                depth: self.streams[stream].in_flight.min(loads[queue].entries),
                repetitions,
                absent: AbsentPages::None,
            };
            let submitters: Vec<SubmitterLoad> = owners.iter().zip(&repetitions).map(submitter).collect();
            let load = DeviceLoad {
                costs: self.costs,
                groups: &groups,
                read_buffers: &[],
                queues: &loads,
                submitters: &submitters,
            };
            let per_ns: Vec<f64> = (run(&load).iter().zip(&repetitions))
                .map(|(time, count)| *count as f64 / time.elapsed_ns.max(1) as f64)
                .collect();
            rates = vec![0.0; self.streams.len()];
            for (&(_, stream), rate) in owners.iter().zip(&per_ns) {
                rates[stream] += rate * self.streams[stream].size.0 as f64 * 1e9;
            }
            let slowest = per_ns.iter().copied().fold(f64::INFINITY, f64::min);
            repetitions = per_ns.iter().map(|rate| (128.0 * rate / slowest).min(4096.0) as usize).collect();
        }
        rates
    }

    /// The smallest shape that nearly has the best mean gain, and its rates.
    fn best(&self, plain: &[f64]) -> (Shape, Vec<f64>) {
        let limits = Limits::dsa_1_0();
        let (mut best, mut best_gain) = ((PLAIN, plain.to_vec()), 1.0);
        // From few devices, groups and engines to many: more have to gain more. Threads are all that devices share.
        let threads: usize = self.streams.iter().map(|it| it.threads).sum();
        for devices in 1..=self.devices().len().min(threads) {
            for is_group_per_stream in [false, true] {
                for engines_of_group in 1..=limits.engines as usize {
                    for is_dedicated in [false, true] {
                        let shape = Shape { devices, is_group_per_stream, engines_of_group, is_dedicated };
                        let groups = self.groups(&shape);
                        let is_possible = groups <= limits.groups as usize
                            && groups * engines_of_group <= limits.engines as usize
                            && self.queues(&shape, 0).len() <= limits.queues as usize
                            && (!is_group_per_stream || groups > 1);
                        if !is_possible {
                            continue;
                        }
                        let rates = self.rates(&shape);
                        let gain = mean_gain(plain, &rates);
                        if gain > EQUAL_RATIO * best_gain {
                            (best, best_gain) = ((shape, rates), gain);
                        }
                    }
                }
            }
        }
        best
    }

    /// The settings of the devices, for `memferry configure --file` and accel-config.
    fn config(&self, shape: &Shape) -> Config {
        let of_machine = self.devices().into_iter().map(|index| &self.machine.accelerators()[index].name);
        let ids: Vec<DeviceId> = of_machine.filter_map(|name| name.parse().ok()).collect();
        let plain = "1n1d1e1w".parse().expect("a shape of one device");
        let mut config = Config::for_devices(&ids[..shape.devices.min(ids.len())], &plain);
        for (number, device) in config.devices.iter_mut().enumerate() {
            let (id, queue) = (device.id, device.groups[0].queues[0].clone());
            let engine = |index: usize| EngineSettings { id: id.engine(index as u32), kept: Vec::new() };
            device.groups = (0..self.groups(shape))
                .map(|group| GroupSettings {
                    id: id.group(group as u32),
                    engines: (group * shape.engines_of_group..(group + 1) * shape.engines_of_group)
                        .map(engine)
                        .collect(),
                    ..GroupSettings::default()
                })
                .collect();
            for (index, Queue { group, entries, .. }) in self.queues(shape, number).iter().enumerate() {
                let entries = *entries as u32;
                device.groups[*group].queues.push(QueueSettings {
                    id: id.queue(index as u32),
                    name: Some(format!("memferry{}_{index}", id.0)),
                    mode: Some(if shape.is_dedicated { QueueMode::Dedicated } else { QueueMode::Shared }),
                    size: Some(entries),
                    threshold: Some(if shape.is_dedicated { 0 } else { entries }),
                    ..queue.clone()
                });
            }
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use memferry_dsa::system::UnknownKeys;

    use super::*;

    fn advice(machine: &str, text: &str) -> DeviceAdvice {
        let workload = Workload::parse("a test", text).unwrap();
        workload.advise(&Machine::from_profile(machine).unwrap()).unwrap()
    }

    fn stream(rest: &str) -> String {
        format!("[[streams]]\nname = 'x'\n{rest}\n")
    }

    /// G2, section 6.1: below 4 KB a core copies if it would wait; figure 2b: in flight it pays from 256 bytes on.
    #[test]
    fn small_copies_that_are_waited_for_stay_on_the_core() {
        for (size, in_flight, is_by_device) in
            [(4000, 1, false), (4200, 1, true), (4000, 8, true), (250, 8, false), (260, 8, true)]
        {
            let advice = advice("spr-56c", &stream(&format!("size = {size}\nin-flight = {in_flight}")));
            assert_eq!(advice.streams[0].is_by_device, is_by_device, "{size} bytes, {in_flight} in flight");
            assert_eq!(advice.shape.is_some(), is_by_device);
        }
    }

    /// G4, section 6.2: the memory that takes writes faster is the better target.
    #[test]
    fn the_direction_across_tiers() {
        let between = |source, target| {
            let nodes = format!("size = '1 MiB'\nsource = {source}\ntarget = {target}");
            advice("xeon-max-9468-2s-flat", &stream(&nodes)).streams[0].direction.clone()
        };
        assert!(between(0, 0).contains("33.8 GB/s"), "{}", between(0, 0));
        assert!(
            between(0, 8).starts_with("both ways alike"),
            "what is printed has one rate: {}",
            between(0, 8)
        );
        const PROFILE: &str = include_str!("../../../memferry/machines/xeon-max-9468-2s-flat.json");
        // A machine whose far memory reads faster than it writes, like the CXL memory of figure 6b.
        let rows = |far: f64| {
            let row = vec![50_000.0; 8].into_iter().chain(vec![far; 8]).collect::<Vec<f64>>();
            format!("{:?}", vec![row; 16])
        };
        let rates = |reads: f64, writes: f64| {
            let text = PROFILE
                .replace(
                    "\"read_mb_per_s\": null",
                    &format!(
                        "\"read_mb_per_s\": {{\"value\": {}, \"source\": \"Fürst 2024, a test\"}}",
                        rows(reads)
                    ),
                )
                .replace(
                    "\"write_mb_per_s\": null",
                    &format!(
                        "\"write_mb_per_s\": {{\"value\": {}, \"source\": \"Fürst 2024, a test\"}}",
                        rows(writes)
                    ),
                );
            Machine::from_profile_text("made up", &text).unwrap()
        };
        let slow_to_write = rates(30_000.0, 10_000.0);
        let between = |source, target| {
            let text = stream(&format!("size = '1 MiB'\nsource = {source}\ntarget = {target}"));
            Workload::parse("a test", &text).unwrap().advise(&slow_to_write).unwrap().streams[0]
                .direction
                .clone()
        };
        assert!(between(8, 0).starts_with("the right way"), "{}", between(8, 0));
        assert!(between(0, 8).starts_with("the slow way"), "{}", between(0, 8));
    }

    /// G5, section 6.3 and figure 7: small copies scale with engines, large ones need one. G6: dedicated queues for few
    /// threads, a shared one for more threads than there are queues.
    #[test]
    fn the_configuration() {
        let shape = |rest: &str| {
            let advice = advice("spr-56c", &stream(rest));
            assert!(advice.gain >= 1.0);
            let config = advice.config.to_json();
            let read = Config::parse(&config, UnknownKeys::Refuse).unwrap();
            read.validate(&Limits::dsa_1_0()).unwrap();
            (advice.shape.unwrap(), advice)
        };
        let (small, advice) = shape("size = 512\nthreads = 4\nin-flight = 16");
        assert!(small.is_dedicated && small.engines_of_group * small.devices > 1, "{small:?}");
        assert!(advice.gain > 1.5, "{advice:?}");
        let (large, advice) = shape("size = '1 MiB'\nin-flight = 16");
        assert_eq!((large, advice.gain), (PLAIN, 1.0));
        assert_eq!(advice.config.devices[0].groups[0].queues[0].threshold, Some(32));
        let (many, _) = shape("size = '4 KiB'\nthreads = 40\nin-flight = 2");
        assert!(!many.is_dedicated, "{many:?}");
    }

    /// Section 4.3: a group of its own protects from long descriptors of others.
    #[test]
    fn waited_copies_beside_large_ones_have_their_group() {
        let text = stream("size = '1 MiB'\nin-flight = 8") + &stream("size = '8 KiB'");
        let text = text.replacen("'x'", "'bulk'", 1);
        let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        let advice = Workload::parse("a test", &text).unwrap().advise(&machine).unwrap();
        let [bulk, waited] = &advice.streams[..] else { panic!("{advice:?}") };
        assert!(waited.rate > 3.0 * waited.plain_rate.unwrap(), "{advice:?}");
        assert!(bulk.rate > 0.9 * bulk.plain_rate.unwrap(), "{advice:?}");
    }

    /// Section 3.2.3 of Fürst 2024: several devices reach what the memory of the source has, also of several streams.
    #[test]
    fn memories_limit_all_streams_together() {
        let from_0 = "size = '1 MiB'\nthreads = 4\nin-flight = 8\nsource = 0\ntarget = 8";
        let text = stream(from_0) + &stream(&from_0.replace("target = 8", "target = 11"));
        let advice = advice("xeon-max-9468-2s-flat", &text);
        let together: f64 = advice.streams.iter().map(|it| it.rate).sum();
        assert!((together / 67_521.2e6 - 1.0).abs() < 0.02 && advice.gain > 1.9, "{advice:?}");
    }

    #[test]
    fn what_it_refuses() {
        let error = |text: &str| Workload::parse("a test", text).unwrap_err().to_string();
        assert!(error("streams = []").contains("no streams"));
        assert!(error(&stream("size = 0")).contains("stream x"));
        assert!(error(&stream("size = 1\nthread = 2")).contains("thread"));
        let workload = Workload::parse("a test", &stream("size = 1")).unwrap();
        let machine = Machine::from_profile("skylake-8180-snc-on").unwrap();
        assert!(matches!(workload.advise(&machine), Err(ModelError::Unknown { .. })));
    }
}

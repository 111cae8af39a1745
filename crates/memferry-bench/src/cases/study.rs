//! The rows of the cases: measured, emulated and modelled, beside published numbers.

use std::error::Error;

use memferry::internals::{Hardware, Offload};
use memferry::topology::Machine;
use memferry_dsa_emulator::FaultPlan;

use super::cache_server::{Mix, serve};
use super::digests::{StorageTarget, cores_with_device, other_ns};
use super::gradients::{Gradients, zeroed};
use super::messages::{all_reduce, ping_pong};
use super::packets::forwarded;
use super::queues::gain_by_cores;
use super::{CaseError, Host, PERCENTILES, PROFILE, Samples, percentile};
use crate::dsa::device_provenance;
use crate::harness::{Effort, Peer, Provenance, Row, median};
use crate::model::{Prediction, figures};
use crate::mover::forwarding;

type Rows = Result<Vec<Row>, Box<dyn Error>>;

/// The names of the cases, in the order of the publication.
pub const CASES: [&str; 5] = ["packets", "messages", "cache", "digests", "gradients"];

/// Runs cases on this machine, on its devices if it has usable ones, and in virtual time on the publication's machine.
#[derive(Debug)]
pub struct Study {
    machine: Machine,
    offload: Offload,
    system: Option<Host>,
    effort: Effort,
    seed: u64,
}

impl Study {
    /// # Errors
    /// [`CaseError::Model`] never in practice, since the profile is built in; [`CaseError::System`].
    pub fn new(effort: Effort, seed: u64) -> Result<Study, CaseError> {
        let machine = Machine::from_profile(PROFILE).map_err(memferry::model::ModelError::from)?;
        let offload = Offload::of(&Hardware::of(&machine)?)?;
        Ok(Study { machine, offload, system: Host::system()?, effort, seed })
    }

    /// The rows of one of [`CASES`]. The model's predictions of a case's published rows come last.
    ///
    /// # Errors
    /// [`CaseError`]: a device does not work, or a result is wrong.
    ///
    /// # Panics
    /// If there is no such case.
    pub fn rows(&self, case: &str, predictions: &[Prediction]) -> Rows {
        let (mut rows, ids): (_, &[&str]) = match case {
            "packets" => (self.packets()?, &["K078", "K079", "K083", "K084"]),
            "cache" => (self.cache()?, &["K103"]),
            "digests" => (self.digests()?, &["K109", "K112"]),
            "messages" => (self.messages()?, &["K086", "K087", "K088", "K089", "K090"]),
            "gradients" => (self.gradients()?, &[]),
            other => panic!("no case {other}"),
        };
        let of_case = |it: &&Prediction| it.rows.iter().any(|row| ids.contains(row));
        rows.extend(predictions.iter().filter(of_case).map(Prediction::row));
        Ok(rows)
    }

    fn packets(&self) -> Rows {
        let mut rows = Vec::new();
        let bursts = self.effort.of(2000, 5);
        for &bytes in self.effort.of(&[64, 128, 256, 512, 1024, 1518][..], &[64, 512][..]) {
            rows.extend(self.real(&format!("packets_{bytes}B"), |host| forwarded(host, bytes, bursts, 0.0))?);
        }
        // Above 256 bytes, as published.
        let mut gains = Vec::new();
        for bytes in [512, 1024, 1518] {
            let pairs = forwarding(bytes)?;
            gains.push(pairs.ratio());
            rows.push(emulated(format!("packets_{bytes}B_emulated"), &pairs.ours, &pairs.peer));
        }
        let [least, most] =
            [f64::min, f64::max].map(|of| gains.iter().copied().reduce(of).unwrap_or(f64::NAN));
        rows.push(beside_published("packets_gain_least_emulated", least, "x", "K083"));
        rows.push(beside_published("packets_gain_most_emulated", most, "x", "K084"));
        Ok(rows)
    }

    fn cache(&self) -> Rows {
        let (cache_bytes, requests) = self.effort.of((256 << 20, 20_000), (4 << 20, 200));
        let mut rows = Vec::new();
        for (name, bytes) in
            [("1KiB", 1 << 10), ("16KiB", 16 << 10), ("128KiB", 128 << 10), ("1MiB", 1 << 20)]
        {
            let serve = |host: &Host| serve(host, Mix::Equal(bytes), cache_bytes, requests, self.seed);
            rows.extend(self.everywhere(&format!("cache_get_{name}"), |host| Ok(serve(host)?.gets))?);
        }
        // Two million gets, as published, and sets.
        let requests = self.effort.of(2_250_000, 2000);
        let run = |host: &Host| serve(host, Mix::Published, cache_bytes, requests, self.seed);
        let core = run(&Host::real(None))?;
        rows.extend(percentiles("cache_get", Provenance::Measured, &core.gets));
        rows.extend(percentiles("cache_set", Provenance::Measured, &core.sets));
        if let Some(system) = &self.system {
            let device = run(system)?;
            for (name, ours, theirs) in
                [("cache_get_dsa", device.gets, &core.gets), ("cache_set_dsa", device.sets, &core.sets)]
            {
                rows.extend(compared_percentiles(
                    name,
                    device_provenance(),
                    &ours,
                    THIS_CORE,
                    Provenance::Measured,
                    theirs,
                ));
            }
        }
        let core = run(&Host::virtual_core(&self.machine)?)?;
        let device = run(&Host::virtual_device(&self.machine, FaultPlan::none())?)?;
        for (name, ours, theirs) in
            [("cache_get_emulated", device.gets, core.gets), ("cache_set_emulated", device.sets, core.sets)]
        {
            let (emulated, modelled) = (Provenance::Emulated, Provenance::Modelled);
            rows.extend(compared_percentiles(name, emulated, &ours, PROFILE_CORE, modelled, &theirs));
        }
        let queues = published("K104") as usize;
        for cores in [1, 2, 4, 8, 16, 32] {
            let gain = gain_by_cores(&self.offload, queues, cores)?;
            rows.push(Row::modelled(format!("cache_gain_{cores}_cores"), gain, "x"));
        }
        Ok(rows)
    }

    fn digests(&self) -> Rows {
        let mut rows = Vec::new();
        let batches = self.effort.of(500, 3);
        let blocks_bytes: usize = self.effort.of(128 << 20, 1 << 20);
        for (name, bytes, none, core, device) in [
            ("digests_16KiB", 16 << 10, "K110", "K111", "K109"),
            ("digests_128KiB", 128 << 10, "K113", "K114", "K112"),
        ] {
            let digest_ns = self.offload.core_s(bytes as f64 / 2.0) * 1e9;
            let target = (published(none), published(core));
            let beside_ns = other_ns(target.0, target.1, digest_ns);
            let blocks = StorageTarget::new(blocks_bytes / bytes, bytes, self.seed);
            let run = |host: &Host| blocks.clone().serve(host, batches, beside_ns);
            rows.extend(self.everywhere(name, run)?);
            // The core serves other reads while a device works.
            let busy_ns = median(&run(&Host::virtual_device(&self.machine, FaultPlan::none())?)?.busy_ns);
            let cores = cores_with_device(target, digest_ns, busy_ns - beside_ns);
            rows.push(beside_published(&format!("{name}_cores_emulated"), cores, "cores", device));
        }
        Ok(rows)
    }

    fn messages(&self) -> Rows {
        let mut rows = Vec::new();
        let run = |host: &Host, bytes: usize| {
            // As many bytes with each size; in virtual time all round trips are alike.
            let round_trips = self.effort.of((1 << 28) / bytes, 2).clamp(2, 1000);
            ping_pong(host, bytes, round_trips)
        };
        let sizes = [
            ("4KiB", 4 << 10),
            ("32KiB", 32 << 10),
            ("256KiB", 256 << 10),
            ("1MiB", 1 << 20),
            ("8MiB", 8 << 20),
        ];
        for (name, bytes) in &sizes[..self.effort.of(5, 2)] {
            rows.extend(self.everywhere(&format!("ping_pong_{name}"), |host| run(host, *bytes))?);
        }
        let mut gains = Vec::new();
        for power in 10..=23 {
            gains.push((1 << power, self.virtual_gain(|host| ping_pong(host, 1 << power, 2))?));
        }
        let least =
            gains.iter().find(|(_, gain)| *gain >= 1.0).map_or(f64::NAN, |(bytes, _)| f64::from(*bytes));
        rows.push(beside_published("ping_pong_break_even_emulated", least / 1024.0, "KB", "K085"));
        let most = gains.iter().map(|(_, gain)| *gain).fold(0.0, f64::max);
        rows.push(beside_published("ping_pong_gain_most_emulated", most, "x", "K086"));
        let (vector_bytes, rounds) = self.effort.of((8 << 20, 5), (64 << 10, 2));
        let add_ns = self.offload.core_s(vector_bytes as f64 / 2.0) * 1e9;
        for (ranks, row) in [(2, "K088"), (4, "K089"), (8, "K090")] {
            let run = |host: &Host| all_reduce(host, ranks, vector_bytes, add_ns, rounds);
            rows.extend(self.everywhere(&format!("all_reduce_{ranks}_ranks"), run)?);
            let gain = self.virtual_gain(run)?;
            rows.push(beside_published(&format!("all_reduce_{ranks}_ranks_gain_emulated"), gain, "x", row));
        }
        Ok(rows)
    }

    fn gradients(&self) -> Rows {
        let (part, iterations) = self.effort.of((1, 11), (64, 2));
        Ok(self.everywhere("gradients", |host| zeroed(host, &mut Gradients::new(part), iterations))?)
    }

    /// Measured on this machine's core, and on its devices if there are any.
    fn real(
        &self,
        name: &str,
        run: impl Fn(&Host) -> Result<Samples, CaseError>,
    ) -> Result<Vec<Row>, CaseError> {
        let core = run(&Host::real(None))?.elapsed_ns;
        let mut rows = vec![Row::median(name, "ns", Provenance::Measured, &core)];
        if let Some(system) = &self.system {
            let row = Row::median(format!("{name}_dsa"), "ns", device_provenance(), &run(system)?.elapsed_ns);
            rows.push(against(row, THIS_CORE, Provenance::Measured, median(&core)));
        }
        Ok(rows)
    }

    /// Also in virtual time: the time of an operation, and the part of it in which the core is busy.
    fn everywhere(
        &self,
        name: &str,
        run: impl Fn(&Host) -> Result<Samples, CaseError>,
    ) -> Result<Vec<Row>, CaseError> {
        let mut rows = self.real(name, &run)?;
        let (device, core) = self.virtual_samples(run)?;
        rows.push(emulated(format!("{name}_emulated"), &device.elapsed_ns, &core.elapsed_ns));
        rows.push(emulated(format!("{name}_emulated_busy"), &device.busy_ns, &core.busy_ns));
        Ok(rows)
    }

    /// Samples of an emulated device and of a core in virtual time.
    fn virtual_samples(
        &self,
        run: impl Fn(&Host) -> Result<Samples, CaseError>,
    ) -> Result<(Samples, Samples), CaseError> {
        let device = run(&Host::virtual_device(&self.machine, FaultPlan::none())?)?;
        Ok((device, run(&Host::virtual_core(&self.machine)?)?))
    }

    fn virtual_gain(&self, run: impl Fn(&Host) -> Result<Samples, CaseError>) -> Result<f64, CaseError> {
        let (device, core) = self.virtual_samples(run)?;
        Ok(median(&core.elapsed_ns) / median(&device.elapsed_ns))
    }
}

/// Peers of the rows.
const THIS_CORE: &str = "this core";
const PROFILE_CORE: &str = "a core of spr-56c";

/// The published number of a row.
fn published(id: &str) -> f64 {
    figures()
        .into_iter()
        .find(|figure| figure.id == id)
        .and_then(|figure| figure.number())
        .unwrap_or(f64::NAN)
}

/// An emulated number beside a published one.
fn beside_published(name: &str, value: f64, unit: &'static str, id: &str) -> Row {
    Row::median(format!("{name} [{id}]"), unit, Provenance::Emulated, &[value])
        .beside_published(published(id))
}

/// A time with the ratio to a peer's time.
fn against(row: Row, peer: &str, how: Provenance, peer_ns: f64) -> Row {
    let ratio = peer_ns / row.value;
    let differs = how != row.provenance;
    let row = row.against(peer, peer_ns, ratio);
    let label = |peer: Peer| if differs { peer.obtained(how) } else { peer };
    Row { peer: row.peer.map(label), ..row }
}

/// Times of the emulated device beside those of a core of the profile.
fn emulated(name: String, device_ns: &[f64], core_ns: &[f64]) -> Row {
    let row = Row::median(name, "ns", Provenance::Emulated, device_ns);
    against(row, PROFILE_CORE, Provenance::Modelled, median(core_ns))
}

/// The percentiles that have enough samples.
fn percentiles(name: &str, how: Provenance, samples: &Samples) -> Vec<Row> {
    let mut sorted = samples.elapsed_ns.clone();
    sorted.sort_by(f64::total_cmp);
    let (min, max) =
        (sorted.first().copied().unwrap_or(f64::NAN), sorted.last().copied().unwrap_or(f64::NAN));
    let row = |(label, rank): (&str, usize)| {
        let value = percentile(&sorted, rank)?;
        let row = Row::median(format!("{name}_{label}"), "ns", how, &[value]);
        Some(Row { samples: sorted.len(), min, max, ..row })
    };
    PERCENTILES.into_iter().filter_map(row).collect()
}

/// Percentiles beside those of a peer.
fn compared_percentiles(
    name: &str,
    how: Provenance,
    ours: &Samples,
    peer: &str,
    peer_how: Provenance,
    theirs: &Samples,
) -> Vec<Row> {
    let peers = percentiles(peer, peer_how, theirs);
    let rows = percentiles(name, how, ours).into_iter().zip(peers);
    rows.map(|(row, theirs)| against(row, peer, peer_how, theirs.value)).collect()
}

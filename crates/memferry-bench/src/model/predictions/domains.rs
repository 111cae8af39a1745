//! Greinsmark 2020: sub-domains of sockets.

use memferry::internals::{Hardware, Part, queries_per_s};
use memferry::model::ModelError;
use memferry::topology::{Machine, NodeId};

use super::List;

/// Bandwidths of the two Skylake profiles.
const SNC: &[&str] = &["G141-G144", "G145-G160"];
const SNC_LATENCY: &[&str] = &["G061-G120"];
const COD: &[&str] = &["G121-G140"];
const COD_LATENCY: &[&str] = &["G001-G060"];

impl List {
    pub(super) fn scans(&mut self) -> Result<(), ModelError> {
        self.context = SNC;
        let off = Hardware::of(&Machine::from_profile("skylake-8180-snc-off")?)?;
        let on = Hardware::of(&Machine::from_profile("skylake-8180-snc-on")?)?;
        let clients = self.published("G210") as usize;
        let column = self.published("G206") * 1e6;
        let part = |cpus, node, columns_count| Part { cpus: NodeId(cpus), node: NodeId(node), columns_count };
        let rate = |hardware, parts: &[Part]| queries_per_s(hardware, clients, column, parts);
        let whole = rate(&off, &[part(0, 0, 6)])?;
        let own = rate(&on, &[part(0, 0, 6)])?;
        let neighbour = rate(&on, &[part(0, 1, 6)])?;
        let balanced = rate(&on, &[part(0, 0, 3), part(1, 1, 3)])?;
        let skewed = rate(&on, &[part(0, 0, 2), part(1, 1, 4)])?;
        let from_one = rate(&on, &[part(0, 0, 3), part(0, 1, 3)])?;
        let percent = |rate: f64, of: f64| 100.0 * rate / of;
        self.figure("one sub-domain of SNC off", &["G223", "G224"], percent(own, whole), "%");
        self.figure("bandwidth of one sub-domain of SNC off", &["G225", "G226"], percent(own, whole), "%");
        self.figure("gain per sub-domain", &["G244", "G161"], percent(2.0 * own, whole) - 100.0, "%")
            .unexplained = Some(
            "of the 4.6 % that the bandwidth promises, queries keep 3 %: what a query does beside scanning",
        );
        // The loss is printed without its reference: SNC off or the balanced case.
        let left = (100.0 - self.published("G242"), 100.0 - self.published("G241"));
        for (of, all) in [("SNC off", whole), ("balanced", balanced)] {
            let name = format!("left with skew 2/4, of {of}");
            self.push(&name, &["G241", "G242"], percent(skewed, all), left, "%");
        }
        const RESULTS: &str =
            "results too large for the cache, and what neighbours do not evict, are not modelled";
        for row in ["G227", "G229", "G231"] {
            self.figure("gain of scanning the neighbour", &[row], percent(neighbour, own) - 100.0, "%")
                .unexplained = Some(RESULTS);
        }
        self.figure("balanced 3/3 of SNC off", &["G233", "G234"], percent(balanced, whole), "%")
            .unexplained = Some(
            "by bandwidth both sub-domains are faster than one domain; the thesis finds no reason either",
        );
        self.figure("balanced 3/3 of SNC off, memory", &["G235", "G236"], percent(balanced, whole), "%");
        const ODD: &str = "odd to the author too: as many cores, and no pollution of the neighbour's cache";
        self.figure("balanced, workers on one", &["G237", "G238"], percent(from_one, whole), "%")
            .unexplained = Some(ODD);
        self.figure("balanced, workers on one, memory", &["G239", "G240"], percent(from_one, whole), "%")
            .unexplained = Some(ODD);
        let packed = queries_per_s(&off, clients, self.published("G248") * 1e6, &[part(0, 0, 6)])?;
        self.figure("queries a second, packed columns", &["G249"], packed, "queries/s");
        self.push(
            "queries a second, mostly below",
            &["G247"],
            packed,
            (0.0, self.published("G247")),
            "queries/s",
        );
        Ok(())
    }

    /// Rows that follow from the tables by arithmetic; the profiles hold the tables.
    pub(super) fn matrices(&mut self) -> Result<(), ModelError> {
        let machine = |name: &str| Machine::from_profile(name);
        let read = |machine: &Machine, cpus: u32, memory: u32| {
            machine.link(NodeId(cpus), NodeId(memory)).read_bytes_per_s.unwrap_or(0) as f64
        };
        let latency = |machine: &Machine, pairs: &[(u32, u32)]| {
            let sum: f64 = pairs
                .iter()
                .map(|&(cpus, memory)| {
                    machine.link(NodeId(cpus), NodeId(memory)).read_latency_ns.unwrap_or(0.0)
                })
                .sum();
            sum / pairs.len() as f64
        };
        let bounds = |values: Vec<f64>| {
            (values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(0.0, f64::max))
        };
        let change = |new: f64, old: f64| 100.0 * (new / old - 1.0);
        let own = [(0, 0), (1, 1), (2, 2), (3, 3)];
        let next = [(0, 1), (1, 0), (2, 3), (3, 2)];

        let (off, on) = (machine("broadwell-2699v4-cod-off")?, machine("broadwell-2699v4-cod-on")?);
        self.context = COD_LATENCY;
        let whole = latency(&off, &own[..2]);
        self.figure("local latency with COD", &["G191"], change(latency(&on, &own), whole), "%")
            .unexplained = Some("the tables give -6.0 %; the text rounds otherwise");
        self.figure("neighbour's latency with COD", &["G192"], change(latency(&on, &next), whole), "%");
        self.context = COD;
        // Against half of a domain, as each has half of the controllers.
        let per_controller = |on: &Machine, off: &Machine, (cpus, memory): (u32, u32)| {
            change(2.0 * read(on, cpus, memory), read(off, cpus / 2, cpus / 2))
        };
        let (low, high) = bounds(own.map(|pair| per_controller(&on, &off, pair)).to_vec());
        self.figure("least gain of local bandwidth with COD", &["G193"], low, "%").unexplained =
            Some("the tables give 2.2 %; the text says 2.1 %");
        self.figure("largest gain of local bandwidth with COD", &["G194"], high, "%");
        let (low, high) = bounds(next.map(|pair| -per_controller(&on, &off, pair)).to_vec());
        self.figure("least loss to the neighbour with COD", &["G195"], low, "%");
        self.figure("largest loss to the neighbour with COD", &["G196"], high, "%");
        let remote = |cpus: u32| {
            let far = 2 - cpus / 2 * 2;
            let (socket, sum) = (cpus / 2, read(&on, cpus, far) + read(&on, cpus, far + 1));
            -change(sum, read(&off, socket, 1 - socket))
        };
        let (low, high) = bounds((0..4).map(remote).collect());
        self.figure("least loss to the other socket with COD", &["G197"], low, "%");
        self.figure("largest loss to the other socket with COD", &["G198"], high, "%").unexplained =
            Some("the tables give 17.9 % from two of the four sub-domains; the 8 % cannot be found in them");

        let (off, on) = (machine("skylake-8180-snc-off")?, machine("skylake-8180-snc-on")?);
        self.context = SNC_LATENCY;
        let whole = latency(&off, &own[..2]);
        self.figure("local latency with SNC", &["G199"], change(latency(&on, &own), whole), "%");
        let both = (latency(&on, &own) + latency(&on, &next)) / 2.0;
        self.figure("mean latency in the socket with SNC, less by", &["G200"], whole - both, "ns")
            .unexplained = Some("the tables give 1.9 ns; the text says 2.4");
        self.context = SNC;
        let mean = |pairs: [(u32, u32); 4]| {
            pairs.map(|pair| per_controller(&on, &off, pair)).iter().sum::<f64>() / 4.0
        };
        self.figure("local bandwidth with SNC", &["G202"], mean(own), "%");
        self.figure("neighbour's bandwidth with SNC", &["G203"], mean(next), "%");
        Ok(())
    }
}

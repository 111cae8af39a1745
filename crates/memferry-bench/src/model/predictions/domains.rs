//! Greinsmark 2020: sub-domains of sockets.

use memferry::internals::{Hardware, Part, TaskRun, queries_per_s};
use memferry::model::ModelError;
use memferry::topology::{Machine, NodeId};

use super::List;
use crate::sncdb::{self, Layout, RANGE_PREDS, Results, Setting, Study, Workers, lookups};

/// Bandwidths of the two Skylake profiles.
const SNC: &[&str] = &["G141-G144", "G145-G160"];
const SNC_LATENCY: &[&str] = &["G061-G120"];
const COD: &[&str] = &["G121-G140"];
const COD_LATENCY: &[&str] = &["G001-G060"];

/// The rows that the results of queries were fitted to, beside the bandwidths.
const SNC_RESULTS: &[&str] = &["G141-G144", "G145-G160", "G227", "G229"];
/// The rows that the bytes of the publication's counters were fitted to, too.
const SNC_COUNTED: &[&str] = &["G141-G144", "G145-G160", "G227", "G229", "G238", "G240"];

/// Queries that scan six columns of that size on the first node, by bandwidth alone.
fn packed_queries_per_s(machine: &Machine, clients: usize, column_mb: f64) -> Result<f64, ModelError> {
    let scans = [Part { cpus: NodeId(0), node: NodeId(0), columns_count: sncdb::PREDICATES }];
    queries_per_s(&Hardware::of(machine)?, clients, column_mb * 1e6, &scans)
}

/// What follows from one selectivity. Rates in queries per second.
struct Skewed {
    range_pred: u64,
    /// Without sub-domains: six predicates on one table, three on each.
    off: TaskRun,
    off_half: TaskRun,
    own: TaskRun,
    neighbour: TaskRun,
    balanced: TaskRun,
    balanced_half: TaskRun,
    from_one: TaskRun,
    /// Two predicates on the first table, four on the second.
    skewed: TaskRun,
    skewed_stealing: TaskRun,
}

impl Skewed {
    fn of(off: &Study, on: &Study, range_pred: u64) -> Result<Skewed, ModelError> {
        let run = |study: &Study, workers, is_stealing, on_first| {
            study.run(Setting { workers, is_stealing }, on_first, range_pred)
        };
        Ok(Skewed {
            range_pred,
            off: run(off, Workers::All, false, 3)?,
            off_half: run(off, Workers::Half, false, 3)?,
            own: run(on, Workers::First, false, 6)?,
            neighbour: run(on, Workers::First, false, 0)?,
            balanced: run(on, Workers::All, false, 3)?,
            balanced_half: run(on, Workers::Half, false, 3)?,
            from_one: run(on, Workers::First, false, 3)?,
            skewed: run(on, Workers::All, false, 2)?,
            skewed_stealing: run(on, Workers::All, true, 2)?,
        })
    }

    /// Queries of SNC off, in percent.
    fn of_off(&self, run: &TaskRun) -> f64 {
        100.0 * run.queries_per_s / self.off.queries_per_s
    }
}

impl List {
    pub(super) fn scans(&mut self) -> Result<(), ModelError> {
        let off_machine = Machine::from_profile("skylake-8180-snc-off")?;
        let on_machine = Machine::from_profile("skylake-8180-snc-on")?;
        let (off, on) = (Study::of(&off_machine)?, Study::of(&on_machine)?);
        let runs = RANGE_PREDS.map(|range_pred| Skewed::of(&off, &on, range_pred));
        let [few, some, many] = runs;
        let [few, some, many] = [few?, some?, many?];
        let all = [&few, &some, &many];
        let named = |what: &str, it: &Skewed| format!("{what}, below {}", it.range_pred);

        self.context = &[];
        for (name, row, layout) in
            [("size of C0", "G205", Layout::KEY), ("size of C1 to C6", "G206", Layout::VALUE)]
        {
            self.figure(name, &[row], layout.bytes() / 1e6, "MB");
        }

        self.context = SNC;
        let packed =
            packed_queries_per_s(&off_machine, self.published("G210") as usize, self.published("G248"))?;
        self.figure("queries a second, packed columns", &["G249"], packed, "queries/s");
        let rate = |machine: &Machine, memory| {
            machine.link(NodeId(0), NodeId(memory)).read_bytes_per_s.unwrap_or(0) as f64
        };
        let bandwidth = 100.0 * rate(&on_machine, 0) / rate(&off_machine, 0);
        self.figure("bandwidth of one sub-domain of SNC off", &["G225", "G226"], bandwidth, "%");

        self.context = SNC_RESULTS;
        for it in all {
            let name = named("one sub-domain of SNC off", it);
            self.figure(&name, &["G223", "G224"], it.of_off(&it.own), "%");
        }
        self.figure("gain per sub-domain", &["G244", "G161"], 2.0 * few.of_off(&few.own) - 100.0, "%")
            .unexplained = Some(
            "of the 4.6 % that the bandwidth promises, queries keep 3 %: what a query does beside scanning",
        );
        // The loss is printed without its reference: SNC off or the balanced case.
        for (it, row) in [(&few, "G241"), (&some, "G242")] {
            let left = 100.0 - self.published(row);
            for (of, reference) in [("SNC off", &it.off), ("balanced", &it.balanced)] {
                let share = 100.0 * it.skewed.queries_per_s / reference.queries_per_s;
                self.push(
                    &named(&format!("left with skew 2/4, of {of}"), it),
                    &[row],
                    share,
                    (left, left),
                    "%",
                );
            }
        }
        let stealing = |it: &Skewed| it.skewed_stealing.queries_per_s / it.skewed.queries_per_s;
        let helps = stealing(&many) > 1.05 && stealing(&few) < 1.05;
        self.statement("stealing helps at a skew if results are large", &["G243"], helps);
        for (it, row) in all.into_iter().zip(["G227", "G229", "G231"]) {
            let gain = 100.0 * (it.neighbour.queries_per_s / it.own.queries_per_s - 1.0);
            let name = named("gain of scanning the neighbour", it);
            self.figure(&name, &[row], gain, "%").is_fit =
                sncdb::FIT.iter().any(|&(fitted, _)| fitted == row);
        }
        for (name, run, of) in [
            ("balanced 3/3 of SNC off", &some.balanced, &some.off),
            ("balanced 3/3 of SNC off, half of the cores", &some.balanced_half, &some.off_half),
        ] {
            let percent = |share: fn(&TaskRun) -> f64| 100.0 * share(run) / share(of);
            self.figure(name, &["G233", "G234"], percent(|run| run.queries_per_s), "%").unexplained = Some(
                "by bandwidth both sub-domains are faster than one domain; the thesis finds no reason either",
            );
            self.figure(&format!("{name}, memory"), &["G235", "G236"], percent(TaskRun::bytes_per_s), "%");
        }
        for it in all {
            let name = named("balanced, workers on one", it);
            self.figure(&name, &["G237", "G238"], it.of_off(&it.from_one), "%");
        }
        for it in all {
            let name = named("queries a second, mostly below 120", it);
            self.push(&name, &["G247"], it.off.queries_per_s, (0.0, self.published("G247")), "queries/s");
        }

        self.context = SNC_COUNTED;
        let again = sncdb::counted_again(&Results::published()?);
        let counted = |run: &TaskRun| run.bytes_per_s() + again * run.bytes_per_s_away();
        for (it, row) in all.into_iter().zip(["G228", "G230", "G232"]) {
            let gain = 100.0 * (counted(&it.neighbour) / counted(&it.own) - 1.0);
            self.figure(&named("gain of scanning the neighbour, memory", it), &[row], gain, "%")
                .unexplained = Some(
                "the counters' excess was fitted to another case, and no row says what they count twice",
            );
        }
        for it in all {
            let share = 100.0 * counted(&it.from_one) / counted(&it.off);
            self.figure(&named("balanced, workers on one, memory", it), &["G239", "G240"], share, "%");
        }

        self.context = SNC_LATENCY;
        let waits = [lookups(&off_machine)?, lookups(&on_machine)?].map(|lookup| lookup.wait_ns());
        self.statement("random accesses lose by SNC", &["G221", "G222"], waits[1] > waits[0]).is_direction =
            true;
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

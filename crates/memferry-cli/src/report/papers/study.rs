//! Figures of the study about sub-NUMA clusters: Greinsmark 2020, figures 8 and 11 to 14.

use std::panic;
use std::thread;

use anyhow::Result;
use memferry::internals::TaskRun;
use memferry::topology::{Machine, NodeId};
use memferry_bench::model::Prediction;
use memferry_bench::sncdb::{Layout, PREDICATES, RANGE_PREDS, Setting, Study, Workers, lookups};

use super::super::figure::{Axis, Figure, Kind, Point, Scale};
use super::Papers;
use memferry_bench::harness::Provenance;

/// The profiles of the publication's machine: as one domain, and as two.
const OFF: &str = "skylake-8180-snc-off";
const ON: &str = "skylake-8180-snc-on";

/// The runs of one of figures 12 to 14.
pub(super) struct Scans {
    range_pred: u64,
    runs: Vec<Scanned>,
}

/// A run of a figure: where workers are, what they scan, how many predicates are on the first table.
struct Scanned {
    name: &'static str,
    on_first: usize,
    run: TaskRun,
}

impl Papers {
    /// The study's own figures, and how its numbers compare with those that the text prints.
    pub(in crate::report) fn study_figures(&self) -> Result<Vec<Figure>> {
        let mut figures = vec![self.columns(), self.random_accesses()?];
        for (number, scans) in (12..).zip(&self.scans) {
            let [mut throughput, memory] = scans.figures(number);
            throughput.published_rule("mostly below", self.published.get("G247"));
            figures.extend([throughput, memory]);
        }
        figures.push(self.shares());
        figures.push(self.gains());
        Ok(figures)
    }

    /// Sizes of the columns of the schema.
    fn columns(&self) -> Figure {
        let mut figure = Figure::new("greinsmark-figure-8", Kind::Rows, "Columns of the tables, in memory");
        figure.about = "The schema of figure 8 of Greinsmark 2020: seven integers, the first one a primary key, in 50 million \
                        rows. Modelled as codes of a sorted dictionary; a scan reads the codes of a column, 156 MB."
            .to_owned();
        figure.y = Axis::new("size in MB; in brackets the error of the model", Scale::Linear);
        for (name, layout, row) in
            [("C0, with its index", Layout::KEY, "G205"), ("each of C1 to C6", Layout::VALUE, "G206")]
        {
            figure.points.push(Point::new("size", Provenance::Modelled, name, layout.bytes() / 1e6));
            figure.points.extend(self.published.dot(row, "size", name));
        }
        figure
    }

    /// Throughput of random accesses. The publication prints only what sub-domains cost.
    fn random_accesses(&self) -> Result<Figure> {
        let (off, on) = (lookups(&Machine::from_profile(OFF)?)?, lookups(&Machine::from_profile(ON)?)?);
        let mut figure =
            Figure::new("greinsmark-figure-11", Kind::Bars, "Random accesses with SNC and without");
        let least = 100.0 * off.wait_ns() / on.wait_ns();
        figure.about = format!(
            "As figure 11 of Greinsmark 2020, which prints the loss by SNC, over stealing and NUMA balancing. Modelled: a \
             query waits {:.0} ns for memory without SNC and {:.0} ns with it, because the table has half of the cache. A \
             query that did nothing else would be as slow as the bar; the work beside is not printed, and with more of it \
             the loss is less, up to the end of the whisker. SNC off is 100 %.",
            off.wait_ns(),
            on.wait_ns()
        );
        figure.y = Axis::new("throughput in % of SNC off", Scale::Linear);
        figure.points.push(Point::new("throughput", Provenance::Modelled, "SNC off", 100.0));
        figure.points.push(Point::rule("SNC off", Provenance::Modelled, 100.0));
        for name in ["SNC", "SNC, stealing", "SNC, balancing", "SNC, stealing, balancing"] {
            figure
                .points
                .push(Point::new("throughput", Provenance::Modelled, name, least).between(least, 100.0));
            let ends = self.published.get("G221").zip(self.published.get("G222"));
            figure.points.extend(ends.map(|(few, many)| {
                let (low, high) = (100.0 - many, 100.0 - few);
                Point::new("throughput", Provenance::Published, name, (low + high) / 2.0).between(low, high)
            }));
        }
        Ok(figure)
    }

    /// What the text prints about figures 12 to 14 in percent of SNC off.
    fn shares(&self) -> Figure {
        let mut figure = Figure::new("scans-by-domain", Kind::Rows, "Two skewed scans: numbers of the text");
        figure.about = "Greinsmark 2020, 5.4, on figures 12 to 14: 56 clients scan six columns of two tables on a Xeon 8180. \
                        SNC off is 100 %. Published are ranges over tests; skewed is what is left of SNC off or of the balanced case. \
                        Workers of one sub-domain (61 to 67 %) are modelled by the order of tasks: those in a worker's own queue go \
                        first, so the two memories are read one after the other; bandwidth alone gives 105 %. On both sub-domains the \
                        model is above the text. A query caused 6 % more traffic than with SNC off, and a sub-domain by itself reached \
                        51 % instead of 52.3 %: that explains the upper end (95.3 to 97.0 %). At the lower end memory served 6 % less \
                        than it could, and the model has no term for it. Candidates are a limit of what a worker scans (3.8 GB/s, if the \
                        lower end is that of half of the cores and 10 000 rows), and a wait of all workers for 6 % of the time (if it is that \
                        of all cores). The throughput of each setting would decide; the text prints the range."
            .to_owned();
        figure.y = Axis::new("in % of SNC off; in brackets the error of the model", Scale::Linear);
        self.compare(&mut figure, &["G223", "G233", "G235", "G237", "G239", "G241", "G242"]);
        figure
    }

    /// The gain of scanning the neighbour.
    fn gains(&self) -> Figure {
        let mut figure = Figure::new("scans-of-the-neighbour", Kind::Rows, "Scanning the neighbour's table");
        figure.about = "Greinsmark 2020, 5.4, on figures 12 to 14: workers on one sub-domain scan the table of the other one \
                        instead of their own. Bandwidth alone gives 0.06 %: both memories are equally fast. The gain is that results \
                        stay in the worker's own memory, beside the scan. What they cost was fitted to the first two gains of throughput, \
                        and the third is predicted; what the \
                        counters of memory count twice, to the case with workers on one sub-domain."
            .to_owned();
        figure.y = Axis::new("gain in %; in brackets the error of the model", Scale::Linear);
        self.compare(&mut figure, &["G227", "G229", "G231", "G228", "G230", "G232"]);
        figure
    }

    /// Predictions of these rows, each beside what is published.
    fn compare(&self, figure: &mut Figure, rows: &[&str]) {
        for row in rows {
            for it in self.validation.predictions.iter().filter(|it| it.rows.contains(row)) {
                let Prediction { name, predicted, published: (low, high), .. } = it;
                figure.points.push(Point::new("value", Provenance::Modelled, name, *predicted));
                let middle = (low + high) / 2.0;
                figure
                    .points
                    .push(Point::new("value", Provenance::Published, name, middle).between(*low, *high));
            }
        }
    }
}

impl Scans {
    /// The runs of all figures, each figure on a thread of its own: they take seconds.
    pub(super) fn run() -> Result<Vec<Scans>> {
        let off = Study::of(&Machine::from_profile(OFF)?)?;
        let on = Study::of(&Machine::from_profile(ON)?)?;
        thread::scope(|scope| {
            let (off, on) = (&off, &on);
            let run = |range_pred| scope.spawn(move || Scans::below(range_pred, off, on));
            let figures = RANGE_PREDS.map(run).into_iter();
            figures.map(|one| one.join().unwrap_or_else(|why| panic::resume_unwind(why))).collect()
        })
    }

    fn below(range_pred: u64, off: &Study, on: &Study) -> Result<Scans> {
        let mut runs = Vec::new();
        for (name, study, workers, is_stealing) in [
            ("SNC off", off, Workers::All, false),
            ("SNC off, half", off, Workers::Half, false),
            ("both", on, Workers::All, false),
            ("both, steal", on, Workers::All, true),
            ("half", on, Workers::Half, false),
            ("half, steal", on, Workers::Half, true),
            ("0a", on, Workers::First, false),
            ("0b", on, Workers::Second, false),
        ] {
            for on_first in (0..=PREDICATES).rev() {
                let run = study.run(Setting { workers, is_stealing }, on_first, range_pred)?;
                runs.push(Scanned { name, on_first, run });
            }
        }
        Ok(Scans { range_pred, runs })
    }

    /// Both diagrams of a figure: throughput, and traffic of memory by domain.
    fn figures(&self, number: usize) -> [Figure; 2] {
        let Scans { range_pred, runs } = self;
        let about = format!(
            "As figure {number} of Greinsmark 2020: 56 clients count rows of two tables with one of six columns below {range_pred}, \
             on a Xeon 8180; workers on all cores or half of them, on both sub-domains or on one, with stealing or without. Bars of \
             a group move predicates from the table of 0a (6/0) to that of 0b (0/6)."
        );
        let name = |what: &str| format!("greinsmark-figure-{number}-{what}");
        let title = format!("Two skewed scans below {range_pred}");
        let mut throughput = Figure::new(&name("throughput"), Kind::Bars, format!("{title}: throughput"));
        throughput.about = format!(
            "{about} Whiskers: standard deviation between seconds; the model has no noise but the turns of queues."
        );
        throughput.y = Axis::new("queries per second", Scale::Linear);
        let mut memory = Figure::new(&name("memory"), Kind::Bars, format!("{title}: memory"));
        memory.about = format!(
            "{about} A panel for each part of a published bar: bytes that queries cause, not those that counters count twice. The text prints ratios, which are below."
        );
        memory.y = Axis::new("GB/s", Scale::Linear);
        for Scanned { name, on_first, run } in runs {
            let skew = format!("{on_first}/{}", PREDICATES - on_first);
            let rate = run.queries_per_s;
            let point = Point::new(&skew, Provenance::Modelled, *name, rate);
            throughput.points.push(point.between((rate - run.deviation).max(0.0), rate + run.deviation));
        }
        for (panel, cpus, target) in
            [("local in 0a", 0, 0), ("local in 0b", 1, 1), ("remote from 0a", 0, 1), ("remote from 0b", 1, 0)]
        {
            for Scanned { name, on_first, run } in runs {
                let way =
                    run.traffic.iter().find(|&&(from, to, _)| (from, to) == (NodeId(cpus), NodeId(target)));
                let rate = way.map_or(0.0, |&(_, _, rate)| rate / 1e9);
                let skew = format!("{on_first}/{}", PREDICATES - on_first);
                memory.points.push(Point::new(skew, Provenance::Modelled, *name, rate).in_panel(panel));
            }
        }
        [throughput, memory]
    }
}

//! The figures of the publications: published and modelled numbers side by side, in the form of the publications.

mod copies;
mod domains;
mod kuper;
mod study;

use anyhow::Result;
use memferry::internals::{Hardware, Pipeline, Run};
use memferry::topology::Machine;
use memferry_bench::model::{self, Prediction, Validation};

pub(super) use self::copies::{copy_rate, device_and_core};
pub(super) use self::domains::{BANDWIDTH, LATENCY};

use self::study::Scans;
use super::figure::{Axis, Figure, Kind, Point, Scale};
use memferry_bench::harness::Provenance;

const XEON_MAX: &str = "xeon-max-9468-2s-flat";

/// The published rows by their ids.
struct Published(Vec<model::PublishedFigure>);

impl Published {
    fn get(&self, row: &str) -> Option<f64> {
        self.0.iter().find(|figure| figure.id == row)?.number()
    }

    /// A dot, if the row is a number.
    fn dot(&self, row: &str, series: &str, x: &str) -> Option<Point> {
        Some(Point::new(series, Provenance::Published, x, self.get(row)?))
    }
}

/// A run of table 6.2.
pub(super) struct QueryRun {
    pub(super) name: String,
    pub(super) modelled_ms: f64,
    pub(super) published_ms: Option<f64>,
    /// In percent.
    pub(super) hit_rate: Option<f64>,
    pub(super) published_hit_rate: Option<f64>,
    pipeline: Pipeline,
    run: Run,
}

/// The published numbers and the model's predictions.
pub(super) struct Papers {
    pub(super) query: Vec<QueryRun>,
    pub(super) validation: Validation,
    published: Published,
    scans: Vec<Scans>,
}

impl Papers {
    pub(super) fn read() -> Result<Papers> {
        let published = Published(model::figures());
        let machine = Machine::from_profile(XEON_MAX)?;
        let hardware = Hardware::of(&machine)?;
        // Time and hit rate of each run of the scenario, in its order.
        let rows = [("F072", ""), ("F073", ""), ("F082", "F081"), ("F085", "F084")];
        let mut query = Vec::new();
        for ((name, pipeline), (time, hits)) in
            model::scenario("table-6.2")?.pipelines()?.into_iter().zip(rows)
        {
            let run = pipeline.run(&machine, &hardware)?;
            query.push(QueryRun {
                name,
                modelled_ms: run.total_s * 1e3,
                published_ms: published.get(time),
                hit_rate: run.hit_rate().map(|rate| rate * 100.0),
                published_hit_rate: published.get(hits),
                pipeline,
                run,
            });
        }
        Ok(Papers { query, validation: model::validate()?, published, scans: Scans::run()? })
    }

    /// The times of the thesis's query, and their parts.
    pub(super) fn query_figures(&self) -> Vec<Figure> {
        let mut times = Figure::new(
            "table-6.2",
            Kind::Rows,
            "A query whose second column is in DDR, in HBM, or on its way",
        );
        times.about = "Fürst 2024, table 6.2: SELECT sum(b) WHERE a < x over two columns of 4 GiB on a Xeon Max; \
                       column b in DDR, in HBM, copied to HBM while a is scanned, and the same with a and b on \
                       different nodes. The first two times and the last hit rate were calibrated on."
            .to_owned();
        times.y = Axis::new("time in ms; in brackets the error of the model", Scale::Linear);
        let mut parts = Figure::new("figure-6.1-6.2", Kind::HalfCircles, "Where the query's time goes");
        parts.about = "As figures 6.1 and 6.2 of Fürst 2024, which print no numbers: mean time of a group of \
                       threads in each stage. The longest fills its half circle; waiting for the slowest group is \
                       not shown, and so the total is more than the sum."
            .to_owned();
        parts.y = Axis::new("ms", Scale::Linear);
        for it in &self.query {
            times.points.push(Point::new("time", Provenance::Modelled, &it.name, it.modelled_ms));
            times
                .points
                .extend(it.published_ms.map(|ms| Point::new("time", Provenance::Published, &it.name, ms)));
            for (stage, seconds) in it.pipeline.stages.iter().zip(&it.run.stages_s) {
                let point = Point::new(&stage.name, Provenance::Modelled, "", seconds * 1e3);
                parts.points.push(point.in_panel(&it.name));
            }
            let total = |how, ms| Point::new("total", how, "", ms).in_panel(&it.name);
            parts.points.push(total(Provenance::Modelled, it.modelled_ms));
            parts.points.extend(it.published_ms.map(|ms| total(Provenance::Published, ms)));
        }
        vec![times, parts]
    }

    /// The errors of the model, a figure for each publication.
    pub(super) fn error_figures(&self) -> Vec<Figure> {
        let of = [
            ("errors-thesis", "Fürst 2024", &["F", "D", "L"][..]),
            ("errors-kuper", "Kuper et al. 2024", &["K"]),
            ("errors-greinsmark", "Greinsmark 2020", &["G"]),
        ];
        of.map(|(name, title, letters)| {
            let mut figure = Figure::new(name, Kind::Rows, format!("How far the model is off: {title}"));
            figure.about =
                "Predictions of published numbers that nothing was calibrated on; where a range was \
                 published, its nearest end counts."
                    .to_owned();
            figure.y = Axis::new("error in %", Scale::Linear);
            let is_own = |it: &&Prediction| {
                it.rows.iter().any(|row| letters.iter().any(|letter| row.starts_with(letter)))
            };
            let shown = self.validation.predictions.iter().filter(|it| !it.is_fit && it.unit != "holds");
            let (mut off, met): (Vec<&Prediction>, Vec<&Prediction>) =
                shown.filter(is_own).partition(|it| it.error_percent().abs() >= MET_PERCENT);
            off.sort_by(|one, other| other.error_percent().abs().total_cmp(&one.error_percent().abs()));
            let name = |it: &Prediction| match off.iter().filter(|other| other.name == it.name).count() {
                1 => it.name.clone(),
                _ => format!("{} [{}]", it.name, it.rows.join(", ")),
            };
            let point =
                |it: &&Prediction| Point::new("error", Provenance::Modelled, name(it), it.error_percent());
            figure.points = off.iter().map(point).collect();
            figure.about += &format!(" {} more are met.", met.len());
            figure
        })
        .into()
    }
}

/// A smaller error prints as 0 and counts as met.
const MET_PERCENT: f64 = 0.05;

//! The figures of Kuper et al. 2024: modelled on the publication's machine, beside the numbers that its text prints and the rows
//! that this machine has measured or emulated.
//!
//! Its pictures were not read off: a series without a printed number is modelled only, and `about` says what is missing.

mod device;
mod memories;
mod programs;

use anyhow::Result;
use memferry::internals::{Hardware, Offload};
use memferry::topology::Machine;
use memferry_bench::papers::{self, Backend, Metric, OnModel, RunLength};

use super::super::figure::{Axis, Figure, Kind, Point, Scale};
use super::super::records::{Record, Row};
use super::super::sweeps::taken;
use super::Papers;
use memferry_bench::harness::Provenance;

/// The profile of the publication's machine.
const SAPPHIRE_RAPIDS: &str = "spr-56c";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The publication writes KB and means 1024 bytes.
const KB: f64 = 1024.0;
const GB_PER_S: &str = "throughput in GB/s";
/// From bytes per second to GB/s.
const GB: f64 = 1e-9;
/// Copies in flight in asynchronous use (section 4.1, row K026).
const IN_FLIGHT: usize = 32;

/// The sources of the figures.
struct Kuper<'a> {
    papers: &'a Papers,
    /// The machine of the report, and its records.
    machine: &'a Machine,
    records: &'a [Record],
    /// The publication's machine.
    model: OnModel,
    hardware: Hardware,
    offload: Offload,
}

/// The place of a row in a figure.
struct Place {
    panel: String,
    series: String,
    x: String,
}

impl Place {
    fn new(panel: impl Into<String>, series: impl Into<String>, x: impl ToString) -> Place {
        Place { panel: panel.into(), series: series.into(), x: x.to_string() }
    }

    fn point(&self, how: Provenance, y: f64) -> Point {
        Point::new(&*self.series, how, &*self.x, y).in_panel(&*self.panel)
    }

    fn modelled(&self, y: f64) -> Point {
        self.point(Provenance::Modelled, y)
    }
}

impl Papers {
    /// The figures in their order. Measured and emulated points are from `records`, which are of `machine`.
    pub(in crate::report) fn kuper_figures(
        &self,
        machine: &Machine,
        records: &[Record],
    ) -> Result<Vec<Figure>> {
        let publication = Machine::from_profile(SAPPHIRE_RAPIDS)?;
        let hardware = Hardware::of(&publication)?;
        let offload = Offload::of(&hardware)?;
        let model = OnModel::new(publication)?;
        let all = Kuper { papers: self, machine, records, model, hardware, offload };
        let mut figures = vec![
            all.operations(),
            all.batches()?,
            all.queue_sizes()?,
            all.latency()?,
            all.memories()?,
            all.engines()?,
            all.queues()?,
            all.devices()?,
            all.asleep()?,
            all.readers()?,
            all.equal_totals()?,
            all.caches()?,
            all.packets(),
            all.messages(),
        ];
        figures.extend(all.cache_server()?);
        figures.push(all.storage_target());
        Ok(figures)
    }
}

impl Kuper<'_> {
    fn published(&self, row: &str) -> Option<f64> {
        self.papers.published.get(row)
    }

    /// A published dot at the number of a row.
    fn dot(&self, figure: &mut Figure, place: &Place, row: &str) {
        self.dot_of(figure, place, row, |number| number);
    }

    /// A published dot at what the number of a row means on the vertical axis.
    fn dot_of(&self, figure: &mut Figure, place: &Place, row: &str, y: impl Fn(f64) -> f64) {
        let number = self.published(row);
        figure.points.extend(number.map(|number| place.point(Provenance::Published, y(number))));
    }

    /// A published horizontal rule.
    fn rule(&self, figure: &mut Figure, panel: &str, label: &str, row: &str) {
        let number = self.published(row);
        let rule = |y| Point::rule(label, Provenance::Published, y).in_panel(panel);
        figure.points.extend(number.map(rule));
    }

    /// A published vertical rule at a row whose unit is so many units of the axis.
    fn upright_rule(&self, figure: &mut Figure, panel: &str, label: &str, (row, unit): (&str, f64)) {
        let number = self.published(row);
        let rule = |x| Point::upright_rule(label, Provenance::Published, x * unit).in_panel(panel);
        figure.points.extend(number.map(rule));
    }

    /// The rows of this machine's records of a benchmark that were measured or emulated. Of records with the same provenance, such
    /// as of an emulated device and of a machine under `memferry emulate`, the first counts.
    fn rows_of<'b>(&'b self, bench: &'b str) -> impl Iterator<Item = &'b Row> {
        let own = move || self.records.iter().filter(move |it| it.bench == bench);
        let is_first = move |record: &&Record| {
            own().find(|it| it.how() == record.how()).is_some_and(|it| std::ptr::eq(it, *record))
        };
        let rows = own().filter(is_first).flat_map(|it| &it.rows);
        rows.filter(|row| matches!(row.how, Some(Provenance::Measured | Provenance::Emulated)))
    }

    /// Points of one of the papers' benchmarks: these of the model, and those of records. `factor` leads from the metric's unit to
    /// that of the axis; `place` is `None` for rows that the publication does not have.
    fn points_of(
        &self,
        (bench, metric, factor): (&str, Metric, f64),
        (model, points): (&OnModel, &[papers::Point]),
        place: impl Fn(&Row) -> Option<Place>,
    ) -> Result<Vec<Point>> {
        let mut rows = Vec::new();
        for point in points {
            for it in model.run(point, &[metric], LENGTH)? {
                rows.extend(it.values.first().map(|value| Row::modelled(metric, point, *value)));
            }
        }
        let of_records = self.rows_of(bench).filter(|row| row.figure.as_deref() == Some(metric.name));
        let point = |row: &Row| {
            let at = place(row)?;
            Some(taken(row, &at.series, &at.x, factor)?.in_panel(at.panel))
        };
        Ok(rows.iter().chain(of_records).filter_map(point).collect())
    }
}

/// Many enough for the first and last submissions not to count much.
const LENGTH: RunLength = RunLength { iterations: 1, divisor: 10 };

/// A plot over the sizes of transfers.
fn over_sizes(number: &str, title: &str, y: &str) -> Figure {
    let mut figure = numbered(number, Kind::Lines, title);
    figure.x = Axis::new("transfer size", Scale::Bytes);
    figure.y = Axis::new(y, Scale::Linear);
    figure
}

fn numbered(number: &str, kind: Kind, title: &str) -> Figure {
    Figure::new(&format!("kuper-figure-{number}"), kind, format!("Figure {number}: {title}"))
}

/// Powers of two.
fn powers(from: u32, to: u32) -> impl Iterator<Item = u64> {
    (from..=to).map(|power| 1 << power)
}

/// The size of a row's transfers, if the publication has it.
fn size_of(row: &Row) -> Option<u64> {
    let bytes = row.number("size_bytes")? as u64;
    (bytes <= MIB).then_some(bytes)
}

/// Whether a device did it through the queue that the publication uses where it names none: a dedicated one, which the
/// model does not tell apart.
fn is_by_device(row: &Row) -> bool {
    matches!(row.text("way").as_deref(), Some("any" | "dedicated"))
}

fn is_by_core(row: &Row) -> bool {
    row.text("way").as_deref() == Some("core")
}

/// Whether a row has this number in a column.
fn has(row: &Row, column: &str, number: u64) -> bool {
    row.number(column) == Some(number as f64)
}

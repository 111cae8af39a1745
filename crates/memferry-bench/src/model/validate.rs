//! The model beside the published numbers.

use std::collections::BTreeMap;

use memferry::internals::{Fairness, Hardware, Pipeline};
use memferry::model::ModelError;
use memferry::topology::{Machine, NodeId};
use serde::Serialize;

use super::calibrate::{Thesis, scan_threads, with_skew};
use super::coverage::{Coverage, Shown, coverage};
use super::dispositions::{Disposition, dispositions};
use super::predictions::{Prediction, predictions};
use super::{figures, held_out};
use crate::harness::Row;

/// Every published row, with a prediction or a reason why it has none.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Validation {
    /// Predictions of rows.
    pub predictions: Vec<Prediction>,
    /// All other rows.
    pub others: Vec<Disposition>,
    /// Every figure and table of the publications.
    pub coverage: Vec<Coverage>,
    /// Quantities with bounds that tests enforce, in percent unless the unit says otherwise.
    pub bounds: Vec<Row>,
}

impl Validation {
    /// All results as rows: the bounds, and each prediction with the published number as its peer.
    pub fn rows(&self) -> Vec<Row> {
        self.bounds.iter().cloned().chain(self.predictions.iter().map(Prediction::row)).collect()
    }
}

/// Compares the model with all published rows.
///
/// # Errors
/// None in practice: profiles and rows are built in.
pub fn validate() -> Result<Validation, ModelError> {
    let predictions = predictions()?;
    let is_predicted = |row: &str| predictions.iter().any(|prediction| prediction.rows.contains(&row));
    let figures = figures();
    let others = dispositions(figures.iter().filter(|figure| !is_predicted(&figure.id)));
    let coverage = coverage(&predictions, &others);
    let mut bounds = bounds(&predictions)?;
    let reproduced = coverage.iter().filter(|it| it.state == Shown::Reproduced).count();
    bounds.push(Row::modelled("figures_reproduced", reproduced as f64, "figures"));
    Ok(Validation { predictions, others, coverage, bounds })
}

fn bounds(predictions: &[Prediction]) -> Result<Vec<Row>, ModelError> {
    let of = |row: &str| predictions.iter().find(|prediction| prediction.rows.contains(&row));
    let predicted = |row: &str| of(row).map_or(f64::NAN, |prediction| prediction.predicted);
    let error = |row: &str| of(row).map_or(f64::NAN, |prediction| prediction.error_percent().abs());
    let points = |row: &str| of(row).map_or(f64::NAN, |it| (it.predicted - it.published.0).abs());
    // Of the thesis about sub-NUMA clusters; the worse counts where it can be read in two ways.
    let snc = (predictions.iter().filter(|it| !it.is_fit && !it.is_echo && it.rows[0].starts_with('G')))
        .map(|it| it.error_percent().abs())
        .fold(0.0, f64::max);
    let times = ["F073", "F085", "F072", "F082"].map(predicted);
    let powers = |row: &str| {
        of(row).map_or(f64::NAN, |it| {
            let (low, high) = it.published;
            (it.predicted / it.predicted.clamp(low, high)).log2().abs()
        })
    };
    let mut rows = vec![
        Row::modelled(
            "table_6_2_order",
            f64::from(u8::from(times.is_sorted_by(|one, other| one < other))),
            "",
        ),
        Row::modelled("t62_prefetch_error", error("F082"), "%"),
        Row::modelled("t62_distributed_error", error("F085"), "%"),
        Row::modelled("t62_hit_error_points", points("F081"), "points"),
        Row::modelled("t62_hit_fit_error_points", points("F084"), "points"),
        Row::modelled("peak_error", error("F048"), "%"),
        Row::modelled("break_even_waited_error", powers("K040"), "powers of two"),
        Row::modelled("break_even_pipelined_error", powers("K073"), "powers of two"),
        Row::modelled("saturation_error", powers("K035"), "powers of two"),
        Row::modelled("figure_10_error", error("K051"), "%"),
        Row::modelled("snc_error", snc, "%"),
    ];
    rows.extend(counted(predictions));
    rows.extend(advised()?);
    Ok(rows)
}

/// How many published rows are predicted, and how well those that were set aside before the calibration. A row with
/// several predictions counts as its worst. Fits, echoes and mere directions do not count.
fn counted(predictions: &[Prediction]) -> Vec<Row> {
    let mut errors: BTreeMap<&str, (f64, bool)> = BTreeMap::new();
    let set_aside = held_out();
    for prediction in predictions.iter().filter(|it| !it.is_fit && !it.is_echo && !it.is_direction) {
        for &row in &prediction.rows {
            let error = errors.entry(row).or_insert((0.0, set_aside.iter().any(|id| id == row)));
            error.0 = error.0.max(prediction.error_percent().abs());
        }
    }
    let held_out = || errors.values().filter(|(_, is_held_out)| *is_held_out);
    let within = held_out().filter(|(error, _)| *error <= 10.0).count();
    vec![
        Row::modelled("published_rows_predicted", errors.len() as f64, "rows"),
        Row::modelled("held_out_predicted", held_out().count() as f64, "rows"),
        Row::modelled("held_out_within_10", 100.0 * within as f64 / held_out().count() as f64, "%"),
    ]
}

/// The thesis's query with its columns on two nodes, computed like the thesis's own runs, with all groups and skew.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TwoNodes {
    /// The nodes of the column of the filter and of the column of the sum.
    pub homes: [NodeId; 2],
    /// Time without copies.
    pub alone_s: f64,
    /// Time with the copies that the model advises.
    pub advised_s: f64,
}

/// The thesis's query on a machine that has the nodes of the thesis's, with its columns on two nodes.
///
/// # Errors
/// [`ModelError::Node`] if the machine lacks a node, [`ModelError::Unknown`] if it lacks a rate.
pub fn two_nodes(machine: &Machine) -> Result<TwoNodes, ModelError> {
    let hardware = Hardware::of(machine)?;
    let distributed = thesis()?.distributed;
    let alone = Pipeline { fetches: Vec::new(), ..distributed.clone() };
    Ok(TwoNodes {
        homes: [0, 1].map(|column| distributed.columns[column].node),
        alone_s: alone.run(machine, &hardware)?.total_s,
        advised_s: advised_s(&distributed, machine, &hardware)?,
    })
}

/// The thesis's runs in memferry: unlike in the thesis, submissions take no threads from the scan. Chunks are submitted when
/// the query starts, and the mover completes them.
fn thesis() -> Result<Thesis, ModelError> {
    Ok(Thesis::read()?.with(|run| scan_threads(run, 64)))
}

fn advised_s(pipeline: &Pipeline, machine: &Machine, hardware: &Hardware) -> Result<f64, ModelError> {
    let (pipeline, _) = pipeline.advised(machine)?;
    Ok(pipeline.run(machine, hardware)?.total_s)
}

/// The thesis's query on its machine with advised copies.
fn advised() -> Result<Vec<Row>, ModelError> {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat")?;
    let hardware = Hardware::of(&machine)?;
    let thesis = thesis()?;
    let advised = |pipeline: &Pipeline| advised_s(pipeline, &machine, &hardware);
    let thesis_s = thesis.baseline.run(&machine, &hardware)?.total_s;
    let same = advised(&thesis.prefetching)?;
    let TwoNodes { alone_s: distributed_alone, advised_s: distributed, .. } = two_nodes(&machine)?;
    let mut again = thesis.distributed;
    again.columns[1].node = NodeId(8);
    let reused = advised(&again)?;
    let row = |name: &str, peer: &str, baseline_s: f64, seconds: f64| {
        let ratio = baseline_s / seconds;
        Row::modelled(name, ratio, "x").against(peer, 1.0, ratio)
    };
    Ok(vec![
        row("advise_same_node", "no prefetching", thesis_s, same),
        row("advise_distributed", "no prefetching, columns on one node", thesis_s, distributed),
        row("advise_distributed_own", "no prefetching, same columns", distributed_alone, distributed),
        row("advise_reused", "no prefetching, columns on one node", thesis_s, reused),
    ])
}

/// Predictions of table 6.2 by the model and by rejected variants. Each is calibrated anew on 131.18 ms and 93.09 ms; the
/// skew is the model's own unless the name says otherwise.
///
/// # Errors
/// None in practice: the profile is built in.
pub fn variants() -> Result<Vec<Row>, ModelError> {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat")?;
    let own = Hardware::of(&machine)?;
    let skew = own.thread_skew;
    let thesis = Thesis::read()?;
    type Change = fn(&mut Pipeline);
    let list: [(&str, Change, f64, f64); 20] = [
        ("model", |_| (), skew, 1.0),
        ("no skew", |_| (), 0.0, 1.0),
        // 64 threads on 12 cores: 5 or 6 on each. A thread may wait 24 ms for its turn, of 131 ms.
        ("skew of threads that share cores", |_| (), 0.11, 1.0),
        ("skew of turns of the scheduler", |_| (), 0.18, 1.0),
        ("skew 0.5", |_| (), 0.5, 1.0),
        ("threads elsewhere do not count", |run| run.fairness = Fairness::RequestersByMemory, skew, 1.0),
        ("each stream counts one, no skew", |run| run.fairness = Fairness::Streams, 0.0, 1.0),
        ("each stream counts one", |run| run.fairness = Fairness::Streams, skew, 1.0),
        ("by what each could do, no skew", |run| run.fairness = Fairness::Windows, 0.0, 1.0),
        ("by what each could do", |run| run.fairness = Fairness::Windows, skew, 1.0),
        ("by what each could do, devices half", |run| run.fairness = Fairness::Windows, skew, 0.5),
        ("devices count half", |_| (), skew, 0.5),
        ("devices count double", |_| (), skew, 2.0),
        ("chunks of 2 MiB", |run| run.chunk_bytes = 2 << 20, skew, 1.0),
        ("chunks of 32 MiB", |run| run.chunk_bytes = 32 << 20, skew, 1.0),
        ("4 groups", |run| run.groups_count = 4, skew, 1.0),
        ("16 groups", |run| run.groups_count = 16, skew, 1.0),
        ("64 threads scan", |run| scan_threads(run, 64), skew, 1.0),
        ("16 threads scan", |run| scan_threads(run, 16), skew, 1.0),
        ("AGGREGATE waits for SCAN_b", |run| run.is_waiting = true, skew, 1.0),
    ];
    let mut rows = Vec::new();
    for (name, change, skew, device_share) in list {
        let thesis = thesis.clone().with(change);
        let mut hardware = with_skew(&machine, &thesis, skew)?;
        hardware.device_share = device_share;
        for (what, pipeline, published_ms, published_hits) in [
            ("prefetching", &thesis.prefetching, 159.72, 89.38),
            ("distributed", &thesis.distributed, 106.52, 93.20),
        ] {
            let run = pipeline.run(&machine, &hardware)?;
            let compared = |what: String, value: f64, unit, published: f64| {
                Row::modelled(what, value, unit).beside_published(published)
            };
            rows.push(compared(format!("{name}: {what}"), run.total_s * 1e3, "ms", published_ms));
            let hits = run.hit_rate().unwrap_or(0.0) * 100.0;
            rows.push(compared(format!("{name}: hits, {what}"), hits, "%", published_hits));
        }
        let rate = hardware.memory_rate(0)? / f64::from(1 << 30);
        rows.push(Row::modelled(format!("{name}: rate of DDR"), rate, "GiB/s"));
    }
    Ok(rows)
}

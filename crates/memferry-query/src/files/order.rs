//! The order in which a plan needs its scans.
//!
//! Operators that read one input to its end before they read another one decide it:
//!
//! ```text
//! hash, nested loop, cross, piecewise merge join   build side, then probe side
//! scalar subqueries                                the subqueries together, then the input
//! sort merge join, union, others                   all inputs together
//! ```
//!
//! Scans that are needed together have the same *stage*. Sorts, aggregates and exchanges have one input, so the stage
//! stays. An operator that reads all of its input before its first row hides a limit above it from the scans below it.
//! The walk changes nothing of a plan.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec,
};
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;

use super::contain::ContainExec;
use super::factory::Readers;
use super::metrics::parquet_scan;
use super::next::is_one_file;
use crate::scan::TieredScanExec;

/// Scans of a build side that a description names.
const NAMES_MAX: usize = 3;

/// The turn of a scan in the order of its plan.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    /// Name of the table, as the files tell it.
    name: String,
    /// Its position among all scans of the plan, from 1, and their number.
    position: (usize, usize),
    /// Scans of the same stage are needed together, those of stage 0 at once.
    pub(super) stage: usize,
    /// The scans that end before.
    after: Option<String>,
    /// Whether a limit may end the query before the scan ends.
    pub(super) ends_early: bool,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (position, count) = self.position;
        write!(f, "{} is scan {position} of {count}", self.name)?;
        self.after.as_ref().map_or(Ok(()), |after| write!(f, ", needed after {after}"))
    }
}

/// The scans of files of `plan`, in the order of need.
pub(super) fn scans_in_order(plan: &Arc<dyn ExecutionPlan>) -> Vec<(Turn, &Arc<Readers>)> {
    let mut walk = Walk { found: vec![] };
    walk.visit(plan, &At { stage: 0, after: None, ends_early: false });
    let names: Vec<&str> = walk.found.iter().map(|scan| scan.name.as_str()).collect();
    let mut turns: Vec<(Turn, Option<&Arc<Readers>>)> = walk
        .found
        .iter()
        .map(|scan| {
            let after = scan.at.after.as_ref().map(|after| after.describe(&names));
            let (stage, ends_early) = (scan.at.stage, scan.at.ends_early);
            (
                Turn { name: scan.name.clone(), position: (0, names.len()), stage, after, ends_early },
                scan.readers,
            )
        })
        .collect();
    // Within a stage in the order of the plan.
    turns.sort_by_key(|(turn, _)| turn.stage);
    let turns = turns.into_iter().enumerate().filter_map(|(index, (mut turn, readers))| {
        turn.position.0 = index + 1;
        Some((turn, readers?))
    });
    turns.collect()
}

struct Walk<'a> {
    /// In the order of the walk.
    found: Vec<Found<'a>>,
}

struct Found<'a> {
    name: String,
    at: At,
    /// `None` for a scan that memferry does not read from files.
    readers: Option<&'a Arc<Readers>>,
}

/// Where the walk is.
#[derive(Debug, Clone)]
struct At {
    stage: usize,
    after: Option<After>,
    ends_early: bool,
}

/// Scans that end before another one starts.
#[derive(Debug, Clone)]
struct After {
    side: &'static str,
    /// In the order of the walk.
    scans: Range<usize>,
}

impl After {
    fn describe(&self, names: &[&str]) -> String {
        let names = &names[self.scans.clone()];
        let listed = names[..names.len().min(NAMES_MAX)].join(", ");
        match names.len().saturating_sub(NAMES_MAX) {
            0 => format!("the {} ({listed})", self.side),
            more => format!("the {} ({listed} and {more} more)", self.side),
        }
    }
}

impl<'a> Walk<'a> {
    /// Visits the scans below `plan`. Returns the last stage of them.
    fn visit(&mut self, plan: &'a Arc<dyn ExecutionPlan>, at: &At) -> usize {
        let contain = plan.downcast_ref::<ContainExec>();
        let children = plan.children();
        if contain.is_some() || children.is_empty() {
            let mut at = at.clone();
            if let Some((config, _)) = contain.and_then(|contain| parquet_scan(contain.scan())) {
                at.ends_early |= config.limit.is_some();
            }
            let stage = at.stage;
            let readers = contain.map(|contain| &contain.readers);
            self.found.push(Found { name: name(plan.as_ref()), at, readers });
            return stage;
        }
        let reads_all = plan.properties().emission_type == EmissionType::Final;
        let ends_early = !reads_all && (at.ends_early || plan.fetch().is_some());
        let at = At { ends_early, ..at.clone() };
        let (first, side, then) = match children.as_slice() {
            [build, probe] if builds(plan.as_ref()) => (vec![*build], "build side", *probe),
            [input, subqueries @ ..] if plan.downcast_ref::<ScalarSubqueryExec>().is_some() => {
                (subqueries.to_vec(), "subquery", *input)
            }
            _ => {
                let lasts = children.iter().map(|child| self.visit(child, &at));
                return lasts.max().unwrap_or(at.stage);
            }
        };
        let start = self.found.len();
        let all = At { ends_early: false, ..at.clone() };
        let last = first.into_iter().map(|child| self.visit(child, &all)).max();
        let after = After { side, scans: start..self.found.len() };
        let next = At { stage: last.map_or(at.stage, |last| last + 1), after: Some(after), ..at };
        self.visit(then, &next)
    }
}

/// Whether an operator reads its first input to its end before it reads its second one.
fn builds(plan: &dyn ExecutionPlan) -> bool {
    plan.downcast_ref::<HashJoinExec>().is_some()
        || plan.downcast_ref::<NestedLoopJoinExec>().is_some()
        || plan.downcast_ref::<CrossJoinExec>().is_some()
        || plan.downcast_ref::<PiecewiseMergeJoinExec>().is_some()
}

/// Name of a scan in descriptions: that of its file, or of the directory of its files.
fn name(plan: &dyn ExecutionPlan) -> String {
    if plan.downcast_ref::<TieredScanExec>().is_some() {
        return "a table in memory".to_owned();
    }
    let contain = plan.downcast_ref::<ContainExec>();
    let scan = contain.and_then(|contain| parquet_scan(contain.scan()));
    scan.and_then(|(config, _)| table_name(config)).unwrap_or_else(|| plan.name().to_owned())
}

fn table_name(config: &FileScanConfig) -> Option<String> {
    let first = &config.file_groups.iter().flat_map(FileGroup::files).next()?.object_meta.location;
    let file =
        || first.filename().map(|file| file.rsplit_once('.').map_or(file, |(stem, _)| stem).to_owned());
    if is_one_file(config) {
        return file();
    }
    let parts: Vec<_> = first.parts().collect();
    let directories = parts.iter().rev().skip(1).map(AsRef::<str>::as_ref);
    // Directories named key=value are partitions of the table.
    directories.filter(|name| !name.contains('=')).map(str::to_owned).next().or_else(file)
}

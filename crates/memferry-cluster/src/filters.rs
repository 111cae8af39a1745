//! Dynamic filters in a distributed plan. They stay in a stage: an operator tells them to scans of its own task only.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{DistributedLeafExec, NetworkBoundaryExt};

use crate::scan::ShardScanExec;

/// Dynamic filters that the scans of a plan were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DynamicFilters {
    /// All of them.
    pub given: usize,
    /// Those whose operators are in the stage of the scan. The others stay as they were planned: they pass each row.
    pub in_stage: usize,
}

impl DynamicFilters {
    /// Those of a plan.
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> DynamicFilters {
        let mut filters = DynamicFilters::default();
        filters.add_stage(plan);
        filters
    }

    /// Adds those of the stage at `plan` and of the stages below it.
    fn add_stage(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        let (mut produced, mut scanned, mut below) = (HashSet::new(), Vec::new(), Vec::new());
        visit(plan, &mut produced, &mut scanned, &mut below);
        self.given += scanned.len();
        self.in_stage += scanned.iter().filter(|id| produced.contains(*id)).count();
        below.iter().for_each(|stage| self.add_stage(stage));
    }
}

/// Collects the filters that operators of a stage produce, those of its scans, and the stages below.
fn visit(
    plan: &Arc<dyn ExecutionPlan>,
    produced: &mut HashSet<u64>,
    scanned: &mut Vec<u64>,
    below: &mut Vec<Arc<dyn ExecutionPlan>>,
) {
    produced.extend(plan.dynamic_expressions_produced().iter().filter_map(|filter| filter.expression_id()));
    let leaf = plan.downcast_ref::<DistributedLeafExec>().map_or(plan, DistributedLeafExec::original);
    if let Some(scan) = leaf.downcast_ref::<ShardScanExec>() {
        scanned.extend(scan.dynamic().iter().filter_map(|filter| filter.expression_id()));
    }
    for child in plan.children() {
        if plan.is_network_boundary() {
            below.push(Arc::clone(child));
        } else {
            visit(child, produced, scanned, below);
        }
    }
}

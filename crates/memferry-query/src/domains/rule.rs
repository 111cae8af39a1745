//! The optimizer rule that places plans on domains. It inserts `DomainExec` and lets scans claim row groups; the operators
//! and their order stay.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::config::ConfigOptions;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, replace_children_if_necessary};
use memferry_schedule::{Binding, Scheduler, Stealing};

use super::{DomainExec, QueryDomains};
use crate::options::MemferryOptions;
use crate::scan::TieredScanExec;

/// Places plans on the domains of a session. With one domain of all CPUs it changes nothing.
#[derive(Debug)]
pub(crate) struct PlaceOnDomains(Arc<QueryDomains>);

impl PlaceOnDomains {
    pub(crate) fn new(domains: Arc<QueryDomains>) -> Self {
        Self(domains)
    }
}

impl PhysicalOptimizerRule for PlaceOnDomains {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // SET becomes an EmptyExec, and must work while a setting is invalid.
        if plan.downcast_ref::<EmptyExec>().is_some() {
            return Ok(plan);
        }
        let options = MemferryOptions::of(config);
        let all = self.0.domains().len();
        let chosen = chosen(&options.domains, all)?;
        let binding = options.binding.0;
        if binding == Binding::None && chosen.len() < all {
            return Err(DataFusionError::Plan(format!(
                "memferry.domains = '{}' confines queries, which the binding none does not; set memferry.binding to \
                 opportunistic or always",
                options.domains
            )));
        }
        let is_confined = chosen.len() < all || self.0.domains().is_part();
        if binding == Binding::None || (all == 1 && !is_confined) {
            return Ok(plan);
        }
        let scheduler =
            self.0.scheduler(binding).map_err(|error| DataFusionError::External(Box::new(error)))?;
        // The caller's runtime only takes the rows of such a query.
        let is_whole = is_confined || binding == Binding::Always;
        let turns = &self.0.turns;
        let place = Place { scheduler, chosen: chosen.into(), turns, stealing: options.stealing.0, is_whole };
        let Placed { plan, is_exposed, .. } = place.placed(plan)?;
        Ok(if is_whole || is_exposed { place.on_domain(plan, is_exposed) } else { plan })
    }

    fn name(&self) -> &str {
        "memferry_domains"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

struct Place<'a> {
    scheduler: Scheduler,
    /// Indices of the domains on which the query runs.
    chosen: Arc<[usize]>,
    /// Parts that took a domain in turn.
    turns: &'a AtomicUsize,
    stealing: Stealing,
    /// Whether the whole plan runs on domains, its small parts and files too.
    is_whole: bool,
}

struct Placed {
    plan: Arc<dyn ExecutionPlan>,
    /// Whether it reads enough for a hop: a hop costs up to 134 us a batch.
    is_large: bool,
    /// Whether a scan on domains has no `DomainExec` above it yet.
    is_exposed: bool,
}

impl Place<'_> {
    fn placed(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Placed> {
        if let Some(scan) = plan.downcast_ref::<TieredScanExec>() {
            if !self.is_whole && scan.row_groups_count() < self.scheduler.domains().len() {
                return Ok(Placed { plan, is_large: false, is_exposed: false });
            }
            let scan = Arc::new(scan.on_domains(self.scheduler.domains(), &self.chosen, self.stealing));
            let is_alone = self.scheduler.binding() == Binding::Preferred;
            let plan = if is_alone { self.on_domain(scan, true) } else { scan };
            return Ok(Placed { plan, is_large: true, is_exposed: !is_alone });
        }
        let mut is_large = plan.children().is_empty() && self.is_whole;
        let mut is_exposed = false;
        let hops = self.scheduler.binding() != Binding::Preferred && is_exchange(plan.as_ref());
        let children = plan.children().into_iter().cloned().map(|child| {
            let child = self.placed(child)?;
            is_large |= child.is_large;
            if hops && child.is_large {
                return Ok(self.on_domain(child.plan, child.is_exposed));
            }
            is_exposed |= child.is_exposed;
            Ok(child.plan)
        });
        let children = children.collect::<Result<Vec<_>>>()?;
        Ok(Placed { plan: replace_children_if_necessary(plan, children)?, is_large, is_exposed })
    }

    /// The partitions of a scan that is exposed are those of its domains. Another plan with one partition, such as the end
    /// of an aggregation, takes the next domain: on the first one it would wait, in all queries, for the scans there.
    fn on_domain(&self, plan: Arc<dyn ExecutionPlan>, is_exposed: bool) -> Arc<dyn ExecutionPlan> {
        if plan.downcast_ref::<DomainExec>().is_some() {
            return plan;
        }
        let domains = match plan.output_partitioning().partition_count() {
            // ORDERING: Relaxed: any order of turns will do.
            1 if !is_exposed => {
                [self.chosen[self.turns.fetch_add(1, Ordering::Relaxed) % self.chosen.len()]].into()
            }
            _ => Arc::clone(&self.chosen),
        };
        Arc::new(DomainExec::new(plan, self.scheduler.clone(), domains))
    }
}

/// Whether the partitions of `plan` are not those of its inputs. A `UnionExec` shifts them.
fn is_exchange(plan: &dyn ExecutionPlan) -> bool {
    plan.downcast_ref::<RepartitionExec>().is_some()
        || plan.downcast_ref::<UnionExec>().is_some()
        || plan.downcast_ref::<CoalescePartitionsExec>().is_some()
        || plan.downcast_ref::<SortPreservingMergeExec>().is_some()
}

/// The domains of `memferry.domains`, ascending; all if it is empty.
fn chosen(text: &str, all: usize) -> Result<Vec<usize>> {
    if text.trim().is_empty() {
        return Ok((0..all).collect());
    }
    let number = |number: &str| number.trim().parse().ok().filter(|&domain| domain < all);
    let chosen: Option<Vec<usize>> = text.split(',').map(number).collect();
    let mut chosen = chosen.ok_or_else(|| {
        DataFusionError::Plan(format!(
            "memferry.domains = '{text}' names a domain that does not exist; name domains from 0 to {}, such as '0'",
            all - 1
        ))
    })?;
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_named_by_their_numbers() {
        assert_eq!(chosen("", 3).unwrap(), [0, 1, 2]);
        assert_eq!(chosen("2, 0,2", 3).unwrap(), [0, 2]);
        for wrong in ["3", "0,", "-1", "a", "0;1"] {
            assert!(chosen(wrong, 3).unwrap_err().to_string().contains("from 0 to 2"), "{wrong}");
        }
    }
}

//! The optimizer rule that keeps the filters of operators above a limit from the scans below it.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, FileSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;

use crate::files::parquet_scan;
use crate::scan::TieredScanExec;

/// Takes the dynamic filters of operators above a limit from the scans.
///
/// A row that a join rejects counts for a limit below the join, so no scan may leave it out. DataFusion hands the filter of the
/// join down all the same, if the limit is that of a filter or of the scan.
#[derive(Debug)]
pub(crate) struct CountLimits;

impl PhysicalOptimizerRule for CountLimits {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let above = AboveLimit::of(&plan)?;
        if above.0.is_empty() {
            return Ok(plan);
        }
        let counted = plan.transform_up(|plan| {
            Ok(match above.taken_from(plan.as_ref())? {
                Some(scan) => Transformed::yes(scan),
                None => Transformed::no(plan),
            })
        });
        Ok(counted?.data)
    }

    fn name(&self) -> &str {
        "memferry_count_limits"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The dynamic filters that operators above a limit find, by the id of the expression.
struct AboveLimit(HashSet<u64>);

impl AboveLimit {
    fn of(plan: &Arc<dyn ExecutionPlan>) -> Result<AboveLimit> {
        let mut ids = HashSet::new();
        plan.apply(|node| {
            let filters = node.dynamic_expressions_produced();
            if !filters.is_empty() {
                // The filter of a join is for its right side.
                let filtered = match node.downcast_ref::<HashJoinExec>() {
                    Some(join) => vec![join.right()],
                    None => node.children(),
                };
                for input in filtered {
                    if input.exists(|below| Ok(below.fetch().is_some()))? {
                        ids.extend(filters.iter().filter_map(|filter| filter.expression_id()));
                    }
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(AboveLimit(ids))
    }

    fn has(&self, filter: &Arc<dyn PhysicalExpr>) -> Result<bool> {
        filter.exists(|part| Ok(part.expression_id().is_some_and(|id| self.0.contains(&id))))
    }

    /// The scan without these filters; `None` if it has none of them, and for other operators.
    fn taken_from(&self, plan: &dyn ExecutionPlan) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if let Some(scan) = plan.downcast_ref::<TieredScanExec>() {
            let scan = scan.without_dynamic(|filter| self.has(filter))?;
            return Ok(scan.map(|scan| Arc::new(scan) as Arc<dyn ExecutionPlan>));
        }
        let Some((config, source)) = parquet_scan(plan) else { return Ok(None) };
        let Some(predicate) = source.filter() else { return Ok(None) };
        let conjuncts = split_conjunction(&predicate);
        let mut kept = Vec::new();
        for &conjunct in &conjuncts {
            if !self.has(conjunct)? {
                kept.push(Arc::clone(conjunct));
            }
        }
        if kept.len() == conjuncts.len() {
            return Ok(None);
        }
        let source = Arc::new(source.with_predicate(conjunction(kept)));
        let config = FileScanConfigBuilder::from(config.clone()).with_source(source).build();
        Ok(Some(DataSourceExec::from_data_source(config)))
    }
}

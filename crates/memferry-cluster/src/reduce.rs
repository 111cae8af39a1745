//! Groups that a join looks up, reduced to those that it can find.
//!
//! ```text
//! Inner Join: p_partkey = l_partkey             Inner Join: p_partkey = l_partkey
//!   TableScan: part, p_brand = 'Brand#23'         TableScan: part, p_brand = 'Brand#23'
//!   Aggregate: l_partkey, avg(l_quantity)  ─▶     Aggregate: l_partkey, avg(l_quantity)
//!     TableScan: lineitem                           LeftSemi Join: l_partkey = p_partkey
//!                                                     TableScan: lineitem
//!                                                     TableScan: part, p_brand = 'Brand#23'
//! ```
//!
//! In one process, the join tells the scan of lineitem which keys it looks for, by a dynamic filter. On a cluster the groups are
//! exchanged, so that the scan is in another stage, which no filter reaches. The semi-join is in the stage of the scan. It keeps or
//! drops whole groups, so no aggregate changes.
//!
//! Source: I. Mumick, S. Finkelstein, H. Pirahesh, R. Ramakrishnan, "Magic is relevant", SIGMOD 1990.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, NullEquality, Result};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{Aggregate, Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, TableScan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::broadcast::BroadcastOptions;
use crate::table::is_of_rows;

/// Names of the tables of keys begin with it.
const KEYS: &str = "__memferry_keys";

/// Rows to look up, at least, for each row of the filtered table: with fewer, looking up costs more than it saves.
const ROWS_PER_KEY_MIN: usize = 4;

/// DataFusion estimates that a filter passes one row of so many, if it knows nothing of their values.
const ROWS_PER_PASSING: usize = 5;

/// Bytes of a key, which is mostly an integer.
const KEY_BYTES: usize = 8;

/// Inserts the semi-joins. Runs after filters are at their scans.
#[derive(Debug)]
pub(crate) struct ReduceGroups;

impl OptimizerRule for ReduceGroups {
    fn name(&self) -> &str {
        "ReduceGroups"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(join) = &plan else { return Ok(Transformed::no(plan)) };
        // Sides whose rows are put out only beside a row of the other one.
        let (left, right) = match join.join_type {
            _ if join.null_aware || join.null_equality == NullEquality::NullEqualsNull => (false, false),
            JoinType::Inner => (true, true),
            JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => (false, true),
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                (true, false)
            }
            JoinType::Full => (false, false),
        };
        for (on_left, on_right) in &join.on {
            let (Expr::Column(on_left), Expr::Column(on_right)) = (on_left, on_right) else { continue };
            let in_left = Other { plan: &join.left, column: on_left, config };
            if right && let Some(side) = reduced(&join.right, on_right, &in_left)? {
                return rejoined(join, Arc::clone(&join.left), Arc::new(side));
            }
            let in_right = Other { plan: &join.right, column: on_right, config };
            if left && let Some(side) = reduced(&join.left, on_left, &in_right)? {
                return rejoined(join, Arc::new(side), Arc::clone(&join.right));
            }
        }
        Ok(Transformed::no(plan))
    }
}

/// The other side of a join, and its column in the condition.
struct Other<'a> {
    plan: &'a LogicalPlan,
    column: &'a Column,
    config: &'a dyn OptimizerConfig,
}

/// Whether looking up rows in the keys of a filtered table pays: the keys are few, and are sent to all tasks ([`ChooseBroadcasts`]). If
/// they were not, the rows would be exchanged, which are more than their groups.
///
/// [`ChooseBroadcasts`]: crate::broadcast::ChooseBroadcasts
fn pays(broadcasts: &BroadcastOptions, keys: usize, rows: usize) -> bool {
    let sent = keys / ROWS_PER_PASSING;
    keys.saturating_mul(ROWS_PER_KEY_MIN) <= rows
        && sent.saturating_mul(2 * broadcasts.tasks) < rows
        && sent.saturating_mul(KEY_BYTES) <= broadcasts.bytes_max
}

fn rejoined(
    join: &Join,
    left: Arc<LogicalPlan>,
    right: Arc<LogicalPlan>,
) -> Result<Transformed<LogicalPlan>> {
    Ok(Transformed::yes(LogicalPlan::Join(Join { left, right, ..join.clone() })))
}

/// `plan` with fewer groups: `column`, by which it groups, is looked up in that of the other side.
fn reduced(plan: &LogicalPlan, column: &Column, other: &Other<'_>) -> Result<Option<LogicalPlan>> {
    if let LogicalPlan::Aggregate(aggregate) = plan {
        return reduced_groups(aggregate, column, other);
    }
    let Some((input, column)) = below(plan, column)? else { return Ok(None) };
    reduced(input, &column, other)?
        .map(|input| plan.with_new_exprs(plan.expressions(), vec![input]))
        .transpose()
}

fn reduced_groups(aggregate: &Aggregate, column: &Column, other: &Other<'_>) -> Result<Option<LogicalPlan>> {
    let input = &aggregate.input;
    // Grouping sets put out null for a column by which they do not group; their expression is one, before all others.
    let Some(Expr::Column(grouped)) = aggregate.group_expr.get(aggregate.schema.index_of_column(column)?)
    else {
        return Ok(None);
    };
    let is_reduced = input.exists(|node| {
        Ok(matches!(node, LogicalPlan::SubqueryAlias(of) if of.alias.table().starts_with(KEYS)))
    })?;
    if is_reduced {
        return Ok(None);
    }
    let mut keys = Vec::new();
    find_keys(other.plan, other.column, &mut keys)?;
    let Some(keys) = keys.into_iter().min_by_key(|keys| keys.rows) else { return Ok(None) };
    let options = other.config.options();
    let broadcasts = options.extensions.get::<BroadcastOptions>().cloned().unwrap_or_default();
    if !pays(&broadcasts, keys.rows, rows_max(input)?) {
        return Ok(None);
    }
    let alias = other.config.alias_generator().next(KEYS);
    let keys = LogicalPlanBuilder::from(keys.plan).alias(alias)?.build()?;
    let key = Column::from(keys.schema().qualified_field(0));
    let input = LogicalPlanBuilder::from(input.as_ref().clone())
        .join(keys, JoinType::LeftSemi, (vec![grouped.clone()], vec![key]), None)?
        .build()?;
    let aggregate = LogicalPlan::Aggregate(aggregate.clone());
    aggregate.with_new_exprs(aggregate.expressions(), vec![input]).map(Some)
}

/// The input of an operator that puts out the rows of its input or some of them, and the column there that is `column`.
fn below<'a>(plan: &'a LogicalPlan, column: &Column) -> Result<Option<(&'a LogicalPlan, Column)>> {
    Ok(match plan {
        LogicalPlan::Filter(filter) => Some((filter.input.as_ref(), column.clone())),
        LogicalPlan::SubqueryAlias(alias) => {
            let index = alias.schema.index_of_column(column)?;
            Some((alias.input.as_ref(), Column::from(alias.input.schema().qualified_field(index))))
        }
        LogicalPlan::Projection(projection) => {
            let expr = &projection.expr[projection.schema.index_of_column(column)?];
            match expr.clone().unalias() {
                Expr::Column(below) => Some((projection.input.as_ref(), below)),
                _ => None,
            }
        }
        _ => None,
    })
}

/// The values of a column of a filtered table.
struct Keys {
    /// Has this column only.
    plan: LogicalPlan,
    /// Rows of the table without its filters.
    rows: usize,
}

/// Adds filtered tables, each of which has all values of `column` in `plan` but null.
fn find_keys(plan: &LogicalPlan, column: &Column, keys: &mut Vec<Keys>) -> Result<()> {
    if let Some(scan) = filtered(plan)?
        && let Some(rows) = rows(scan)
    {
        let plan = LogicalPlanBuilder::from(plan.clone()).project([Expr::Column(column.clone())])?.build()?;
        keys.push(Keys { plan, rows });
    } else if let Some((input, column)) = below(plan, column)? {
        find_keys(input, &column, keys)?;
    } else if let LogicalPlan::Join(join) = plan {
        for side in [&join.left, &join.right] {
            if side.schema().has_column(column) {
                find_keys(side, column, keys)?;
            }
        }
        // Rows without an equal one in the other side are not put out.
        if matches!(join.join_type, JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi) {
            for (left, right) in &join.on {
                let (Expr::Column(left), Expr::Column(right)) = (left, right) else { continue };
                if left == column {
                    find_keys(&join.right, right, keys)?;
                }
                if right == column {
                    find_keys(&join.left, left, keys)?;
                }
            }
        }
    }
    Ok(())
}

/// The scan of a table with filters that give the same rows each time.
fn filtered(plan: &LogicalPlan) -> Result<Option<&TableScan>> {
    let (scan, filter) = match plan {
        LogicalPlan::TableScan(scan) => (scan, None),
        LogicalPlan::Filter(Filter { input, predicate, .. }) => match input.as_ref() {
            LogicalPlan::TableScan(scan) => (scan, Some(predicate)),
            _ => return Ok(None),
        },
        _ => return Ok(None),
    };
    let filters: Vec<&Expr> = scan.filters.iter().chain(filter).collect();
    let mut is_filtered = !filters.is_empty() && scan.fetch.is_none();
    for filter in filters {
        is_filtered &= is_of_rows(filter)?;
    }
    Ok(is_filtered.then_some(scan))
}

/// Rows of a table, if it knows them.
fn rows(scan: &TableScan) -> Option<usize> {
    let statistics = source_as_provider(&scan.source).ok()?.statistics()?;
    statistics.num_rows.get_value().copied()
}

/// Rows of the largest table of a plan.
fn rows_max(plan: &LogicalPlan) -> Result<usize> {
    let mut most = 0;
    plan.apply(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            most = most.max(rows(scan).unwrap_or(0));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(most)
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use datafusion::arrow::datatypes::SchemaRef;
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::catalog::{MemTable, Session, TableProvider};
    use datafusion::common::Statistics;
    use datafusion::common::stats::Precision;
    use datafusion::datasource::TableType;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_plan::ExecutionPlan;
    use datafusion::prelude::SessionContext;

    use super::*;

    /// A table that knows how many rows it has.
    #[derive(Debug)]
    struct Counted {
        table: MemTable,
        rows: usize,
    }

    #[async_trait]
    impl TableProvider for Counted {
        fn schema(&self) -> SchemaRef {
            self.table.schema()
        }

        fn table_type(&self) -> TableType {
            self.table.table_type()
        }

        fn statistics(&self) -> Option<Statistics> {
            let statistics = Statistics::new_unknown(&self.schema());
            Some(Statistics { num_rows: Precision::Exact(self.rows), ..statistics })
        }

        async fn scan(
            &self,
            state: &dyn Session,
            projection: Option<&Vec<usize>>,
            filters: &[Expr],
            limit: Option<usize>,
        ) -> Result<Arc<dyn ExecutionPlan>> {
            self.table.scan(state, projection, filters, limit).await
        }
    }

    /// Column `c` of row `r` is `r * factor % modulus`, and null where that is 3.
    fn register(context: &SessionContext, name: &str, rows: usize, columns: &[(&str, i64, i64)]) {
        let columns = columns.iter().map(|&(column, factor, modulus)| {
            let values = (0..rows as i64).map(|row| Some(row * factor % modulus).filter(|&value| value != 3));
            (column, Arc::new(Int64Array::from_iter(values)) as ArrayRef, true)
        });
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap();
        context.register_table(name, Arc::new(Counted { table, rows })).unwrap();
    }

    fn context(reduces: bool) -> SessionContext {
        let mut builder = SessionStateBuilder::new().with_default_features();
        if reduces {
            builder = builder.with_optimizer_rule(Arc::new(ReduceGroups));
        }
        let context = SessionContext::new_with_state(builder.build());
        register(
            &context,
            "item",
            4000,
            &[("i_part", 7, 200), ("i_supplier", 11, 13), ("i_quantity", 17, 53)],
        );
        register(&context, "part", 200, &[("p_part", 1, 200), ("p_brand", 3, 25)]);
        register(&context, "stock", 600, &[("s_part", 1, 200), ("s_supplier", 5, 13), ("s_count", 3, 90)]);
        context
    }

    /// Times that groups of a query are reduced. Its answer must be the one without.
    async fn reductions(sql: &str) -> usize {
        let mut answers = Vec::new();
        for reduces in [false, true] {
            let context = context(reduces);
            let rows = context.sql(sql).await.unwrap().collect().await.unwrap();
            answers.push(pretty_format_batches(&rows).unwrap().to_string());
        }
        assert_eq!(answers[0], answers[1], "{sql}");
        assert!(answers[0].lines().count() > 4, "{sql} has rows:\n{}", answers[0]);
        let plan = context(true).sql(sql).await.unwrap().into_optimized_plan().unwrap();
        plan.display_indent().to_string().matches(&format!("SubqueryAlias: {KEYS}")).count()
    }

    const GROUPS: &str = "(SELECT i_part, avg(i_quantity) AS mean, count(*) AS n FROM item GROUP BY i_part)";

    #[tokio::test]
    async fn groups_are_reduced_to_keys_that_a_filter_leaves() {
        for sql in [
            format!("SELECT p_part, mean, n FROM part JOIN {GROUPS} ON p_part = i_part WHERE p_brand = 6 ORDER BY 1"),
            format!("SELECT p_part, mean, n FROM {GROUPS} JOIN part ON p_part = i_part WHERE p_brand = 6 ORDER BY 1"),
            format!("SELECT p_part, mean FROM part LEFT JOIN {GROUPS} ON p_part = i_part WHERE p_brand = 6 ORDER BY 1"),
            format!("SELECT p_part, mean FROM {GROUPS} RIGHT JOIN part ON p_part = i_part AND mean > 20 \
                     WHERE p_brand = 6 ORDER BY 1"),
            format!("SELECT * FROM part LEFT SEMI JOIN {GROUPS} ON p_part = i_part WHERE p_brand < 4 ORDER BY 1"),
            format!("SELECT * FROM part LEFT ANTI JOIN {GROUPS} ON p_part = i_part AND mean > 26 \
                     WHERE p_brand < 4 ORDER BY 1"),
            // By Q17 of TPC-H: the key of the filtered table is equal to one of the table without a filter.
            "SELECT i_part, i_quantity FROM item JOIN part ON p_part = i_part WHERE p_brand = 6 AND i_quantity < \
             (SELECT 0.9 * avg(i_quantity) FROM item WHERE i_part = p_part) ORDER BY 1, 2"
                .to_owned(),
            // By Q20: groups by two columns, of which the filtered table decides one.
            "SELECT s_part, s_supplier FROM stock WHERE s_part IN (SELECT p_part FROM part WHERE p_brand < 4) AND \
             s_count < (SELECT sum(i_quantity) FROM item WHERE i_part = s_part AND i_supplier = s_supplier) ORDER BY 1, 2"
                .to_owned(),
        ] {
            assert_eq!(reductions(&sql).await, 1, "{sql}");
        }
    }

    #[test]
    fn keys_are_looked_up_if_they_are_few_and_sent_to_all_tasks() {
        let pays = |tasks, bytes_max, keys, rows| {
            let broadcasts = BroadcastOptions { tasks, bytes_max };
            super::pays(&broadcasts, keys, rows)
        };
        assert!(pays(3, 1 << 20, 1000, 4000) && !pays(3, 1 << 20, 1000, 3999), "a quarter");
        assert!(pays(10, 1 << 20, 1000, 4001) && !pays(10, 1 << 20, 1000, 4000), "twice to ten tasks");
        assert!(pays(3, 1600, 1000, 4000) && !pays(3, 1599, 1000, 4000), "bytes");
    }

    #[tokio::test]
    async fn groups_stay_where_all_may_be_put_out_or_keys_are_not_few() {
        for sql in [
            format!("SELECT p_part, mean FROM part JOIN {GROUPS} ON p_part = i_part ORDER BY 1"),
            format!("SELECT p_part, mean, i_part FROM (SELECT * FROM part WHERE p_brand = 6) FULL JOIN {GROUPS} \
                     ON p_part = i_part ORDER BY 3, 1"),
            format!("SELECT p_part, mean, i_part FROM {GROUPS} LEFT JOIN (SELECT * FROM part WHERE p_brand = 6) \
                     ON p_part = i_part ORDER BY 3"),
            format!("SELECT i_part, mean FROM {GROUPS} WHERE i_part NOT IN \
                     (SELECT p_part FROM part WHERE p_brand < 9 AND p_part IS NOT NULL) ORDER BY 1"),
            format!("SELECT i_part, mean FROM (SELECT * FROM part WHERE p_brand = 6) JOIN {GROUPS} \
                     ON p_part IS NOT DISTINCT FROM i_part ORDER BY 1"),
            // Another row each time, so that the two scans of the table would not agree.
            format!("SELECT p_part, mean FROM part JOIN {GROUPS} ON p_part = i_part WHERE random() < 2 ORDER BY 1"),
            // The rows of a limit may be others in each scan.
            format!("SELECT p_part, mean FROM (SELECT * FROM part WHERE p_brand < 9 LIMIT 100) JOIN {GROUPS} \
                     ON p_part = i_part ORDER BY 1"),
            // Null stands for all values of a column.
            "SELECT p_part, n FROM part JOIN (SELECT i_part, count(*) AS n FROM item GROUP BY ROLLUP (i_part)) \
             ON p_part = i_part WHERE p_brand = 6 ORDER BY 1"
                .to_owned(),
            // Joined by a result, and not by a column that groups.
            "SELECT p_part, i_supplier FROM part JOIN (SELECT i_supplier, min(i_part) AS least FROM item \
             GROUP BY i_supplier) ON p_part = least WHERE p_brand < 20 ORDER BY 1, 2"
                .to_owned(),
            // Rows of stock without such a part are put out, too.
            format!("SELECT s_part, p_brand, n FROM stock LEFT JOIN (SELECT * FROM part WHERE p_brand = 6) \
                     ON s_part = p_part JOIN {GROUPS} ON s_part = i_part ORDER BY 1, 2"),
            // More than a quarter as many rows.
            "SELECT s_part, p_brand, n FROM (SELECT s_part, count(*) AS n FROM stock GROUP BY s_part) JOIN part \
             ON s_part = p_part WHERE p_brand = 6 ORDER BY 1"
                .to_owned(),
        ] {
            assert_eq!(reductions(&sql).await, 0, "{sql}");
        }
    }
}

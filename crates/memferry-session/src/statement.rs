//! Statements that would not work as their writer expects, and those that answer with rows.

use anyhow::Result;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::logical_expr::{LogicalPlan, Statement as PlanStatement, WriteOp};

use crate::error::usage;

/// Refuses what would not work as its writer expects.
///
/// # Errors
/// A usage error: the statement writes to a table that is not one of `CREATE TABLE`.
pub fn check(plan: &LogicalPlan) -> Result<()> {
    let LogicalPlan::Dml(write) = plan else { return Ok(()) };
    let in_memory =
        source_as_provider(&write.target).is_ok_and(|provider| provider.downcast_ref::<MemTable>().is_some());
    if in_memory || write.op == WriteOp::Ctas {
        return Ok(());
    }
    let verb = write.op.name().to_uppercase();
    let verb = verb.split_whitespace().next().unwrap_or_default();
    Err(usage(format!(
        "{verb} works on tables made by CREATE TABLE only, and {} is not; write a file with COPY (SELECT ...) TO \
         'FILE.parquet', and register that",
        write.table_name
    )))
}

/// Whether a statement answers with rows.
pub fn has_rows(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Ddl(_) => false,
        LogicalPlan::Statement(statement) => matches!(statement, PlanStatement::Execute(_)),
        _ => true,
    }
}

//! Advice on the places of a table's columns, by its reads.

use std::collections::BTreeMap;

use memferry::model::{ModelError, PlacementAdvice, PlacementRules};
use memferry::topology::NodeId;

use super::{PlacementClause, TablePlacement};
use crate::table::TieredTable;

impl TieredTable {
    /// The default conditions of moves, with the room of this machine's nodes now: the free memory, less what near copies may
    /// still take. On a machine that is only described no time passes, and no column rests.
    pub fn placement_rules(&self) -> PlacementRules {
        let tiers = self.tiers();
        let usage = tiers.cache().stats().nodes;
        let spare_bytes: BTreeMap<NodeId, u64> = usage
            .iter()
            .map(|usage| (usage.node, usage.budget_bytes.saturating_sub(usage.used_bytes) as u64))
            .collect();
        let room = tiers.machine().nodes().iter().filter_map(|node| {
            // Nodes that this process may not use have no free memory for it.
            let free_bytes = tiers.machine().free_bytes(node.id).ok()?;
            Some((node.id, free_bytes.saturating_sub(spare_bytes.get(&node.id).copied().unwrap_or(0))))
        });
        let default = PlacementRules::default();
        let rest_s = if tiers.machine().is_this_machine() { default.rest_s } else { 0.0 };
        PlacementRules { room_bytes: room.collect(), rest_s, ..default }
    }

    /// Proposes moves of columns by the [`reads`](TieredTable::reads) of this table. Nothing is moved.
    ///
    /// # Errors
    /// As [`ReadHistory::advise`](memferry::model::ReadHistory::advise): the machine's description lacks the rate of a memory.
    pub fn advise(&self, rules: &PlacementRules) -> Result<PlacementAdvice, ModelError> {
        self.reads().advise(rules, self.tiers().machine())
    }

    /// The placement of the moves of `advice` about this table, for [`place_within`](TieredTable::place_within).
    ///
    /// # Panics
    /// If the advice is about a table with more columns.
    pub fn placement_of(&self, advice: &PlacementAdvice) -> TablePlacement {
        let schema = datafusion::catalog::TableProvider::schema(self);
        let clause = |nodes: &[NodeId], column: usize| PlacementClause {
            column: Some(schema.field(column).name().clone()),
            ..PlacementClause::on(nodes)
        };
        TablePlacement { clauses: advice.moves.iter().map(|it| clause(&it.nodes, it.column)).collect() }
    }
}

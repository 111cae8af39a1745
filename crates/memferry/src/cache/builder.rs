//! The builder of a cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::nearness::Nearness;
use super::node::CacheNode;
use super::policy::Placement;
use super::stats::Counters;
use super::{BuildError, Cache, Request, Shared};
use crate::memory::Pool;
use crate::mover::Mover;
use crate::topology::{Machine, NodeId};

/// Builds a [`Cache`].
#[must_use]
pub struct CacheBuilder {
    mover: Mover,
    budgets: BTreeMap<NodeId, Budget>,
    placement: Option<Placement>,
}

/// The near memory of one node.
#[derive(Debug)]
enum Budget {
    Bytes(usize),
    Pool(Pool),
}

impl CacheBuilder {
    pub(super) fn new(mover: Mover) -> CacheBuilder {
        CacheBuilder { mover, budgets: BTreeMap::new(), placement: None }
    }

    /// Sets the budget of near copies on `node`. Several nodes may have budgets; the last call for a node counts.
    pub fn budget(mut self, node: NodeId, budget_bytes: usize) -> CacheBuilder {
        self.budgets.insert(node, Budget::Bytes(budget_bytes));
        self
    }

    /// Allocates near copies on the pool's node from this pool, whose budget other caches and the program may share.
    /// Their blocks count as used in the statistics, and are never evicted.
    pub fn pool(mut self, pool: Pool) -> CacheBuilder {
        self.budgets.insert(pool.node(), Budget::Pool(pool));
        self
    }

    /// Sets the placement policy for accesses without a node. The default is the first node with a budget.
    ///
    /// The policy returns one of the [nodes](Request::nodes) of the request, or `None` for no copy. Any other node is an
    /// [`AccessError::NoBudget`](super::AccessError::NoBudget). [`Request::nearest_faster`] answers with the nearest memory that
    /// is faster for the reader.
    ///
    /// It runs on the accessing thread, without a lock of the cache, also on hits: keep it short. A panic in it reaches the
    /// caller of [`Cache::access`] and does not change the cache.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use memferry::{Cache, Machine, Mover};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let machine = Arc::new(Machine::discover()?);
    /// # let node = machine.nodes()[0].id;
    /// # let mover = Mover::builder(machine).build()?;
    /// let cache = Cache::builder(mover)
    ///     .budget(node, 64 << 20)
    ///     .placement(move |_, request| (request.size_bytes >= 64 << 10).then_some(node))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn placement(
        mut self,
        placement: impl Fn(&Machine, &Request<'_>) -> Option<NodeId> + Send + Sync + 'static,
    ) -> CacheBuilder {
        self.placement = Some(Box::new(placement));
        self
    }

    /// Builds the cache. It allocates memory with the first copies.
    ///
    /// # Errors
    /// [`BuildError`]: no budget, one below a page, or one on a node that the machine does not have.
    pub fn build(self) -> Result<Cache, BuildError> {
        let CacheBuilder { mover, budgets, placement } = self;
        let machine = mover.machine().clone();
        let node_ids: Vec<NodeId> = budgets.keys().copied().collect();
        let mut nodes = Vec::new();
        for (node, budget) in budgets {
            machine.node(node)?;
            let (pool, budget_bytes) = match budget {
                Budget::Bytes(bytes) => (Pool::new(machine.clone(), node, bytes)?, bytes),
                Budget::Pool(pool) => {
                    let budget_bytes = pool.budget_bytes();
                    (pool, budget_bytes)
                }
            };
            if pool.budget_bytes() == 0 {
                return Err(BuildError::BudgetTooSmall { node, budget_bytes });
            }
            nodes.push(CacheNode::new(pool, nodes.len()));
        }
        if nodes.is_empty() {
            return Err(BuildError::NoBudget);
        }
        let nearness = Nearness::new(&machine, &node_ids);
        let counters = Arc::new(Counters::default());
        let shared = Shared { mover, machine, placement, nodes, node_ids, nearness, counters };
        Ok(Cache { shared: Arc::new(shared) })
    }
}

impl std::fmt::Debug for CacheBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheBuilder").field("budgets", &self.budgets).finish_non_exhaustive()
    }
}

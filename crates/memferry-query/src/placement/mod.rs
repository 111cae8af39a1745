//! The nodes of a table in memory: by column, by range of rows, or in turns by row group.
//!
//! ```text
//! COLUMN b NUMA NODE (8), ROWS 0 TO 1000000 NUMA NODE (0, 1)
//!    │ text                  a TablePlacement: clauses, of which the most specific one decides
//!    │ resolve               columns and nodes exist, no two clauses contradict each other
//!    ▼
//! row group ─▶ node of each column ─▶ the writer of a new table, or a move of a table that queries use
//! ```
//!
//! Scans count the bytes that they read at each node (`reads`), and [`TieredTable::advise`](crate::TieredTable::advise) proposes
//! moves by them.
//!
//! A table keeps no clauses: each row group knows the node of each of its columns ([`RowGroup::node`]), and
//! [`TableData::places`](crate::TableData::places) shows them.
//!
//! Source: the statement is that of SAP HANA, `ALTER TABLE t NUMA NODE (n)` (Greinsmark 2020, section 2.5).

mod advice;
mod error;
mod moving;
mod pattern;
mod places;
mod reads;
mod text;

use std::ops::Range;

use arrow::datatypes::Schema;
use memferry::topology::{Machine, NodeId};

use self::pattern::pattern;
use crate::data::RowGroup;

pub use self::error::PlacementError;
pub use self::places::ColumnPlace;

pub(crate) use self::moving::GroupMove;
pub(crate) use self::reads::{Reader, Sums, TableReads};

/// Where rows of a table in memory lie. A row that no clause covers stays where it is, or comes to the home of the layout.
///
/// The most specific clause decides: one for a column and rows, then for a column, then for rows, then for the table.
///
/// The text is that of SQL, with clauses separated by commas:
///
/// ```text
/// [COLUMN name] [ROWS first TO end] NUMA NODE (node [WEIGHT w], ...) [BY BANDWIDTH]
/// ```
///
/// ```
/// use memferry::topology::NodeId;
/// use memferry_query::{PlacementClause, TablePlacement};
/// let placement: TablePlacement = "numa node (0, 1 weight 3), column b numa node (8)".parse()?;
/// assert_eq!(placement.clauses[1], PlacementClause::column("b", NodeId(8)));
/// assert_eq!(placement.to_string(), "NUMA NODE (0, 1 WEIGHT 3), COLUMN b NUMA NODE (8)");
/// # Ok::<_, memferry_query::PlacementError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablePlacement {
    /// In any order; none leaves all rows where they are.
    pub clauses: Vec<PlacementClause>,
}

/// The nodes of one column or all, and of a range of rows or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementClause {
    /// The column; `None`: all.
    pub column: Option<String>,
    /// Rows in the order of the table, the first is 0; `None`: all. A row group is placed as its first row.
    pub rows: Option<Range<usize>>,
    /// The nodes of the row groups in turns, each with its weight: of so many turns. Each partition starts one turn later
    /// than the one before, so that partitions read different nodes at a time.
    pub nodes: Vec<(NodeId, u8)>,
    /// Whether the weights are the bandwidths of the nodes' memories; those in `nodes` must be 1.
    pub by_bandwidth: bool,
}

impl PlacementClause {
    /// All rows and columns in turns on `nodes`, with equal weights.
    pub fn on(nodes: &[NodeId]) -> PlacementClause {
        let nodes = nodes.iter().map(|&node| (node, 1)).collect();
        PlacementClause { column: None, rows: None, nodes, by_bandwidth: false }
    }

    /// All rows of a column on a node.
    pub fn column(name: &str, node: NodeId) -> PlacementClause {
        PlacementClause { column: Some(name.to_owned()), ..PlacementClause::on(&[node]) }
    }
}

impl From<PlacementClause> for TablePlacement {
    fn from(clause: PlacementClause) -> TablePlacement {
        TablePlacement { clauses: vec![clause] }
    }
}

/// A placement in terms of a table and a machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    clauses: Vec<ResolvedClause>,
}

#[derive(Clone, Debug)]
struct ResolvedClause {
    column: Option<usize>,
    rows: Option<Range<usize>>,
    pattern: Vec<NodeId>,
}

impl TablePlacement {
    /// Checks everything that does not depend on the rows.
    pub(crate) fn resolve(&self, schema: &Schema, machine: &Machine) -> Result<Resolved, PlacementError> {
        let mut clauses: Vec<ResolvedClause> = Vec::with_capacity(self.clauses.len());
        for (index, clause) in self.clauses.iter().enumerate() {
            let column = clause.column.as_ref().map(|name| column_of(schema, name)).transpose()?;
            let resolved =
                ResolvedClause { column, rows: clause.rows.clone(), pattern: pattern(clause, machine)? };
            if let Some(other) = clauses.iter().position(|other| other.contradicts(&resolved)) {
                let (one, other) = (self.clauses[other].to_string(), self.clauses[index].to_string());
                return Err(PlacementError::Overlap { one, other });
            }
            clauses.push(resolved);
        }
        Ok(Resolved { clauses })
    }
}

fn column_of(schema: &Schema, name: &str) -> Result<usize, PlacementError> {
    schema.index_of(name).map_err(|_| {
        let known = schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ");
        PlacementError::NoColumn { column: name.to_owned(), known }
    })
}

impl ResolvedClause {
    /// Whether both are equally specific, and apply to one row.
    fn contradicts(&self, other: &ResolvedClause) -> bool {
        self.column == other.column
            && match (&self.rows, &other.rows) {
                (None, None) => true,
                (Some(one), Some(other)) => one.start < other.end && other.start < one.end,
                _ => false,
            }
    }

    /// How specific it is.
    fn rank(&self) -> (bool, bool) {
        (self.column.is_some(), self.rows.is_some())
    }

    fn node(&self, partition: usize, turn: usize) -> NodeId {
        self.pattern[(partition + turn) % self.pattern.len()]
    }
}

/// The target of each column of a row group; `None` if no clause covers it.
pub(crate) type Targets = Vec<Option<NodeId>>;

impl Resolved {
    /// Whether clauses name rows, which have no numbers before the table is complete.
    pub(crate) fn names_rows(&self) -> bool {
        self.clauses.iter().any(|clause| clause.rows.is_some())
    }

    /// The columns that any clause covers, of so many.
    pub(crate) fn columns(&self, count: usize) -> Vec<usize> {
        let is_covered = |column: &usize| {
            self.clauses.iter().any(|clause| clause.column.is_none_or(|covered| covered == *column))
        };
        (0..count).filter(is_covered).collect()
    }

    /// The targets of row group `index` of a partition while the table is being loaded, by the clauses without rows.
    pub(crate) fn while_loading(&self, columns_count: usize, partition: usize, index: usize) -> Targets {
        let turns = self.clauses.iter().map(|clause| clause.rows.is_none().then_some(index));
        self.targets(columns_count, partition, &turns.collect::<Vec<_>>())
    }

    /// The targets of all row groups.
    ///
    /// # Errors
    /// A range of rows is not one of this table.
    pub(crate) fn of_table(
        &self,
        columns_count: usize,
        partitions: &[Vec<RowGroup>],
    ) -> Result<Vec<Vec<Targets>>, PlacementError> {
        self.check_rows(partitions)?;
        let mut start = 0;
        let mut of_partition = |(partition, groups): (usize, &Vec<RowGroup>)| {
            // The next turn of each clause.
            let mut turns = vec![0; self.clauses.len()];
            let of_group = |group: &RowGroup| {
                let covers =
                    |clause: &ResolvedClause| clause.rows.as_ref().is_none_or(|rows| rows.contains(&start));
                let covered = self.clauses.iter().zip(&mut turns).map(|(clause, turn)| {
                    let own = covers(clause).then_some(*turn);
                    *turn += usize::from(own.is_some());
                    own
                });
                let covered: Vec<_> = covered.collect();
                start += group.rows();
                self.targets(columns_count, partition, &covered)
            };
            groups.iter().map(of_group).collect()
        };
        Ok(partitions.iter().enumerate().map(&mut of_partition).collect())
    }

    /// The targets of a row group in which these clauses have these turns; `None`: the clause does not cover it.
    fn targets(&self, columns_count: usize, partition: usize, turns: &[Option<usize>]) -> Targets {
        let target = |column: usize| {
            let covering = self.clauses.iter().zip(turns).filter_map(|(clause, turn)| {
                let is_of_column = clause.column.is_none_or(|covered| covered == column);
                is_of_column.then_some((clause, (*turn)?))
            });
            let (clause, turn) = covering.max_by_key(|(clause, _)| clause.rank())?;
            Some(clause.node(partition, turn))
        };
        (0..columns_count).map(target).collect()
    }

    fn check_rows(&self, partitions: &[Vec<RowGroup>]) -> Result<(), PlacementError> {
        if !self.names_rows() {
            return Ok(());
        }
        let mut rows = 0;
        let mut starts = Vec::new();
        for group in partitions.iter().flatten() {
            starts.push(rows);
            rows += group.rows();
        }
        for &Range { start, end } in self.clauses.iter().filter_map(|clause| clause.rows.as_ref()) {
            if start >= end || end > rows {
                return Err(PlacementError::Rows { start, end, rows });
            }
            let next = starts.partition_point(|&first| first < start);
            if starts.get(next).is_none_or(|&first| first >= end) {
                let before = starts[next - 1];
                return Err(PlacementError::NoRowGroup {
                    start,
                    end,
                    before,
                    after: starts.get(next).copied(),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};

    use super::*;

    fn resolved(text: &str) -> Result<Resolved, PlacementError> {
        let fields = ["a", "b", "c"].map(|name| Field::new(name, DataType::Int64, false));
        let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
        text.parse::<TablePlacement>().unwrap().resolve(&Schema::new(fields.to_vec()), &machine)
    }

    fn numbers(targets: &Targets) -> Vec<Option<u32>> {
        targets.iter().map(|node| node.map(|node| node.0)).collect()
    }

    #[test]
    fn the_most_specific_clause_decides() {
        let placement = resolved(
            "rows 0 to 9 numa node (3), column a rows 0 to 5 numa node (1), numa node (4), column a numa node (2)",
        )
        .unwrap();
        let targets = |turns: &[Option<usize>]| numbers(&placement.targets(3, 0, turns));
        assert_eq!(targets(&[Some(0); 4]), [Some(1), Some(3), Some(3)]);
        assert_eq!(targets(&[Some(0), None, Some(0), Some(0)]), [Some(2), Some(3), Some(3)]);
        assert_eq!(targets(&[None, None, Some(0), Some(0)]), [Some(2), Some(4), Some(4)]);
        assert_eq!(numbers(&placement.while_loading(3, 0, 0)), [Some(2), Some(4), Some(4)]);
        let one = resolved("column c numa node (1)").unwrap();
        assert_eq!(numbers(&one.while_loading(3, 0, 0)), [None, None, Some(1)]);
        assert_eq!((one.columns(3), placement.columns(3)), (vec![2], vec![0, 1, 2]));
    }

    #[test]
    fn row_groups_take_turns_and_partitions_start_one_later() {
        let placement = resolved("numa node (0, 8 weight 2)").unwrap();
        let turns = |partition| -> Vec<Option<u32>> {
            (0..6).map(|index| numbers(&placement.while_loading(1, partition, index))[0]).collect()
        };
        assert_eq!(turns(0), [8, 0, 8, 8, 0, 8].map(Some));
        assert_eq!(turns(1), [0, 8, 8, 0, 8, 8].map(Some));
    }

    #[test]
    fn clauses_that_contradict_each_other_are_refused() {
        for text in [
            "numa node (0), numa node (1)",
            "column a numa node (0), column b numa node (1), column a numa node (0)",
            "rows 0 to 10 numa node (0), rows 9 to 20 numa node (1)",
        ] {
            let error = resolved(text).unwrap_err();
            assert!(matches!(error, PlacementError::Overlap { .. }), "{text}: {error}");
        }
        resolved(
            "rows 0 to 10 numa node (0), rows 10 to 20 numa node (1), column a rows 0 to 10 numa node (2)",
        )
        .unwrap();
        let error = resolved("column d numa node (0)").unwrap_err().to_string();
        assert_eq!(error, "the table has no column d; it has a, b, c");
    }
}

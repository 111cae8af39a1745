//! Evaluation of a predicate on a chunk: its conjuncts, cheapest rejection first.
//!
//! A predicate `c1 AND c2 AND ...` is kept as separate conjuncts. Every conjunct is timed while it works; before each
//! chunk they are ordered by `cost / (1 - pass rate)`, the classic rank that minimises the expected cost of a
//! conjunction of independent predicates. A conjunct that is expensive compared with gathering its columns evaluates only
//! the remaining rows; a cheap one evaluates all rows, because comparing a whole vector is faster than gathering.
//!
//! Three kinds of conjunct:
//! - *plain* ones (comparisons, lists, LIKE, boolean logic over columns and constants) may be reordered freely;
//! - *fallible* ones (anything that may raise an error: division, casts, functions) run last, in the order in which they
//!   were written, and only on rows that passed everything before;
//! - *dynamic* ones come from joins and TopK, change while the query runs, and may be left out at any time: they are
//!   when they reject too little to pay. A dynamic conjunct may also be replaced by a weaker one that costs less, and over a
//!   column with few different integers it is evaluated once for each integer instead of once for each row.
//!
//! A plain conjunct over a single column that is kept as a dictionary is evaluated once for each value of the row group, and the keys
//! of the rows are compared with the places of the values that pass.
//!
//! A comparison of a column with a constant, where both are integers in memory (dates, times and decimals are, too), is one of
//! the form in which the column is kept with a range of bit patterns. All such comparisons of a column are one pass over its rows, unless
//! they are many ranges together.
//!
//! Source: J. M. Hellerstein, M. Stonebraker, Predicate Migration, SIGMOD 1993 (the rank).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, BooleanBufferBuilder, DictionaryArray, Int64Array, RecordBatch,
    RecordBatchOptions, new_null_array,
};
use arrow::buffer::{BooleanBuffer, MutableBuffer};
use arrow::compute::{FilterBuilder, FilterPredicate, cast, take};
use arrow::datatypes::{DataType, Schema, SchemaRef, UInt8Type};
use arrow::util::bit_util;
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, Column, DynamicFilterPhysicalExpr, DynamicFilterTracking, InListExpr,
    IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr, lit,
};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_expr_common::physical_expr::{snapshot_generation, snapshot_physical_expr};
use memferry_kernels::count_of;

use super::comparison::Comparison;
use crate::data::passing;

/// A dynamic conjunct that costs more than this for each row that it rejects is left out for a while, in nanoseconds:
/// about the cost of passing the row on to the join or TopK that would reject it.
///
/// A lookup of the join itself costs about as much as that of its filter. With 30, TPC-H Q21 at scale 0.5 took 1.3 times as long as
/// without dynamic filters (medians of 7 runs in turns, busy AMD EPYC, development build).
const DYNAMIC_NS_PER_REJECTED_MAX: f64 = 10.0;
/// The same if rows are distributed to the partitions of the join before: they are hashed and copied then.
const DYNAMIC_NS_PER_REJECTED_AFTER_HASH_MAX: f64 = 30.0;
/// Chunks for which it is left out after its first trial; twice as many after each further one ...
const DYNAMIC_PAUSE_CHUNKS_MIN: u32 = 4;
/// ... up to this many. Tables are often clustered by the joined key, so that a trial tells little about far rows.
const DYNAMIC_PAUSE_CHUNKS_MAX: u32 = 32;
/// Rows on which a dynamic conjunct is tried, whenever it has changed or its pause is over.
const DYNAMIC_TRIAL_ROWS: usize = 1024;
/// Branches of a join's filter that are worth a weaker filter: each row then costs a lookup in each of them.
const DYNAMIC_BRANCHES_MAX: usize = 4;
/// A dynamic conjunct is evaluated by value if the table has at least this many rows for each value of the column ...
const ROWS_PER_VALUE_MIN: usize = 4;
/// ... and it costs more than this for a row, in nanoseconds: about the cost of a lookup in the results.
const VALUE_LOOKUP_NS: f64 = 4.0;
/// Values that are evaluated at once.
const VALUES_BATCH: usize = 8192;
/// Weight of the newest chunk in the running averages.
const LEARN: f64 = 0.25;
/// Initial cost of gathering one value of one column, in nanoseconds, until it is measured.
const GATHER_NS_GUESS: f64 = 4.0;
/// Scattering the results for gathered rows back over the chunk, in nanoseconds a row.
const SCATTER_NS: f64 = 0.2;

/// The rows of a chunk that passed.
#[derive(Debug, Clone)]
pub(crate) enum Selection {
    /// Every row.
    All {
        /// Rows in the chunk.
        rows: usize,
    },
    /// The rows whose bit is set; never none and never all of them.
    Some {
        /// One bit a row.
        mask: BooleanBuffer,
        /// Bits set.
        count: usize,
    },
    /// No row.
    None,
}

impl Selection {
    fn of(mask: BooleanBuffer) -> Self {
        match count_of(mask.values(), mask.offset(), mask.len()) {
            0 => Self::None,
            count if count == mask.len() => Self::All { rows: count },
            count => Self::Some { mask, count },
        }
    }

    fn and(self, other: Selection) -> Self {
        match (self, other) {
            (Self::None, _) | (_, Self::None) => Self::None,
            (Self::All { .. }, other) => other,
            (this, Self::All { .. }) => this,
            (Self::Some { mask: a, .. }, Self::Some { mask: b, .. }) => Self::of(&a & &b),
        }
    }

    /// A bit for each of `rows`.
    fn into_mask(self, rows: usize) -> BooleanBuffer {
        match self {
            Self::All { .. } => BooleanBuffer::new_set(rows),
            Self::Some { mask, .. } => mask,
            Self::None => BooleanBuffer::new_unset(rows),
        }
    }

    /// Rows selected.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::All { rows } => *rows,
            Self::Some { count, .. } => *count,
            Self::None => 0,
        }
    }
}

/// Techniques of [`RowFilter`]; each can be switched off to measure its gain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FilterOptions {
    /// Order conjuncts by measured rank instead of as written.
    pub reorder: bool,
    /// Evaluate expensive conjuncts on the remaining rows only.
    pub sparse: bool,
}

/// The rows of a scan, as far as a [`RowFilter`] of one of its partitions must know them.
pub(crate) struct FilterInput<'a> {
    /// The table's schema.
    pub(crate) schema: &'a SchemaRef,
    /// Number of rows in all partitions.
    pub(crate) rows: usize,
    /// What the partitions share.
    pub(crate) results: &'a Arc<ValueResults>,
    /// Smallest and largest value of a column of integers without nulls; `None` for other columns.
    pub(crate) values: &'a dyn Fn(usize) -> Option<RangeInclusive<i64>>,
}

/// Results of the dynamic filters of a scan for the values of a column, from 0 on. The partition that needs them first evaluates them
/// for all.
#[derive(Debug, Default)]
pub(crate) struct ValueResults(Mutex<Vec<OfFilter>>);

#[derive(Debug)]
struct OfFilter {
    filter: Arc<dyn PhysicalExpr>,
    generation: u64,
    results: BooleanArray,
}

impl ValueResults {
    /// The results of a generation of `filter`; the others wait while one partition evaluates them.
    fn of(
        &self,
        filter: &Arc<dyn PhysicalExpr>,
        generation: u64,
        evaluate: impl FnOnce() -> Result<BooleanArray>,
    ) -> Result<BooleanArray> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.iter().position(|of| Arc::ptr_eq(&of.filter, filter));
        if let Some(known) = known.map(|index| &all[index]).filter(|of| of.generation == generation) {
            return Ok(known.results.clone());
        }
        let results = evaluate()?;
        let of = OfFilter { filter: Arc::clone(filter), generation, results: results.clone() };
        match known {
            Some(index) => all[index] = of,
            None => all.push(of),
        }
        Ok(results)
    }
}

/// The columns of the table in a chunk of rows.
pub(crate) trait ChunkColumns {
    /// The values of a column.
    fn values(&self, column: usize) -> ArrayRef;

    /// A column that is kept as a dictionary.
    fn dictionary(&self, column: usize) -> Option<DictionaryArray<UInt8Type>> {
        let _ = column;
        None
    }

    /// The rows of a column whose key is in `keys`, no null among them; `None` if only its [values](ChunkColumns::values) say that.
    fn within(&self, column: usize, keys: &RangeInclusive<i64>) -> Option<BooleanBuffer> {
        let _ = (column, keys);
        None
    }
}

impl<F: Fn(usize) -> ArrayRef> ChunkColumns for F {
    fn values(&self, column: usize) -> ArrayRef {
        self(column)
    }
}

/// Evaluates the conjuncts of a scan over chunks of one partition.
#[derive(Debug)]
pub(crate) struct RowFilter {
    conjuncts: Vec<Conjunct>,
    order: Vec<usize>,
    options: FilterOptions,
}

impl RowFilter {
    /// `predicates`: conjuncts over the schema of `input`.
    pub(crate) fn try_new(
        predicates: &[Arc<dyn PhysicalExpr>],
        input: &FilterInput<'_>,
        options: FilterOptions,
    ) -> Result<Self> {
        let mut conjuncts =
            predicates.iter().map(|expr| Conjunct::try_new(expr, input)).collect::<Result<Vec<_>>>()?;
        let mut of_columns: BTreeMap<usize, Comparison> = BTreeMap::new();
        for own in conjuncts.iter().filter_map(|conjunct| conjunct.comparison.clone()) {
            let both = match of_columns.remove(&own.column) {
                Some(others) => others.and(own),
                None => own,
            };
            of_columns.insert(both.column, both);
        }
        for own in conjuncts.iter_mut().filter_map(|conjunct| conjunct.comparison.as_mut()) {
            if let Some(all) = of_columns.get(&own.column).filter(|all| all.has_few_ranges()) {
                own.clone_from(all);
            }
        }
        let mut order: Vec<usize> = (0..conjuncts.len()).collect();
        // Plain ones first, then those that may fail, each in the order written (the sort is stable).
        order.sort_by_key(|&i| conjuncts[i].kind == Kind::Fallible);
        Ok(Self { conjuncts, order, options })
    }

    /// Whether there is nothing to evaluate.
    pub(crate) fn is_empty(&self) -> bool {
        self.conjuncts.is_empty()
    }

    /// The rows of a chunk that pass every conjunct, of its `rows`.
    pub(crate) fn select(&mut self, rows: usize, columns: &dyn ChunkColumns) -> Result<Selection> {
        if self.options.reorder {
            let conjuncts = &self.conjuncts;
            self.order.sort_by(|&a, &b| conjuncts[a].rank().total_cmp(&conjuncts[b].rank()));
        }
        let mut selection = Selection::All { rows };
        // Conjuncts whose comparison is done. Those of a column may have the same one.
        let mut compared: Vec<usize> = vec![];
        for &i in &self.order {
            if matches!(selection, Selection::None) {
                return Ok(Selection::None);
            }
            if compared.iter().any(|&done| self.conjuncts[done].comparison == self.conjuncts[i].comparison) {
                continue;
            }
            let conjunct = &mut self.conjuncts[i];
            if let Some(comparison) = &conjunct.comparison {
                let started = Instant::now();
                if let Some(passed) = comparison.rows(columns) {
                    compared.push(i);
                    let passed = Selection::of(passed);
                    conjunct.learn(rows, passed.count(), started.elapsed().as_nanos() as f64);
                    selection = selection.and(passed);
                    continue;
                }
            }
            if conjunct.kind == Kind::Dynamic && !conjunct.pays(rows, columns)? {
                continue;
            }
            if let Some(dictionary) = conjunct.dictionary(columns) {
                selection = selection.and(conjunct.evaluate_dictionary(&dictionary)?);
                continue;
            }
            selection = match selection {
                Selection::Some { mask, count }
                    if conjunct.prefers_gather(rows, count, self.options.sparse) =>
                {
                    conjunct.evaluate_gathered(mask, count, columns)?
                }
                selection => {
                    let passed = conjunct.evaluate_all(rows, columns)?;
                    selection.and(passed)
                }
            };
        }
        Ok(selection)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Fallible,
    Dynamic,
}

#[derive(Debug)]
struct Conjunct {
    kind: Kind,
    /// The evaluated expression, over `schema`. For a dynamic conjunct a snapshot.
    expr: Arc<dyn PhysicalExpr>,
    /// Of a dynamic conjunct.
    live: Option<Live>,
    /// The table's columns that it reads, in `schema`'s order.
    columns: Vec<usize>,
    schema: SchemaRef,
    eval_ns: f64,
    gather_ns: f64,
    pass: f64,
    /// For a dynamic conjunct: whether its snapshot has been tried, and the number of chunks without it.
    tried: bool,
    paused_chunks: u32,
    next_pause_chunks: u32,
    /// What a dynamic conjunct may cost for each row that it rejects.
    rejected_ns_max: f64,
    /// Number of values from 0 on that its only column may have, if they are few; for a dynamic conjunct.
    values_count: Option<usize>,
    /// The results of the snapshot for these values, in their order.
    results: Option<BooleanArray>,
    /// The results for the values of the latest dictionary.
    by_dictionary: Option<DictionaryResults>,
    /// Of a plain conjunct that compares a column with a constant: it and all others that compare the column, or it alone if all
    /// together are many ranges.
    comparison: Option<Comparison>,
}

/// What a dynamic conjunct is a snapshot of.
#[derive(Debug)]
struct Live {
    /// Over the conjunct's schema.
    expr: Arc<dyn PhysicalExpr>,
    /// That of the snapshot.
    generation: u64,
    /// The same filter as the scan has it, over the table's schema.
    of_scan: Arc<dyn PhysicalExpr>,
    /// What the partitions of the scan share.
    results: Arc<ValueResults>,
}

/// The results of a conjunct for the values of a dictionary, and for a null.
#[derive(Debug)]
struct DictionaryResults {
    dictionary: ArrayRef,
    passes: BooleanBuffer,
    null_passes: bool,
}

impl Conjunct {
    fn try_new(expr: &Arc<dyn PhysicalExpr>, input: &FilterInput<'_>) -> Result<Self> {
        let mut columns: Vec<usize> = collect_columns(expr).iter().map(Column::index).collect();
        columns.sort_unstable();
        columns.dedup();
        let fields: Vec<_> = columns.iter().map(|&i| Arc::clone(&input.schema.fields()[i])).collect();
        let schema = Arc::new(Schema::new(fields));
        let dynamic = is_dynamic(expr);
        let kind = match (dynamic, is_plain(expr)?) {
            (true, _) => Kind::Dynamic,
            (false, true) => Kind::Plain,
            (false, false) => Kind::Fallible,
        };
        let comparison = if kind == Kind::Plain { Comparison::of(expr, input.schema) } else { None };
        let of_scan = expr;
        let expr = reassign_expr_columns(Arc::clone(of_scan), &schema)?;
        let live = dynamic.then(|| Live {
            expr: Arc::clone(&expr),
            generation: 0,
            of_scan: Arc::clone(of_scan),
            results: Arc::clone(input.results),
        });
        let eval_ns = schema.fields().iter().map(|f| compare_ns_guess(f.data_type())).sum::<f64>();
        let gather_ns = GATHER_NS_GUESS * columns.len() as f64;
        let values_count = match columns[..] {
            [column] if dynamic => (input.values)(column)
                .filter(|values| *values.start() >= 0)
                .and_then(|values| usize::try_from(*values.end()).ok())
                .filter(|&max| max < input.rows / ROWS_PER_VALUE_MIN)
                .map(|max| max + 1),
            _ => None,
        };
        Ok(Self {
            kind,
            expr,
            live,
            columns,
            schema,
            eval_ns,
            gather_ns,
            pass: 0.5,
            tried: false,
            paused_chunks: 0,
            next_pause_chunks: DYNAMIC_PAUSE_CHUNKS_MIN,
            rejected_ns_max: DYNAMIC_NS_PER_REJECTED_MAX,
            values_count,
            results: None,
            by_dictionary: None,
            comparison,
        })
    }

    /// Expected cost for each row rejected; conjuncts that may fail keep their place at the end.
    fn rank(&self) -> f64 {
        match self.kind {
            Kind::Fallible => f64::INFINITY,
            Kind::Plain | Kind::Dynamic => self.eval_ns / (1.0 - self.pass).max(1e-3),
        }
    }

    /// Updates a dynamic conjunct; returns whether to evaluate it on this chunk.
    fn pays(&mut self, rows: usize, table: &dyn ChunkColumns) -> Result<bool> {
        let Some(live) = &mut self.live else { return Ok(true) };
        let generation = snapshot_generation(&live.expr);
        if generation != live.generation {
            live.generation = generation;
            let now = snapshot_physical_expr(Arc::clone(&live.expr))?;
            self.rejected_ns_max = match is_distributed(&now)? {
                true => DYNAMIC_NS_PER_REJECTED_AFTER_HASH_MAX,
                false => DYNAMIC_NS_PER_REJECTED_MAX,
            };
            self.expr = weaken(now, &self.schema)?;
            self.results = None;
            self.tried = false;
            self.paused_chunks = 0;
            self.next_pause_chunks = DYNAMIC_PAUSE_CHUNKS_MIN;
        }
        if is_literal(&self.expr, true) {
            return Ok(false); // nothing known yet
        }
        if self.paused_chunks > 0 {
            self.paused_chunks -= 1;
            return Ok(false);
        }
        if !self.tried {
            self.tried = true;
            let trial = rows.min(DYNAMIC_TRIAL_ROWS);
            let from = (rows - trial) / 2;
            let columns: Vec<_> = self.columns.iter().map(|&i| table.values(i).slice(from, trial)).collect();
            let passed = self.evaluate(trial, columns.clone())?.count();
            // Timed once its code and tables are in the CPU's cache, as they are for most chunks.
            let started = Instant::now();
            self.evaluate(trial, columns)?;
            self.eval_ns = started.elapsed().as_nanos() as f64 / trial as f64;
            self.pass = passed as f64 / trial as f64;
            if self.results.is_none() && self.eval_ns <= VALUE_LOOKUP_NS {
                self.values_count = None;
            }
            if self.values_count.is_some() {
                self.eval_ns = VALUE_LOOKUP_NS;
            }
        }
        if self.rank() > self.rejected_ns_max {
            self.tried = false;
            self.paused_chunks = self.next_pause_chunks;
            self.next_pause_chunks = (2 * self.next_pause_chunks).min(DYNAMIC_PAUSE_CHUNKS_MAX);
            return Ok(false);
        }
        if self.results.is_none()
            && let (Some(count), Some(live)) = (self.values_count, &self.live)
        {
            let results = live.results.of(&live.of_scan, generation, || self.evaluate_values(count))?;
            self.results = Some(results);
        }
        Ok(true)
    }

    /// The results for the values from 0 to `count - 1`.
    fn evaluate_values(&self, count: usize) -> Result<BooleanArray> {
        let mut passed = BooleanBufferBuilder::new(count);
        for first in (0..count).step_by(VALUES_BATCH) {
            let rows = VALUES_BATCH.min(count - first);
            let values: ArrayRef =
                Arc::new(Int64Array::from_iter_values(first as i64..(first + rows) as i64));
            let column = cast(&values, self.schema.field(0).data_type())?;
            match self.evaluate(rows, vec![column])? {
                Selection::All { rows } => passed.append_n(rows, true),
                Selection::Some { mask, .. } => passed.append_buffer(&mask),
                Selection::None => passed.append_n(rows, false),
            }
        }
        Ok(BooleanArray::new(passed.finish(), None))
    }

    /// Its only column in a chunk, if that is a dictionary of whose values none can make the evaluation fail.
    fn dictionary(&self, table: &dyn ChunkColumns) -> Option<DictionaryArray<UInt8Type>> {
        match (self.kind, &self.columns[..]) {
            (Kind::Plain, &[column]) => table.dictionary(column),
            _ => None,
        }
    }

    fn evaluate_dictionary(&mut self, dictionary: &DictionaryArray<UInt8Type>) -> Result<Selection> {
        let started = Instant::now();
        let rows = dictionary.len();
        let values = dictionary.values();
        let results = match self.by_dictionary.take() {
            Some(results) if Arc::ptr_eq(&results.dictionary, values) => results,
            _ => {
                let passes = self.evaluate(values.len(), vec![Arc::clone(values)])?.into_mask(values.len());
                let null_passes = self.schema.field(0).is_nullable()
                    && self.evaluate(1, vec![new_null_array(values.data_type(), 1)])?.count() > 0;
                DictionaryResults { dictionary: Arc::clone(values), passes, null_passes }
            }
        };
        let passing_count = results.passes.count_set_bits();
        let (has_nulls, null_passes) = (dictionary.null_count() > 0, results.null_passes);
        let selection = if passing_count == 0 && !(has_nulls && null_passes) {
            Selection::None
        } else if passing_count == values.len() && (!has_nulls || null_passes) {
            Selection::All { rows }
        } else {
            Selection::of(passing(dictionary.keys(), &results.passes, null_passes))
        };
        self.by_dictionary = Some(results);
        self.learn(rows, selection.count(), started.elapsed().as_nanos() as f64);
        Ok(selection)
    }

    fn prefers_gather(&self, rows: usize, left: usize, allowed: bool) -> bool {
        if self.kind == Kind::Fallible {
            return true; // rows that an earlier conjunct rejected must not raise an error
        }
        let (rows, left) = (rows as f64, left as f64);
        allowed && left * (self.eval_ns + self.gather_ns) + rows * SCATTER_NS < rows * self.eval_ns
    }

    fn evaluate_all(&mut self, rows: usize, table: &dyn ChunkColumns) -> Result<Selection> {
        let started = Instant::now();
        let columns = self.columns.iter().map(|&i| table.values(i)).collect();
        let passed = self.evaluate(rows, columns)?;
        self.learn(rows, passed.count(), started.elapsed().as_nanos() as f64);
        Ok(passed)
    }

    fn evaluate_gathered(
        &mut self,
        mask: BooleanBuffer,
        count: usize,
        table: &dyn ChunkColumns,
    ) -> Result<Selection> {
        let gathering = Instant::now();
        let gather = predicate_of(&mask);
        let columns =
            self.columns.iter().map(|&i| gather.filter(&table.values(i))).collect::<Result<Vec<_>, _>>()?;
        blend(&mut self.gather_ns, gathering.elapsed().as_nanos() as f64 / count as f64);
        let started = Instant::now();
        let passed = self.evaluate(count, columns)?;
        self.learn(count, passed.count(), started.elapsed().as_nanos() as f64);
        Ok(match passed {
            Selection::None => Selection::None,
            Selection::All { .. } => Selection::Some { mask, count },
            Selection::Some { mask: inner, .. } => Selection::of(scatter(&mask, &inner)),
        })
    }

    fn evaluate(&self, rows: usize, columns: Vec<ArrayRef>) -> Result<Selection> {
        if let (Some(results), [column]) = (&self.results, &columns[..]) {
            let passed = take(results, &cast(column, &DataType::Int64)?, None)?;
            return Ok(Selection::of(true_bits(passed.as_boolean())));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)?;
        match self.expr.evaluate(&batch)? {
            ColumnarValue::Scalar(ScalarValue::Boolean(Some(true))) => Ok(Selection::All { rows }),
            ColumnarValue::Scalar(ScalarValue::Boolean(_) | ScalarValue::Null) => Ok(Selection::None),
            ColumnarValue::Array(array) if array.data_type() == &DataType::Boolean => {
                Ok(Selection::of(true_bits(array.as_boolean())))
            }
            other => Err(DataFusionError::Internal(format!(
                "the filter {} is not boolean but {}",
                self.expr,
                other.data_type()
            ))),
        }
    }

    fn learn(&mut self, rows: usize, passed: usize, nanos: f64) {
        blend(&mut self.eval_ns, nanos / rows as f64);
        blend(&mut self.pass, passed as f64 / rows as f64);
    }
}

/// Whether a join or TopK may change it while the query runs.
pub(super) fn is_dynamic(expr: &Arc<dyn PhysicalExpr>) -> bool {
    DynamicFilterTracking::classify(expr).contains_dynamic_filter()
}

/// Whether a dynamic filter is that of a join whose rows are distributed to partitions by their hash.
fn is_distributed(filter: &Arc<dyn PhysicalExpr>) -> Result<bool> {
    filter.exists(|node| Ok(node.downcast_ref::<CaseExpr>().is_some()))
}

/// What a dynamic filter over `schema` is now, or a weaker filter.
pub(super) fn snapshot_weakened(
    filter: &Arc<dyn PhysicalExpr>,
    schema: &Schema,
) -> Result<Arc<dyn PhysicalExpr>> {
    weaken(snapshot_physical_expr(Arc::clone(filter))?, schema)
}

/// A filter that passes the rows of the dynamic filter `expr`, perhaps some others, and costs less.
///
/// A partitioned join's filter is `CASE hash_of_repartition % n WHEN 0 THEN f0 WHEN 1 THEN f1 ... ELSE false END`. Whatever
/// the hash is, a row that passes it passes one of the branches: `f0 OR f1` saves the hash and the split of the rows.
///
/// A list of floats is left out: 0.0 and -0.0 are equal in a join, and are not in DataFusion's lists.
fn weaken(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>()
        && matches!(binary.op(), Operator::And | Operator::Or)
    {
        let [left, right] = [binary.left(), binary.right()].map(|side| weaken(Arc::clone(side), schema));
        return Ok(Arc::new(BinaryExpr::new(left?, *binary.op(), right?)));
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>()
        && !list.negated()
        && has_floats(&list.expr().data_type(schema)?)
    {
        return Ok(lit(true));
    }
    let Some(case) = expr.downcast_ref::<CaseExpr>() else { return Ok(expr) };
    let branches = case.when_then_expr().iter();
    let branches = branches.map(|(when, then)| Ok((Arc::clone(when), weaken(Arc::clone(then), schema)?)));
    let branches = branches.collect::<Result<Vec<_>>>()?;
    let ends_false = case.else_expr().is_none_or(|end| is_literal(end, false));
    if !ends_false || branches.len() > DYNAMIC_BRANCHES_MAX {
        let (of, end) = (case.expr().cloned(), case.else_expr().cloned());
        return Ok(Arc::new(CaseExpr::try_new(of, branches, end)?));
    }
    let or = |a, b| Arc::new(BinaryExpr::new(a, Operator::Or, b)) as Arc<dyn PhysicalExpr>;
    Ok(branches.into_iter().map(|(_, then)| then).reduce(or).unwrap_or(expr))
}

/// Whether values are floats, or rows of columns of which one has floats.
pub(crate) fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::Dictionary(_, values) => has_floats(values),
        data_type => data_type.is_floating(),
    }
}

pub(crate) fn is_literal(expr: &Arc<dyn PhysicalExpr>, value: bool) -> bool {
    expr.downcast_ref::<Literal>()
        .is_some_and(|literal| literal.value() == &ScalarValue::Boolean(Some(value)))
}

fn blend(average: &mut f64, newest: f64) {
    *average += LEARN * (newest - *average);
}

/// Initial cost of comparing one value, in nanoseconds, until it is measured.
fn compare_ns_guess(data_type: &DataType) -> f64 {
    match data_type.primitive_width() {
        Some(bytes) => 0.05 * bytes as f64,
        None => 5.0,
    }
}

/// Whether `expr` cannot raise an error on any row.
///
/// A dynamic filter is as plain as the expressions that it compares: bounds and lookups cannot fail.
pub(crate) fn is_plain(expr: &Arc<dyn PhysicalExpr>) -> Result<bool> {
    let mut plain = true;
    expr.apply(|node| {
        let known = node.downcast_ref::<Column>().is_some()
            || node.downcast_ref::<Literal>().is_some()
            || node.downcast_ref::<InListExpr>().is_some()
            || node.downcast_ref::<LikeExpr>().is_some()
            || node.downcast_ref::<DynamicFilterPhysicalExpr>().is_some()
            || node.downcast_ref::<NotExpr>().is_some()
            || node.downcast_ref::<IsNullExpr>().is_some()
            || node.downcast_ref::<IsNotNullExpr>().is_some()
            || node.downcast_ref::<BinaryExpr>().is_some_and(|b| is_plain_operator(*b.op()));
        plain &= known;
        Ok(if known { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(plain)
}

fn is_plain_operator(operator: Operator) -> bool {
    use Operator::{And, Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq, Or};
    matches!(operator, And | Or | Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Bits of the rows that are true: a null is not true.
fn true_bits(array: &BooleanArray) -> BooleanBuffer {
    match array.nulls() {
        Some(nulls) if nulls.null_count() > 0 => array.values() & nulls.inner(),
        _ => array.values().clone(),
    }
}

/// A filter that is applied to several columns.
pub(crate) fn predicate_of(mask: &BooleanBuffer) -> FilterPredicate {
    FilterBuilder::new(&BooleanArray::new(mask.clone(), None)).optimize().build()
}

/// Puts `inner`, one bit for each bit set in `outer`, back at the places of those bits.
fn scatter(outer: &BooleanBuffer, inner: &BooleanBuffer) -> BooleanBuffer {
    let mut bits = MutableBuffer::from_len_zeroed(outer.len().div_ceil(8));
    for (k, row) in outer.set_indices().enumerate() {
        if inner.value(k) {
            bit_util::set_bit(&mut bits, row);
        }
    }
    BooleanBuffer::new(bits.into(), 0, outer.len())
}

#[cfg(test)]
mod tests;

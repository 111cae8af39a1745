//! Each way of evaluation selects the rows of plain evaluation.

use std::cell::RefCell;

use super::*;
use crate::data::within;
use arrow::array::{Float64Array, Int64Array};
use arrow::datatypes::Field;
use datafusion::physical_expr::expressions::{binary, col};

const EVERY: [FilterOptions; 4] = [
    FilterOptions { reorder: false, sparse: false },
    FilterOptions { reorder: true, sparse: false },
    FilterOptions { reorder: false, sparse: true },
    FilterOptions { reorder: true, sparse: true },
];

fn table() -> (SchemaRef, Vec<ArrayRef>) {
    let schema = Arc::new(Schema::new(vec![
        Field::new("a", DataType::Int64, false),
        Field::new("b", DataType::Int64, true),
        Field::new("zero_in_odd_rows", DataType::Int64, false),
    ]));
    let a = Int64Array::from_iter_values((0..4096).map(|i| i * 7919 % 4096));
    let b = Int64Array::from_iter((0..4096).map(|i| (i % 5 != 0).then_some(i * 104_729 % 4096)));
    let c = Int64Array::from_iter_values((0..4096).map(|i| (i + 1) % 2));
    (schema, vec![Arc::new(a), Arc::new(b), Arc::new(c)])
}

fn filter_of(exprs: &[Arc<dyn PhysicalExpr>], schema: &SchemaRef, options: FilterOptions) -> RowFilter {
    let values = |column: usize| (column == 0).then_some(0..=4095);
    RowFilter::try_new(
        exprs,
        &FilterInput { schema, rows: 1 << 20, results: &Arc::default(), values: &values },
        options,
    )
    .unwrap()
}

fn compare(schema: &SchemaRef, name: &str, op: Operator, value: i64) -> Arc<dyn PhysicalExpr> {
    binary(col(name, schema).unwrap(), op, lit(value), schema).unwrap()
}

/// The rows that each conjunct, evaluated over all rows, calls true.
fn oracle(schema: &SchemaRef, columns: &[ArrayRef], exprs: &[Arc<dyn PhysicalExpr>]) -> Vec<usize> {
    let batch = RecordBatch::try_new(Arc::clone(schema), columns.to_vec()).unwrap();
    let masks: Vec<BooleanBuffer> = exprs
        .iter()
        .map(|e| e.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap())
        .map(|a| true_bits(a.as_boolean()))
        .collect();
    (0..batch.num_rows()).filter(|&row| masks.iter().all(|m| m.value(row))).collect()
}

fn rows_of(selection: &Selection) -> Vec<usize> {
    match selection {
        Selection::All { rows } => (0..*rows).collect(),
        Selection::Some { mask, .. } => mask.set_indices().collect(),
        Selection::None => vec![],
    }
}

#[test]
fn every_option_selects_the_rows_of_plain_evaluation() {
    let (schema, columns) = table();
    for bounds in [(100, 3000), (2, 4000), (4096, 4096), (-1, 10), (4095, 1)] {
        let exprs = vec![
            compare(&schema, "b", Operator::Lt, bounds.1),
            compare(&schema, "a", Operator::Lt, bounds.0),
            compare(&schema, "zero_in_odd_rows", Operator::Eq, 1),
        ];
        let expected = oracle(&schema, &columns, &exprs);
        for options in EVERY {
            let mut filter = filter_of(&exprs, &schema, options);
            for _chunk in 0..8 {
                let selection = filter.select(4096, &|i: usize| Arc::clone(&columns[i])).unwrap();
                assert_eq!(rows_of(&selection), expected, "{bounds:?} {options:?}");
            }
        }
    }
}

/// Columns that are compared as they are, and the columns that were.
struct Compared<'a> {
    columns: &'a [ArrayRef],
    compared: RefCell<Vec<usize>>,
}

impl ChunkColumns for Compared<'_> {
    fn values(&self, column: usize) -> ArrayRef {
        Arc::clone(&self.columns[column])
    }

    fn within(&self, column: usize, keys: &RangeInclusive<i64>) -> Option<BooleanBuffer> {
        self.compared.borrow_mut().push(column);
        within(&self.columns[column], None, keys)
    }
}

/// Selects the rows of eight chunks with every option, which are those of the oracle. `check` gets the columns that were compared.
fn selects_by_comparisons(exprs: &[Arc<dyn PhysicalExpr>], check: impl Fn(&[usize])) {
    let (schema, columns) = table();
    let expected = oracle(&schema, &columns, exprs);
    for options in EVERY {
        let mut filter = filter_of(exprs, &schema, options);
        for _chunk in 0..8 {
            let chunk = Compared { columns: &columns, compared: RefCell::default() };
            let selection = filter.select(4096, &chunk).unwrap();
            assert_eq!(rows_of(&selection), expected, "{exprs:?} {options:?}");
            check(&chunk.compared.borrow());
        }
    }
}

#[test]
fn comparisons_of_a_column_are_one_pass() {
    let (schema, _) = table();
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    for (first, last, apart) in [
        ((GtEq, 100), (Lt, 3000), (Eq, 1)),
        ((Gt, -1), (LtEq, 4095), (NotEq, 1)),
        ((Gt, 3000), (Lt, 5), (Eq, 0)),
    ] {
        let exprs = vec![
            compare(&schema, "b", first.0, first.1),
            compare(&schema, "zero_in_odd_rows", apart.0, apart.1),
            compare(&schema, "b", last.0, last.1),
        ];
        selects_by_comparisons(&exprs, |compared| {
            let of_b = compared.iter().filter(|&&column| column == 1).count();
            assert!(of_b <= 1, "{of_b} passes over b");
        });
    }
}

#[test]
fn comparisons_that_are_many_ranges_together_are_all_done() {
    let (schema, _) = table();
    let but = |values: &[i64]| {
        let differs = |&value: &i64| compare(&schema, "a", Operator::NotEq, value);
        values.iter().map(differs).collect::<Vec<_>>()
    };
    let within = [compare(&schema, "a", Operator::GtEq, 1000), compare(&schema, "a", Operator::Lt, 3000)];
    let many = [1001, 1003, 1005, 1007, 1009, 1011];
    for exprs in
        [but(&[1, 3, 5, 7]), [&within[..], &but(&many)].concat(), [but(&many), within.to_vec()].concat()]
    {
        selects_by_comparisons(&exprs, |compared| assert!(!compared.is_empty(), "as ranges of keys"));
    }
}

#[test]
fn a_guard_protects_what_may_fail() {
    // 10 / c fails on odd rows; c <> 0, written after it, keeps those rows away from it.
    let (schema, columns) = table();
    let quotient =
        binary(lit(10i64), Operator::Divide, col("zero_in_odd_rows", &schema).unwrap(), &schema).unwrap();
    let fallible = binary(quotient, Operator::Gt, lit(1i64), &schema).unwrap();
    let guard = compare(&schema, "zero_in_odd_rows", Operator::NotEq, 0);
    for options in EVERY {
        let exprs = [Arc::clone(&fallible), Arc::clone(&guard)];
        let mut filter = filter_of(&exprs, &schema, options);
        let selection = filter.select(4096, &|i: usize| Arc::clone(&columns[i])).unwrap();
        assert_eq!(rows_of(&selection), (0..4096).step_by(2).collect::<Vec<_>>(), "{options:?}");
    }
}

#[test]
fn the_selective_and_cheap_conjunct_moves_to_the_front() {
    let (schema, columns) = table();
    let exprs = [compare(&schema, "a", Operator::GtEq, 0), compare(&schema, "b", Operator::Lt, 10)];
    let mut filter = filter_of(&exprs, &schema, EVERY[3]);
    for _chunk in 0..16 {
        filter.select(4096, &|i: usize| Arc::clone(&columns[i])).unwrap();
    }
    assert_eq!(filter.order, [1, 0]);
}

#[test]
fn results_by_value_select_the_rows_of_plain_evaluation() {
    for data_type in [DataType::Int64, DataType::Int16, DataType::UInt32] {
        let schema = Arc::new(Schema::new(vec![Field::new("a", data_type.clone(), true)]));
        let values = Int64Array::from_iter_values((0..20_000).map(|i| i * 7919 % 10_000));
        let column = cast(&values, &data_type).unwrap();
        let value = |value: i64| lit(ScalarValue::Int64(Some(value)).cast_to(&data_type).unwrap());
        let a = || col("a", &schema).unwrap();
        let below = |bound| binary(a(), Operator::Lt, value(bound), &schema).unwrap();
        let list = (0..500).map(|i| value(i * 17 % 9_999)).collect();
        let is_listed = Arc::new(InListExpr::try_new(a(), list, false, &schema).unwrap());
        let is_null: Arc<dyn PhysicalExpr> = Arc::new(IsNullExpr::new(a()));
        for now in [below(0), below(1), below(5000), below(9_999), below(10_000), is_listed, is_null] {
            let dynamic = Arc::new(DynamicFilterPhysicalExpr::new(vec![a()], lit(true)));
            dynamic.update(now).unwrap();
            let mut filter = filter_of(&[dynamic], &schema, EVERY[3]);
            let conjunct = &mut filter.conjuncts[0];
            conjunct.pays(1, &|_: usize| column.slice(0, 1)).unwrap();
            conjunct.results = None;
            let expected = rows_of(&conjunct.evaluate(column.len(), vec![Arc::clone(&column)]).unwrap());
            conjunct.results = Some(conjunct.evaluate_values(10_000).unwrap());
            let by_value = conjunct.evaluate(column.len(), vec![Arc::clone(&column)]).unwrap();
            assert_eq!(rows_of(&by_value), expected, "{data_type} {}", conjunct.expr);
        }
    }
}

#[test]
fn only_columns_with_few_integers_are_evaluated_by_value() {
    let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
    let a = col("a", &schema).unwrap();
    let dynamic: Arc<dyn PhysicalExpr> = Arc::new(DynamicFilterPhysicalExpr::new(vec![a], lit(true)));
    let count = |rows, integers: Option<RangeInclusive<i64>>| {
        let input =
            FilterInput { schema: &schema, rows, results: &Arc::default(), values: &|_| integers.clone() };
        Conjunct::try_new(&dynamic, &input).unwrap().values_count
    };
    assert_eq!(count(4000, Some(7..=999)), Some(1000));
    assert_eq!(count(4000, Some(7..=1000)), None);
    assert_eq!(count(4000, Some(-1..=5)), None);
    assert_eq!(count(4000, Some(0..=i64::MAX)), None);
    assert_eq!(count(4000, None), None);
    assert_eq!(count(0, Some(0..=0)), None);
}

/// Another partition takes the results of the first one, until the filter changes. Those of another filter are others.
#[test]
fn partitions_share_results_by_value() {
    let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
    let a = col("a", &schema).unwrap();
    let at_least = |value: i64| binary(Arc::clone(&a), Operator::GtEq, lit(value), &schema).unwrap();
    let dynamic = |value| {
        let filter = DynamicFilterPhysicalExpr::new(vec![Arc::clone(&a)], lit(true));
        filter.update(at_least(value)).unwrap();
        Arc::new(filter)
    };
    let shared = Arc::default();
    let input = FilterInput { schema: &schema, rows: 1000, results: &shared, values: &|_| Some(0..=9) };
    let rejected: ArrayRef = Arc::new(Int64Array::from(vec![0]));
    let results = |filter: &Arc<dyn PhysicalExpr>| {
        let mut conjunct = Conjunct::try_new(filter, &input).unwrap();
        assert!(conjunct.pays(1, &|_: usize| Arc::clone(&rejected)).unwrap());
        conjunct.results.unwrap()
    };
    let (first, second) = (dynamic(3), dynamic(5));
    let (first_expr, second_expr): (Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>) =
        (Arc::clone(&first) as _, second);
    let (of_first, again) = (results(&first_expr), results(&first_expr));
    assert!(of_first.values().inner().ptr_eq(again.values().inner()), "evaluated once");
    assert_eq!((of_first.true_count(), results(&second_expr).true_count()), (7, 5));
    first.update(at_least(8)).unwrap();
    assert_eq!((results(&first_expr).true_count(), again.true_count()), (2, 7));
}

#[test]
fn a_weaker_filter_passes_what_the_filter_passes() {
    let (schema, columns) = table();
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let passed = |expr: &Arc<dyn PhysicalExpr>| {
        let result = expr.evaluate(&batch).unwrap().into_array(batch.num_rows()).unwrap();
        true_bits(result.as_boolean())
    };
    let branches = |count: i64| {
        let branch = |i| (lit(i), compare(&schema, "b", Operator::Lt, 500 * (i + 1)));
        (0..count).map(branch).collect::<Vec<_>>()
    };
    let case = |count, end| -> Arc<dyn PhysicalExpr> {
        let parity = Some(col("zero_in_odd_rows", &schema).unwrap());
        Arc::new(CaseExpr::try_new(parity, branches(count), end).unwrap())
    };
    let narrow = compare(&schema, "a", Operator::Gt, 2000);
    for end in [None, Some(lit(false))] {
        let exact = case(2, end);
        let weak = weaken(Arc::clone(&exact), &schema).unwrap();
        assert!(weak.downcast_ref::<CaseExpr>().is_none(), "{weak}");
        assert_eq!(&passed(&exact) & &passed(&weak), passed(&exact));
        let exact = binary(Arc::clone(&narrow), Operator::And, exact, &schema).unwrap();
        let weak = weaken(Arc::clone(&exact), &schema).unwrap();
        assert_eq!(&passed(&exact) & &passed(&weak), passed(&exact));
    }
    // Rows of no branch pass these, and many branches cost more than the hash.
    for kept in [case(2, Some(lit(true))), case(DYNAMIC_BRANCHES_MAX as i64 + 1, None)] {
        assert!(weaken(kept, &schema).unwrap().downcast_ref::<CaseExpr>().is_some());
    }
}

/// In a join 0.0 and -0.0 are equal. In DataFusion's lists they are not.
#[test]
fn lists_of_floats_are_left_out_wherever_they_are() {
    let schema = Arc::new(Schema::new(vec![
        Field::new("f", DataType::Float64, true),
        Field::new("h", DataType::Int64, false),
    ]));
    let f: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.0), Some(-0.0), Some(3.0), None]));
    let batch = RecordBatch::try_new(
        Arc::clone(&schema),
        vec![Arc::clone(&f), Arc::new(Int64Array::from(vec![0, 1, 0, 1]))],
    );
    let batch = batch.unwrap();
    let zeros = |expr: &Arc<dyn PhysicalExpr>| {
        let result = expr.evaluate(&batch).unwrap().into_array(4).unwrap();
        true_bits(result.as_boolean()).iter().take(2).filter(|&passes| passes).count()
    };
    let f = || col("f", &schema).unwrap();
    let list = |negated| -> Arc<dyn PhysicalExpr> {
        Arc::new(InListExpr::try_new(f(), vec![lit(-0.0), lit(7.0)], negated, &schema).unwrap())
    };
    let bounds = binary(f(), Operator::LtEq, lit(7.0), &schema).unwrap();
    let both = || binary(Arc::clone(&bounds), Operator::And, list(false), &schema).unwrap();
    let case = |count: i64, end| -> Arc<dyn PhysicalExpr> {
        let branches = (0..count).map(|hash| (lit(hash), both())).collect();
        Arc::new(CaseExpr::try_new(Some(col("h", &schema).unwrap()), branches, end).unwrap())
    };
    for expr in [list(false), both(), case(2, None), case(9, None), case(2, Some(lit(true)))] {
        assert_eq!(zeros(&expr), 1, "{expr}");
        let weak = weaken(Arc::clone(&expr), &schema).unwrap();
        assert_eq!(zeros(&weak), 2, "{weak}");
    }
    let negated = weaken(list(true), &schema).unwrap();
    assert_eq!(negated.to_string(), list(true).to_string(), "true would reject none");
    let of_both = DataType::Struct(vec![Field::new("f", DataType::Float32, true)].into());
    assert!(has_floats(&of_both) && !has_floats(&DataType::Utf8));
}

#[test]
fn scatter_is_the_inverse_of_gather() {
    let outer = BooleanBuffer::from_iter((0..1000).map(|i| i % 3 == 0));
    let inner = BooleanBuffer::from_iter((0..334).map(|i| i % 2 == 0));
    let expected: Vec<usize> = (0..1000).step_by(3).step_by(2).collect();
    assert_eq!(scatter(&outer, &inner).set_indices().collect::<Vec<_>>(), expected);
}

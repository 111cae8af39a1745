//! Shards of rows and their workers.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Date32Array, Int32Array, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::datatypes::DataType;
use memferry_cluster::shards::{KeyError, MapError, ShardKey, ShardMap};

fn workers(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("w{index}:7070")).collect()
}

#[test]
fn each_shard_has_its_replicas_on_different_workers() {
    for count in 1..=9 {
        for replicas in 1..=3 {
            let map = ShardMap::new(1, workers(count), 8 * count, replicas).unwrap();
            for shard in 0..map.shards_count() {
                let holders: BTreeSet<usize> = map.replicas(shard).iter().copied().collect();
                assert_eq!(holders.len(), replicas.min(count), "{count} workers, shard {shard}");
                assert!(holders.iter().all(|&worker| worker < count));
            }
            let sizes: Vec<usize> = (0..count).map(|worker| map.shards_of(worker).len()).collect();
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= count, "{count} workers hold {sizes:?} shards");
        }
    }
}

#[test]
fn every_assignment_has_each_shard_once_and_evenly() {
    for count in 1..=6 {
        let map = ShardMap::new(1, workers(count), 8 * count, 2).unwrap();
        for lost in 0..count {
            let alive: BTreeSet<usize> = (0..count).filter(|&worker| count == 1 || worker != lost).collect();
            for tasks in 1..=count + 1 {
                let assignment = map.assign(&alive, tasks).unwrap();
                let mut all: Vec<usize> = assignment.shards.iter().flatten().copied().collect();
                all.sort_unstable();
                assert_eq!(all, (0..map.shards_count()).collect::<Vec<_>>());
                assert!(assignment.workers.iter().all(|worker| alive.contains(worker)));
                // As many tasks as workers: each shard is read where it is, and no task has much more than the others.
                if tasks == alive.len() {
                    for (task, shards) in assignment.shards.iter().enumerate() {
                        let worker = assignment.workers[task];
                        assert!(shards.iter().all(|&shard| map.replicas(shard).contains(&worker)));
                        let fair = map.shards_count().div_ceil(tasks);
                        assert!(shards.len() <= fair + 3, "{count} workers: {} of {fair}", shards.len());
                    }
                }
                let parts: usize = (0..tasks).map(|task| assignment.partitions(task, 5).concat().len()).sum();
                assert_eq!(parts, map.shards_count());
            }
        }
    }
}

#[test]
fn lost_shards_are_named_with_their_workers() {
    let map = ShardMap::new(1, workers(3), 6, 2).unwrap();
    let error = map.assign(&BTreeSet::from([2]), 3).unwrap_err();
    assert_eq!(error.shard, 0);
    assert_eq!(error.workers, ["w0:7070", "w1:7070"]);
    let lost = (0..6).filter(|&shard| !map.replicas(shard).contains(&2)).count();
    assert_eq!((error.lost_count, error.shards_count), (lost, 6));
    assert!(error.to_string().contains("w0:7070, w1:7070"), "{error}");
    assert!(map.assign(&BTreeSet::new(), 1).is_err());
}

#[test]
fn wrong_maps_are_refused() {
    assert_eq!(ShardMap::new(1, vec![], 4, 2), Err(MapError::NoWorker));
    assert_eq!(ShardMap::new(1, workers(2), 0, 2), Err(MapError::Zero));
    assert_eq!(ShardMap::new(1, workers(2), 4, 0), Err(MapError::Zero));
    let twice = vec!["a:1".to_owned(), "b:1".to_owned(), "a:1".to_owned()];
    assert_eq!(ShardMap::new(1, twice, 4, 2), Err(MapError::Twice { worker: "a:1".to_owned() }));
}

fn hashed() -> ShardKey {
    ShardKey { column: "k".to_owned(), bounds: None }
}

#[test]
fn hashes_are_fixed_even_and_independent_of_the_width() {
    let values: Vec<i64> = (0..60_000).map(|value| value * 4).collect();
    let wide: ArrayRef = Arc::new(Int64Array::from(values.clone()));
    let narrow: ArrayRef = Arc::new(Int32Array::from_iter_values(values.iter().map(|&value| value as i32)));
    let shards = hashed().shards(&wide, 24).unwrap();
    assert_eq!(shards, hashed().shards(&narrow, 24).unwrap());
    let mut counts = [0_usize; 24];
    shards.iter().for_each(|&shard| counts[shard] += 1);
    // 2500 each: 5 standard deviations are 245.
    assert!(counts.iter().all(|count| count.abs_diff(2500) < 245), "{counts:?}");
    // Computed with the published definitions of FNV-1a and fmix64 in Python: another hash would split clusters in two.
    let known: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, -1, 123_456_789]));
    assert_eq!(hashed().shards(&known, 1000).unwrap(), KNOWN_INTEGERS);
    let known: ArrayRef = Arc::new(StringArray::from(vec!["", "a", "memferry"]));
    assert_eq!(hashed().shards(&known, 1000).unwrap(), KNOWN_TEXTS);
}

const KNOWN_INTEGERS: [usize; 4] = [598, 702, 510, 201];
const KNOWN_TEXTS: [usize; 3] = [342, 315, 248];

#[test]
fn ranges_have_their_bounds_in_the_upper_shard() {
    let key = ShardKey { column: "k".to_owned(), bounds: Some(vec![10, 20]) };
    let values: ArrayRef =
        Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(9), Some(10), Some(19), Some(20), None]));
    assert_eq!(key.shards(&values, 3).unwrap(), [0, 0, 1, 1, 2, 0]);
    let dates: ArrayRef = Arc::new(Date32Array::from(vec![9, 10, 20]));
    assert_eq!(key.shards(&dates, 3).unwrap(), [0, 1, 2]);
}

#[test]
fn rows_are_divided_without_loss() {
    let column: ArrayRef =
        Arc::new(Int64Array::from_iter((0..1000).map(|row| (row % 7 != 0).then_some(row))));
    let batch = RecordBatch::try_from_iter_with_nullable([("k", column, true)]).unwrap();
    let divided = hashed().divide(&batch, 8, &|_| true).unwrap();
    assert_eq!(divided.iter().map(|(_, rows)| rows.num_rows()).sum::<usize>(), 1000);
    for (shard, rows) in &divided {
        assert!(hashed().shards(rows.column(0), 8).unwrap().iter().all(|of_row| of_row == shard));
    }
    let some = hashed().divide(&batch, 8, &|shard| shard == 3).unwrap();
    assert_eq!(some, divided.into_iter().filter(|(shard, _)| *shard == 3).collect::<Vec<_>>());
}

#[test]
fn keys_that_cannot_divide_a_table_are_refused() {
    assert!(hashed().check("t", Some(&DataType::Int64), 4).is_ok());
    assert!(matches!(hashed().check("t", None, 4), Err(KeyError::NoColumn { .. })));
    assert!(matches!(hashed().check("t", Some(&DataType::Float64), 4), Err(KeyError::Type { .. })));
    let ranged = |bounds: &[i64]| ShardKey { column: "k".to_owned(), bounds: Some(bounds.to_vec()) };
    assert!(ranged(&[1, 2, 3]).check("t", Some(&DataType::Date32), 4).is_ok());
    assert!(matches!(ranged(&[1, 2]).check("t", Some(&DataType::Int64), 4), Err(KeyError::Bounds { .. })));
    assert!(matches!(ranged(&[1, 1, 3]).check("t", Some(&DataType::Int64), 4), Err(KeyError::Bounds { .. })));
    assert!(matches!(ranged(&[1, 2, 3]).check("t", Some(&DataType::Utf8), 4), Err(KeyError::Type { .. })));
}

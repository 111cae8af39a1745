//! Tables as versions of replicas.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use memferry::{Replica, ReplicaError};
use memferry_query::{Layout, PackedColumns, TableData, TableReplicaError, from_replica, load};

use crate::tables::{Random, batch_of_all_types, layout};

/// A table of three partitions, of which the second has no rows.
fn table(rows: &RecordBatch, layout: &Layout) -> TableData {
    let (first, last) = (rows.slice(0, 1000), rows.slice(1000, rows.num_rows() - 1000));
    load::from_batches(rows.schema(), &[vec![first], vec![], vec![last]], layout).unwrap()
}

fn batches(data: &TableData) -> Vec<Vec<RecordBatch>> {
    data.batches(500)
}

fn replica(path: &Path, data: &TableData) -> Replica {
    Replica::create(path, data.replica_bytes().unwrap()).unwrap()
}

#[test]
fn a_table_of_all_types_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let rows = batch_of_all_types(&mut Random(7), 3000);
    let mut metadata = rows.schema().metadata().clone();
    metadata.insert("of".to_owned(), "the user".to_owned());
    let schema = Arc::new(rows.schema().as_ref().clone().with_metadata(metadata));
    let rows = rows.with_schema(schema).unwrap();
    for packed in [PackedColumns::None, PackedColumns::All] {
        let path = directory.path().join(format!("{packed:?}"));
        let layout = Layout { packed, ..layout(3, 512) };
        let data = table(&rows, &layout);
        let mut written = replica(&path, &data);
        assert!(from_replica(&written, &layout).unwrap().is_none(), "it has no version yet");
        assert_eq!(data.replicate(&mut written).unwrap(), 1);
        assert_eq!(written.len(), data.replica_bytes().unwrap());
        drop(written);
        let restored = from_replica(&Replica::open(&path).unwrap(), &layout).unwrap().unwrap();
        assert_eq!(restored.schema(), data.schema());
        assert_eq!(batches(&restored), batches(&data));
        let count = |data: &TableData| data.partitions().iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(count(&restored), count(&data));
        assert_eq!(count(&data)[1], 0);
        assert_eq!(restored.size_bytes(), data.size_bytes(), "packed as before");
    }
}

/// A write that fails leaves the version before, and bytes of others are no table.
#[test]
fn what_cannot_be_restored_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t");
    let layout = layout(1, 512);
    let of = |rows: i64| {
        let column = Arc::new(Int64Array::from_iter_values(0..rows));
        let batch = RecordBatch::try_from_iter([("a", column as _)]).unwrap();
        load::from_batches(batch.schema(), &[vec![batch]], &layout).unwrap()
    };
    let (small, large) = (of(1000), of(100_000));
    let mut it = replica(&path, &small);
    small.replicate(&mut it).unwrap();
    let error = large.replicate(&mut it).unwrap_err();
    assert!(matches!(&error, TableReplicaError::Replica(ReplicaError::TooLong { .. })), "{error}");
    let restored = from_replica(&it, &layout).unwrap().unwrap();
    assert_eq!(batches(&restored), batches(&small));
    it.write(&[b"no table"]).unwrap();
    let error = from_replica(&it, &layout).unwrap_err();
    assert!(matches!(error, TableReplicaError::NoTable { .. }), "{error}");
    assert!(error.to_string().contains("holds no table"), "{error}");
    // A stream of Arrow that a table did not write, or not wholly.
    small.replicate(&mut it).unwrap();
    let bytes = it.restore().unwrap().unwrap();
    for cut in [bytes.len() / 2, 100] {
        it.write(&[&bytes[..cut]]).unwrap();
        let error = from_replica(&it, &layout).unwrap_err();
        assert!(matches!(error, TableReplicaError::NoTable { .. }), "{error}");
    }
}

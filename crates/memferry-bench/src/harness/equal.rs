//! Comparisons of equal work: a row and its peer, which may differ only where a label says so.

use serde_json::Value;

/// The columns that describe the work of a row. The same of its peer have the prefix `peer_`; an absent one is as the row's.
pub const WORK: [&str; 5] = ["operation", "size_bytes", "data", "unit", "how"];

/// A peer of other work than its row, without a label.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "the row {row} is beside {peer:?}, whose {column} is {theirs} instead of {ours}; compare equal work, or name {column} \
     in peer_differs"
)]
pub struct UnequalWork {
    row: String,
    peer: String,
    column: &'static str,
    ours: String,
    theirs: String,
}

/// Checks a row of a record, as JSON: what differs in a peer with a value must be in the list `peer_differs`.
///
/// # Errors
/// [`UnequalWork`]: the first column that differs without a label.
pub fn check_equal_work(row: &Value) -> Result<(), UnequalWork> {
    if row["peer_value"].is_null() {
        return Ok(());
    }
    let labels = row["peer_differs"].as_array();
    for column in WORK {
        let theirs = &row[format!("peer_{column}")];
        let is_labelled = labels.is_some_and(|labels| labels.iter().any(|label| label == column));
        if !theirs.is_null() && *theirs != row[column] && !is_labelled {
            let text = |column: &str| row[column].as_str().unwrap_or_default().to_owned();
            let (ours, theirs) = (row[column].to_string(), theirs.to_string());
            return Err(UnequalWork { row: text("name"), peer: text("peer"), column, ours, theirs });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unequal_work_needs_a_label() {
        let row = json!({
            "name": "copy", "value": 1.0, "unit": "ns", "how": "measured", "operation": "copy", "size_bytes": 4096,
            "data": null, "peer": "other", "peer_value": 2.0,
        });
        assert_eq!(check_equal_work(&row), Ok(()));
        for (column, theirs) in [
            ("operation", json!("fill")),
            ("size_bytes", json!(8192)),
            ("data", json!("cached")),
            ("unit", json!("bytes/s")),
            ("how", json!("published")),
        ] {
            let mut other = row.clone();
            other[format!("peer_{column}")] = theirs;
            let error = check_equal_work(&other).unwrap_err();
            assert_eq!((error.column, error.row.as_str()), (column, "copy"), "{error}");
            other["peer_differs"] = json!([column]);
            assert_eq!(check_equal_work(&other), Ok(()));
            other["peer_differs"] = json!(["another"]);
            assert!(check_equal_work(&other).is_err());
            other["peer_value"] = Value::Null;
            assert_eq!(check_equal_work(&other), Ok(()), "it did not run");
        }
    }
}

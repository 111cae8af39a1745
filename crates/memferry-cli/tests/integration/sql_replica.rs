//! Replicas of tables in `memferry sql`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::{FAILURE, USAGE, memferry, prints, says};

/// `memferry sql` over `--tpch 0.01`, whose lineitem has 60175 rows.
fn tpch(statements: &str) -> Vec<&str> {
    vec!["sql", "--machine", "made-up-two-tiers", "--tpch", "0.01", statements]
}

/// The statements with FILE in place of the path.
fn at(file: &Path, statements: &str) -> String {
    statements.replace("FILE", &format!("'{}'", file.display()))
}

#[test]
fn a_table_is_replicated_and_restored_by_another_session() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lineitem");
    let written =
        prints(&tpch(&at(&file, "replicate table lineitem to FILE; replicate table lineitem to FILE")));
    assert!(written.contains("replicated lineitem: version 1, "), "{written}");
    assert!(written.contains("replicated lineitem: version 2, "), "{written}");
    let query =
        "select count(*) as n, sum(l_extendedprice) as price, max(l_comment) as comment from lineitem";
    let expected = prints(&["sql", "--tpch", "0.01", "--format", "json", query]);

    let with = ["sql", "--machine", "made-up-two-tiers", "--format", "json"];
    for options in ["", "packed", "packed (l_orderkey)", "place column l_tax numa node (1)"] {
        let restore = at(&file, &format!("restore table lineitem from FILE {options}; {query}"));
        assert_eq!(prints(&[&with[..], &[&restore]].concat()), expected, "{options}");
    }
    let size = |options: &str| -> f64 {
        let restore = at(&file, &format!("restore table t from FILE {options}"));
        let printed = prints(&[&with[..3], &[&restore]].concat());
        let (_, after) = printed.split_once("16 columns, ").unwrap();
        let (number, unit) = after.split_once(' ').unwrap();
        assert!(unit.starts_with("MiB on"), "{printed}");
        number.parse().unwrap()
    };
    let sizes = [size("packed"), size("packed (l_shipdate, l_commitdate, l_receiptdate)"), size("")];
    assert!(sizes.is_sorted_by(|one, other| one < other), "{sizes:?}");
    let shown = at(&file, "restore table t from FILE place column l_tax numa node (1); show placement t");
    let shown = prints(&[&with[..], &[&shown]].concat());
    let tax = shown.lines().find(|line| line.contains("l_tax")).unwrap();
    assert!(tax.contains("\"node\":1") && tax.contains("60175"), "{tax}");

    // It takes the place of a table of this name, and says so.
    let again = at(&file, "restore table nation from FILE; select count(*) as n from nation");
    let again = prints(&tpch(&again));
    assert!(again.contains("restored nation: version 2, 60175 rows, 16 columns, "), "{again}");
    assert!(again.contains("\n60175"), "{again}");
}

#[test]
fn a_damaged_version_is_not_restored() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("nation");
    prints(&tpch(&at(&file, "replicate table nation to FILE")));
    let whole = std::fs::read(&file).unwrap();
    let position = whole.windows(7).position(|bytes| bytes == b"GERMANY").expect("the rows are in the file");
    File::options().write(true).open(&file).unwrap().write_all_at(b"F", position as u64).unwrap();
    let output = memferry(&["sql", &at(&file, "restore table t from FILE")]).output().unwrap();
    says(&output, FAILURE, &["is damaged", &file.display().to_string()]);
}

#[test]
fn wrong_replicas_say_why() {
    let directory = tempfile::tempdir().unwrap();
    let (file, other) = (directory.path().join("t"), directory.path().join("other"));
    std::fs::write(&other, "select 1").unwrap();
    let fails = |file: &Path, statements: &str, status: i32, words: &[&str]| {
        says(&memferry(&tpch(&at(file, statements))).output().unwrap(), status, words);
    };
    fails(&file, "restore table t from FILE", FAILURE, &["there is no file", "REPLICATE TABLE"]);
    fails(&other, "restore table t from FILE", FAILURE, &["is not a replica", "REPLICATE TABLE"]);
    fails(&other, "replicate table nation to FILE", FAILURE, &["is not a replica", "or a new one"]);
    assert_eq!(std::fs::read(&other).unwrap(), b"select 1");
    fails(&file.join("t"), "replicate table nation to FILE", FAILURE, &["t/t"]);
    fails(&file, "replicate table nations to FILE", USAGE, &["nations"]);
    let view = "create view v as select 1 as a; replicate table v to FILE";
    fails(&file, view, USAGE, &["table v has no rows in memory", "LOAD TABLE v"]);
    assert!(!file.exists());
    let larger = "replicate table nation to FILE; replicate table lineitem to FILE";
    fails(&file, larger, FAILURE, &["the table takes", "has room for", "a new file"]);
    fails(&file, "restore table nation from FILE place numa node (7)", USAGE, &["node 7"]);
    // The version before is intact.
    let count = prints(&tpch(&at(&file, "restore table nation from FILE; select count(*) as n from nation")));
    assert!(count.contains("\n25"), "{count}");
}

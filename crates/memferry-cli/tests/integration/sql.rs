//! `memferry sql` with several statements, files, formats, and statements of its own.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use datafusion::arrow::ipc::reader::FileReader;
use serde_json::{Value, json};

use crate::support::{FAILURE, USAGE, fails, memferry, prints, prints_json, says, text};

/// Writes a Parquet file with the columns `a` (0, 1, 2 ...), `b` (its double) and `name`, and returns `t=FILE`.
fn table_of(directory: &Path, rows: u32) -> String {
    let file = directory.join("t.parquet");
    let copy = format!(
        "copy (select value as a, 2 * value as b, 'row ' || value as name from range(0, {rows})) to '{}'",
        file.display()
    );
    prints(&["sql", &copy]);
    format!("t={}", file.display())
}

/// Runs the command with `input` on standard input.
fn piped(arguments: &[&str], input: &str) -> Output {
    let mut child = memferry(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// The lines of a JSON answer.
fn json_lines(printed: &str) -> Vec<Value> {
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn several_statements_in_a_call() {
    let printed = prints(&["sql", "--format", "csv", "select 1 as a; select ';' as b;\n-- the end\n"]);
    assert_eq!(printed, "a\n1\nb\n;\n");
    let printed = prints(&["sql", "create view v as select 5 as five; \nselect * from v"]);
    assert!(printed.starts_with("five\n----\n   5\n\n1 row in "), "{printed}");
    // What came before an error has been done.
    let output = memferry(&["sql", "--format", "csv", "select 1 as a; select x; select 2"]).output().unwrap();
    says(&output, USAGE, &["x"]);
    assert_eq!(text(&output.stdout), "a\n1\n");
}

#[test]
fn statements_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let (file, inner) = (directory.path().join("q.sql"), directory.path().join("views.sql"));
    fs::write(&inner, "create view v as select 7 as seven;\n").unwrap();
    fs::write(&file, format!("-- views first\n\\i {}\nselect *\nfrom v;\n\\d v\n", inner.display())).unwrap();
    let name = file.to_str().unwrap();
    let printed = prints(&["sql", "-f", name, "--format", "csv", "select seven + 1 as eight from v"]);
    assert!(printed.starts_with("seven\n7\ncolumn  type   nullable\nseven   Int64  no\n"), "{printed}");
    assert!(printed.ends_with("eight\n8\n"), "{printed}");

    fs::write(&file, "select 1 as a;\n\nselect\n  nonsense(1);\nselect 2;\n").unwrap();
    let output = memferry(&["sql", "-f", name, "--format", "csv"]).output().unwrap();
    says(&output, FAILURE, &["q.sql:3: ", "nonsense"]);
    assert_eq!(text(&output.stdout), "a\n1\n");

    fs::write(&file, format!("\\i {name}\n")).unwrap();
    fails(&["sql", "-f", name], FAILURE, &["q.sql:1: ", "include itself"]);
    fails(&["sql", "-f", "missing.sql"], FAILURE, &["missing.sql", "No such file"]);
    fs::write(&file, "\\q\nselect 1;").unwrap();
    assert_eq!(prints(&["sql", "-f", name, "select 2"]), "");
    fs::write(&file, [b's', 0xff, b'\n']).unwrap();
    fails(&["sql", "-f", name], FAILURE, &["q.sql", "UTF-8"]);
}

#[test]
fn statements_of_standard_input() {
    let output = piped(&["sql", "--format", "csv"], "select 1 as a;\n\\timing off\nselect\n2 as b");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "a\n1\ntiming is off\nb\n2\n");
    let output = piped(&["sql", "--format", "csv"], "select 1 as a;\nselec 2;\nselect 3;\n");
    says(&output, FAILURE, &["standard input:2: ", "cannot parse", "selec"]);
    assert_eq!(text(&output.stdout), "a\n1\n", "it stops at the error");
    assert!(piped(&["sql"], "").status.success());
    assert_eq!(
        text(&piped(&["sql"], "\\timing off\nselect 1 as a").stdout),
        "timing is off\na\n-\n1\n\n1 row\n"
    );
}

#[test]
fn formats_on_standard_output() {
    let query = "select * from (values (1, 'x,y'), (null, '')) as t(n, t)";
    assert_eq!(prints(&["sql", "--format", "csv", query]), "n,t\n1,\"x,y\"\n,\"\"\n");
    let rows = json_lines(&prints(&["sql", "--format", "json", query]));
    assert_eq!(rows, [json!({ "n": 1, "t": "x,y" }), json!({ "n": null, "t": "" })]);
    fails(&["sql", "--format", "arrow", query], USAGE, &["--format arrow", "--output"]);
    fails(&["sql", "--format", "csv", "--explain", query], USAGE, &["--explain", "--output"]);
    fails(&["sql", "--format", "csv", "--json", query], USAGE, &["--json", "--format"]);
    fails(&["sql", "--json", "select 1; select 2"], USAGE, &["--json", "more than one"]);
    // An answer that is no object per row.
    fails(&["sql", "--format", "json", "select * from (select 1 as a) x, (select 2 as a) y"], USAGE, &["AS"]);
}

#[test]
fn rows_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rows");
    let name = file.to_str().unwrap();
    let printed =
        prints(&["sql", "--format", "arrow", "--output", name, "select value as a from range(0, 20000)"]);
    assert!(printed.starts_with("20000 rows in "), "{printed}");
    let read = FileReader::try_new(fs::File::open(&file).unwrap(), None).unwrap();
    let rows: usize = read.map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(rows, 20000);

    prints(&["sql", "--format", "csv", "--output", name, "select 1 as a; select 2 as b"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "a\n1\nb\n2\n");

    // After an error the file is the old one, and nothing else is left.
    let wrong =
        ["sql", "--format", "csv", "--output", name, "select 3; select 1 / (value - 5) from range(0, 9)"];
    let output = memferry(&wrong).output().unwrap();
    says(&output, FAILURE, &["zero"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "a\n1\nb\n2\n");
    let two = ["sql", "--format", "arrow", "--output", name, "select 1; select 2"];
    says(&memferry(&two).output().unwrap(), USAGE, &["one answer", name]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);

    fails(&["sql", "--output", "/nowhere/rows", "select 1"], FAILURE, &["/nowhere/rows", "--output FILE"]);
    let full = ["sql", "--format", "csv", "--output", "/dev/full", "select 1 as a"];
    says(&memferry(&full).output().unwrap(), FAILURE, &["/dev/full", "No space left"]);
}

#[test]
fn tables_are_files_until_they_are_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(directory.path(), 200_000);
    let plan = "explain select sum(b) from t where a < 7";
    let printed = prints(&["sql", "--table", &table, &format!("\\d\n{plan}; \n load table t;\n\\d\n{plan}")]);
    let (before, after) = printed.split_once("loaded t: 200000 rows, 3 columns, ").unwrap();
    assert!(before.contains("t            3  files") && before.contains("DataSourceExec"), "{before}");
    assert!(
        after.contains(" on node 0, in ") && after.contains("t            3  memory of node 0"),
        "{after}"
    );
    assert!(after.contains("TieredScanExec") && !after.contains("DataSourceExec"), "{after}");

    let sum = "select count(*) as n, sum(b) as s, min(name) as m from t where a >= 199990";
    let expected = json!([[10, 3_999_890, "row 199990"]]);
    for arguments in
        [&["sql", "--json", "--table", &table, sum][..], &["sql", "--json", "--load", "--table", &table, sum]]
    {
        assert_eq!(prints_json(arguments)["rows"], expected, "{arguments:?}");
    }
    // The order of rows is that of the file.
    let order = "load table t; select a from t limit 3";
    assert_eq!(prints(&["sql", "--format", "csv", "--table", &table, order]), "a\n0\n1\n2\n");
}

#[test]
fn columns_are_loaded_and_others_from_the_files_again() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(directory.path(), 1000);
    let columns = "load table t columns (b, a); select max(b) as m from t; load table t columns (NAME); \
                   select max(name) as m from t; load table t; select sum(a) as m from t";
    let printed = prints(&["sql", "--format", "csv", "--table", &table, columns]);
    assert_eq!(printed, "m\n1998\nm\nrow 999\nm\n499500\n");
    let with = |statement: &str, words: &[&str]| {
        let output = memferry(&["sql", "--table", &table, statement]).output().unwrap();
        says(&output, USAGE, words);
    };
    with("load table t columns (a); select b from t", &["b"]);
    with("load table t columns (c)", &["c"]);
    with("load table u", &["u"]);
    with("load table t columns", &["LOAD TABLE name COLUMNS (a, b)"]);
    let generated = ["sql", "--tpch", "0.01", "load table nation"];
    says(&memferry(&generated).output().unwrap(), USAGE, &["nation", "need not be loaded"]);
    let empty = "create table e (a int); load table e; select count(*) as n from e where a > 0";
    assert_eq!(prints(&["sql", "--format", "csv", empty]), "n\n0\n");
    // A table that was dropped and made again is read anew.
    let again = "load table t; drop table t; create table t as select 5 as a; load table t; select * from t";
    assert_eq!(prints(&["sql", "--format", "csv", "--table", &table, again]), "a\n5\n");
}

#[test]
fn packed_columns_answer_alike_in_less_memory() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(directory.path(), 200_000);
    let ask = "select count(*) as n, sum(b) as s, min(name) as m from t where a >= 199990";
    let size = |load: &str| -> f64 {
        let printed = prints(&["sql", "--table", &table, &format!("{load}; {ask}")]);
        assert!(printed.contains("3999890") && printed.contains("row 199990"), "{printed}");
        let (_, after) = printed.split_once("3 columns, ").unwrap();
        let (number, unit) = after.split_once(' ').unwrap();
        assert!(unit.starts_with("MiB"), "{printed}");
        number.parse().unwrap()
    };
    let plain = size("load table t");
    assert!(size("load table t packed (A)") < plain && size("load table t packed") < plain - 0.5);
    let background = format!("load table t packed (a, b) in background; {}", format!("{ask};").repeat(50));
    let printed = prints(&["sql", "--format", "csv", "--table", &table, &background]);
    assert_eq!(printed.matches("10,3999890,row 199990").count(), 50, "{printed}");
    // The table ascends: one of its row groups has the row.
    let explained = "load table t packed; explain analyze select b from t where a = 150000";
    let printed = prints(&["sql", "--table", &table, explained]);
    assert!(
        printed.contains("row_groups_skipped=") && !printed.contains("row_groups_skipped=0"),
        "{printed}"
    );
    for (columns, says) in [("nosuch", "there is no column"), ("name", "cannot be bit-packed")] {
        let load = format!("load table t packed ({columns})");
        fails(&["sql", "--table", &table, &load], USAGE, &[columns, says]);
    }
}

/// Answers are right before, during and after; the note comes between two statements.
#[test]
fn a_table_is_loaded_in_the_background() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(directory.path(), 200_000);
    let begin = "load table t columns (a, name) in background;";
    let queries = "select sum(a) as s from t;".repeat(300);
    let printed =
        prints(&["sql", "--table", &table, &format!("{begin}{queries} select max(name) as s from t")]);
    assert_eq!(printed.matches("19999900000").count(), 300, "{printed}");
    assert_eq!(printed.matches("loaded t: 200000 rows, 2 columns,").count(), 1, "{printed}");
    assert!(printed.contains("row 99999"), "{printed}");
    // From memory nothing of the file is read.
    let last = printed.rsplit("19999900000").next().unwrap();
    assert!(printed.contains("\nfiles: ") && !last.contains("\nfiles: "), "{last}");
    // The end of the session does not wait for a load.
    prints(&["sql", "--table", &table, begin]);

    let with = |statements: &str, words: &[&str]| {
        let output = memferry(&["sql", "--table", &table, &format!("{begin}{statements}")]).output().unwrap();
        says(&output, USAGE, words);
    };
    with("load table t", &["being loaded"]);
    with("select b from t", &["b"]);
    // A table that takes its place stays.
    let other = format!("{begin} drop table t; create table t as select 5 as a; {queries}");
    let printed = prints(&["sql", "--format", "csv", "--table", &table, &other]);
    assert_eq!(printed, "s\n5\n".repeat(300));
}

#[test]
fn a_load_in_the_background_that_fails_leaves_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(directory.path(), 200_000);
    let file = directory.path().join("t.parquet");
    let mut bytes = fs::read(&file).unwrap();
    let footer = bytes.len() / 2;
    bytes[4..footer].fill(0xff);
    fs::write(&file, bytes).unwrap();
    let queries = "select 1;".repeat(300);
    let load = format!("load table t in background; {queries}");
    let output = memferry(&["sql", "--format", "csv", "--table", &table, &load]).output().unwrap();
    says(&output, FAILURE, &["table t is not loaded"]);
    let output = piped(&["sql", "--format", "csv", "--table", &table], &format!("{load}\n"));
    says(&output, FAILURE, &["table t is not loaded"]);
}

/// Its rows come of the file until the load has ended, and each answer is right.
#[test]
fn a_load_in_the_background_that_does_not_fit_the_budget_leaves_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(directory.path(), 200_000);
    let load = format!("load table t in background; {}", "select sum(a) as s from t;".repeat(300));
    let sql = ["sql", "--format", "csv", "--budget", "64KiB", "--table", &table, &load];
    let output = memferry(&sql).output().unwrap();
    says(&output, USAGE, &["table t is not loaded, and is as it was before", "65536 bytes"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.replace("s\n19999900000\n", ""), "");
}

#[test]
fn directories_and_globs_are_tables() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().display();
    let write = format!(
        "copy (select 1 as a) to '{at}/x1.parquet'; copy (select 2 as a) to '{at}/x2.parquet';
         copy (select 3 as a) to '{at}/y.parquet'"
    );
    prints(&["sql", &write]);
    let sum = |location: String| {
        let table = format!("t={location}");
        prints_json(&["sql", "--json", "--table", &table, "select sum(a) from t"])["rows"][0][0].clone()
    };
    assert_eq!(sum(format!("{at}/")), 6);
    assert_eq!(sum(format!("{at}")), 6);
    assert_eq!(sum(format!("{at}/x*.parquet")), 3);
    assert_eq!(sum(format!("file://{at}/y.parquet")), 3);
    let external = format!(
        "create external table e stored as parquet location '{at}/x2.parquet'; select * from e; drop table e; select 1 as e"
    );
    assert_eq!(prints(&["sql", "--format", "csv", &external]), "a\n2\ne\n1\n");
}

#[test]
fn writing() {
    let directory = tempfile::tempdir().unwrap();
    let table = table_of(directory.path(), 3);
    let memory =
        "create table m (a int, b varchar); insert into m values (1, 'x'), (2, null); select * from m";
    assert!(prints(&["sql", "--format", "csv", memory]).ends_with("a,b\n1,x\n2,\n"));
    let output = memferry(&["sql", "--table", &table, "insert into t values (1, 2, 'x')"]).output().unwrap();
    says(&output, USAGE, &["INSERT", "CREATE TABLE", "COPY"]);
    let file = directory.path().join("u.csv");
    let copy =
        format!("copy (select a, name from t) to '{}' options (format.has_header true)", file.display());
    prints(&["sql", "--table", &table, &copy]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "a,name\n0,row 0\n1,row 1\n2,row 2\n");
    // A COPY that fails leaves no file.
    let fails_at_1 =
        format!("copy (select 1 / (a - 1) from t) to '{}/v.parquet'", directory.path().display());
    says(&memferry(&["sql", "--table", &table, &fails_at_1]).output().unwrap(), FAILURE, &["zero"]);
    let mut files: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["t.parquet", "u.csv"]);
}

#[test]
fn settings() {
    let set = "set memferry.prefetch = 'off'; show memferry.prefetch";
    assert_eq!(prints(&["sql", "--format", "csv", set]), "name,value\nprefetch,off\n");
    fails(&["sql", "set memferry.prefetch = 'maybe'"], USAGE, &["maybe", "off, always or auto"]);
    // Another dialect has lambdas.
    let lambda =
        "set datafusion.sql_parser.dialect = 'duckdb'; select array_transform([1, 2], x -> x + 1) as l";
    assert_eq!(prints(&["sql", "--format", "csv", lambda]), "l\n\"[2, 3]\"\n");
}

#[test]
fn explain() {
    let printed = prints(&["sql", "explain select 1"]);
    assert!(printed.contains("logical_plan") && printed.contains("physical_plan"), "{printed}");
    assert!(printed.lines().any(|line| line.trim() == "PlaceholderRowExec"), "{printed}");
    let printed = prints(&["sql", "explain analyze select 1"]);
    assert!(printed.contains("output_rows=1"), "{printed}");
}

#[test]
fn nested_values_and_their_functions() {
    let types = concat!("t=", env!("CARGO_MANIFEST_DIR"), "/../memferry-query/tests/data/types.parquet");
    for load in [&[][..], &["--load"]] {
        let query = "select pair['x'] as x, list[1] as first, array_length(list) as n, map_keys(map) as keys
                     from t where id = 1";
        let arguments = [&["sql", "--format", "csv", "--table", types][..], load, &[query]].concat();
        assert_eq!(prints(&arguments), "x,first,n,keys\n1,0,1,[k]\n");
        let unnested = "select id, unnest(list) as item from t where id in (1, 3) order by id, item";
        let arguments = [&["sql", "--format", "csv", "--table", types][..], load, &[unnested]].concat();
        assert!(prints(&arguments).starts_with("id,item\n1,0\n"), "{arguments:?}");
    }
    for (expression, expected) in [
        ("{'a': 1, 'b': [1, 2]}['b'][2]", "2"),
        ("array_agg(v order by v desc) from (values (1), (2)) as t(v)", "\"[2, 1]\""),
        ("named_struct('a', 1)['a']", "1"),
        ("md5('a')", "0cc175b9c0f1b6a831c399e269772661"),
        ("encode(sha256('a'), 'hex')", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"),
        ("encode('abc', 'base64')", "YWJj"),
        ("decode('YWJj', 'base64')::varchar", "abc"),
        ("gcd(12, 18)", "6"),
        ("extract(year from date '2024-05-06')", "2024"),
        ("regexp_replace('abc', 'b+', 'x')", "axc"),
    ] {
        let query = format!("select {expression}").replace(" from (values", " as x from (values");
        let printed = prints(&["sql", "--format", "csv", &query]);
        assert_eq!(printed.lines().nth(1), Some(expected), "{query}");
    }
    fails(&["sql", "select x.y from (select 1 as x)"], USAGE, &["Int64", "structs"]);
    fails(&["sql", "select x[1] from (select 1 as x)"], USAGE, &["Int64"]);
}

#[test]
fn commands_on_the_command_line() {
    assert!(prints(&["sql", "\\?"]).contains("\\timing"));
    assert_eq!(prints(&["sql", "\\d"]), "there are no tables; CREATE EXTERNAL TABLE makes one of files\n");
    fails(&["sql", "\\x"], USAGE, &["\\x", "\\?"]);
    fails(&["sql", "\\d nothing"], USAGE, &["nothing"]);
}

/// A long chain of operators is planned by recursion, on a thread whose stack must suffice.
#[test]
fn long_expressions() {
    let sum = vec!["1"; 1500].join(" + ");
    assert_eq!(prints_json(&["sql", "--json", &format!("select {sum}")])["rows"][0][0], 1500);
}

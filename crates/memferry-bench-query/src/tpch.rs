//! The 22 queries of TPC-H with their validation parameters.
//!
//! Source: TPC Benchmark H specification, revision 3, section 2.4 (each query's text, "substitution parameters for
//! query validation", and the number of its rows); texts from `tpchgen`.

use std::ops::RangeInclusive;

use tpchgen::q_and_a::queries;

/// Numbers of the queries.
pub const QUERIES: RangeInclusive<usize> = 1..=22;

/// TPC-H query `number` with the validation parameters for `scale`, one statement.
///
/// Query 15 is the specification's variant A, with a common table expression in place of a view, so that
/// several sessions can run it at once.
///
/// # Panics
/// If `number` is not in [`QUERIES`].
pub fn query(number: usize, scale: f64) -> String {
    let text = i32::try_from(number).ok().and_then(queries::query);
    let mut sql = text.unwrap_or_else(|| panic!("TPC-H has no query {number}")).to_owned();
    if number == 15 {
        sql = with_expression(&sql);
    }
    // The largest number first: `:1` is a prefix of `:10`.
    for (index, parameter) in parameters(number, scale).iter().enumerate().rev() {
        sql = sql.replace(&format!(":{}", index + 1), parameter);
    }
    // Precision of the leading field, which neither DataFusion nor the value needs.
    let sql = sql.replace("day (3)", "day");
    let sql = sql.trim().trim_end_matches(';');
    match rows_max(number) {
        Some(rows) => format!("{sql}\nlimit {rows}"),
        None => sql.to_owned(),
    }
}

/// "create view NAME (COLUMNS) as BODY; SELECT; drop view NAME" as "with NAME (COLUMNS) as (BODY) SELECT".
fn with_expression(sql: &str) -> String {
    let mut statements = sql.split(';').map(str::trim);
    let (view, select) = (statements.next().unwrap_or_default(), statements.next().unwrap_or_default());
    let (head, body) = view.split_once(" as\n").unwrap_or((view, ""));
    let name = head.trim_start_matches("create view ");
    format!("with {name} as (\n{body}\n)\n{select}").replace("revenue:s", "revenue")
}

/// The maximum number of rows of a query, where the specification has one.
fn rows_max(number: usize) -> Option<usize> {
    match number {
        2 | 18 | 21 => Some(100),
        3 => Some(10),
        10 => Some(20),
        _ => None,
    }
}

/// The validation parameters, for which answers are published; that of query 11 depends on the scale.
fn parameters(number: usize, scale: f64) -> Vec<String> {
    let parameters: &[&str] = match number {
        1 => &["90"],
        2 => &["15", "BRASS", "EUROPE"],
        3 => &["BUILDING", "1995-03-15"],
        4 => &["1993-07-01"],
        5 => &["ASIA", "1994-01-01"],
        6 => &["1994-01-01", "0.06", "24"],
        7 => &["FRANCE", "GERMANY"],
        8 => &["BRAZIL", "AMERICA", "ECONOMY ANODIZED STEEL"],
        9 => &["green"],
        10 => &["1993-10-01"],
        11 => return vec!["GERMANY".to_owned(), (0.0001 / scale).to_string()],
        12 => &["MAIL", "SHIP", "1994-01-01"],
        13 => &["special", "requests"],
        14 => &["1995-09-01"],
        15 => &["1996-01-01"],
        16 => &["Brand#45", "MEDIUM POLISHED", "49", "14", "23", "45", "19", "3", "36", "9"],
        17 => &["Brand#23", "MED BOX"],
        18 => &["300"],
        19 => &["Brand#12", "Brand#23", "Brand#34", "1", "10", "20"],
        20 => &["forest", "1994-01-01", "CANADA"],
        21 => &["SAUDI ARABIA"],
        22 => &["13", "31", "23", "29", "30", "18", "17"],
        _ => &[],
    };
    parameters.iter().map(|&parameter| parameter.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_one_statement_without_placeholders() {
        for number in QUERIES {
            let sql = query(number, 0.1);
            assert!(!sql.contains(':') && !sql.contains(';'), "query {number}: {sql}");
        }
        assert!(query(16, 1.0).contains("p_size in (49, 14, 23, 45, 19, 3, 36, 9)"));
        assert!(query(15, 1.0).starts_with("with revenue (supplier_no, total_revenue) as ("));
        assert!(query(3, 1.0).ends_with("limit 10"));
    }

    #[test]
    fn fraction_of_query_11_follows_the_scale() {
        assert!(query(11, 1.0).contains("* 0.0001\n"));
        assert!(query(11, 0.1).contains("* 0.001\n"));
        assert!(query(11, 100.0).contains("* 0.000001\n"));
    }

    #[test]
    fn selectivity_becomes_a_bound() {
        assert_eq!(crate::paper_query(0.02), "select sum(b) from ab where a < 20000");
    }
}

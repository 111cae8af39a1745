//! The parameters of a run: the statement, and where workers and clients are.

use std::fmt;
use std::str::FromStr;

pub use memferry_bench::sncdb::{CLIENTS, PREDICATES, RANGE_PREDS, ROWS, Workers};
use memferry_query::schedule::{Binding, Stealing};

/// One run of the study: the statement of the clients, and the CPUs that answer it.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Rows of each table. A `range_pred` is one of [`ROWS`] and scaled to these.
    pub rows: u64,
    /// Client connections, each of which sends its next statement when it has the answer.
    pub connections: usize,
    /// The statement of all connections.
    pub statement: Statement,
    /// The CPUs of the workers.
    pub workers: Workers,
    /// Which row groups a worker claims after those of its own domain.
    pub stealing: Stealing,
    /// Which operators run on the domain of their rows.
    pub binding: Binding,
    /// The CPUs of the clients.
    pub clients: Clients,
    /// Automatic NUMA balancing of the kernel.
    pub balancing: Balancing,
}

/// The statement of all connections.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// `select c1 from tbl_0 where c0 = $1` with a random key (figure 9).
    Random,
    /// Counts of rows by [`PREDICATES`] predicates `column < range_pred` (figure 10).
    Scan {
        /// Predicates on `tbl_0`; the others are on `tbl_1`.
        on_first: usize,
        /// Rows that a predicate selects of [`ROWS`], nearly.
        range_pred: u64,
    },
}

/// Where clients are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// On any CPU of the process, those of the workers too.
    Anywhere,
    /// On CPUs that no domain of the tables has: in the study on the other socket.
    Elsewhere,
}

/// Automatic NUMA balancing of the kernel during a run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Balancing {
    /// As it is.
    Kept,
    /// Switched off, and back afterwards.
    Off,
    /// Switched on, and back afterwards.
    On,
}

/// `Display` and `FromStr` by a list of values and their words.
macro_rules! words {
    ($type:ident, $what:literal, $($value:ident $word:literal)+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$value => $word,)+ })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                match text {
                    $($word => Ok($type::$value),)+
                    other => {
                        let known = [$($word),+].join(", ");
                        Err(format!("'{other}' is not {}; use one of {known}", $what))
                    }
                }
            }
        }
    };
}

words!(Clients, "a place of clients", Anywhere "anywhere" Elsewhere "elsewhere");
words!(Balancing, "a state of NUMA balancing", Kept "kept" Off "off" On "on");

impl Statement {
    /// The statement in SQL over tables of `rows` rows; a random access has one parameter.
    ///
    /// ```
    /// # use memferry_bench_query::sncdb::Statement;
    /// let scan = Statement::Scan { on_first: 4, range_pred: 10_000 };
    /// assert_eq!(
    ///     scan.sql(50_000_000),
    ///     "(select count(*) from tbl_0 where c1 < 10000 or c2 < 10000 or c3 < 10000 or c4 < 10000) \
    ///      union all (select count(*) from tbl_1 where c5 < 10000 or c6 < 10000)"
    /// );
    /// ```
    pub fn sql(&self, rows: u64) -> String {
        match *self {
            Statement::Random => "select c1 from tbl_0 where c0 = $1".to_owned(),
            Statement::Scan { range_pred, .. } => {
                let end = scaled(range_pred, rows);
                let blocks =
                    self.columns().into_iter().enumerate().filter(|(_, columns)| !columns.is_empty());
                let block = |(table, columns): (usize, std::ops::Range<usize>)| {
                    let predicates: Vec<String> =
                        columns.map(|column| format!("c{} < {end}", column + 1)).collect();
                    format!("(select count(*) from tbl_{table} where {})", predicates.join(" or "))
                };
                blocks.map(block).collect::<Vec<_>>().join(" union all ")
            }
        }
    }

    /// Of each table the columns with a predicate, from 0 for C1 on.
    pub(super) fn columns(&self) -> [std::ops::Range<usize>; 2] {
        match *self {
            Statement::Random => [0..0, 0..0],
            Statement::Scan { on_first, .. } => {
                let on_first = on_first.min(PREDICATES);
                [0..on_first, on_first..PREDICATES]
            }
        }
    }
}

/// The `range_pred` that selects the same share of `rows` rows; at least 1, which selects none.
pub(super) fn scaled(range_pred: u64, rows: u64) -> u64 {
    let scaled = u128::from(range_pred) * u128::from(rows) / u128::from(ROWS);
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}

impl Workload {
    /// The name of its rows: `scan_10000_all_stealing_2_4_opportunistic_anywhere`, with the predicates on the first and on the
    /// second table.
    pub fn name(&self) -> String {
        let Workload { statement, workers, stealing, binding, clients, .. } = self;
        let stealing = match stealing {
            Stealing::Off => String::new(),
            Stealing::Neighbour => "_stealing".to_owned(),
            other => format!("_stealing_{other}"),
        };
        let (kind, skew) = match statement {
            Statement::Random => ("random".to_owned(), String::new()),
            Statement::Scan { on_first, range_pred } => (
                format!("scan_{range_pred}"),
                format!("_{on_first}_{}", PREDICATES - on_first.min(&PREDICATES)),
            ),
        };
        format!("{kind}_{workers}{stealing}{skew}_{binding}_{clients}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_predicates_on_one_table_leave_the_other_out() {
        let sql = |on_first| Statement::Scan { on_first, range_pred: 100_000 }.sql(1_000_000);
        let all = "c1 < 2000 or c2 < 2000 or c3 < 2000 or c4 < 2000 or c5 < 2000 or c6 < 2000";
        assert_eq!(sql(6), format!("(select count(*) from tbl_0 where {all})"));
        assert_eq!(sql(0), format!("(select count(*) from tbl_1 where {all})"));
    }

    #[test]
    fn names_say_all_parameters() {
        let statement = Statement::Scan { on_first: 2, range_pred: 10_000 };
        let mut workload = Workload {
            rows: ROWS,
            connections: CLIENTS,
            statement,
            workers: Workers::All,
            stealing: Stealing::Neighbour,
            binding: Binding::Opportunistic,
            clients: Clients::Elsewhere,
            balancing: Balancing::Kept,
        };
        assert_eq!(workload.name(), "scan_10000_all_stealing_2_4_opportunistic_elsewhere");
        (workload.statement, workload.workers, workload.stealing) =
            (Statement::Random, Workers::Half, Stealing::Off);
        assert_eq!(workload.name(), "random_half_opportunistic_elsewhere");
    }

    #[test]
    fn words_are_read_back() {
        for workers in [Workers::All, Workers::Half, Workers::First, Workers::Second] {
            assert_eq!(workers.to_string().parse(), Ok(workers));
        }
        let error = "third".parse::<Workers>().unwrap_err();
        assert!(error.contains("all, half, first, second"), "{error}");
    }
}

//! Cursors of SQL: DECLARE, FETCH, CLOSE, as `psql` sends them with FETCH_COUNT. They move forward, and end with their transaction.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast::{
    CloseCursor, Declare, DeclareType, FetchDirection, Query, Statement as AstStatement, Value, ValueWithSpan,
};
use futures::StreamExt;
use futures::stream;
use pgwire::api::results::{FieldInfo, QueryResponse, Response};
use pgwire::error::{PgWireError, PgWireResult};
use tokio::sync::Mutex;

use super::query::{Rows, Stop};
use super::statement::user_error;

/// Cursors of a connection: each holds a query that has begun.
const CURSORS_MAX: usize = 100;

/// A statement about cursors.
pub(super) enum CursorStatement<'a> {
    Declare {
        name: &'a str,
        query: &'a Query,
    },
    /// So many rows, or all that are left.
    Fetch {
        name: &'a str,
        count: Option<usize>,
    },
    /// One, or all.
    Close {
        name: Option<&'a str>,
    },
}

impl CursorStatement<'_> {
    /// The statement about cursors that this one is, if it is one.
    ///
    /// # Errors
    /// A kind of cursor, or a direction, that is not supported.
    pub(super) fn of(statement: &SqlStatement) -> PgWireResult<Option<CursorStatement<'_>>> {
        let SqlStatement::Statement(statement) = statement else { return Ok(None) };
        Ok(Some(match &**statement {
            AstStatement::Declare { stmts } => {
                let [
                    Declare {
                        names, declare_type: Some(DeclareType::Cursor), for_query: Some(query), ..
                    },
                ] = &stmts[..]
                else {
                    return Err(unsupported("DECLARE without CURSOR FOR", "declare one cursor for a query"));
                };
                let declared = &stmts[0];
                for (is_given, word) in [
                    (declared.binary == Some(true), "BINARY"),
                    (declared.scroll == Some(true), "SCROLL"),
                    (declared.hold == Some(true), "WITH HOLD"),
                ] {
                    if is_given {
                        return Err(unsupported(&format!("{word} for cursors"), "leave it out"));
                    }
                }
                let name = names.first().map_or("", |name| name.value.as_str());
                CursorStatement::Declare { name, query }
            }
            AstStatement::Fetch { name, direction, .. } => {
                let count = match direction {
                    FetchDirection::Next => Some(1),
                    FetchDirection::All | FetchDirection::ForwardAll => None,
                    FetchDirection::Count { limit } | FetchDirection::Forward { limit: Some(limit) } => {
                        Some(count(limit)?)
                    }
                    _ => {
                        let what = format!("FETCH {direction}");
                        return Err(unsupported(
                            &what,
                            "cursors only move forward; use FETCH 10 or FETCH ALL",
                        ));
                    }
                };
                CursorStatement::Fetch { name: &name.value, count }
            }
            AstStatement::Close { cursor: CloseCursor::All } => CursorStatement::Close { name: None },
            AstStatement::Close { cursor: CloseCursor::Specific { name } } => {
                CursorStatement::Close { name: Some(&name.value) }
            }
            _ => return Ok(None),
        }))
    }
}

fn count(limit: &ValueWithSpan) -> PgWireResult<usize> {
    let number = match &limit.value {
        Value::Number(number, _) => number.parse().ok().filter(|&count| count > 0),
        _ => None,
    };
    number.ok_or_else(|| unsupported(&format!("FETCH {limit}"), "fetch at least one row"))
}

fn unsupported(what: &str, instead: &str) -> PgWireError {
    user_error("0A000", format!("{what} is not supported; {instead}"))
}

/// A query whose rows are fetched in parts.
pub(super) struct Cursor {
    fields: Arc<Vec<FieldInfo>>,
    rows: Arc<Mutex<Rows>>,
}

impl Cursor {
    /// The next rows, which end with an error if `stop` completes.
    pub(super) fn fetch(&self, count: Option<usize>, stop: Stop) -> Response {
        let rows = stream::try_unfold((Arc::clone(&self.rows), count), move |(rows, left)| {
            let stop = stop.clone();
            async move {
                if left == Some(0) {
                    return Ok(None);
                }
                let mut locked = rows.lock().await;
                let next = tokio::select! {
                    next = locked.next() => next,
                    () = stop.completed() => Some(Err(PgWireError::QueryCanceled)),
                };
                drop(locked);
                Ok(next.transpose()?.map(|row| (row, (rows, left.map(|left| left - 1)))))
            }
        });
        let mut response = QueryResponse::new(Arc::clone(&self.fields), rows);
        response.set_command_tag("FETCH");
        Response::Query(response)
    }
}

/// The cursors of a connection.
#[derive(Default)]
pub(super) struct Cursors(HashMap<String, Arc<Cursor>>);

impl Cursors {
    /// Checks that a cursor of this name can be declared.
    ///
    /// # Errors
    /// It exists, or there are too many.
    pub(super) fn check(&self, name: &str) -> PgWireResult<()> {
        if self.0.contains_key(name) {
            return Err(user_error(
                "42P03",
                format!("cursor {name} exists already; close it, or use another name"),
            ));
        }
        if self.0.len() >= CURSORS_MAX {
            let text = format!("a connection has at most {CURSORS_MAX} cursors; close some");
            return Err(user_error("54000", text));
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, name: &str, fields: Arc<Vec<FieldInfo>>, rows: Rows) {
        let cursor = Cursor { fields, rows: Arc::new(Mutex::new(rows)) };
        self.0.insert(name.to_owned(), Arc::new(cursor));
    }

    /// # Errors
    /// There is no cursor of this name.
    pub(super) fn get(&self, name: &str) -> PgWireResult<Arc<Cursor>> {
        self.0.get(name).cloned().ok_or_else(|| unknown(name))
    }

    /// Ends a cursor, or all.
    ///
    /// # Errors
    /// There is no cursor of this name.
    pub(super) fn close(&mut self, name: Option<&str>) -> PgWireResult<()> {
        match name {
            Some(name) => self.0.remove(name).map(drop).ok_or_else(|| unknown(name)),
            None => {
                self.0.clear();
                Ok(())
            }
        }
    }
}

fn unknown(name: &str) -> PgWireError {
    user_error("34000", format!("there is no cursor {name}; declare it in this transaction"))
}

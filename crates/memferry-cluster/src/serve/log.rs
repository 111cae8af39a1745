//! The log: one JSON object for each event, on a line of its own.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::{Map, Value};

/// Where events are written. Clones write to the same place.
#[derive(Clone)]
pub struct Log {
    output: Option<Arc<Mutex<dyn Write + Send>>>,
    /// Whether the text of statements is logged: it may hold personal data.
    has_statements: bool,
}

/// The importance of an event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Level {
    Info,
    /// Something that an administrator should look at.
    Warning,
}

impl Log {
    /// Writes to `output`, with the text of statements or without it.
    pub fn to(output: impl Write + Send + 'static, has_statements: bool) -> Log {
        Log { output: Some(Arc::new(Mutex::new(output))), has_statements }
    }

    /// Writes to standard error.
    pub fn to_standard_error(has_statements: bool) -> Log {
        Log::to(io::stderr(), has_statements)
    }

    /// Writes nothing.
    pub fn none() -> Log {
        Log { output: None, has_statements: false }
    }

    pub(super) fn has_statements(&self) -> bool {
        self.has_statements
    }

    /// Writes an event with its time, for example `{"time":"2026-11-26T13:00:00.000Z","level":"info","event":"start"}`.
    pub(super) fn event(&self, level: Level, event: &str, fields: Value) {
        let Some(output) = &self.output else { return };
        let mut object = Map::new();
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        object.insert("time".to_owned(), now.into());
        let level = match level {
            Level::Info => "info",
            Level::Warning => "warning",
        };
        object.insert("level".to_owned(), level.into());
        object.insert("event".to_owned(), event.into());
        if let Value::Object(fields) = fields {
            object.extend(fields);
        }
        let mut line = Value::Object(object).to_string();
        line.push('\n');
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        // In one call, so that lines of several processes do not mix. A log that cannot be written stops no query.
        let _ = output.write_all(line.as_bytes()).and_then(|()| output.flush());
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("has_statements", &self.has_statements).finish_non_exhaustive()
    }
}

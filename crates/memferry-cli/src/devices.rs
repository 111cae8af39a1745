//! DSA devices as text: work queues and their engines, settings of queues, and why a queue cannot be used.
//!
//! The text shows a configuration, from a file or from the devices. Without a device, its state is left out.

use memferry_dsa::QueueMode;
use memferry_dsa::internals::system::{GroupSettings, QueueSettings};
use memferry_dsa::system::{Activity, Config, Diagnostic, QueueFilter, QueueId, SystemState};
use serde::Serialize;

use crate::output::{Align, Table, framed, printable, size, wrapped};

/// Longest name of a queue; longer names are cut.
const NAME_CHARS_MAX: usize = 20;

/// The usable queues, and the problems of the others.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Findings {
    usable: Vec<QueueId>,
    #[serde(rename = "troubles")] // the key in the output
    diagnostics: Vec<Diagnostic>,
}

impl Findings {
    pub(crate) fn of(state: &SystemState) -> Findings {
        let diagnosis = state.diagnose(&QueueFilter::default());
        let usable = diagnosis.usable.iter().map(|(_, queue)| queue.id).collect();
        Findings { usable, diagnostics: diagnosis.diagnostics }
    }

    pub(crate) fn usable(&self) -> &[QueueId] {
        &self.usable
    }

    /// Whether an enabled queue has no device file; udev creates it shortly after the queue is enabled.
    pub(crate) fn lacks_files(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| matches!(diagnostic, Diagnostic::NoFile { .. }))
    }

    /// A sentence for each problem; equal problems of several objects share one.
    pub(crate) fn diagnostics(&self) -> Vec<String> {
        let mut kinds: Vec<(String, String, Vec<String>)> = Vec::new();
        for diagnostic in &self.diagnostics {
            let text = diagnostic.to_string();
            let Some(object) = diagnostic.object() else {
                kinds.push((text.clone(), text, Vec::new()));
                continue;
            };
            let mut kind = text.replace(&object, "?");
            if let Ok(queue) = object.parse::<QueueId>() {
                kind = kind.replace(&queue.device.to_string(), "?");
            }
            match kinds.iter_mut().find(|(known, ..)| *known == kind) {
                Some((.., others)) => others.push(object),
                None => kinds.push((kind, text, Vec::new())),
            }
        }
        let sentence = |(_, text, others): (String, String, Vec<String>)| match others.is_empty() {
            true => printable(&text),
            false => printable(&format!("{text} (likewise {})", others.join(", "))),
        };
        kinds.into_iter().map(sentence).collect()
    }

    /// The findings as text.
    pub(crate) fn text(&self) -> String {
        let usable: Vec<String> = self.usable.iter().map(ToString::to_string).collect();
        let mut text = match usable.is_empty() {
            true => "No work queue of a DSA can be used:\n".to_owned(),
            false => wrapped(&format!("Programs of this user can use {}.", usable.join(", ")), 0),
        };
        for diagnostic in self.diagnostics() {
            text += &wrapped(&format!("- {diagnostic}."), 0);
        }
        text
    }
}

/// A picture with a row for each queue or engine. Arrows lead from queues to their group, and from the group to its engines.
pub(crate) fn picture(config: &Config, state: &SystemState) -> String {
    use Align::{Left, Right};
    let mut table = Table::plain(vec![Left, Left, Left, Left, Left, Right, Left, Left, Left, Left]);
    for settings in &config.devices {
        let device = state.device(settings.id);
        let node = device.and_then(|device| device.node).map_or(String::new(), |node| format!("node {node}"));
        let activity = device.and_then(|device| device.state.as_ref()).map_or("", Activity::as_str);
        let mut label = vec![settings.id.to_string(), node, printable(activity)];
        for row in settings.groups.iter().flat_map(group_rows) {
            let blank = vec![String::new(); label.len()];
            table.row(std::mem::replace(&mut label, blank).into_iter().chain(row).collect());
        }
    }
    let lines = table.to_string();
    framed("DSA devices", &lines.lines().collect::<Vec<_>>(), 0)
}

/// The cells of a group's rows: queue, mode, entries, arrow, group, arrow, engine.
fn group_rows(group: &GroupSettings) -> Vec<[String; 7]> {
    let (queues, engines) = (group.queues.len(), group.engines.len());
    let row = |row: usize| {
        let (queue, mode, entries) = match group.queues.get(row) {
            Some(queue) => (
                queue.id.to_string(),
                queue.mode.map_or("mode ?", QueueMode::as_str),
                queue.size.map_or("size ?".to_owned(), entries),
            ),
            None if row == 0 => ("no queue".to_owned(), "", String::new()),
            None => (String::new(), "", String::new()),
        };
        let engine = match group.engines.get(row) {
            Some(engine) => engine.id.to_string(),
            None if row == 0 => "no engine".to_owned(),
            None => String::new(),
        };
        let name = if row == 0 { group.id.to_string() } else { String::new() };
        let (before, after) = (arrow(row, queues, GATHERED), arrow(row, engines, SPREAD));
        [queue, mode.to_owned(), entries, before.to_owned(), name, after.to_owned(), engine]
    };
    (0..queues.max(engines).max(1)).map(row).collect()
}

/// Arrows of several queues that join: the first, the middle ones, the last.
const GATHERED: [&str; 3] = ["─┬▶", "─┤", "─┘"];
/// Parts of an arrow that splits to several engines.
const SPREAD: [&str; 3] = ["─┬▶", " ├▶", " └▶"];

fn arrow(row: usize, of: usize, [first, middle, last]: [&'static str; 3]) -> &'static str {
    match (row, of) {
        (0, 0 | 1) => "──▶",
        (0, _) => first,
        _ if row >= of => "",
        _ if row + 1 == of => last,
        _ => middle,
    }
}

/// The settings of queues that the picture does not show. Queues of present devices also have a state and users.
pub(crate) fn queues(config: &Config, state: &SystemState) -> Table {
    let is_there = config.devices.iter().any(|settings| state.device(settings.id).is_some());
    let (activity, users) = if is_there { ("state", "users") } else { ("", "") };
    let mut table = Table::new(&format!(
        "queue | {activity} | threshold: | priority: | transfer: | batch: | on fault | type | {users}: | name"
    ));
    for settings in &config.devices {
        for (_, queue) in settings.queues() {
            let found = state.queue(queue.id);
            let activity = found.and_then(|queue| queue.state.as_ref()).map_or("", Activity::as_str);
            let users =
                found.and_then(|queue| queue.clients).map_or(String::new(), |users| users.to_string());
            table.row(queue_row(queue, printable(activity), users));
        }
    }
    table
}

/// The row of a queue. `-` is a setting that the configuration does not change.
fn queue_row(queue: &QueueSettings, activity: String, users: String) -> Vec<String> {
    let number = |number: Option<u32>| number.map_or("-".to_owned(), |number| number.to_string());
    let name = printable(queue.name.as_deref().unwrap_or("-"));
    let name = match name.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name,
    };
    let on_fault = queue.block_on_fault.map_or("-", |waits| if waits { "wait" } else { "stop" });
    vec![
        queue.id.to_string(),
        activity,
        // A dedicated queue has no threshold.
        number(queue.threshold.filter(|threshold| *threshold > 0)),
        number(queue.priority),
        queue.transfer_bytes_max.map_or("-".to_owned(), size),
        number(queue.batch_max),
        on_fault.to_owned(),
        printable(queue.kind.as_ref().map_or("-", |kind| kind.as_str())),
        users,
        name,
    ]
}

/// The content of the picture as a sentence for each group.
pub(crate) fn sentences(config: &Config) -> Vec<String> {
    let sentence = |group: &GroupSettings| {
        let queue = |queue: &QueueSettings| {
            let mode = queue.mode.map_or("mode ?", QueueMode::as_str);
            format!("{} ({mode}, {})", queue.id, entries(queue.size.unwrap_or(0)))
        };
        let queues: Vec<String> = group.queues.iter().map(queue).collect();
        let engines: Vec<String> = group.engines.iter().map(|engine| engine.id.to_string()).collect();
        format!("{} → {} → {}", queues.join(", "), group.id, engines.join(", "))
    };
    config.devices.iter().flat_map(|device| device.groups.iter().map(sentence)).collect()
}

fn entries(number: u32) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{number} entries") }
}

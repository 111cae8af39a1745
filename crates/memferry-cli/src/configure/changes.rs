//! The writes of a plan with the current values: in order as JSON, and as a table for each group of similar devices.

use memferry_dsa::internals::system::Files;
use memferry_dsa::system::{Action, DeviceId, Plan, Step};
use serde::Serialize;

use crate::output::{Table, printable, wrapped};

/// A write with the current value.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Change {
    #[serde(flatten)]
    step: Step,
    /// The content of the file before the first write, or the state of an object to enable or disable; none if it cannot be
    /// read.
    now: Option<String>,
}

/// The writes of a plan, in order.
pub(super) fn changes(plan: &Plan, files: &dyn Files) -> Vec<Change> {
    let now = |step: &Step| {
        let path = match step.action {
            Action::Enable | Action::Disable => step.state_path(),
            _ => step.path.clone(),
        };
        files.read(&path).ok().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    plan.steps().iter().map(|step| Change { now: now(step), step: step.clone() }).collect()
}

/// The devices that are disabled first.
pub(super) fn disabled(changes: &[Change]) -> Vec<String> {
    let devices = changes
        .iter()
        .map(|change| &change.step)
        .filter(|step| step.action == Action::Disable && step.object == step.device.to_string());
    devices.map(|step| step.object.clone()).collect()
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    action: &'static str,
    object: String,
    setting: String,
    now: String,
    then: String,
}

impl Row {
    fn of(change: &Change) -> Row {
        let Change { step, now } = change;
        let (action, setting, then) = match step.action {
            Action::Disable => ("disable", "state", "disabled"),
            Action::Reset => ("reset", step.attribute(), step.value.as_str()),
            Action::Set => ("set", step.attribute(), step.value.as_str()),
            Action::ClearStatus => ("clear", step.attribute(), step.value.as_str()),
            Action::Enable => ("enable", "state", "enabled"),
        };
        let now = match now.as_deref() {
            None => "?".to_owned(),
            Some("") => "-".to_owned(),
            Some(now) => printable(now),
        };
        Row { action, object: step.object.clone(), setting: setting.to_owned(), now, then: printable(then) }
    }

    /// Whether the write changes nothing. Disabling and enabling always count as changes.
    fn is_no_change(&self) -> bool {
        self.now == self.then && self.setting != "state"
    }

    /// The row without the number of its device, for comparison with other devices.
    fn anonymous(&self, device: DeviceId) -> Row {
        let object = match self.object.split_once('.') {
            Some((kind, index)) => format!("{}.{index}", without(kind, device)),
            None => without(&self.object, device),
        };
        let value =
            |value: &str| if self.setting == "name" { without(value, device) } else { value.to_owned() };
        Row { object, now: value(&self.now), then: value(&self.then), ..self.clone() }
    }
}

/// `memferry2_0` of device 2 as `memferry#_0`.
pub(super) fn without(text: &str, device: DeviceId) -> String {
    let is_digit = |c: char| c.is_ascii_digit();
    let start = text.find(is_digit).unwrap_or(text.len());
    let digits: String = text[start..].chars().take_while(|c| is_digit(*c)).collect();
    match digits == device.0.to_string() {
        true => format!("{}#{}", &text[..start], &text[start + digits.len()..]),
        false => text.to_owned(),
    }
}

/// Devices whose rows only differ in the number of the device.
struct DeviceGroup {
    devices: Vec<DeviceId>,
    rows: Vec<Row>,
    /// Number of settings that already have their value.
    unchanged: usize,
}

fn device_groups(changes: &[Change]) -> Vec<DeviceGroup> {
    let mut devices: Vec<DeviceId> = changes.iter().map(|change| change.step.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut groups: Vec<DeviceGroup> = Vec::new();
    for device in devices {
        let own: Vec<&Change> = changes.iter().filter(|change| change.step.device == device).collect();
        // A setting that is reset and then set gets one row.
        let is_set = |path: &str| {
            own.iter().any(|change| change.step.action == Action::Set && change.step.path == path)
        };
        let shown =
            own.iter().filter(|change| change.step.action != Action::Reset || !is_set(&change.step.path));
        let all: Vec<Row> = shown.map(|change| Row::of(change)).collect();
        let rows: Vec<Row> = all.iter().filter(|row| !row.is_no_change()).cloned().collect();
        let unchanged = all.len() - rows.len();
        let anonymous =
            |rows: &[Row], device| rows.iter().map(|row| row.anonymous(device)).collect::<Vec<_>>();
        let is_equal = |group: &&mut DeviceGroup| {
            group.unchanged == unchanged
                && anonymous(&group.rows, group.devices[0]) == anonymous(&rows, device)
        };
        match groups.iter_mut().find(is_equal) {
            Some(group) => group.devices.push(device),
            None => groups.push(DeviceGroup { devices: vec![device], rows, unchanged }),
        }
    }
    groups
}

/// A table of the changes for each group of devices.
pub(super) fn draw(changes: &[Change]) -> String {
    let mut text = String::new();
    for DeviceGroup { devices, rows, unchanged } in device_groups(changes) {
        let mut table = Table::new("  | object | setting | now | then").indent(2);
        for row in rows {
            table.row(vec![row.action.to_owned(), row.object, row.setting, row.now, row.then]);
        }
        let mut heading = format!("What changes in {}", devices[0]);
        if let [_, others @ ..] = &devices[..]
            && !others.is_empty()
        {
            let others: Vec<String> = others.iter().map(ToString::to_string).collect();
            heading += &format!(", and under their own names in {}", others.join(", "));
        }
        match unchanged {
            0 => {}
            1 => heading += " (1 other setting stays as it is)",
            many => heading += &format!(" ({many} other settings stay as they are)"),
        }
        text += &format!("{}{table}", wrapped(&(heading + ":"), 0));
    }
    text
}

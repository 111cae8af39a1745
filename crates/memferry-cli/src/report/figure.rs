//! A figure as data: all that is needed to draw it, and nothing else. It is kept as CSV, and drawn from that alone.
//!
//! ```text
//! # memferry figure 1
//! # name: table-6.2
//! # kind: rows
//! # title: A query with one column brought near
//! # about: ...
//! # x: , linear
//! # y: time in ms, linear
//! panel,series,how,x,y,low,high
//! ,time,modelled,Prefetching,156.67,,
//! ,time,published,Prefetching,159.72,,
//! ```

use crate::csv::{fields, quoted};
use crate::how::How;
use crate::words::words;

/// The version of the format.
const FORMAT: &str = "# memferry figure 1";
const COLUMNS: &str = "panel,series,how,x,y,low,high";

/// The form of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A line for each series. A point without `y` is a vertical rule at its `x`, one without `x` a horizontal one.
    Lines,
    /// Upright bars: a group for each `x`, in it a bar for each series.
    Bars,
    /// Lying bars, below each other: for each `x` one for each series. A point without `x` is a rule.
    Rows,
    /// A half circle for each panel, divided among the series; a series `total` is written into it.
    HalfCircles,
    /// A heat map for each panel: rows are series, columns are `x`. Less is better.
    HeatLess,
    /// The same where more is better.
    HeatMore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    /// Logarithmic; twice as much is the same step everywhere.
    Log,
    /// The same, with sizes in bytes written in KiB and so on.
    Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    /// What it is, with its unit.
    pub(crate) label: String,
    pub(crate) scale: Scale,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) panel: String,
    pub(crate) series: String,
    pub(crate) how: How,
    /// A number for lines, a name elsewhere.
    pub(crate) x: String,
    pub(crate) y: Option<f64>,
    /// Ends of an interval, or of a published range.
    pub(crate) range: Option<(f64, f64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// Of its files.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) title: String,
    /// What one sees, and the source.
    pub(crate) about: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) points: Vec<Point>,
}

words!(
    Kind,
    "kind of figure",
    Lines = "lines",
    Bars = "bars",
    Rows = "rows",
    HalfCircles = "half-circles",
    HeatLess = "heat-less",
    HeatMore = "heat-more"
);
words!(Scale, "scale", Linear = "linear", Log = "log", Bytes = "bytes");

impl Axis {
    pub(crate) fn new(label: impl Into<String>, scale: Scale) -> Axis {
        Axis { label: label.into(), scale }
    }

    /// Names need no scale.
    pub(crate) fn names() -> Axis {
        Axis::new("", Scale::Linear)
    }
}

impl Point {
    pub(crate) fn new(series: impl Into<String>, how: How, x: impl Into<String>, y: f64) -> Point {
        Point { panel: String::new(), series: series.into(), how, x: x.into(), y: Some(y), range: None }
    }

    /// A horizontal rule.
    pub(crate) fn rule(label: &str, how: How, y: f64) -> Point {
        Point::new(label, how, "", y)
    }

    /// A vertical rule.
    pub(crate) fn upright_rule(label: &str, how: How, x: f64) -> Point {
        Point { y: None, ..Point::new(label, how, x.to_string(), 0.0) }
    }

    pub(crate) fn between(self, low: f64, high: f64) -> Point {
        Point { range: Some((low, high)), ..self }
    }

    pub(crate) fn in_panel(self, panel: impl Into<String>) -> Point {
        Point { panel: panel.into(), ..self }
    }
}

impl Figure {
    pub(crate) fn new(name: &str, kind: Kind, title: impl Into<String>) -> Figure {
        Figure {
            name: name.to_owned(),
            kind,
            title: title.into(),
            about: String::new(),
            x: Axis::names(),
            y: Axis::names(),
            points: Vec::new(),
        }
    }

    pub(crate) fn csv(&self) -> String {
        let Figure { name, kind, title, about, x, y, .. } = self;
        let mut text = format!(
            "{FORMAT}\n# name: {}\n# kind: {kind}\n# title: {}\n# about: {}\n# x: {}, {}\n# y: {}, {}\n{COLUMNS}\n",
            line(name),
            line(title),
            line(about),
            line(&x.label),
            x.scale,
            line(&y.label),
            y.scale
        );
        let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        for Point { panel, series, how, x, y, range } in &self.points {
            let (low, high) = range.map_or((None, None), |(low, high)| (Some(low), Some(high)));
            let [panel, series, x] = [panel, series, x].map(|field| quoted(&line(field)));
            text += &format!("{panel},{series},{how},{x},{},{},{}\n", number(*y), number(low), number(high));
        }
        text
    }

    /// # Errors
    /// What is wrong, with the number of the line.
    pub(crate) fn from_csv(text: &str) -> Result<Figure, String> {
        let mut lines = text.lines().enumerate();
        let first = lines.next().map_or("", |(_, line)| line.trim_end());
        if first != FORMAT {
            return Err(match first.starts_with("# memferry figure") {
                true => format!(
                    "it is a figure of another version ({first:?}, not {FORMAT:?}); make the report anew"
                ),
                false => format!("it is no figure of a report: its first line is not {FORMAT:?}"),
            });
        }
        let mut meta = |key: &str| {
            let (index, line) = lines.next().ok_or_else(|| format!("it ends before \"# {key}: ...\""))?;
            let value = line.strip_prefix(&format!("# {key}:")).map(str::trim);
            let value = value.ok_or_else(|| format!("line {} is not \"# {key}: ...\"", index + 1))?;
            Ok::<_, String>((index + 1, value.to_owned()))
        };
        let (name_line, name) = meta("name")?;
        // It becomes an id and the name of a file.
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
            return Err(format!("line {name_line}: {name:?} is no name; use letters, digits, -, . and _"));
        }
        let (kind_line, kind) = meta("kind")?;
        let kind = kind.parse().map_err(|error| format!("line {kind_line}: {error}"))?;
        let ((_, title), (_, about)) = (meta("title")?, meta("about")?);
        let mut axis = |key| {
            let (number, text) = meta(key)?;
            let (label, scale) = text.rsplit_once(',').ok_or_else(|| {
                format!("line {number}: {text:?} is no axis; write a label, a comma and a scale")
            })?;
            let scale = scale.trim().parse().map_err(|error| format!("line {number}: {error}"))?;
            Ok::<_, String>(Axis::new(label.trim(), scale))
        };
        let (x, y) = (axis("x")?, axis("y")?);
        if lines.next().map(|(_, line)| line.trim_end()) != Some(COLUMNS) {
            return Err(format!("line 8 is not {COLUMNS:?}"));
        }
        let mut points = Vec::new();
        for (index, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
            let point = point(line).and_then(|point| checked(point, kind, &x, &y));
            points.push(point.map_err(|error| format!("line {}: {error}", index + 1))?);
        }
        if points.is_empty() {
            return Err("it has no points".to_owned());
        }
        Ok(Figure { name, kind, title, about, x, y, points })
    }
}

fn point(line: &str) -> Result<Point, String> {
    let fields = fields(line)?;
    let count = fields.len();
    let Ok([panel, series, how, x, y, low, high]) = <[String; 7]>::try_from(fields) else {
        return Err(format!("it has {count} fields and not 7"));
    };
    let number = |name: &str, field: &str| match field {
        "" => Ok(None),
        field => finite(name, field).map(Some),
    };
    let range = match (number("low", &low)?, number("high", &high)?) {
        (Some(low), Some(high)) if low <= high => Some((low, high)),
        (None, None) => None,
        _ => return Err("low and high are both there, in this order, or both empty".to_owned()),
    };
    Ok(Point { panel, series, how: how.parse()?, x, y: number("y", &y)?, range })
}

/// Whether a figure of this kind can have the point.
fn checked(point: Point, kind: Kind, x: &Axis, y: &Axis) -> Result<Point, String> {
    let is_positive = |axis: &Axis, value: f64| axis.scale == Scale::Linear || value > 0.0;
    let ends = point.range.into_iter().flat_map(|(low, high)| [low, high]);
    if point.y.into_iter().chain(ends).any(|value| !is_positive(y, value)) {
        return Err("a logarithmic scale has positive values only".to_owned());
    }
    if kind == Kind::Lines && !point.x.is_empty() && !is_positive(x, finite("x", &point.x)?) {
        return Err("a logarithmic scale has positive values only".to_owned());
    }
    if point.y.is_none() && (kind != Kind::Lines || point.x.is_empty()) {
        return Err("it has no y".to_owned());
    }
    if !point.panel.is_empty() && !matches!(kind, Kind::HalfCircles | Kind::HeatLess | Kind::HeatMore) {
        return Err(format!("a figure of kind {kind} has no panels"));
    }
    // Shares of a circle, and bars from 0.
    if matches!(kind, Kind::HalfCircles | Kind::Bars) && point.y.is_some_and(|value| value < 0.0) {
        return Err("y must not be negative in a figure of this kind".to_owned());
    }
    Ok(point)
}

fn finite(name: &str, field: &str) -> Result<f64, String> {
    let value = field.parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| format!("{name} is {field:?}, which is no number"))
}

/// Comments cannot be broken.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

//! The data of a figure: everything that a drawing needs. A figure is saved as CSV and can be drawn from that alone.
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

use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, Error};
use serde::{Deserialize, Serialize};

use crate::output::csv_field;
use memferry_bench::harness::Provenance;

/// The version of the format.
const FORMAT: &str = "# memferry figure 1";
const COLUMNS: &str = "panel,series,how,x,y,low,high";

/// The form of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    /// A plot for each panel, with a line for each series. A point without `y` is a vertical rule at its `x`, a point without `x` a horizontal rule.
    Lines,
    /// The same with vertical bars: a group for each `x` with a bar for each series.
    Bars,
    /// The same with one bar for each `x`, in which the series are on each other.
    Stacks,
    /// Horizontal bars: for each `x` a bar for each series. A point without `x` is a rule.
    Rows,
    /// A half circle for each panel, divided among the series; the series `total` is a number in its middle.
    HalfCircles,
    /// A heat map for each panel: a row for each series, a column for each `x`. Less is better.
    HeatLess,
    /// The same; more is better.
    HeatMore,
}

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scale {
    Linear,
    /// Logarithmic to base 2.
    Log,
    /// Logarithmic, with labels in bytes, KiB and so on.
    Bytes,
}

/// An axis of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    /// The quantity and its unit.
    pub(crate) label: String,
    pub(crate) scale: Scale,
}

/// A mark or a rule of a figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) panel: String,
    pub(crate) series: String,
    pub(crate) how: Provenance,
    /// A number in a figure of lines, a name in others.
    pub(crate) x: String,
    pub(crate) y: Option<f64>,
    /// Ends of an interval, or of a published range.
    pub(crate) range: Option<(f64, f64)>,
}

/// A figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    /// The stem of its file names.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) title: String,
    /// Description and source.
    pub(crate) about: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) points: Vec<Point>,
}

impl Kind {
    /// Whether it has axes, and a plot for each panel.
    pub(crate) fn is_plot(self) -> bool {
        matches!(self, Kind::Lines | Kind::Bars | Kind::Stacks | Kind::Rows)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The enum variant that a word names.
fn word<'a, T: Deserialize<'a>>(word: &'a str) -> Result<T, String> {
    let variant: Result<T, Error> = T::deserialize(BorrowedStrDeserializer::new(word));
    variant.map_err(|error| error.to_string())
}

impl Axis {
    pub(crate) fn new(label: impl Into<String>, scale: Scale) -> Axis {
        Axis { label: label.into(), scale }
    }

    /// An axis of names.
    pub(crate) fn names() -> Axis {
        Axis::new("", Scale::Linear)
    }
}

impl Point {
    pub(crate) fn new(series: impl Into<String>, how: Provenance, x: impl Into<String>, y: f64) -> Point {
        Point { panel: String::new(), series: series.into(), how, x: x.into(), y: Some(y), range: None }
    }

    /// A horizontal rule.
    pub(crate) fn rule(label: &str, how: Provenance, y: f64) -> Point {
        Point::new(label, how, "", y)
    }

    /// A vertical rule.
    pub(crate) fn upright_rule(label: &str, how: Provenance, x: f64) -> Point {
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

    /// Adds a horizontal rule at a published number, if it is known.
    pub(crate) fn published_rule(&mut self, label: &str, y: Option<f64>) {
        self.points.extend(y.map(|y| Point::rule(label, Provenance::Published, y)));
    }

    /// Adds a vertical rule at a published number, if it is known.
    pub(crate) fn published_upright_rule(&mut self, label: &str, x: Option<f64>) {
        self.points.extend(x.map(|x| Point::upright_rule(label, Provenance::Published, x)));
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
            let [panel, series, x] = [panel, series, x].map(|field| csv_field(&line(field)));
            text += &format!("{panel},{series},{how},{x},{},{},{}\n", number(*y), number(low), number(high));
        }
        text
    }

    /// Parses the CSV of a figure. An error names the line.
    pub(crate) fn from_csv(text: &str) -> Result<Figure, String> {
        let mut lines = text.lines().enumerate();
        let first = lines.next().map_or("", |(_, line)| line.trim_end());
        if first != FORMAT {
            return Err(match first.starts_with("# memferry figure") {
                true => format!(
                    "it is a figure of another version ({first:?}, not {FORMAT:?}); create the report again"
                ),
                false => format!("it is not a figure of a report: its first line is not {FORMAT:?}"),
            });
        }
        let mut meta = |key: &str| {
            let (index, line) = lines.next().ok_or_else(|| format!("it ends before \"# {key}: ...\""))?;
            let value = line.strip_prefix(&format!("# {key}:")).map(str::trim);
            let value = value.ok_or_else(|| format!("line {} is not \"# {key}: ...\"", index + 1))?;
            Ok::<_, String>((index + 1, value.to_owned()))
        };
        let (name_line, name) = meta("name")?;
        // The name becomes an id and a file name.
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)) {
            return Err(format!("line {name_line}: invalid name {name:?}; use letters, digits, -, . and _"));
        }
        let (kind_line, kind) = meta("kind")?;
        let kind = word(&kind).map_err(|error| format!("line {kind_line}: {error}"))?;
        let ((_, title), (_, about)) = (meta("title")?, meta("about")?);
        let mut axis = |key| {
            let (number, text) = meta(key)?;
            let (label, scale) = text.rsplit_once(',').ok_or_else(|| {
                format!("line {number}: invalid axis {text:?}; write a label, a comma and a scale")
            })?;
            let scale = word(scale.trim()).map_err(|error| format!("line {number}: {error}"))?;
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
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line.as_bytes());
    let record = reader.records().next().ok_or("it is empty")?.map_err(|error| error.to_string())?;
    let Ok([panel, series, how, x, y, low, high]) = <[&str; 7]>::try_from(record.iter().collect::<Vec<_>>())
    else {
        return Err(format!("it has {} fields instead of 7", record.len()));
    };
    let number = |name: &str, field: &str| match field {
        "" => Ok(None),
        field => finite(name, field).map(Some),
    };
    let range = match (number("low", low)?, number("high", high)?) {
        (Some(low), Some(high)) if low <= high => Some((low, high)),
        (None, None) => None,
        _ => return Err("low and high must both be empty, or numbers in this order".to_owned()),
    };
    let [panel, series, x] = [panel, series, x].map(str::to_owned);
    Ok(Point { panel, series, how: word(how)?, x, y: number("y", y)?, range })
}

/// Checks that a figure of this kind can have the point.
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
    if !point.panel.is_empty() && kind == Kind::Rows {
        return Err(format!("a figure of kind {kind} has no panels"));
    }
    // Parts of a circle, and bars that start at 0.
    if matches!(kind, Kind::HalfCircles | Kind::Bars | Kind::Stacks)
        && point.y.is_some_and(|value| value < 0.0)
    {
        return Err("y must not be negative in a figure of this kind".to_owned());
    }
    Ok(point)
}

fn finite(name: &str, field: &str) -> Result<f64, String> {
    let value = field.parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| format!("{name} is {field:?}, not a finite number"))
}

/// The text on one line, because a comment cannot have several.
fn line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

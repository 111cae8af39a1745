//! The page: one HTML file without scripts or external resources.

use std::time::SystemTime;

use clap::CommandFactory;
use memferry_bench::model::{Prediction, Why};

use super::draw::scale::percent;
use super::figure::Figure;
use super::records::Record;
use super::{Report, Section, draw, telemetry};
use crate::Cli;
use crate::bench::rfc3339;
use crate::canvas::{self, escaped};
use crate::output::{count, number};
use memferry_bench::harness::Provenance;

/// Subcommands of `bench` without figures: they check correctness or measure other programs.
const OTHERS: [&str; 3] = ["soak", "emulate", "help"];

/// The content security policy: the browser loads no other resources.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

const STYLE: &str = include_str!("page.css");

pub(super) fn html(report: &Report) -> String {
    let name = escaped(report.machine.name());
    let made = rfc3339(SystemTime::now());
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("MEMFERRY_COMMIT"));
    let mut body = format!(
        "<header>\n<h1>{name}</h1>\n<p class=\"muted\">memferry {version} ({commit}), \
         {made}</p>\n{}</header>\n<main>\n",
        contents(report)
    );
    body += &advice(report);
    body += &format!(
        "<section id=\"machine-section\">\n<h2>What it is</h2>\n<figure class=\"wide\">\n\
         <div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"the \
         machine\">{}</div>\n{}</figure>\n</section>\n",
        report.picture_part,
        caption("machine", "")
    );
    for section in &report.sections {
        let extra = match section.id {
            "taken" => benchmark_records(report),
            "query" => query_table(report),
            "errors" => predictions(report),
            _ => String::new(),
        };
        body += &html_of(section, &extra);
    }
    body += "</main>\n";
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{name}: memferry report</title>\n\
         <style>\n{}{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        canvas::STYLE
    )
}

/// Whether a section has content.
fn is_shown(section: &Section) -> bool {
    section.id == "taken" || !section.figures.is_empty()
}

fn contents(report: &Report) -> String {
    let link = |(id, title): (&str, &str)| format!("<li><a href=\"#{id}\">{title}</a></li>\n");
    let first = [("advice", "Recommended settings"), ("machine-section", "What it is")];
    let sections = report.sections.iter().filter(|section| is_shown(section));
    let links: String = first.into_iter().chain(sections.map(|it| (it.id, it.title))).map(link).collect();
    format!("<nav aria-label=\"contents\"><ul>\n{links}</ul></nav>\n")
}

fn html_of(section: &Section, extra: &str) -> String {
    if !is_shown(section) {
        return String::new();
    }
    let Section { id, title, intro, figures } = section;
    let figures: String = figures.iter().map(figure).collect();
    let figures =
        if figures.is_empty() { figures } else { format!("<div class=\"figures\">\n{figures}</div>\n") };
    format!("<section id=\"{id}\">\n<h2>{title}</h2>\n<p>{intro}</p>\n{figures}{extra}</section>\n")
}

fn figure(figure: &Figure) -> String {
    let caption = caption(&figure.name, &figure.about);
    match &draw::parts(figure)[..] {
        // A heat map of many nodes is wider than a phone, and unreadable if scaled down.
        [part] => format!("<figure>\n<div class=\"scroll\">{part}</div>\n{caption}</figure>\n"),
        parts => format!(
            "<figure class=\"panels\">\n<h3>{}</h3>\n<div>\n{}</div>\n{caption}</figure>\n",
            escaped(&figure.title),
            parts.concat()
        ),
    }
}

fn caption(name: &str, about: &str) -> String {
    format!(
        "<figcaption>{} <span><a href=\"{name}.csv\">CSV</a> <a href=\"{name}.svg\">SVG</a></span></figcaption>\n",
        code(about)
    )
}

/// Escapes text and marks parts between backticks as code.
fn code(text: &str) -> String {
    let parts = escaped(text);
    let parts = parts.split('`').enumerate();
    parts
        .map(|(index, part)| if index % 2 == 1 { format!("<code>{part}</code>") } else { part.to_owned() })
        .collect()
}

fn advice(report: &Report) -> String {
    let item = |it: &super::advice::Advice| {
        let how = it.how.map_or(String::new(), |how| format!(" <span class=\"how {how}\">{how}</span>"));
        let sentences: String = it.sentences.iter().map(|text| format!("<p>{}</p>\n", code(text))).collect();
        format!("<dt>{}{how}</dt>\n<dd>{sentences}</dd>\n", it.topic)
    };
    let items: String = report.advice.iter().map(item).collect();
    format!(
        "<section id=\"advice\">\n<h2>Recommended settings</h2>\n<dl>\n{items}</dl>\n\
         <p class=\"muted\">Every number says where it comes from: measured on this machine (filled); emulated, \
         where a made-up device or node took part, which says nothing about hardware (hatched); modelled, computed \
         for a machine that need not exist (outlined); published by somebody else (a dot).</p>\n{}</section>\n",
        draw::forms()
    )
}

/// The table of speed-ups.
fn query_table(report: &Report) -> String {
    let first = report.papers.query.first();
    let mut rows = String::new();
    for it in &report.papers.query {
        let published = |value: Option<f64>, decimals: usize| {
            value.map_or(String::new(), |it| format!("{it:.decimals$}"))
        };
        let error = it.published_ms.map(|ms| percent(100.0 * (it.modelled_ms / ms - 1.0)));
        let speed_up = first.map(|first| first.modelled_ms / it.modelled_ms);
        let published_speed_up = first.and_then(|first| Some(first.published_ms? / it.published_ms?));
        let cells = [
            published(it.published_ms, 2),
            format!("{:.2}", it.modelled_ms),
            error.unwrap_or_default(),
            published(published_speed_up, 2),
            published(speed_up, 2),
            published(it.published_hit_rate, 2),
            published(it.hit_rate, 2),
        ];
        rows += &row(&it.name, &cells);
    }
    let heads = [
        "Fürst 2024, table 6.2",
        "published, ms",
        "modelled, ms",
        "error",
        "published speed-up",
        "modelled speed-up",
        "published hit rate, %",
        "modelled hit rate, %",
    ];
    table(&heads, &rows)
}

/// The table of all predictions, and the number of rows without one.
fn predictions(report: &Report) -> String {
    let mut rows = String::new();
    for it in &report.papers.validation.predictions {
        let Prediction { name, rows: ids, predicted, published: (low, high), unit, .. } = it;
        let (predicted, published, error) = match *unit {
            "holds" => {
                (if *predicted == 1.0 { "yes" } else { "no" }.to_owned(), "yes".to_owned(), String::new())
            }
            _ if low == high => (number(*predicted), number(*low), percent(it.error_percent())),
            _ => {
                let range = format!("{} to {}", number(*low), number(*high));
                (number(*predicted), range, percent(it.error_percent()))
            }
        };
        let note = if it.is_fit { "calibrated on" } else { it.unexplained.unwrap_or("") };
        let unit = if *unit == "holds" { "" } else { unit };
        let name = format!("{name} [{}]", ids.join(", "));
        rows += &row(&name, &[predicted, published, unit.to_owned(), error, note.to_owned()]);
    }
    let heads = ["what [rows of published/]", "modelled", "published", "unit", "error", "note"];
    let others = &report.papers.validation.others;
    let unexplained = others.iter().filter(|other| other.why == Why::Unexplained).count();
    format!(
        "<details>\n<summary>All {} predictions</summary>\n{}</details>\n<p class=\"muted\">Of {} other rows the \
         model says nothing: {unexplained} that it cannot explain, and inputs, methods and repetitions. \
         <code>memferry sim validate</code> tells the reason of each.</p>\n",
        report.papers.validation.predictions.len(),
        table(&heads, &rows),
        others.len()
    )
}

/// The records with all rows, and the commands for missing records.
fn benchmark_records(report: &Report) -> String {
    let mut text = String::new();
    let known =
        |bench: &str| OTHERS.contains(&bench) || report.records.iter().any(|record| record.bench == bench);
    let command = Cli::command();
    let benchmarks = command.find_subcommand("bench").into_iter().flat_map(|bench| bench.get_subcommands());
    let missing: Vec<&clap::Command> = benchmarks.filter(|bench| !known(bench.get_name())).collect();
    if !missing.is_empty() {
        let item = |bench: &&clap::Command| {
            let about = bench.get_about().map_or(String::new(), |about| escaped(&about.to_string()));
            format!("<li><code>memferry bench {}</code>: {about}</li>\n", bench.get_name())
        };
        let items: String = missing.iter().map(item).collect();
        let whose = if report.machine.is_this_machine() { "this machine" } else { "such a machine" };
        text += &format!(
            "<details{}>\n<summary>{} without a record in {}</summary>\n<p>Run these on {whose}, built with \
             --release, when it is idle:</p>\n<ul>\n{items}</ul>\n</details>\n",
            if report.records.is_empty() { " open" } else { "" },
            count(missing.len(), "benchmark"),
            escaped(&report.results.display().to_string())
        );
    }
    text += &report.records.iter().map(record).collect::<String>();
    text
}

/// Its rows fill pages, and are in its files: they are not printed.
fn record(record: &Record) -> String {
    let mut rows = String::new();
    for it in &record.rows {
        let shown = |value: Option<f64>| value.map_or(String::new(), number);
        let ratio = match (it.ratio_low, it.ratio_high) {
            (Some(low), Some(high)) => format!("{} ({low:.2} to {high:.2})", shown(it.ratio)),
            _ => shown(it.ratio),
        };
        let how = it.how.map_or(String::new(), |how: Provenance| how.to_string());
        let peer = it.peer.clone().or(it.note.clone()).unwrap_or_default();
        rows += &row(&it.name, &[shown(it.value), it.unit.clone(), how, ratio, peer]);
    }
    let heads = ["row", "value", "unit", "how", "ratio", "compared with, or note"];
    let how = record.how().map_or(String::new(), |how| format!(", {how}"));
    let on = record.on().map_or(String::new(), |on| format!(" on {on}"));
    format!(
        "<details class=\"rows\">\n<summary>{}{}{how}, {}, memferry {}, commit {}: {} rows</summary>\n{}{}</details>\n",
        escaped(&record.bench),
        escaped(&on),
        escaped(&record.started),
        escaped(&record.version),
        escaped(&record.commit),
        record.rows.len(),
        table(&heads, &rows),
        telemetry::html(record)
    )
}

pub(super) fn row(name: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", code(cell))).collect();
    format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escaped(name))
}

pub(super) fn table(heads: &[&str], rows: &str) -> String {
    let heads: String =
        heads.iter().map(|head| format!("<th scope=\"col\">{}</th>", escaped(head))).collect();
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" \
         aria-label=\"table\"><table>\n<thead><tr>{heads}</tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

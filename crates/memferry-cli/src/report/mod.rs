//! `memferry report`: a self-contained page about a machine, with each figure as CSV and SVG.
//!
//! ```text
//! Machine ──▶ advice            settings in words
//! model, published/ ──▶ papers  ──▶ Figure ◀──▶ CSV
//! results/ ──▶ records ──▶ benchmarks, memory, times, sweeps ─┘ │
//!                                                               ▼
//!                                                             draw ──▶ SVG ──▶ page
//! ```
//!
//! A [`Figure`] has all data of a picture, so that its CSV alone gives the same picture again (`--figure`).

mod advice;
mod benchmarks;
mod collect;
mod draw;
mod figure;
mod memory;

mod page;
mod papers;

mod records;
mod sweeps;
mod telemetry;
mod times;
mod workload;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use memferry::internals::Basis;
use memferry::topology::{Machine, Tier};

pub(crate) use self::advice::papers_query;
use self::figure::Figure;
use self::papers::Papers;
use self::records::Record;
use crate::bench::machine_slug;
use crate::output::{Part, count, not_written, write_file};
use crate::topology;
use memferry_bench::harness::Provenance;

/// Where records are if nothing else is said.
const RESULTS: &str = "results";

/// Writes a page about a machine: its parts, recommended settings, measurements, published figures and the model.
///
/// The page needs no network and no script. Each figure is also written as CSV, and as SVG drawn from the CSV.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Directory for the page (index.html) and the figures; older files of the same names are replaced.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["figure", "collect", "add"])]
    out: Option<PathBuf>,
    /// Report on this machine instead: the name of a profile (see `memferry topology`), or a JSON file.
    #[arg(long, value_name = "PROFILE")]
    machine: Option<String>,
    /// Directory with the records of `memferry bench` [default: results].
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
    /// Draw one figure again from its CSV.
    #[arg(long, value_name = "FILE.csv", requires = "svg", conflicts_with_all = ["out", "machine", "results"])]
    figure: Option<PathBuf>,
    /// File for the picture; `-` is standard output.
    #[arg(long, value_name = "FILE.svg", requires = "figure")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    collect: collect::Options,
    /// Add the records of a file of --collect, also of another machine, to the directory of --results.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "machine", "figure", "collect"])]
    add: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    if let Some(file) = &arguments.collect.collect {
        return collect::collect(&arguments.collect, file, out);
    }
    if let Some(file) = &arguments.add {
        return collect::add(file, arguments.results.as_deref().unwrap_or(Path::new(RESULTS)), out);
    }
    match (&arguments.figure, &arguments.svg, &arguments.out) {
        (Some(figure), Some(svg), _) => redraw(figure, svg, out),
        (_, _, Some(directory)) => report(arguments, directory, out),
        // The parser of the command line excludes this.
        _ => bail!("give --out DIR, or --figure FILE.csv --svg FILE.svg"),
    }
}

fn redraw(file: &Path, target: &Path, out: &mut dyn Write) -> Result<()> {
    let unreadable = || format!("cannot read the figure {}", file.display());
    let text = fs::read_to_string(file).with_context(unreadable)?;
    let figure = match Figure::from_csv(&text) {
        Ok(figure) => figure,
        Err(error) => bail!("cannot draw {}: {error}", file.display()),
    };
    let picture = draw::document(&figure);
    if target == Path::new("-") {
        return Ok(write!(out, "{picture}")?);
    }
    write_file(target, picture.as_bytes()).with_context(|| not_written("picture", "--svg", target))?;
    Ok(writeln!(out, "written to {}", target.display())?)
}

fn report(arguments: &Arguments, directory: &Path, out: &mut dyn Write) -> Result<()> {
    let machine = topology::open(arguments.machine.as_deref())?;
    let results = match &arguments.results {
        Some(results) if !results.is_dir() => {
            bail!(
                "{} is not a directory; set --results to the directory with the records of `memferry bench`",
                results.display()
            )
        }
        Some(results) => results,
        None => Path::new(RESULTS),
    };
    let records = records::read(&results.join(machine_slug(&machine)))?;
    let papers = Papers::read()?;
    let report = Report::new(&machine, &records, &papers, results)?;
    let mut files =
        vec![("machine.svg".to_owned(), report.picture.clone()), ("machine.csv".to_owned(), nodes(&machine))];
    for figure in report.figures() {
        files.push((format!("{}.csv", figure.name), figure.csv()));
        files.push((format!("{}.svg", figure.name), draw::document(figure)));
    }
    // The page comes last, so that all of its links work when it appears.
    files.push(("index.html".to_owned(), page::html(&report)));
    let written = write_all(directory, &files);
    written.with_context(|| {
        let directory = directory.display();
        format!(
            "cannot write the report to {directory}; choose --out DIR, a new directory or one with free space"
        )
    })?;
    let page = directory.join("index.html");
    Ok(writeln!(
        out,
        "written to {}, with {} as CSV and SVG beside it",
        page.display(),
        count(report.figures().count(), "figure")
    )?)
}

/// Writes all files under temporary names before it renames the first one.
fn write_all(directory: &Path, files: &[(String, String)]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let part = |(name, content): &(String, String)| Part::write(&directory.join(name), content.as_bytes());
    let parts: Vec<Part> = files.iter().map(part).collect::<io::Result<_>>()?;
    parts.into_iter().try_for_each(Part::keep)
}

/// The content of the page.
struct Report<'a> {
    machine: &'a Machine,
    records: &'a [Record],
    /// Directory of the records.
    results: &'a Path,
    papers: &'a Papers,
    advice: Vec<advice::Advice>,
    /// Picture of the machine, as a file and as a part of the page.
    picture: String,
    picture_part: String,
    sections: Vec<Section>,
}

/// Figures under a heading.
struct Section {
    id: &'static str,
    title: &'static str,
    intro: &'static str,
    figures: Vec<Figure>,
}

impl<'a> Report<'a> {
    fn new(
        machine: &'a Machine,
        records: &'a [Record],
        papers: &'a Papers,
        results: &'a Path,
    ) -> Result<Report<'a>> {
        let [picture, picture_part] = topology::pictures(machine, "machine")?;
        let sections = vec![
            Section {
                id: "modelled",
                title: "What it should do",
                intro: "Computed from the rates and costs that the machine's profile names.",
                figures: modelled(machine),
            },
            Section {
                id: "taken",
                title: "What was taken on it",
                intro: "Records of memferry bench, the newest of each benchmark.",
                figures: benchmarks::figures(records),
            },
            Section {
                id: "query",
                title: "A query with one column brought near",
                intro: "What query-driven prefetching gains and costs on a Xeon Max, as published and as modelled.",
                figures: papers.query_figures(),
            },
            Section {
                id: "copies",
                title: "Copies by DSA, as published in Fürst 2024",
                intro: "Figures of the publication in its form. Lines and bars are modelled here, on the \
                        publication's machine; what it prints as numbers is drawn as dots and dotted rules.",
                figures: papers.thesis_copy_figures()?,
            },
            Section {
                id: "kuper",
                title: "DSA and programs that use it, as published in Kuper et al. 2024",
                intro: "Its figures in its form and order, as above. Filled and hatched marks are from records of \
                        the machine of this page. Figures 8 and 12, huge pages and the occupancy of caches, have \
                        neither printed numbers nor a model. The text has no number of figures 18 and 20.",
                figures: papers.kuper_figures(machine, records)?,
            },
            Section {
                id: "domains",
                title: "Sub-domains of sockets, as published",
                intro: "What SNC and COD do to memories, and what follows for scans.",
                figures: papers.domain_figures()?,
            },
            Section {
                id: "errors",
                title: "How far the model is off",
                intro: "Each published number that the model predicts.",
                figures: papers.error_figures(),
            },
        ];
        let advice = advice::advice(machine, records);
        Ok(Report { machine, records, results, papers, advice, picture, picture_part, sections })
    }

    fn figures(&self) -> impl Iterator<Item = &Figure> {
        self.sections.iter().flat_map(|section| &section.figures)
    }
}

/// Figures of the model and of the known links of the machine; may be empty.
fn modelled(machine: &Machine) -> Vec<Figure> {
    let mut figures = Vec::new();
    if let Ok(mut figure) = papers::device_and_core("machine-sizes", machine) {
        figure.about =
            "One device of this machine in different ways, and a core: where the lines cross, the \
             device begins to be faster."
                .to_owned();
        figures.push(figure);
    }
    figures.extend(advice::route_figure(machine).ok().flatten());
    // `memferry calibrate` measures. Other profiles have published values, and the kernel has those of the firmware.
    let is_measured = machine.parameters().iter().any(|parameter| parameter.basis == Basis::Measured);
    let how = if is_measured { Provenance::Measured } else { Provenance::Published };
    let matrices = [("machine-latency", papers::LATENCY), ("machine-bandwidth", papers::BANDWIDTH)];
    let ways = matrices.map(|(name, matrix)| {
        let mut figure = matrix.figure(name, "From CPUs to memories, as far as it is known.");
        figure.points = matrix.points(machine, how, machine.name());
        figure
    });
    figures.extend(ways.into_iter().filter(|figure| figure.points.len() > 1));
    figures
}

/// The nodes as CSV.
fn nodes(machine: &Machine) -> String {
    let mut text = "node,socket,tier,cpus,memory_bytes,cpu_node\n".to_owned();
    for node in machine.nodes() {
        let socket = node.socket.map_or(String::new(), |socket| socket.to_string());
        let memory = node.memory_bytes.map_or(String::new(), |bytes| bytes.to_string());
        let tier = if node.tier == Tier::Unknown { String::new() } else { node.tier.to_string() };
        text += &format!("{},{socket},{tier},{},{memory},{}\n", node.id, node.cpus.len(), node.cpu_node);
    }
    text
}

#[cfg(test)]
mod tests;

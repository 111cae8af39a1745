use std::collections::BTreeSet;

use super::super::figure::{Axis, Figure, Kind, Point, Scale};
use super::super::tests::PAPERS;
use super::*;
use crate::canvas::tests::xml_error;
use memferry::topology::Machine;
use memferry_bench::harness::Provenance;

/// The figures of the publications, and extreme ones.
fn figures() -> Vec<Figure> {
    let papers = &*PAPERS;
    let mut figures = papers.query_figures();
    figures.extend(papers.thesis_copy_figures().unwrap());
    figures.extend(papers.kuper_figures(&Machine::from_profile("spr-56c").unwrap(), &[]).unwrap());
    figures.extend(papers.domain_figures().unwrap());
    figures.extend(papers.error_figures());
    assert!(figures.len() > 12 && figures.iter().all(|figure| !figure.points.is_empty()));
    let kinds = [
        Kind::Lines,
        Kind::Bars,
        Kind::Stacks,
        Kind::Rows,
        Kind::HalfCircles,
        Kind::HeatLess,
        Kind::HeatMore,
    ];
    let hows = [Provenance::Measured, Provenance::Emulated, Provenance::Modelled, Provenance::Published];
    for (number, kind) in kinds.into_iter().enumerate() {
        for (count, scale) in [(1, Scale::Linear), (9, Scale::Log), (23, Scale::Bytes)] {
            let mut figure = Figure::new(
                &format!("made-up-{number}-{count}"),
                kind,
                "<&\"'> a title that is long ".repeat(count).trim_end(),
            );
            figure.about = "made up".to_owned();
            (figure.x, figure.y) =
                (Axis::new("x & so on", scale), Axis::new("y ".repeat(3 * count).trim_end(), scale));
            for index in 1..=count {
                let series = format!("series {} of <these>", index % 8);
                let value = 10_f64.powi(index as i32 % 12 - 4);
                let x = (1_u64 << index).to_string();
                let mut point =
                    Point::new(series, hows[index % 4], x, value).between(value / 2.0, value * 3.0);
                if kind != Kind::Rows {
                    point = point.in_panel(format!("panel {}", index % 3));
                }
                figure.points.push(point);
            }
            if kind == Kind::Lines {
                figure.points.push(Point::rule("a rule with quite a name", Provenance::Published, 1.0));
                figure.points.push(Point::upright_rule("an upright one", Provenance::Published, 4.0));
            }
            figures.push(figure);
        }
    }
    figures
}

#[test]
fn figures_are_drawn_from_their_csv_alone() {
    for figure in figures() {
        let csv = figure.csv();
        let again = Figure::from_csv(&csv).unwrap_or_else(|error| panic!("{error} in:\n{csv}"));
        assert_eq!(again.points, figure.points, "{}", figure.name);
        assert_eq!(again.csv(), csv);
        assert!(document(&again) == document(&figure), "{}", figure.name);
    }
}

#[test]
fn pictures_are_well_formed() {
    for figure in figures() {
        let picture = document(&figure);
        assert_eq!(xml_error(&picture), None, "{picture}");
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
        for outside in ["<script", "href", "url(", "@import"] {
            assert!(!picture.contains(outside), "{outside}");
        }
    }
}

/// Edges and contents of all texts of a block, whose parent is at `left`, `top`.
fn texts(block: &Block, (left, top): (i64, i64)) -> Vec<((i64, i64, i64, i64), String)> {
    let (x, y) = (left + block.x, top + block.y);
    let edges = |text: &canvas::Text| {
        let ((left, right), base) = (text.span(), y + text.y);
        ((x + left, base - text.size * 3 / 4, x + right, base + text.size / 4), text.content.clone())
    };
    let below = block.children.iter().flat_map(|child| texts(child, (x, y)));
    block.texts.iter().map(edges).chain(below).collect()
}

/// Edges of all marks.
fn marks(block: &Block, (left, top): (i64, i64)) -> Vec<(f64, f64, f64, f64)> {
    let at = (left + block.x, top + block.y);
    let (x, y) = (at.0 as f64, at.1 as f64);
    let edges = |path: &canvas::Path| {
        let (left, top, right, bottom) = path.bounds();
        (x + left, y + top, x + right, y + bottom)
    };
    block.paths.iter().map(edges).chain(block.children.iter().flat_map(|child| marks(child, at))).collect()
}

#[test]
fn marks_are_inside_the_picture_and_texts_do_not_overlap() {
    for figure in figures() {
        let picture = picture(&figure);
        let texts = texts(&picture, (0, 0));
        for (index, ((left, top, right, bottom), content)) in texts.iter().enumerate() {
            let is_inside = *left >= 0 && *top >= 0 && *right <= picture.width && *bottom <= picture.height;
            assert!(is_inside, "{}: {content:?} sticks out", figure.name);
            for ((l, t, r, b), other) in &texts[..index] {
                let is_apart = left >= r || l >= right || top >= b || t >= bottom;
                assert!(is_apart, "{}: {content:?} lies on {other:?}", figure.name);
            }
        }
        for (left, top, right, bottom) in marks(&picture, (0, 0)) {
            let is_inside = left >= 0.0 && top >= 0.0;
            let is_inside = is_inside && right <= picture.width as f64 && bottom <= picture.height as f64;
            assert!(is_inside, "{}: a mark at {left}, {top}, {right}, {bottom}", figure.name);
        }
    }
}

#[test]
fn series_of_published_figures_have_different_colours() {
    for figure in figures().iter().filter(|figure| !figure.name.starts_with("made-up")) {
        let names = series(figure);
        let classes: BTreeSet<&str> = (0..names.len()).map(series_class).collect();
        assert_eq!(classes.len(), names.len(), "{}: {names:?}", figure.name);
    }
}

#[test]
fn forms_show_the_provenance() {
    let mut figure = Figure::new("forms", Kind::Rows, "Forms");
    figure.points = [Provenance::Measured, Provenance::Emulated, Provenance::Modelled, Provenance::Published]
        .map(|how| Point::new("all", how, how.to_string(), 2.0))
        .into();
    let picture = document(&figure);
    for class in ["series0 measured", "series0 emulated", "series0 modelled", "published"] {
        assert!(picture.contains(&format!("class=\"{class}\"")), "{class} is not in:\n{picture}");
    }
    // A hatched bar is its outline and its strokes.
    assert_eq!(picture.matches("series0 emulated").count(), 2);
    for words in
        ["measured on this machine", "emulated: says nothing about hardware", ">modelled<", ">published<"]
    {
        assert!(picture.contains(words), "{words}");
    }
}

#[test]
fn bars_are_proportional() {
    let mut figure = Figure::new("lengths", Kind::Rows, "Lengths");
    figure.points =
        [1.0, 2.0, 3.0].map(|value| Point::new("all", Provenance::Measured, value.to_string(), value)).into();
    fn bars(block: &Block) -> Vec<f64> {
        let own = block.title.iter().flat_map(|_| &block.paths).map(|path| path.bounds().2 - path.bounds().0);
        own.chain(block.children.iter().flat_map(bars)).collect()
    }
    let bars = bars(&picture(&figure));
    assert_eq!(bars.len(), 3);
    assert!((bars[1] / bars[0] - 2.0).abs() < 0.01 && (bars[2] / bars[0] - 3.0).abs() < 0.01, "{bars:?}");
}

#[test]
fn stacks_add_up() {
    let mut figure = Figure::new("stacks", Kind::Stacks, "Stacks");
    let point = |series: &str, x: &str, y: f64| Point::new(series, Provenance::Measured, x, y);
    figure.points = vec![point("all", "CPU", 6.0), point("submit", "DSA", 1.0), point("wait", "DSA", 3.0)];
    let picture = picture(&figure);
    fn bars(block: &Block) -> Vec<(f64, f64)> {
        let own =
            block.title.iter().flat_map(|_| &block.paths).map(|path| (path.bounds().1, path.bounds().3));
        own.chain(block.children.iter().flat_map(bars)).collect()
    }
    let [all, submit, wait] = bars(&picture)[..] else { panic!() };
    assert!((wait.1 - submit.0).abs() < 1e-6, "on each other: {submit:?} {wait:?}");
    assert!((submit.1 - all.1).abs() < 1e-6, "on the axis: {submit:?} {all:?}");
    let share = (submit.1 - wait.0) / (all.1 - all.0);
    assert!((share - 4.0 / 6.0).abs() < 0.01, "{share}");
}

#[test]
fn names_of_vertical_rules_are_above_the_marks() {
    let mut figure = Figure::new("rules", Kind::Lines, "Rules");
    figure.points = ["1", "2", "4"].map(|x| Point::new("all", Provenance::Measured, x, 100.0)).into();
    let names = ["from", "to"];
    figure.points.extend(names.map(|name| Point::upright_rule(name, Provenance::Published, 2.0)));
    let picture = picture(&figure);
    fn tops(block: &Block, top: i64) -> Vec<f64> {
        let y = top + block.y;
        let own = block.title.iter().flat_map(|_| &block.paths).map(|path| y as f64 + path.bounds().1);
        own.chain(block.children.iter().flat_map(|child| tops(child, y))).collect()
    }
    let highest = tops(&picture, 0).into_iter().reduce(f64::min).unwrap();
    let found = texts(&picture, (0, 0)).into_iter().filter(|(_, text)| names.contains(&&**text));
    let bottoms: Vec<i64> = found.map(|((.., bottom), _)| bottom).collect();
    assert!(bottoms.len() == 2 && bottoms.iter().all(|it| *it as f64 <= highest), "{bottoms:?} {highest}");
}

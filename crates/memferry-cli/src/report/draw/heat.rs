//! A heat map for each panel.

use super::super::figure::{Figure, Kind, Point};
use super::scale::fixed;
use super::{WIDTH, distinct};
use crate::canvas::{Block, HeatMap, SMALL, flow, text_width};

pub(super) fn draw(figure: &Figure) -> Block {
    let panels = distinct(figure.points.iter().map(|point| point.panel.as_str()));
    let blocks: Vec<Block> = panels.iter().map(|panel| draw_panel(figure, panel)).collect();
    let width = blocks.iter().map(|block| block.width).fold(WIDTH, i64::max);
    let mut all = Block::new("", width, 0);
    let axes = format!("{}; in {}, stronger is better", figure.x.label, figure.y.label);
    all.append(crate::canvas::paragraphs(&[axes], width, SMALL, "muted"), 0, 0);
    all.append(flow(blocks, width, 20, 14), 0, 6);
    all
}

fn draw_panel(figure: &Figure, name: &str) -> Block {
    let points: Vec<&Point> = figure.points.iter().filter(|it| it.panel == name).collect();
    let rows = distinct(points.iter().map(|it| it.series.as_str()));
    let columns = distinct(points.iter().map(|it| it.x.as_str()));
    let value = |row: &str, column: &str| points.iter().find(|it| it.series == row && it.x == column)?.y;
    let values = rows.iter().map(|row| columns.iter().map(|column| value(row, column)).collect()).collect();
    let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let map = HeatMap {
        axes: "",
        row_gaps: vec![false; rows.len()],
        column_gaps: vec![false; columns.len()],
        rows: owned(&rows),
        columns: owned(&columns),
        values,
        text: &fixed,
        more_is_better: figure.kind == Kind::HeatMore,
    };
    let map = map.draw();
    let mut panel = Block::new("", map.width.max(text_width(name, SMALL, true)), 18);
    panel.text(0, 13, SMALL, "ink strong", name);
    panel.append(map, 0, 0);
    panel
}

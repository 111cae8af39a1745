//! Widths of text, and layout of blocks.

use super::Block;
use crate::output::break_lines;

/// Font sizes.
pub(crate) const LARGE: i64 = 20;
pub(crate) const BODY: i64 = 13;
pub(crate) const SMALL: i64 = 12;
pub(crate) const TINY: i64 = 11;
/// Distance of base lines.
pub(crate) const LINE: i64 = 18;

/// The estimated width, rounded up.
pub(crate) fn text_width(text: &str, size: i64, strong: bool) -> i64 {
    (text.chars().map(char_width).sum::<i64>() * weight(size, strong) + 9_999) / 10_000
}

/// The text, cut with `…` if it is wider than `width`.
pub(crate) fn fitted(text: &str, width: i64, size: i64, strong: bool) -> String {
    if text_width(text, size, strong) <= width {
        return text.to_owned();
    }
    let room = width * 10_000 / weight(size, strong) - char_width('…');
    let mut taken = 0;
    let short = text.chars().take_while(|&c| {
        taken += char_width(c);
        taken <= room
    });
    short.chain(['…']).collect()
}

fn weight(size: i64, strong: bool) -> i64 {
    size * if strong { 112 } else { 100 }
}

/// The width of a character in hundredths of the font size.
fn char_width(c: char) -> i64 {
    match c {
        'i' | 'j' | 'l' | '\'' | ' ' | '\u{a0}' | '.' | ',' | ':' | ';' | '|' | '(' | ')' | '-' | '/' => 40,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 98,
        'A'..='Z' | '&' | '<' | '>' => 78,
        '0'..='9' | 'a'..='z' => 64,
        // Letters with diacritics are as wide as without. The widest other characters are square.
        '\u{c0}'..='\u{24f}' => 78,
        _ => 100,
    }
}

/// Breaks text into lines of at most `width`; cuts longer words.
pub(crate) fn wrapped(text: &str, width: i64, size: i64, strong: bool) -> Vec<String> {
    let lines = break_lines(text, |line| text_width(line, size, strong) <= width);
    lines.iter().map(|line| fitted(line, width, size, strong).replace('\u{a0}', " ")).collect()
}

pub(crate) fn paragraphs(sentences: &[String], width: i64, size: i64, class: &'static str) -> Block {
    let strong = class.contains("strong");
    let mut block = Block::new("", 0, 0);
    // The marks of code are for terminals.
    let sentences = sentences.iter().map(|sentence| sentence.replace('`', "\""));
    for line in sentences.flat_map(|sentence| wrapped(&sentence, width, size, strong)) {
        block.width = block.width.max(text_width(&line, size, strong));
        block.height += LINE;
        block.text(0, block.height - 5, size, class, line);
    }
    block
}

/// Arranges blocks in rows of at most `width`.
pub(crate) fn flow(blocks: Vec<Block>, width: i64, gap_x: i64, gap_y: i64) -> Block {
    let mut all = Block::new("", width, 0);
    let (mut x, mut y, mut row_height) = (0, 0, 0);
    for block in blocks {
        if x > 0 && x + block.width > width {
            (x, y, row_height) = (0, y + row_height + gap_y, 0);
        }
        row_height = row_height.max(block.height);
        let next = x + block.width + gap_x;
        all.put(block, x, y);
        x = next;
    }
    all.height = y + row_height;
    all
}

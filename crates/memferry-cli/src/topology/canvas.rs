//! Rectangles within rectangles, and the SVG that they become.
//!
//! Whoever draws says how large things are and puts them beside or below each other; positions are absolute once a
//! [`Block`] is placed. Text has no metrics here, as every reader has other fonts: its width is an estimate on the
//! large side (DejaVu Sans, one of the widest fonts behind `system-ui`). Colours stand once, in [`COLOURS`], for light
//! and dark; they are plain properties of classes, as not every program that shows SVG knows CSS variables.

use std::fmt::Write;

use crate::output::break_lines;

/// A rectangle with text and other rectangles in it. Siblings do not overlap, children do not stick out.
#[derive(Clone, Debug, Default)]
pub(super) struct Block {
    pub(super) x: i64,
    pub(super) y: i64,
    pub(super) width: i64,
    pub(super) height: i64,
    /// Classes of [`COLOURS`]; empty for one that is not seen.
    pub(super) class: String,
    pub(super) radius: i64,
    /// What a reader sees on pointing at it, and a screen reader says.
    pub(super) title: Option<String>,
    pub(super) texts: Vec<Text>,
    /// Small squares, by class: their upper left corners.
    pub(super) dots: Vec<(&'static str, Vec<(i64, i64)>)>,
    pub(super) children: Vec<Block>,
}

/// One line.
#[derive(Clone, Debug)]
pub(super) struct Text {
    /// Its left end, middle or right end.
    pub(super) x: i64,
    /// Its base line.
    pub(super) y: i64,
    pub(super) size: i64,
    pub(super) class: &'static str,
    pub(super) anchor: Anchor,
    pub(super) content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Side of a dot.
pub(super) const DOT: i64 = 8;

impl Block {
    pub(super) fn new(class: impl Into<String>, width: i64, height: i64) -> Block {
        Block { class: class.into(), width, height, ..Block::default() }
    }

    pub(super) fn radius(mut self, radius: i64) -> Block {
        self.radius = radius;
        self
    }

    pub(super) fn title(mut self, title: impl Into<String>) -> Block {
        self.title = Some(title.into());
        self
    }

    /// The same somewhere else, with all that is in it.
    pub(super) fn moved(mut self, dx: i64, dy: i64) -> Block {
        self.x += dx;
        self.y += dy;
        for text in &mut self.texts {
            text.x += dx;
            text.y += dy;
        }
        for (x, y) in self.dots.iter_mut().flat_map(|(_, corners)| corners) {
            *x += dx;
            *y += dy;
        }
        self.children = self.children.into_iter().map(|child| child.moved(dx, dy)).collect();
        self
    }

    /// Puts `child` at `x`, `y` of this block, which is not placed itself yet.
    pub(super) fn put(&mut self, child: Block, x: i64, y: i64) {
        self.children.push(child.moved(x, y));
    }

    /// Puts `child` below all that is in it, and grows with it.
    pub(super) fn append(&mut self, child: Block, x: i64, gap: i64) {
        let y = self.height + gap;
        self.height = y + child.height;
        self.put(child, x, y);
    }

    pub(super) fn text(
        &mut self,
        x: i64,
        y: i64,
        size: i64,
        class: &'static str,
        content: impl Into<String>,
    ) {
        self.texts.push(Text { x, y, size, class, anchor: Anchor::Start, content: content.into() });
    }

    pub(super) fn text_at(
        &mut self,
        anchor: Anchor,
        x: i64,
        y: i64,
        size: i64,
        class: &'static str,
        content: impl Into<String>,
    ) {
        self.texts.push(Text { x, y, size, class, anchor, content: content.into() });
    }

    fn write(&self, svg: &mut String) {
        let (open, close) = match &self.title {
            Some(title) => (format!("<g><title>{}</title>", escaped(title)), "</g>\n"),
            None => (String::new(), ""),
        };
        *svg += &open;
        if !self.class.is_empty() {
            let Block { x, y, width, height, class, radius, .. } = self;
            let radius = if *radius > 0 { format!(" rx=\"{radius}\"") } else { String::new() };
            // A line of one pixel is drawn half to each side: half a pixel further in it covers one, not two dimly.
            let place = match is_outlined(class) {
                true => format!("x=\"{x}.5\" y=\"{y}.5\" width=\"{}\" height=\"{}\"", width - 1, height - 1),
                false => format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\""),
            };
            put(svg, format_args!("<rect {place}{radius} class=\"{class}\"/>\n"));
        }
        for (class, corners) in self.dots.iter().filter(|(_, corners)| !corners.is_empty()) {
            put(svg, format_args!("<path class=\"{class}\" d=\""));
            for (x, y) in corners {
                put(svg, format_args!("M{x} {y}h{DOT}v{DOT}h-{DOT}z"));
            }
            *svg += "\"/>\n";
        }
        for text in &self.texts {
            let Text { x, y, size, class, anchor, content } = text;
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => " text-anchor=\"middle\"",
                Anchor::End => " text-anchor=\"end\"",
            };
            let content = escaped(content);
            put(
                svg,
                format_args!(
                    "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" class=\"{class}\"{anchor}>{content}</text>\n"
                ),
            );
        }
        for child in &self.children {
            child.write(svg);
        }
        *svg += close;
    }
}

impl Text {
    /// Left and right end, estimated.
    #[cfg(test)]
    pub(super) fn span(&self) -> (i64, i64) {
        let width = text_width(&self.content, self.size, self.class.contains("strong"));
        match self.anchor {
            Anchor::Start => (self.x, self.x + width),
            Anchor::Middle => (self.x - width / 2, self.x + width - width / 2),
            Anchor::End => (self.x - width, self.x),
        }
    }
}

/// The whole document.
pub(super) fn document(root: &Block, title: &str, description: &str) -> String {
    let (width, height) = (root.width, root.height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"memferry-title memferry-description\" class=\"memferry\">\n\
         <title id=\"memferry-title\">{}</title>\n<desc id=\"memferry-description\">{}</desc>\n<style>\n{}</style>\n",
        escaped(title),
        escaped(description),
        style()
    );
    root.write(&mut svg);
    svg + "</svg>\n"
}

/// Estimated, rounded up.
pub(super) fn text_width(text: &str, size: i64, strong: bool) -> i64 {
    (text.chars().map(char_width).sum::<i64>() * weight(size, strong) + 9_999) / 10_000
}

/// As much of the text as there is room for.
pub(super) fn fitted(text: &str, width: i64, size: i64, strong: bool) -> String {
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

/// In hundredths of the font's size.
fn char_width(c: char) -> i64 {
    match c {
        'i' | 'j' | 'l' | '\'' | ' ' | '\u{a0}' | '.' | ',' | ':' | ';' | '|' | '(' | ')' | '-' | '/' => 40,
        'm' | 'w' | 'M' | 'W' | '%' | '@' => 98,
        'A'..='Z' | '&' | '<' | '>' => 78,
        '0'..='9' | 'a'..='z' => 64,
        // Letters with marks are as wide as without; of everything else the widest is as wide as high.
        '\u{c0}'..='\u{24f}' => 78,
        _ => 100,
    }
}

/// Lines that are no wider than `width`. Words that are wider are shortened.
pub(super) fn wrapped(text: &str, width: i64, size: i64, strong: bool) -> Vec<String> {
    let lines = break_lines(text, |line| text_width(line, size, strong) <= width);
    lines.iter().map(|line| fitted(line, width, size, strong).replace('\u{a0}', " ")).collect()
}

fn is_outlined(classes: &str) -> bool {
    let outlined = |class| COLOURS.iter().any(|c| c.class == class && c.property == "stroke");
    classes.split(' ').any(outlined) && !classes.contains("used")
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            c => escaped.push(c),
        }
    }
    escaped
}

/// Writing to a string cannot fail.
fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(arguments);
}

/// A property of a class, light and dark.
pub(super) struct Colour {
    pub(super) class: &'static str,
    pub(super) property: &'static str,
    pub(super) light: &'static str,
    pub(super) dark: &'static str,
}

const fn colour(
    class: &'static str,
    property: &'static str,
    light: &'static str,
    dark: &'static str,
) -> Colour {
    Colour { class, property, light, dark }
}

/// A test holds text to a contrast of 4.5 and shapes that mean something to 3 (WCAG 2.2, AA) in both schemes.
pub(super) const COLOURS: &[Colour] = &[
    colour("paper", "fill", "#ffffff", "#11161d"),
    colour("socket", "fill", "#f2f5f8", "#1a212b"),
    colour("socket", "stroke", "#c3ccd6", "#3a4656"),
    colour("domain", "fill", "#ffffff", "#232c38"),
    colour("domain", "stroke", "#c3ccd6", "#435063"),
    colour("chip", "fill", "#e8ecf1", "#323e4e"),
    colour("chip", "stroke", "#6b7785", "#8b98a9"),
    colour("ink", "fill", "#17202b", "#e8edf3"),
    colour("muted", "fill", "#53606e", "#a9b5c3"),
    colour("warning", "fill", "#9a3412", "#fdba74"),
    colour("cpu", "fill", "#64707e", "#94a2b3"),
    colour("cpu-off", "stroke", "#64707e", "#94a2b3"),
    colour("dram", "fill", "#2563a8", "#6cb0f5"),
    colour("dram", "stroke", "#2563a8", "#6cb0f5"),
    colour("hbm", "fill", "#c2410c", "#fb923c"),
    colour("hbm", "stroke", "#c2410c", "#fb923c"),
    colour("cxl", "fill", "#7c3aed", "#b99cfb"),
    colour("cxl", "stroke", "#7c3aed", "#b99cfb"),
    colour("pmem", "fill", "#15803d", "#4ade80"),
    colour("pmem", "stroke", "#15803d", "#4ade80"),
    colour("other", "fill", "#64707e", "#a9b5c3"),
    colour("other", "stroke", "#64707e", "#a9b5c3"),
    // How good a figure is, worst first; the ink on each.
    colour("heat0", "fill", "#f3f6fa", "#1c2530"),
    colour("heat1", "fill", "#d6e4f2", "#1f3850"),
    colour("heat2", "fill", "#a9cbe9", "#285379"),
    colour("heat3", "fill", "#2f6fb0", "#8fc3f3"),
    colour("heat4", "fill", "#164a80", "#c9e3fb"),
    colour("heat-ink-weak", "fill", "#17202b", "#e8edf3"),
    colour("heat-ink-strong", "fill", "#ffffff", "#11161d"),
    colour("heat-none", "stroke", "#c3ccd6", "#435063"),
];

/// What does not depend on the scheme.
const SHAPES: &str = "\
.memferry text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Ubuntu,Cantarell,'Noto Sans',sans-serif}
.memferry .strong{font-weight:600}
.memferry .figure{font-variant-numeric:tabular-nums}
.memferry .bar{fill-opacity:.25}
.memferry .used{stroke:none}
.memferry .unknown{fill:none;stroke-dasharray:4 3}
.memferry .cpu-off,.memferry .heat-none{fill:none}
";

fn style() -> String {
    let rules = |of: fn(&Colour) -> &'static str| -> String {
        COLOURS.iter().map(|c| format!(".memferry .{}{{{}:{}}}\n", c.class, c.property, of(c))).collect()
    };
    format!(
        "{}@media (prefers-color-scheme:dark){{\n{}}}\n{SHAPES}",
        rules(|colour| colour.light),
        rules(|colour| colour.dark)
    )
}

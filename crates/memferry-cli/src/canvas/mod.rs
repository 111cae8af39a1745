//! A tree of nested rectangles, and its SVG.
//!
//! Callers set sizes and place blocks beside or below each other; positions are absolute once a [`Block`] is placed. The
//! width of text is an upper estimate (DejaVu Sans, one of the widest fonts behind `system-ui`), because readers have
//! different fonts. [`colours`] has all colours, light and dark. They are plain properties of classes, because some SVG
//! viewers do not support CSS variables.

mod heat;
mod layout;
mod path;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::heat::HeatMap;
pub(crate) use self::layout::{
    BODY, LARGE, LINE, SMALL, TINY, fitted, flow, paragraphs, text_width, wrapped,
};
pub(crate) use self::path::Path;

/// The style sheet of all pictures: colours for the light and the dark scheme, and other properties. Printed pages use the
/// light scheme.
///
/// The form shows the provenance of a number: `measured` is filled, `emulated` hatched, `modelled` an outline, `published`
/// a dot. All kinds of colour vision distinguish the first three series (blue, vermilion and green), as in the palette of
/// Okabe and Ito, "Color Universal Design" (2008). The others differ in lightness and have their own marks. A test checks a
/// contrast of 4.5 for text and 3 for meaningful shapes (WCAG 2.2, AA) in both schemes.
pub(crate) const STYLE: &str = include_str!("style.css");

/// A rectangle with text and child rectangles. Siblings do not overlap, children lie inside their parent. Places are
/// relative to the parent, those of texts, dots and paths to the block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) x: i64,
    pub(crate) y: i64,
    pub(crate) width: i64,
    pub(crate) height: i64,
    /// Classes of [`STYLE`]; empty for an invisible block.
    pub(crate) class: String,
    pub(crate) radius: i64,
    /// The tooltip, also for screen readers.
    pub(crate) title: Option<String>,
    pub(crate) texts: Vec<Text>,
    /// Upper left corners of small squares, by class.
    pub(crate) dots: Vec<(&'static str, Vec<(i64, i64)>)>,
    pub(crate) paths: Vec<Path>,
    pub(crate) children: Vec<Block>,
}

/// A line of text.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    /// The left end, middle or right end, by `anchor`.
    pub(crate) x: i64,
    /// The base line.
    pub(crate) y: i64,
    pub(crate) size: i64,
    pub(crate) class: &'static str,
    pub(crate) anchor: Anchor,
    pub(crate) content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// Side of a small square.
pub(crate) const DOT: i64 = 8;

impl Block {
    pub(crate) fn new(class: impl Into<String>, width: i64, height: i64) -> Block {
        Block { class: class.into(), width, height, ..Block::default() }
    }

    pub(crate) fn radius(mut self, radius: i64) -> Block {
        self.radius = radius;
        self
    }

    pub(crate) fn title(mut self, title: impl Into<String>) -> Block {
        self.title = Some(title.into());
        self
    }

    /// Puts `child` at `x`, `y` of this block.
    pub(crate) fn put(&mut self, child: Block, x: i64, y: i64) {
        self.children.push(Block { x, y, ..child });
    }

    /// Puts `child` below the content and grows.
    pub(crate) fn append(&mut self, child: Block, x: i64, gap: i64) {
        let y = self.height + gap;
        self.height = y + child.height;
        self.put(child, x, y);
    }

    pub(crate) fn text(
        &mut self,
        x: i64,
        y: i64,
        size: i64,
        class: &'static str,
        content: impl Into<String>,
    ) {
        self.texts.push(Text { x, y, size, class, anchor: Anchor::Start, content: content.into() });
    }

    pub(crate) fn text_at(
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

    /// Writes the block, whose parent is at `left`, `top` of the picture.
    fn write(&self, svg: &mut String, (left, top): (i64, i64)) {
        let (left, top) = (left + self.x, top + self.y);
        let (open, close) = match &self.title {
            Some(title) => (format!("<g><title>{}</title>", escaped(title)), "</g>\n"),
            None => (String::new(), ""),
        };
        *svg += &open;
        if !self.class.is_empty() {
            let Block { width, height, class, radius, .. } = self;
            let radius = if *radius > 0 { format!(" rx=\"{radius}\"") } else { String::new() };
            // SVG centres a stroke on its path. Half a pixel further in, a stroke of one pixel covers one row of pixels.
            let place = match is_outlined(class) {
                true => {
                    format!("x=\"{left}.5\" y=\"{top}.5\" width=\"{}\" height=\"{}\"", width - 1, height - 1)
                }
                false => format!("x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\""),
            };
            *svg += &format!("<rect {place}{radius} class=\"{class}\"/>\n");
        }
        for (class, corners) in self.dots.iter().filter(|(_, corners)| !corners.is_empty()) {
            *svg += &format!("<path class=\"{class}\" d=\"");
            for (x, y) in corners {
                let (x, y) = (left + x, top + y);
                *svg += &format!("M{x} {y}h{DOT}v{DOT}h-{DOT}z");
            }
            *svg += "\"/>\n";
        }
        for path in &self.paths {
            path.write(svg, (left as f64, top as f64));
        }
        for text in &self.texts {
            let Text { size, class, anchor, content, .. } = text;
            let (x, y) = (left + text.x, top + text.y);
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => " text-anchor=\"middle\"",
                Anchor::End => " text-anchor=\"end\"",
            };
            let content = escaped(content);
            *svg += &format!(
                "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" class=\"{class}\"{anchor}>{content}</text>\n"
            );
        }
        for child in &self.children {
            child.write(svg, (left, top));
        }
        *svg += close;
    }
}

impl Text {
    /// Estimated left and right end.
    #[cfg(test)]
    pub(crate) fn span(&self) -> (i64, i64) {
        let width = text_width(&self.content, self.size, self.class.contains("strong"));
        match self.anchor {
            Anchor::Start => (self.x, self.x + width),
            Anchor::Middle => (self.x - width / 2, self.x + width - width / 2),
            Anchor::End => (self.x - width, self.x),
        }
    }
}

/// The block as an SVG document.
pub(crate) fn document(root: &Block, title: &str, description: &str) -> String {
    element(root, "memferry", title, description, &format!("<style>\n{STYLE}</style>\n"))
}

/// The block as an SVG element of a page with the [`STYLE`]; `id` must be unique in the page.
pub(crate) fn part(root: &Block, id: &str, title: &str, description: &str) -> String {
    element(root, id, title, description, "")
}

fn element(root: &Block, id: &str, title: &str, description: &str, style: &str) -> String {
    let (width, height) = (root.width, root.height);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"{id}-title {id}-description\" class=\"memferry\">\n\
         <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-description\">{}</desc>\n{style}",
        escaped(title),
        escaped(description),
    );
    root.write(&mut svg, (0, 0));
    svg + "</svg>\n"
}

fn is_outlined(classes: &str) -> bool {
    let outlined = |class: &str| STYLE.contains(&format!(".{class}{{stroke:#"));
    classes.split(' ').any(outlined) && !classes.contains("used")
}

/// Escapes text for XML and HTML, also between quotes.
pub(crate) fn escaped(text: &str) -> String {
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

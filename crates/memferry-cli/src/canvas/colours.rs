//! The style sheet of all pictures: colours for the light and the dark scheme, and other properties.
//!
//! The form shows the provenance of a number: `measured` is filled, `emulated` hatched, `modelled` an outline, `published`
//! a dot.

/// A property of a class, with its light and dark value.
pub(crate) struct Colour {
    pub(crate) class: &'static str,
    pub(crate) property: &'static str,
    pub(crate) light: &'static str,
    pub(crate) dark: &'static str,
}

const fn colour(
    class: &'static str,
    property: &'static str,
    light: &'static str,
    dark: &'static str,
) -> Colour {
    Colour { class, property, light, dark }
}

/// All colours. A test checks a contrast of 4.5 for text and 3 for meaningful shapes (WCAG 2.2, AA) in both schemes.
pub(crate) const COLOURS: &[Colour] = &[
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
    // Heat maps: worst first, then the ink on them.
    colour("heat0", "fill", "#f3f6fa", "#1c2530"),
    colour("heat1", "fill", "#d6e4f2", "#1f3850"),
    colour("heat2", "fill", "#a9cbe9", "#285379"),
    colour("heat3", "fill", "#2f6fb0", "#8fc3f3"),
    colour("heat4", "fill", "#164a80", "#c9e3fb"),
    colour("heat-ink-weak", "fill", "#17202b", "#e8edf3"),
    colour("heat-ink-strong", "fill", "#ffffff", "#11161d"),
    colour("heat-none", "stroke", "#c3ccd6", "#435063"),
    // Series of a figure. All kinds of colour vision distinguish blue, vermilion and green, as in the palette of Okabe and
    // Ito, "Color Universal Design" (2008). The others differ in lightness and have their own marks.
    colour("series0", "color", "#0068ad", "#5cb3f0"),
    colour("series1", "color", "#c14f08", "#f79a55"),
    colour("series2", "color", "#007f5b", "#3ecb9f"),
    colour("series3", "color", "#8b3a82", "#e193d2"),
    colour("series4", "color", "#7a6000", "#e0c341"),
    colour("series5", "color", "#4a5663", "#b9c4d1"),
    colour("grid", "stroke", "#dfe4ea", "#2b3542"),
    colour("axis", "stroke", "#6b7785", "#8b98a9"),
    colour("published", "fill", "#17202b", "#e8edf3"),
    colour("published", "stroke", "#ffffff", "#11161d"),
    colour("rule", "stroke", "#17202b", "#e8edf3"),
    colour("whisker", "stroke", "#17202b", "#e8edf3"),
    // Outline of text on lines.
    colour("halo", "stroke", "#ffffff", "#11161d"),
];

/// Properties for both schemes.
const SHAPES: &str = "\
.memferry text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Ubuntu,Cantarell,'Noto Sans',sans-serif}
.memferry .strong{font-weight:600}
.memferry .figure{font-variant-numeric:tabular-nums}
.memferry .bar{fill-opacity:.25}
.memferry .used{stroke:none}
.memferry .unknown{fill:none;stroke-dasharray:4 3}
.memferry .cpu-off,.memferry .heat-none{fill:none}
.memferry .grid,.memferry .axis,.memferry .rule,.memferry .line,.memferry .whisker{fill:none}
.memferry .halo{paint-order:stroke;stroke-width:3px;stroke-linejoin:round}
.memferry .rule{stroke-dasharray:2 3}
.memferry .line{stroke:currentColor;stroke-width:2;stroke-linejoin:round}
.memferry .weak{stroke-width:1.2;stroke-opacity:.7}
.memferry .dashed{stroke-dasharray:5 3}
.memferry .measured{fill:currentColor}
.memferry .emulated{fill:none;stroke:currentColor;stroke-width:1.2}
.memferry .modelled{fill:currentColor;fill-opacity:.12;stroke:currentColor;stroke-width:1.5}
";

/// The style sheet. Printed pages use the light scheme.
pub(crate) fn style() -> String {
    let rules = |of: fn(&Colour) -> &'static str| -> String {
        COLOURS.iter().map(|c| format!(".memferry .{}{{{}:{}}}\n", c.class, c.property, of(c))).collect()
    };
    format!(
        "{}@media screen and (prefers-color-scheme:dark){{\n{}}}\n{SHAPES}",
        rules(|colour| colour.light),
        rules(|colour| colour.dark)
    )
}

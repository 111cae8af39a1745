//! Checks of all pictures.

use super::STYLE;

/// The first error in XML: unclosed tags, quotes, unescaped characters.
pub(crate) fn xml_error(xml: &str) -> Option<String> {
    let (mut open, mut rest) = (Vec::new(), xml);
    let is_text = |text: &str| {
        text.split('&').skip(1).all(|entity| {
            ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|known| entity.starts_with(known))
        }) && !text.contains('>')
    };
    while let Some(start) = rest.find('<') {
        // Style sheets may contain `>`, but ours does not.
        if !is_text(&rest[..start]) {
            return Some(format!("text {:?}", &rest[..start]));
        }
        let Some(end) = rest[start..].find('>') else { return Some(format!("no end: {rest:?}")) };
        let tag = &rest[start + 1..start + end];
        rest = &rest[start + end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Some(format!("</{name}> closes nothing"));
            }
            continue;
        }
        let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        let mut pieces = attributes.split('"').collect::<Vec<_>>();
        let last = pieces.pop().unwrap();
        let mut seen = Vec::new();
        for pair in pieces.chunks(2) {
            let [key, value] = pair else { return Some(format!("quotes in {tag:?}")) };
            let key = key.trim();
            if !key.ends_with('=') || seen.contains(&key) || !is_text(value) || value.contains('<') {
                return Some(format!("attribute {key:?} {value:?}"));
            }
            seen.push(key);
        }
        if name.is_empty() || !last.trim().is_empty() {
            return Some(format!("tag {tag:?}"));
        }
        if !closed {
            open.push(name);
        }
    }
    (!open.is_empty() || !rest.trim().is_empty()).then(|| format!("left open: {open:?} {rest:?}"))
}

#[test]
fn xml_errors_are_found() {
    assert_eq!(xml_error("<a b=\"c &lt;\"><d/>e &amp;</a>\n"), None);
    for wrong in
        ["<a>", "<a></b>", "<a b=c/>", "<a b=\"c/>", "<a>&</a>", "<a>></a>", "<a/>b", "<a b=\"1\" b=\"2\"/>"]
    {
        assert!(xml_error(wrong).is_some(), "{wrong}");
    }
}

/// WCAG 2.2: relative luminance of `#rrggbb`.
fn luminance(colour: &str) -> f64 {
    let channel = |at: usize| {
        let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
        if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
}

#[test]
fn contrasts_suffice_in_both_schemes() {
    let (light, dark) = STYLE.split_once("@media screen and (prefers-color-scheme:dark)").unwrap();
    let find = |scheme: &str, class: &str, property: &str| {
        let rule = format!(".{class}{{{property}:");
        let (_, rest) = scheme.split_once(&rule).unwrap_or_else(|| panic!("no {rule}"));
        luminance(rest.split('}').next().unwrap())
    };
    let check = |(class, property): (&str, &str), back: &str, least: f64| {
        for (name, scheme) in [("light", light), ("dark", dark)] {
            let (a, b) = (find(scheme, class, property), find(scheme, back, "fill"));
            let contrast = (a.max(b) + 0.05) / (a.min(b) + 0.05);
            assert!(contrast >= least, "{class} on {back}, {name}: {contrast:.2} of {least}");
        }
    };
    for back in ["paper", "socket", "domain"] {
        for text in ["ink", "muted", "warning"] {
            check((text, "fill"), back, 4.5);
        }
    }
    check(("ink", "fill"), "chip", 4.5);
    for heat in ["heat0", "heat1", "heat2"] {
        check(("heat-ink-weak", "fill"), heat, 4.5);
    }
    for heat in ["heat3", "heat4"] {
        check(("heat-ink-strong", "fill"), heat, 4.5);
    }
    for shape in ["dram", "hbm", "cxl", "pmem", "other", "chip", "cpu-off"] {
        check((shape, "stroke"), "domain", 3.0);
        check((shape, "stroke"), "paper", 3.0);
    }
    check(("cpu", "fill"), "domain", 3.0);
    for series in 0..7 {
        check((&format!("series{series}"), "color"), "paper", 3.0);
    }
    for shape in ["axis", "rule", "whisker"] {
        check((shape, "stroke"), "paper", 3.0);
    }
    check(("published", "fill"), "paper", 4.5);
}

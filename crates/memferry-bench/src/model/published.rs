//! The published figures (`published/*.csv`).

/// A row of one of the files; what the columns mean is said in published/README.md.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figure {
    /// Letter of the publication and a number.
    pub id: String,
    /// Where in it.
    pub location: String,
    /// What it is.
    pub quantity: String,
    /// Under which conditions.
    pub configuration: String,
    /// A number, mostly.
    pub value: String,
    /// Its unit.
    pub unit: String,
    /// `table`, `text`, `approx-text` or `derived`.
    pub kind: String,
    /// Remarks of whoever collected it.
    pub note: String,
}

impl Figure {
    /// The value where it is a number.
    pub fn number(&self) -> Option<f64> {
        self.value.parse().ok()
    }
}

const FILES: [&str; 3] = [
    include_str!("../../published/thesis_dsa.csv"),
    include_str!("../../published/kuper_dsa.csv"),
    include_str!("../../published/snc_hana.csv"),
];

/// All rows of all files.
pub fn figures() -> Vec<Figure> {
    FILES.iter().flat_map(|text| text.lines().skip(1)).filter_map(figure).collect()
}

fn figure(line: &str) -> Option<Figure> {
    let mut fields = fields(line).into_iter();
    let mut next = || fields.next();
    let (id, _source) = (next()?, next()?);
    let (location, quantity, configuration) = (next()?, next()?, next()?);
    let (value, unit, kind, note) = (next()?, next()?, next()?, next()?);
    Some(Figure { id, location, quantity, configuration, value, unit, kind, note })
}

/// Fields of a line of CSV: commas separate, quotes protect them, and two quotes inside quotes are one.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if is_quoted && characters.next_if_eq(&'"').is_some() => push(&mut fields, '"'),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            _ => push(&mut fields, character),
        }
    }
    fields
}

fn push(fields: &mut [String], character: char) {
    if let Some(field) = fields.last_mut() {
        field.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_protect_commas() {
        assert_eq!(fields(r#"a,"b, ""c""",,d"#), ["a", r#"b, "c""#, "", "d"]);
    }

    #[test]
    fn every_line_is_a_figure() {
        let lines: usize = FILES.iter().map(|text| text.lines().count() - 1).sum();
        assert_eq!(figures().len(), lines);
        let baseline = figures().into_iter().find(|figure| figure.id == "F072").expect("table 6.1");
        assert_eq!((baseline.number(), baseline.unit.as_str()), (Some(131.18), "ms"));
    }
}

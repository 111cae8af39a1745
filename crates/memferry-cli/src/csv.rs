//! Fields of CSV (RFC 4180).

/// A field; quoted only where it must be.
pub(crate) fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// The fields of a line.
///
/// # Errors
/// What is wrong with its quotes.
pub(crate) fn fields(line: &str) -> Result<Vec<String>, String> {
    let mut fields = Vec::new();
    let mut rest = line;
    loop {
        let (field, after) = match rest.strip_prefix('"') {
            Some(inside) => quoted_field(inside)?,
            None => {
                let (field, after) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
                if field.contains('"') {
                    return Err(format!("a quote inside {field:?}, which is not quoted"));
                }
                (field.to_owned(), after)
            }
        };
        fields.push(field);
        rest = match after.strip_prefix(',') {
            Some(rest) => rest,
            None if after.is_empty() => return Ok(fields),
            None => return Err(format!("{after:?} after a quoted field")),
        };
    }
}

/// What stands before the closing quote, and what after it.
fn quoted_field(inside: &str) -> Result<(String, &str), String> {
    let mut field = String::new();
    let mut rest = inside;
    loop {
        let end = rest.find('"').ok_or("a quote that is not closed")?;
        field += &rest[..end];
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Ok((field, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_protect_commas() {
        assert_eq!(fields(r#"a,"b, ""c""",,d"#).unwrap(), ["a", "b, \"c\"", "", "d"]);
        for field in ["", "plain", "a,b", "\"", "x\"y\",z"] {
            assert_eq!(fields(&format!("{},1", quoted(field))).unwrap(), [field, "1"]);
        }
        for wrong in ["\"a", "a\"b", "\"a\"b,c"] {
            assert!(fields(wrong).is_err(), "{wrong}");
        }
    }
}

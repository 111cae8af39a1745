//! `cargo xtask licences`: whether the licences of all dependencies allow to use and distribute memferry, and the texts that
//! come with its programs.
//!
//! Source: the licence expressions of SPDX, annex D; the licences themselves ask for their texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use spdx::{Expression, ParseMode};

use crate::cargo_packages::{Package, Packages};
use crate::shell::Failure;

/// The licences that dependencies may have: a program with them may be distributed under the licences of this project, if
/// their texts come with it. None of them asks for the sources of the whole.
const ALLOWED: &[&str] = &[
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    // tiny-keccak, which only a macro uses.
    "CC0-1.0",
    // The certificates of the feature `stores`: data, not code.
    "CDLA-Permissive-2.0",
    // TLS of the feature `stores`.
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

/// Packages with other licences that no program of memferry contains: name and licence.
const ONLY_IN_CHORES: &[(&str, &str)] = &[
    // Writes the header of the C library. MPL-2.0 is about changes of its own files.
    ("cbindgen", "MPL-2.0"),
];

/// Checks all packages, with all features, also those that only builds and tests use.
pub(crate) fn run() -> Result<(), Failure> {
    let packages = Packages::read()?;
    let is_of_chores = |package: &Package| {
        ONLY_IN_CHORES.contains(&(&package.name, package.license.as_deref().unwrap_or_default()))
    };
    check(packages.all().filter(|package| !is_of_chores(package)))?;
    eprintln!("{} packages, all with licences of the list", packages.all().count());
    Ok(())
}

pub(crate) fn check<'a>(packages: impl Iterator<Item = &'a Package>) -> Result<(), Failure> {
    let refused: Vec<String> = packages
        .filter_map(|package| {
            let why = refusal(package.license.as_deref())?;
            Some(format!("{} {}: {why}", package.name, package.version))
        })
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "packages that the list of licences in xtask/src/licences.rs does not allow:\n  {}\nReplace them, or add the licence if \
         it lets others use memferry as before",
        refused.join("\n  ")
    )))
}

/// Why a licence is not allowed. Of alternatives (`OR`) one must be on the list, of conditions (`AND`) all.
fn refusal(license: Option<&str>) -> Option<String> {
    let Some(license) = license else { return Some("its manifest names no licence".to_owned()) };
    match Expression::parse_mode(license, ParseMode::LAX) {
        Ok(expression) if expression.evaluate(|it| ALLOWED.contains(&it.to_string().as_str())) => None,
        Ok(_) => Some(format!("its licence is {license}")),
        Err(error) => Some(format!("its licence {license} is not understood: {}", error.reason)),
    }
}

/// The licence of a package in the form of SPDX: older manifests have `MIT/Apache-2.0`.
pub(crate) fn expression(package: &Package) -> Result<String, Failure> {
    let given = package.license.as_deref().unwrap_or_default();
    let failed = |why: &dyn std::fmt::Display| {
        Failure(format!(
            "the licence of {} {}, {given:?}, is not understood: {why}",
            package.name, package.version
        ))
    };
    let canonical = Expression::canonicalize(given).map_err(|error| failed(&error.reason))?;
    let canonical = canonical.unwrap_or_else(|| given.to_owned());
    Expression::parse(&canonical).map_err(|error| failed(&error.reason))?;
    Ok(canonical)
}

/// The licence texts of packages, each text once, below the packages that have it.
pub(crate) fn texts(packages: &[&Package]) -> Result<String, Failure> {
    let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for package in packages {
        let title = format!("{} {} ({})", package.name, package.version, expression(package)?);
        let files = licence_files(package.manifest_path.parent().unwrap_or(Path::new("/")))?;
        if files.is_empty() {
            let authors = package.authors.join(", ");
            without.push(if authors.is_empty() { title } else { format!("{title}, by {authors}") });
            continue;
        }
        for file in files {
            let bytes = fs::read(&file)
                .map_err(|error| Failure(format!("cannot read {}: {error}", file.display())))?;
            let text = String::from_utf8_lossy(&bytes).replace('\r', "");
            by_text.entry(text.trim_matches('\n').to_owned()).or_default().push(title.clone());
        }
    }
    let mut texts: Vec<(Vec<String>, String)> =
        by_text.into_iter().map(|(text, titles)| (titles, text)).collect();
    texts.sort();
    let rule = "=".repeat(80);
    let mut all = "memferry contains these packages. Each text follows the packages whose sources have it.\n"
        .to_owned();
    for (titles, text) in texts {
        all += &format!("\n{rule}\n{}\n{rule}\n\n{text}\n", titles.join("\n"));
    }
    if !without.is_empty() {
        all += &format!(
            "\n{rule}\nPackages whose sources have no text of their licence:\n{}\n",
            without.join("\n")
        );
    }
    Ok(all)
}

/// The files of a package's directory that tell its licence.
fn licence_files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    const NAMES: [&str; 6] = ["licen", "copying", "copyright", "notice", "unlicense", "third-party"];
    let failed = |error| Failure(format!("cannot list {}; run `cargo fetch`: {error}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if NAMES.iter().any(|begin| name.starts_with(begin)) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step of CI.
    #[test]
    fn licences_of_the_workspace() {
        run().unwrap();
    }

    #[test]
    fn expressions() {
        for allowed in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR GPL-2.0-only) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0",
        ] {
            assert_eq!(refusal(Some(allowed)), None, "{allowed}");
        }
        for refused in ["GPL-3.0-only", "MIT AND LGPL-2.1-only", "MPL-2.0", "AGPL-3.0-or-later", "My-Own", ""]
        {
            assert!(refusal(Some(refused)).is_some(), "{refused}");
        }
        assert!(refusal(None).unwrap().contains("no licence"));
    }

    #[test]
    fn refused_packages_are_named() {
        let package = |name: &str, license: &str| Package {
            name: name.to_owned(),
            version: "2.0.0".to_owned(),
            license: Some(license.to_owned()),
            ..Package::default()
        };
        let packages = [package("free", "MIT"), package("strict", "AGPL-3.0-only")];
        let error = check(packages.iter()).unwrap_err().to_string();
        assert!(error.contains("strict 2.0.0: its licence is AGPL-3.0-only"), "{error}");
        assert!(!error.contains("free 2.0.0"), "{error}");
        assert_eq!(expression(&package("old", "MIT/Apache-2.0")).unwrap(), "MIT OR Apache-2.0");
        assert!(expression(&package("odd", "My-Own")).is_err());
    }

    #[test]
    fn texts_stand_once_below_their_packages() {
        let directory = tempfile::tempdir().unwrap();
        let package = |name: &str, files: &[(&str, &str)]| {
            let own = directory.path().join(name);
            fs::create_dir(&own).unwrap();
            files.iter().for_each(|(file, text)| fs::write(own.join(file), text).unwrap());
            Package {
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                license: Some("MIT".to_owned()),
                authors: vec!["A. Author".to_owned()],
                manifest_path: own.join("Cargo.toml"),
                ..Package::default()
            }
        };
        let a = package("a", &[("LICENSE-MIT", "the text\r\nof MIT\r\n"), ("lib.rs", "code")]);
        let b = package("b", &[("License.txt", "the text\nof MIT\n"), ("NOTICE", "a notice")]);
        let c = package("c", &[("README", "no licence")]);
        let all = texts(&[&a, &b, &c]).unwrap();
        assert_eq!(all.matches("the text\nof MIT\n").count(), 1, "{all}");
        assert!(all.contains("a 1.0.0 (MIT)\nb 1.0.0 (MIT)\n="), "{all}");
        assert!(all.contains("a notice") && !all.contains("code"), "{all}");
        assert!(all.contains("no text of their licence:\nc 1.0.0 (MIT), by A. Author\n"), "{all}");
    }
}

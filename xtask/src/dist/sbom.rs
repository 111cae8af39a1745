//! The bill of materials of the command: the packages whose code is in it, as CycloneDX JSON.
//!
//! The list comes from the messages of the build, not from the lock file, which also has the packages of tests, of other
//! features and of other members of the workspace.
//!
//! Source: CycloneDX 1.5, ECMA-424; the purl type `cargo`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cargo_packages::{Id, Package, Packages};
use crate::licences;
use crate::shell::Failure;

/// A part of the program that is not a package of cargo.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) license: &'static str,
}

/// The bill of the program of `command`, which contains the packages `contained`. `time` is in the format of RFC 3339.
pub(crate) fn bill(
    packages: &Packages,
    command: &Package,
    contained: &BTreeSet<Id>,
    parts: &[Part],
    time: &str,
    target: &str,
) -> Result<Value, Failure> {
    let list = packages.select(contained);
    let libraries: Vec<_> = list.iter().filter(|package| package.id != command.id).collect();
    let components = libraries.iter().map(|package| component(package, "library"));
    let mut components = components.collect::<Result<Vec<_>, _>>()?;
    components.extend(parts.iter().map(|part| {
        json!({
            "type": "library", "bom-ref": part.reference(), "name": part.name, "version": part.version,
            "scope": "required", "purl": part.reference(), "licenses": [{ "expression": part.license }],
        })
    }));
    let dependencies = list.iter().map(|package| {
        let mut on: Vec<_> = packages.dependencies(package, contained).map(reference).collect();
        if package.id == command.id {
            on.extend(parts.iter().map(Part::reference));
        }
        on.sort();
        json!({ "ref": reference(package), "dependsOn": on })
    });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "tools": { "components": [{ "type": "application", "name": "cargo xtask dist" }] },
            "component": component(command, "application")?,
            "properties": [{ "name": "memferry:target", "value": target }],
        },
        "components": components,
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

impl Part {
    fn reference(&self) -> String {
        format!("pkg:generic/{}@{}", self.name, self.version)
    }
}

/// The purl of a package, which is its reference too. `+` stands for a space in purls.
fn reference(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version.replace('+', "%2B"))
}

fn component(package: &Package, kind: &str) -> Result<Value, Failure> {
    let mut component = json!({
        "type": kind,
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "scope": "required",
        "purl": reference(package),
        "licenses": [{ "expression": licences::expression(package)? }],
    });
    if let Some(description) = &package.description {
        component["description"] = json!(description.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if let Some(checksum) = &package.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    Ok(component)
}

/// Checks that a bill is whole: each reference is of one component, and each dependency leads to one.
pub(crate) fn check(bill: &Value) -> Result<(), Failure> {
    let broken = |why: String| Err(Failure(format!("the bill of materials is broken: {why}")));
    let components = bill["components"].as_array().into_iter().flatten();
    let mut known = BTreeSet::new();
    for component in components.chain([&bill["metadata"]["component"]]) {
        let name = &component["bom-ref"];
        if !known.insert(name.to_string()) || !name.is_string() {
            return broken(format!("{name} is there twice, or nowhere"));
        }
        if component["licenses"][0]["expression"].as_str().is_none_or(str::is_empty) {
            return broken(format!("{name} has no licence"));
        }
    }
    for dependency in bill["dependencies"].as_array().into_iter().flatten() {
        let on = dependency["dependsOn"].as_array().into_iter().flatten();
        for name in on.chain([&dependency["ref"]]) {
            if !known.contains(&name.to_string()) {
                return broken(format!("{name} is no component"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo_packages::tests::{compiled, example};

    fn example_bill() -> Value {
        let packages = example();
        let command = packages.named("command").unwrap();
        let contained = packages.contained(&command.id, &compiled());
        let parts = [Part { name: "std", version: "1.95.0".to_owned(), license: "MIT OR Apache-2.0" }];
        bill(&packages, command, &contained, &parts, "2026-01-01T00:00:00Z", "x86_64-unknown-linux-gnu")
            .unwrap()
    }

    #[test]
    fn contained_packages_are_components() {
        let bill = example_bill();
        check(&bill).unwrap();
        let components = bill["components"].as_array().unwrap();
        let names: Vec<_> = components.iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["library", "std"]);
        assert_eq!(components[0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(components[0]["hashes"][0]["content"], "ab12");
        assert_eq!(components[0]["purl"], "pkg:cargo/library@1.0.0");
        let on = json!(["pkg:cargo/library@1.0.0", "pkg:generic/std@1.95.0"]);
        assert_eq!(bill["dependencies"][0], json!({ "ref": "pkg:cargo/command@1.0.0", "dependsOn": on }));
    }

    #[test]
    fn broken_bills_are_found() {
        let broken = |change: &dyn Fn(&mut Value)| {
            let mut bill = example_bill();
            change(&mut bill);
            check(&bill).unwrap_err().to_string()
        };
        let without_licence = broken(&|bill| bill["components"][0]["licenses"] = json!([]));
        assert!(without_licence.contains("has no licence"), "{without_licence}");
        let unknown = broken(&|bill| bill["dependencies"][0]["dependsOn"][0] = json!("pkg:cargo/none@1.0.0"));
        assert!(unknown.contains("none@1.0.0\" is no component"), "{unknown}");
        let twice = broken(&|bill| bill["components"][1]["bom-ref"] = json!("pkg:cargo/library@1.0.0"));
        assert!(twice.contains("is there twice"), "{twice}");
    }

    #[test]
    fn versions_with_metadata_are_encoded() {
        let package =
            Package { name: "zstd-sys".into(), version: "2.0.1+zstd.1.5".into(), ..Package::default() };
        assert_eq!(reference(&package), "pkg:cargo/zstd-sys@2.0.1%2Bzstd.1.5");
    }
}

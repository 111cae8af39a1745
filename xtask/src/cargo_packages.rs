//! The packages of the workspace and all packages that these depend on, as `cargo metadata` and `Cargo.lock` tell.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use crate::shell::{Failure, cargo, program, root};

/// How cargo names a package of one version and one source.
pub(crate) type Id = String;

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) id: Id,
    pub(crate) name: String,
    pub(crate) version: String,
    /// An expression of SPDX.
    pub(crate) license: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) repository: Option<String>,
    #[serde(default)]
    pub(crate) authors: Vec<String>,
    /// The directory of this file has the package's sources.
    pub(crate) manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
    /// SHA-256 of the package as published. The workspace's own packages have none.
    #[serde(skip)]
    pub(crate) checksum: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Target {
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: Id,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: Id,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// None: a normal dependency. Others are `dev` and `build`.
    kind: Option<String>,
}

/// All packages, and the normal dependencies of each.
pub(crate) struct Packages {
    all: BTreeMap<Id, Package>,
    dependencies: BTreeMap<Id, BTreeSet<Id>>,
}

impl Package {
    /// Whether the package runs in the compiler only.
    fn is_macro(&self) -> bool {
        self.targets.iter().any(|target| target.kind.iter().any(|kind| kind == "proc-macro"))
    }
}

impl Packages {
    /// The packages of the workspace with all features, for this machine's target.
    pub(crate) fn read() -> Result<Packages, Failure> {
        let metadata = cargo(["metadata", "--locked", "--all-features", "--format-version", "1"])
            .args(["--filter-platform", &host()?])
            .output()?;
        let lock = fs::read_to_string(root().join("Cargo.lock"))
            .map_err(|error| Failure(format!("cannot read Cargo.lock: {error}")))?;
        Packages::parse(&metadata, &lock)
    }

    fn parse(metadata: &str, lock: &str) -> Result<Packages, Failure> {
        let metadata: Metadata = serde_json::from_str(metadata)
            .map_err(|error| Failure(format!("cannot understand the output of `cargo metadata`: {error}")))?;
        let checksums = checksums(lock);
        // The list has optional packages that no feature asks for on this target.
        let used: BTreeSet<&Id> = metadata.resolve.nodes.iter().map(|node| &node.id).collect();
        let packages = metadata.packages.into_iter().filter(|package| used.contains(&package.id));
        let with_checksum = packages.map(|package| {
            let checksum = checksums.get(&(package.name.as_str(), package.version.as_str()));
            let checksum = checksum.map(|&checksum| checksum.to_owned());
            (package.id.clone(), Package { checksum, ..package })
        });
        let all = with_checksum.collect();
        let is_normal = |it: &&Dependency| it.dep_kinds.iter().any(|kind| kind.kind.is_none());
        let normal = |node: &Node| node.deps.iter().filter(is_normal).map(|it| it.pkg.clone()).collect();
        let dependencies =
            metadata.resolve.nodes.iter().map(|node| (node.id.clone(), normal(node))).collect();
        Ok(Packages { all, dependencies })
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Package> {
        self.all.values()
    }

    /// The package of the workspace with this name.
    pub(crate) fn named(&self, name: &str) -> Result<&Package, Failure> {
        let found = self.all().find(|package| package.name == name && package.checksum.is_none());
        found.ok_or_else(|| Failure(format!("the workspace has no package {name}")))
    }

    /// The packages whose code is in the programs of `package`, itself included. `compiled` are the packages of its build.
    pub(crate) fn contained(&self, package: &Id, compiled: &BTreeSet<Id>) -> BTreeSet<Id> {
        let mut found = BTreeSet::new();
        let mut open = vec![package];
        while let Some(id) = open.pop() {
            if self.all.get(id).is_some_and(|it| !it.is_macro())
                && compiled.contains(id)
                && found.insert(id.clone())
            {
                open.extend(&self.dependencies[id]);
            }
        }
        found
    }

    /// The packages of these ids, by name and version.
    pub(crate) fn select(&self, ids: &BTreeSet<Id>) -> Vec<&Package> {
        let mut packages: Vec<_> = ids.iter().filter_map(|id| self.all.get(id)).collect();
        packages.sort_by_key(|package| (&package.name, &package.version));
        packages
    }

    /// The normal dependencies of a package that are among `ids`.
    pub(crate) fn dependencies<'a>(
        &'a self,
        package: &Package,
        ids: &'a BTreeSet<Id>,
    ) -> impl Iterator<Item = &'a Package> {
        let dependencies = self.dependencies.get(&package.id).into_iter().flatten();
        dependencies.filter(|id| ids.contains(*id)).filter_map(|id| self.all.get(id))
    }
}

/// The target triple of this machine.
pub(crate) fn host() -> Result<String, Failure> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = program(&rustc).arg("-vV").output()?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure("`rustc -vV` names no host".to_owned()))
}

/// The checksums of Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    fn value<'a>(package: &'a str, key: &str) -> Option<&'a str> {
        package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
    }
    let of =
        |package| Some(((value(package, "name")?, value(package, "version")?), value(package, "checksum")?));
    lock.split("[[package]]").skip(1).filter_map(of).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A command that depends on a library and on a macro; the library has a dependency for its build, and the macro one of
    /// its own.
    pub(crate) fn example() -> Packages {
        let package = |name: &str, kind: &str| {
            format!(
                r#"{{"id":"{name}#1.0.0","name":"{name}","version":"1.0.0","license":"MIT/Apache-2.0","description":null,
                "repository":"https://example.org/{name}","manifest_path":"/none/{name}/Cargo.toml",
                "targets":[{{"kind":["{kind}"]}}]}}"#
            )
        };
        let node = |name: &str, dependencies: &[(&str, &str)]| {
            let dependency = |(name, kind): &(&str, &str)| {
                format!(r#"{{"pkg":"{name}#1.0.0","dep_kinds":[{{"kind":{kind}}}]}}"#)
            };
            let dependencies: Vec<_> = dependencies.iter().map(dependency).collect();
            format!(r#"{{"id":"{name}#1.0.0","deps":[{}]}}"#, dependencies.join(","))
        };
        let metadata = format!(
            r#"{{"packages":[{}],"resolve":{{"nodes":[{}]}}}}"#,
            [
                package("command", "bin"),
                package("library", "lib"),
                package("macro", "proc-macro"),
                package("parser", "lib"),
                package("cc", "lib"),
                package("optional", "lib"),
                package("unused", "lib"),
            ]
            .join(","),
            [
                node("command", &[("library", "null"), ("macro", "null"), ("optional", "null")]),
                node("library", &[("cc", "\"build\"")]),
                node("macro", &[("parser", "null")]),
                node("parser", &[]),
                node("cc", &[]),
                node("optional", &[]),
            ]
            .join(",")
        );
        let lock = "version = 4\n\n[[package]]\nname = \"command\"\nversion = \"1.0.0\"\ndependencies = [\n \"library\",\n]\n\n\
                    [[package]]\nname = \"library\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"ab12\"\n";
        Packages::parse(&metadata, lock).unwrap()
    }

    /// What the build of [`example`] compiles with default features.
    pub(crate) fn compiled() -> BTreeSet<Id> {
        ["command", "library", "macro", "parser", "cc"].map(|name| format!("{name}#1.0.0")).into()
    }

    #[test]
    fn packages_of_a_program() {
        let packages = example();
        let contained = packages.contained(&"command#1.0.0".to_owned(), &compiled());
        let names = |list: Vec<&Package>| list.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(packages.select(&contained)), ["command", "library"]);
        let command = packages.named("command").unwrap();
        assert_eq!(names(packages.dependencies(command, &contained).collect()), ["library"]);
        assert!(packages.named("library").is_err(), "it is not of the workspace");
        assert_eq!(packages.all().count(), 6, "one is not used");
    }

    #[test]
    fn checksums_of_the_lock_file() {
        let packages = example();
        let checksum = |name: &str| packages.all().find(|it| it.name == name).unwrap().checksum.clone();
        assert_eq!((checksum("library"), checksum("command")), (Some("ab12".to_owned()), None));
        let other = "[[package]]\nname = \"a\"\nversion = \"2\"\n\n[[package]]\nname = \"b\"\nversion = \"3\"\nchecksum = \"c\"\n";
        assert_eq!(checksums(other), BTreeMap::from([(("b", "3"), "c")]));
    }
}

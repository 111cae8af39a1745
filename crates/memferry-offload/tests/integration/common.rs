//! Runs programs by the example `offload`.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use memferry_testing::{Needs, skip};

/// An example, which Cargo builds beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    assert!(path.is_file(), "{} is missing: cargo build -p memferry-offload --examples", path.display());
    path
}

/// `offload OPTIONS -- PROGRAM`; words are separated by spaces.
pub(crate) fn offload(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(example("offload"));
    command.args(options.split_whitespace()).arg("--").args(program).stdin(Stdio::null());
    command.env_remove("MEMFERRY_OFFLOAD").env_remove("LD_PRELOAD");
    command
}

/// Standard output and standard error.
pub(crate) fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// Whether this machine can run programs on emulated devices. If not, the calling test is skipped.
pub(crate) fn has_emulation() -> bool {
    static OUTPUT: OnceLock<Output> = OnceLock::new();
    let output = OUTPUT.get_or_init(|| offload("--emulated 1 --no-summary", &["true"]).output().unwrap());
    if !output.status.success() {
        skip(Needs::Namespaces, text(output));
    }
    output.status.success()
}

/// Scripts of real programs: name, program that must be installed, script.
pub(crate) const SCRIPTS: &[(&str, &str, &str)] = &[
    ("sort", "sort", "seq 1 200000 | sed 's/$/ padding padding/' | sort -r --buffer-size 4M | cksum"),
    (
        "sqlite3",
        "sqlite3",
        "sqlite3 :memory: \"pragma page_size=65536; create table t(a, b); with recursive c(x) as (select 1 union all \
         select x+1 from c where x < 300) insert into t select x, zeroblob(40000 + x) || hex(x * 7919) from c; create \
         table u as select a, b || b as b from t; select count(*), sum(length(b)), max(substr(b, -4)) from u;\"",
    ),
    (
        "tar and zstd",
        "zstd",
        "d=$(mktemp -d) && seq 1 300000 > $d/a && head -c 3000000 /dev/zero > $d/b && tar -C $d -cf - a b | zstd -q -5 | \
         zstd -q -d | tar -C $d -xOf - | cksum; rm -r $d",
    ),
    (
        "python",
        "python3",
        "python3 -c \"
import hashlib
a = bytearray((i * 7919 >> 3) & 255 for i in range(1000003))
h = hashlib.sha256()
for i in range(20):
    b = bytes(a[i * 1000:]); c = bytearray(b); c[len(c) // 2:] = b[:len(b) // 2]
    c.extend(b); del c[:12345]; c += bytes(500000 + i)
    x = bytearray(b); x[-1] ^= 1
    assert x != b and (bytes(x) < b) == (x[-1] < b[-1]) and b == bytes(memoryview(b)[:])
    h.update(c); h.update(b.replace(b'a', b'bb'))
print(h.hexdigest())
\"",
    ),
    (
        "git",
        "git",
        "d=$(mktemp -d) && cd $d && git init -q . && seq 1 200000 > a && git add a && git -c user.name=x -c user.email=x@x \
         commit -q -m m --date=2020-01-01T00:00:00 && git gc -q && git fsck --full && git show HEAD:a | cksum; rm -rf $d",
    ),
];

/// Whether a program is installed; if not, a part of the calling test is skipped.
pub(crate) fn is_installed(program: &'static str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().unwrap();
    if !found.status.success() {
        skip(Needs::Program(program), "it is not installed; `cargo xtask setup` does it");
    }
    found.status.success()
}

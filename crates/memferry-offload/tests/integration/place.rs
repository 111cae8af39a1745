//! The library of `memferry place` in real programs, on any machine. `numa_place.rs` looks at the nodes of pages.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output, Stdio};

use memferry_testing::{Needs, skip};

use crate::common::{example, is_installed, text};

/// The system's interpreter: `python3` in PATH may be a script that starts others.
const PYTHON: &str = "/usr/bin/python3";

/// `place --weights 0=2 OPTIONS -- PROGRAM`; words are separated by spaces.
fn place(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(example("place"));
    command.args(["--weights", "0=2"]).args(options.split_whitespace()).arg("--").args(program);
    command.stdin(Stdio::null()).env_remove("MEMFERRY_PLACE").env_remove("LD_PRELOAD");
    command
}

/// Whether the kernel has policies of memory. If not, the calling test is skipped.
fn has_policies() -> bool {
    let has = fs::exists("/proc/self/numa_maps").is_ok_and(|has| has);
    if !has {
        skip(Needs::Kernel("numa_maps"), "it has no NUMA");
    }
    has
}

fn python(options: &str, script: &str) -> Output {
    place(options, &[PYTHON, "-c", script]).output().unwrap()
}

/// Large memory has a policy, and small memory has none.
#[test]
fn large_ranges_have_a_policy() {
    if !is_installed(PYTHON) || !has_policies() {
        return;
    }
    let script = "
import mmap
allocated = bytearray(8 << 20)
mapped = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
mapped[:] = b'x' * (4 << 20)
policies = [line.split()[1] for line in open('/proc/self/numa_maps') if 'stack' in line or 'prefer:0' in line]
print(sorted(set(policies)), len(policies))
";
    let output = python("", script);
    let told = text(&output);
    assert!(output.status.success() && told.contains("['default', 'prefer:0']"), "{told}");
    assert!(told.contains("anonymous mappings with a policy: 1, 4.0 MiB"), "{told}");
    assert!(
        told.contains("allocations with a policy") && told.contains("placed and freed (samples)"),
        "{told}"
    );
    let told = text(&python("--min-size 1000000000", script));
    assert!(told.contains("['default'] 1") && told.contains("nothing was placed"), "{told}");
}

/// Allocations of all sizes, and moves of them, keep their content: with stripes from one page on, and on several threads.
#[test]
fn content_is_kept_under_stress() {
    if !is_installed(PYTHON) || !has_policies() {
        return;
    }
    let script = "
import mmap, random, threading
def work(seed):
    random.seed(seed)
    held = {}
    for step in range(3000):
        key = random.randrange(20)
        size = random.choice([100, 5000, 70000, 300000, 3000000])
        if key in held:
            content, byte, old = held.pop(key)
            assert content[:1] == content[-1:] == bytes([byte]) and len(content) == old
            if isinstance(content, bytearray):
                content.extend(bytes([byte]) * size)
                assert content.count(byte) == old + size
        byte = random.randrange(256)
        content = bytearray([byte]) * size
        if step % 7 == 0:
            size = (size + 4095) // 4096 * 4096
            content = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            content[:] = bytes([byte]) * size
            content.resize(2 * size)
            content[size:] = bytes([byte]) * size
            size *= 2
        held[key] = content, byte, size
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('kept')
";
    let output = python("--min-size 4096", script);
    let told = text(&output);
    assert!(output.status.success() && told.contains("kept"), "{told}");
    assert!(!told.contains("refused"), "{told}");
}

/// Programs print the same with and without the library.
#[test]
fn outputs_are_the_same() {
    if !has_policies() {
        return;
    }
    let script =
        "seq 1 200000 | sort -r | sort -n | tail -1000; ls -l /usr/bin | sort; (sort /etc/passwd & wait)";
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        output.stdout
    };
    let plain = run(Command::new("sh").args(["-c", script]).stdin(Stdio::null()));
    assert_eq!(run(&mut place("--min-size 4096 --no-summary", &["sh", "-c", script])), plain);
}

/// A file in the page cache is read by a mapping with a policy, and its content is that of the file.
#[test]
fn files_are_populated() {
    if !is_installed(PYTHON) || !has_policies() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.data");
    fs::write(&path, vec![7; (3 << 20) + 5]).unwrap();
    let script = format!(
        "
import mmap
file = open('{}', 'rb')
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
mode = next(line for line in open('/proc/self/numa_maps') if 'model.data' in line)
assert 'N0=769' in mode, mode
assert mapped[:] == b'\\7' * ((3 << 20) + 5)
",
        path.display()
    );
    let output = python("--file *.data", &script);
    let told = text(&output);
    assert!(output.status.success() && told.contains("files with a policy: 1, 3.0 MiB"), "{told}");
    let output = python("--file *.other", &script.replace("assert 'N0=769' in mode, mode", ""));
    assert!(!text(&output).contains("files with a policy"), "{}", text(&output));
}

#[test]
fn each_process_appends_json_to_the_file() {
    if !is_installed(PYTHON) || !has_policies() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("summary");
    let script = "
import json, os, sys
large = bytearray(4 << 20)
if os.fork() == 0:
    del large
    sys.exit(0)
os.wait()
";
    let options = format!("--summary {}", file.display());
    assert!(python(&options, script).status.success());
    let check = "
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
assert len(lines) == 2, lines
child, parent = lines
assert parent['heap']['bytes'] >= 4 << 20 and parent['pattern'] == 'stripes' and parent['weights'] == {'0': 2}, parent
assert child['heap']['bytes'] < 4 << 20, 'a child counts its own ranges'
assert sum(parent['freed_samples'].values()) > 3 << 20 or any(m['policy'] == 'prefer' for m in parent['mappings']), parent
";
    let checked = Command::new(PYTHON).args(["-c", check]).arg(&file).output().unwrap();
    assert!(checked.status.success(), "{}{}", text(&checked), fs::read_to_string(file).unwrap());
}

#[test]
fn programs_without_the_library_get_a_note() {
    let directory = tempfile::tempdir().unwrap();
    if is_installed("gcc") {
        let source = directory.path().join("static.c");
        fs::write(&source, "#include <stdio.h>\nint main() { puts(\"ran\"); return 3; }\n").unwrap();
        let program = directory.path().join("static");
        let built = Command::new("gcc").args(["-static", "-o"]).arg(&program).arg(&source).output().unwrap();
        assert!(built.status.success(), "{}", text(&built));
        let output = place("", &[program.to_str().unwrap()]).output().unwrap();
        let told = text(&output);
        assert_eq!(output.status.code(), Some(3), "{told}");
        assert!(
            told.contains("ran") && told.contains("is linked statically, so the library cannot place"),
            "{told}"
        );
    }
    let setuid = directory.path().join("setuid");
    fs::copy("/bin/true", &setuid).unwrap();
    if chown(&setuid, Some(54_321), None).is_err() {
        return skip(Needs::Root, "only root can give a file to another user");
    }
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
    let output = place("", &[setuid.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success() && text(&output).contains("setuid"), "{}", text(&output));
}

#[test]
fn errors_and_off() {
    let status = |program: &str| place("", &[program]).output().unwrap().status.code();
    assert_eq!((status("a-name-that-nobody-uses"), status("/tmp")), (Some(127), Some(126)));
    let output = place("", &["env"]).env("MEMFERRY_PLACE", "off").output().unwrap();
    assert!(!text(&output).contains("LD_PRELOAD"), "{}", text(&output));
    if !has_policies() {
        return;
    }
    // The command inside has the policy of the command outside.
    let inner = example("place");
    let output =
        place("--whole", &[inner.to_str().unwrap(), "--weights", "0=1", "--", "true"]).output().unwrap();
    let told = text(&output);
    assert_eq!(output.status.code(), Some(125), "{told}");
    assert!(told.contains("already has the memory policy interleave"), "{told}");
    // With LD_PRELOAD alone.
    let output = place("", &["env"]).output().unwrap();
    let preload =
        text(&output).lines().find_map(|line| line.strip_prefix("LD_PRELOAD=").map(str::to_owned)).unwrap();
    let output = Command::new("true").env("LD_PRELOAD", preload).output().unwrap();
    assert!(
        output.status.success() && text(&output).contains("MEMFERRY_PLACE_WEIGHTS must be"),
        "{}",
        text(&output)
    );
}

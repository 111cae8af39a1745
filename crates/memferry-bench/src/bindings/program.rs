//! The programs of the benchmark, in C and Python.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::cache::Size;

const SOURCE: &str = include_str!("hits.c");
const PYTHON_SOURCE: &str = include_str!("hits.py");

/// How a program has the library.
#[derive(Copy, Clone, Debug)]
pub(super) enum Link {
    Shared,
    Static,
}

/// The running program, with its cache filled.
pub(super) struct Program {
    child: Child,
    requests: ChildStdin,
    times: BufReader<ChildStdout>,
}

impl Program {
    /// Compiles the program with `cc` against the library below `prefix`, and starts it.
    pub(super) fn start(prefix: &Path, link: Link, size: Size, seed: u64) -> Result<Program, String> {
        let header = prefix.join("include/memferry.h");
        if !header.is_file() {
            return Err(format!(
                "there is no {}; run `cargo xtask install-c --prefix {}`, or pass another --prefix",
                header.display(),
                prefix.display()
            ));
        }
        let directory =
            tempfile::tempdir().map_err(|error| format!("cannot make a temporary directory: {error}"))?;
        let source = directory.path().join("hits.c");
        std::fs::write(&source, SOURCE)
            .map_err(|error| format!("cannot write {}: {error}", source.display()))?;
        let built = directory.path().join("hits");
        let libraries = prefix.join("lib");
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-std=gnu11"]).arg(&source).arg("-o").arg(&built);
        compiler.arg("-I").arg(prefix.join("include")).arg("-L").arg(&libraries);
        match link {
            Link::Shared => {
                compiler.arg(format!("-Wl,-rpath,{}", libraries.display())).arg("-lmemferry");
            }
            // The libraries of memferry.pc's Libs.private.
            Link::Static => {
                compiler.arg(libraries.join("libmemferry.a"));
                compiler.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
            }
        }
        let output = compiler
            .output()
            .map_err(|error| format!("cannot run cc: {error}; install a C compiler, such as gcc"))?;
        if !output.status.success() {
            return Err(format!("cc failed: {}", String::from_utf8_lossy(&output.stderr)));
        }
        Program::spawn(&mut Command::new(&built), size, seed)
    }

    /// Starts the Python program, with the package `memferry` of `python`.
    pub(super) fn start_python(python: &Path, size: Size, seed: u64) -> Result<Program, String> {
        Program::spawn(Command::new(python).arg("-c").arg(PYTHON_SOURCE), size, seed)
    }

    fn spawn(command: &mut Command, size: Size, seed: u64) -> Result<Program, String> {
        let Size { keys_count, block_bytes, hits_count, .. } = size;
        let name = command.get_program().display().to_string();
        let mut child = command
            .args([keys_count, block_bytes, hits_count].map(|number| number.to_string()))
            .arg(seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        let (requests, times) = (child.stdin.take(), child.stdout.take());
        let (requests, times) = (requests.expect("it is piped"), BufReader::new(times.expect("it is piped")));
        let mut program = Program { child, requests, times };
        // The program is mapped from here on, and its file may go.
        program.hit_ns()?;
        Ok(program)
    }

    /// Makes a round of hits. Returns the time of one.
    pub(super) fn hit_ns(&mut self) -> Result<f64, String> {
        self.ask("")
    }

    /// Lets the Python program run `query`. Returns its time.
    pub(super) fn query_ns(&mut self, query: &str) -> Result<f64, String> {
        self.ask(query)
    }

    fn ask(&mut self, request: &str) -> Result<f64, String> {
        let mut line = String::new();
        let asked = self.requests.write_all(format!("{request}\n").as_bytes());
        asked
            .and_then(|()| self.times.read_line(&mut line))
            .map_err(|error| format!("the program does not answer: {error}"))?;
        line.trim().parse().map_err(|_| "the program failed; its message is above".to_owned())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The end of its input would end it as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

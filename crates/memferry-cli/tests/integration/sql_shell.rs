//! The shell of `memferry sql` on a pseudo-terminal, as a user types.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{OpenptyResult, Winsize, openpty};

const COLUMNS: u16 = 100;
const PATIENCE: Duration = Duration::from_secs(60);
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const UP: &str = "\x1b[A";

/// A terminal with the command in it.
struct Terminal {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// What was shown since the last expectation.
    shown: String,
    child: Child,
}

impl Terminal {
    /// Starts the shell and waits for its prompt.
    fn open(state: &Path, arguments: &[&str]) -> Terminal {
        let size = Winsize { ws_row: 40, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).unwrap();
        // The terminal becomes the controlling terminal, whose Ctrl-C is a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_memferry"), "sql"]).args(arguments);
        command.env("TERM", "xterm").env("XDG_STATE_HOME", state);
        command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        let child = command.spawn().unwrap();
        // The command holds the terminal's side; without it, reading would not end with the child.
        drop(command);
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().unwrap();
        let (sender, screen) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end is an error on Linux: nobody has the terminal open.
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                if sender.send(bytes[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut terminal = Terminal { keyboard, screen, shown: String::new(), child };
        terminal.shows("memferry> ");
        terminal
    }

    fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is shown, and forgets what was shown up to it.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            match self.screen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(error) => panic!("{text:?} was not shown ({error}), but {:?}", self.shown),
            }
        }
    }

    /// Runs a statement and expects `text` in its answer, then the next prompt.
    #[track_caller]
    fn answers(&mut self, statement: &str, text: &str) {
        self.types(&format!("{statement}\r"));
        self.shows(text);
        self.shows("memferry> ");
    }

    /// Waits for the end of the shell.
    #[track_caller]
    fn ends(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the shell does not end: {:?}", self.shown);
            match self.screen.recv_timeout(Duration::from_millis(10)) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// CPU time that the command has used, in ticks of 10 ms.
    fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // utime and stime, fields 14 and 15. Source: proc_pid_stat(5). The name before may have spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn statements_over_several_lines_and_their_history() {
    let state = tempfile::tempdir().unwrap();
    let mut shell = Terminal::open(state.path(), &[]);
    shell.types("select 40 +\r");
    // Nothing runs before the semicolon.
    shell.types("2 as answer;\r");
    shell.shows("answer\r\n------\r\n    42\r\n\r\n1 row in ");
    shell.shows("memferry> ");
    shell.types(CTRL_D);
    assert!(shell.ends().success());

    let file = state.path().join("memferry/sql_history");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let mut shell = Terminal::open(state.path(), &[]);
    shell.types(&format!("{UP}\r"));
    shell.shows("------\r\n    42\r\n");
    shell.shows("memferry> ");
    shell.types("\\q\r");
    assert!(shell.ends().success());
}

#[test]
fn tab_completes() {
    let state = tempfile::tempdir().unwrap();
    let mut shell = Terminal::open(state.path(), &[]);
    shell.answers("create table trips as select 12 as fare, 3 as stops;", "done");
    shell.types("sel\t far\t from tri\t;\r");
    shell.shows("select fare");
    shell.shows("fare\r\n----\r\n  12\r\n");
    shell.shows("memferry> ");
    shell.types("select md\t('a') as digest;\r");
    shell.shows("0cc175b9c0f1b6a831c399e269772661");
}

#[test]
fn ctrl_c_cancels_the_query_and_not_the_shell() {
    let state = tempfile::tempdir().unwrap();
    let mut shell = Terminal::open(state.path(), &[]);
    // Takes hours, in a join that makes all its batches of one batch of its source.
    let long = "select sum(a.value % b.value) from range(1, 1000000) a, range(1, 10000000) b;";
    shell.types(&format!("{long}\r"));
    let started = shell.cpu_ticks();
    while shell.cpu_ticks() < started + 100 {
        thread::sleep(Duration::from_millis(10));
    }
    let interrupted = Instant::now();
    shell.types(CTRL_C);
    shell.shows("cancelled");
    shell.shows("memferry> ");
    // Its threads have stopped: at most a few ticks in 200 ms.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = shell.cpu_ticks();
        thread::sleep(Duration::from_millis(200));
        if shell.cpu_ticks() - before <= 3 {
            break;
        }
        assert!(Instant::now() < deadline, "the query goes on");
    }
    // A join that does not yield stops a minute later.
    assert!(interrupted.elapsed() < PATIENCE / 3, "the query went on for {:?}", interrupted.elapsed());
    shell.answers("select 5 as five;", "five\r\n----\r\n   5");

    // At the prompt it clears what was written.
    shell.types("select 'abc");
    shell.shows("'abc");
    shell.types(CTRL_C);
    shell.shows("memferry> ");
    shell.answers("select 6 as six;", "six\r\n---\r\n  6");
    shell.types(CTRL_D);
    assert!(shell.ends().success());
}

#[test]
fn errors_do_not_end_the_shell() {
    let state = tempfile::tempdir().unwrap();
    let mut shell = Terminal::open(state.path(), &[]);
    shell.answers("selec 1;", "error: cannot parse the statement");
    shell.answers("select 1 / 0 as x; select 8;", "error: ");
    shell.answers("\\nonsense", "there is no command \\nonsense");
    shell.answers("\\timing", "timing is off");
    shell.answers("select 7 as seven;", "7\r\n\r\n1 row\r\n");
    shell.types("exit\r");
    assert!(shell.ends().success());
}

#[test]
fn tables_fit_the_terminal() {
    let state = tempfile::tempdir().unwrap();
    let mut shell = Terminal::open(state.path(), &[]);
    shell.types("select repeat('x', 300) as wide, 1234567 as n;\r");
    shell.shows("1 row in ");
    shell.types("select repeat('x', 300) as wide, 1234567 as n;\r");
    shell.shows("wide");
    // The echo of the statement is over; the next lines are the table.
    shell.shows("\r\n-");
    shell.shows("x…  1234567\r\n");
}

#[test]
fn the_file_of_rows_is_kept_at_the_end() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("rows.csv");
    let mut shell = Terminal::open(state.path(), &["--format", "csv", "--output", file.to_str().unwrap()]);
    shell.answers("select 1 as a;", "1 row in ");
    shell.answers("selec;", "error: ");
    shell.types("\\q\r");
    assert!(shell.ends().success());
    assert_eq!(fs::read_to_string(&file).unwrap(), "a\n1\n");
}

//! `memferry report`: its files, its errors, and its page in a browser.

#[allow(dead_code, reason = "a part of it is enough here")]
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use memferry_testing::{Needs, skip};
use serde_json::Value;

use crate::support::{FAILURE, USAGE, fails, memferry, prints, says, text};

fn report(directory: &Path, arguments: &[&str]) -> Output {
    let out = directory.to_str().unwrap();
    memferry(&[&["report", "--out", out], arguments].concat()).output().unwrap()
}

#[test]
fn figures_are_drawn_again_from_their_csv() {
    let directory = tempfile::tempdir().unwrap();
    let output = report(directory.path(), &["--machine", "xeon-max-9468-2s-flat"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut count = 0;
    for entry in fs::read_dir(directory.path()).unwrap() {
        let csv = entry.unwrap().path();
        if csv.extension().is_none_or(|it| it != "csv") || csv.ends_with("machine.csv") {
            continue;
        }
        let again = prints(&["report", "--figure", csv.to_str().unwrap(), "--svg", "-"]);
        assert_eq!(again, fs::read_to_string(csv.with_extension("svg")).unwrap(), "{}", csv.display());
        count += 1;
    }
    assert!(text(&output.stdout).contains(&format!("{count} figures")), "{count}: {}", text(&output.stdout));
    assert!(count >= 15, "{count}");
    let page = fs::read_to_string(directory.path().join("index.html")).unwrap();
    assert!(page.ends_with("</html>\n"));
}

#[test]
fn wrong_targets_and_inputs_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "mine").unwrap();
    for target in [&file, &file.join("below"), Path::new("/proc/nowhere")] {
        says(&report(target, &[]), FAILURE, &["cannot write the report to", "choose --out DIR"]);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    // A usage error writes nothing.
    let taken = directory.path().join("taken");
    fs::create_dir_all(taken.join("kept")).unwrap();
    says(&report(&taken, &["--machine", "nonesuch"]), USAGE, &["nonesuch"]);
    says(&report(&taken, &["--results", "/nowhere"]), FAILURE, &["/nowhere is not a directory", "--results"]);
    assert_eq!(fs::read_dir(&taken).unwrap().count(), 1);

    let figure = file.to_str().unwrap();
    fails(&["report"], USAGE, &["required arguments"]);
    fails(&["report", "--figure", figure], USAGE, &["required arguments"]);
    fails(
        &["report", "--figure", figure, "--svg", "-"],
        FAILURE,
        &["cannot draw", "not a figure of a report"],
    );
    fails(
        &["report", "--figure", "/nowhere.csv", "--svg", "-"],
        FAILURE,
        &["cannot read the figure /nowhere.csv"],
    );
}

/// Runs Chromium; skips the test without it.
fn chromium(arguments: &[&str]) -> Option<Output> {
    let profile = tempfile::tempdir().unwrap();
    let profile = format!("--user-data-dir={}", profile.path().display());
    // Without the sandbox, whose namespaces containers and root lack. The browser only shows our own page.
    let always = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        &profile,
    ];
    match Command::new("chromium").args(always).args(arguments).output() {
        Ok(output) => Some(output),
        Err(_) => {
            skip(Needs::Program("chromium"), "chromium is missing; `cargo xtask setup` installs it");
            None
        }
    }
}

/// The output of the browser's console.
fn console(output: &Output) -> Vec<String> {
    text(&output.stderr).lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect()
}

#[test]
fn a_browser_has_nothing_to_complain_about() {
    let directory = tempfile::tempdir().unwrap();
    // All kinds of figures, and a machine whose picture is wider than a phone.
    assert!(report(directory.path(), &["--machine", "xeon-max-9468-2s-flat"]).status.success());
    let url = |name: &str| format!("file://{}", directory.path().join(name).display());
    let Some(output) = chromium(&["--dump-dom", &url("index.html")]) else { return };
    assert!(text(&output.stdout).contains("Recommended settings"), "{}", text(&output.stderr));
    assert_eq!(console(&output), Vec::<String>::new());

    // The same with a script, which the page forbids, shows that a complaint would be seen.
    let page = fs::read_to_string(directory.path().join("index.html")).unwrap();
    let with_script = page.replace("</body>", "<script>nothing()</script></body>");
    fs::write(directory.path().join("script.html"), with_script).unwrap();
    let output = chromium(&["--dump-dom", &url("script.html")]).unwrap();
    assert!(!console(&output).is_empty(), "{}", text(&output.stderr));

    // As wide as a phone, it is not to be scrolled sideways.
    let seen = in_frame(directory.path(), &page, 400, &[], "").unwrap();
    assert!(seen.width <= seen.room && seen.room <= 400, "{seen:?}");
}

/// The layout of a page in a frame.
#[derive(Debug, PartialEq, serde::Deserialize)]
struct Seen {
    /// What there is, and how much is seen of it.
    width: u32,
    room: u32,
    /// Of the page, and of text in figures.
    paper: String,
    ink: String,
    /// Pictures that are wider than the page.
    cut: u32,
    /// Whether the predictions, which are behind a click, are seen.
    is_open: bool,
}

/// The page in a frame: browsers have a least width of their own, frames have not. `before` runs on its document `d`.
fn in_frame(directory: &Path, page: &str, width: u32, arguments: &[&str], before: &str) -> Option<Seen> {
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    let script = format!(
        "const w = this.contentWindow, d = this.contentDocument, style = it => w.getComputedStyle(it); {before}; \
         const sticks = it => it.getBoundingClientRect().right > w.innerWidth + 1; \
         document.title = JSON.stringify({{ width: d.documentElement.scrollWidth, room: w.innerWidth, \
         paper: style(d.body).backgroundColor, ink: style(d.querySelector('.figures text.ink')).fill, \
         cut: [...d.querySelectorAll('svg')].filter(sticks).length, \
         is_open: d.querySelector('#errors details td').checkVisibility({{ contentVisibilityAuto: true }}) }})"
    );
    let frame = format!(
        "<!doctype html><iframe width={width} height=800 srcdoc=\"{escaped}\" onload=\"{script}\"></iframe>"
    );
    let file = directory.join("frame.html");
    fs::write(&file, frame).unwrap();
    let output = chromium(&[arguments, &["--dump-dom", &format!("file://{}", file.display())]].concat())?;
    let dom = text(&output.stdout);
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    let title = title.unwrap_or_else(|| panic!("the frame tells nothing: {}", text(&output.stderr)));
    Some(serde_json::from_str(title).unwrap())
}

/// Rules for paper in place of those for screens, as printing has them.
const ON_PAPER: &str = "for (const sheet of d.styleSheets) for (const rule of sheet.cssRules) if (rule.media) { \
    const of = rule.media.mediaText; \
    rule.media.mediaText = of === 'print' ? 'all' : of.startsWith('screen') ? 'not all' : of }";

/// A dark page on a dark screen, and none on paper, where nothing is cut off and nothing needs a click.
#[test]
fn dark_and_printed() {
    let directory = tempfile::tempdir().unwrap();
    assert!(report(directory.path(), &["--machine", "xeon-max-9468-2s-flat"]).status.success());
    let page = fs::read_to_string(directory.path().join("index.html")).unwrap();
    let seen = |width, scheme: &str, before| {
        let setting = format!("--blink-settings=preferredColorScheme={scheme}");
        in_frame(directory.path(), &page, width, &[&setting], before)
    };
    let (dark, light) = ("0", "1");
    let Some(on_screen) = seen(1200, dark, "") else { return };
    assert_eq!((&*on_screen.paper, &*on_screen.ink), ("rgb(17, 22, 29)", "rgb(232, 237, 243)"));
    assert!(!on_screen.is_open, "{on_screen:?}");
    let light_colours = ("rgb(255, 255, 255)", "rgb(23, 32, 43)");
    let on_screen = seen(1200, light, "").unwrap();
    assert_eq!((&*on_screen.paper, &*on_screen.ink), light_colours);
    // A4 without its margins, for a reader with a dark screen.
    let printed = seen(718, dark, ON_PAPER).unwrap();
    assert_eq!((&*printed.paper, &*printed.ink), light_colours);
    assert!(printed.width <= printed.room && printed.cut == 0 && printed.is_open, "{printed:?}");
}

/// Runs `report --collect` for the steps.
fn collect(file: &Path, steps: &[&str]) -> Command {
    let mut command = memferry(&["report", "--quick", "--collect", file.to_str().unwrap()]);
    command.args(steps.iter().flat_map(|step| ["--only", step]));
    command
}

/// The lines of a command that succeeds.
fn lines(command: &mut Command) -> Vec<String> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_collection_gives_a_page_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let file = path("mine.json");
    let steps = ["topology", "calibrate", "submit", "remote"];
    let mut printed = lines(&mut collect(&file, &steps));
    let is_done = |printed: &[String], step: &str| printed.iter().any(|line| line.starts_with(step));
    for step in ["topology: done", "calibrate: ", "submit: done", "remote: "] {
        assert!(is_done(&printed, step), "{printed:?}");
    }
    // Calibration refuses figures that other work has disturbed. The same command does only what is left.
    for _ in 0..20 {
        if is_done(&printed, "calibrate: done") {
            break;
        }
        assert!(is_done(&printed, "not finished: calibrate"), "{printed:?}");
        printed = lines(&mut collect(&file, &steps));
        assert!(!is_done(&printed, "submit: "), "{printed:?}");
    }
    assert!(is_done(&printed, "calibrate: done"), "{printed:?}");
    assert!(!path("mine.json.unfinished").exists(), "{printed:?}");

    let results = path("results");
    let add = |results: &Path| {
        let (file, results) = (file.to_str().unwrap(), results.to_str().unwrap());
        memferry(&["report", "--add", file, "--results", results])
    };
    let added = lines(&mut add(&results));
    assert!(added.iter().any(|line| line.contains("taken with --quick")), "{added:?}");
    // The last line is the command for the page.
    let page = added.last().unwrap().split_once(": memferry ").unwrap().1.replace("DIR", "page");
    let mut page = memferry(&page.split(' ').collect::<Vec<_>>());
    lines(page.current_dir(directory.path()));
    let page = fs::read_to_string(path("page/index.html")).unwrap();
    assert!(page.contains("memferry bench submit</code>"), "the record is on the page");

    // The same again changes nothing; other content stays.
    assert_eq!(lines(&mut add(&results)), added);
    let machine = fs::read_dir(&results).unwrap().next().unwrap().unwrap().path();
    let is_csv = |path: &std::path::PathBuf| path.extension().is_some_and(|it| it == "csv");
    let csv = fs::read_dir(&machine).unwrap().map(|entry| entry.unwrap().path()).find(is_csv).unwrap();
    fs::write(&csv, "mine").unwrap();
    says(&add(&results).output().unwrap(), FAILURE, &["exists with other content", "nothing was added"]);
    assert_eq!(fs::read_to_string(&csv).unwrap(), "mine");

    // A file from elsewhere chooses no path.
    let honest = fs::read_to_string(&file).unwrap();
    let other = path("other");
    for (forged, words) in [
        (honest.replace("\"records/", "\"records/../"), "which no collection has"),
        (honest.replace("\"memferry_collection\": 1", "\"memferry_collection\": 2"), "format 2"),
        (honest.replace("\\\"bench\\\"", "\\\"bank\\\""), "is not a record"),
        ("{}".to_owned(), "is no collection"),
    ] {
        assert_ne!(forged, honest);
        fs::write(&file, forged).unwrap();
        says(&add(&other).output().unwrap(), FAILURE, &[words]);
    }
    assert!(!other.exists());
}

/// A storage that cannot be measured is an error before the first step: it would cost the whole calibration.
#[test]
fn a_collection_measures_storage() {
    // A directory of the build, since /tmp may be memory.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = directory.path().to_str().unwrap();
    let file = directory.path().join("mine.json");
    let with = |storage: &str| {
        let mut command = collect(&file, &["calibrate"]);
        command.args(["--storage", storage]);
        command
    };
    let memory = with("/dev/shm").output().unwrap();
    says(&memory, FAILURE, &["does not read past the page cache"]);
    assert!(!directory.path().join("mine.json.unfinished").exists());
    let first = with(disk).output().unwrap();
    if text(&first.stderr).contains("does not read past the page cache") {
        return skip(Needs::Kernel("O_DIRECT"), text(&first.stderr));
    }
    let mut printed = text(&first.stdout).to_owned();
    for _ in 0..20 {
        if printed.contains("calibrate: done") {
            break;
        }
        let other = collect(&file, &["calibrate"]).output().unwrap();
        says(&other, FAILURE, &["other directories of --storage"]);
        printed = lines(&mut with(disk)).join("\n");
    }
    let collection: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let profile: Value = serde_json::from_str(collection["files"]["profile.json"].as_str().unwrap()).unwrap();
    assert_eq!(profile["storage"][0]["directory"], fs::canonicalize(disk).unwrap().to_str().unwrap());
}

#[test]
fn an_interrupted_collection_continues() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.json");
    let unfinished = directory.path().join("mine.json.unfinished");
    let steps = ["topology", "submit", "cache"];
    let mut first = collect(&file, &steps).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut output = std::io::BufReader::new(first.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert!(line.starts_with("topology: done"), "{line}");
    // While it runs, and while its benchmark does after it was killed, another run keeps out.
    says(&collect(&file, &steps).output().unwrap(), FAILURE, &["another memferry report --collect uses"]);
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(!file.exists());
    let again = loop {
        let again = collect(&file, &steps).output().unwrap();
        if again.status.success() {
            break text(&again.stdout);
        }
        says(&again, FAILURE, &["another memferry report --collect uses"]);
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    assert!(again.starts_with("submit: done"), "the topology is there: {again}");
    assert!(file.exists() && !unfinished.exists(), "{again}");

    // Another set of options is another run.
    fs::create_dir(&unfinished).unwrap();
    fs::write(unfinished.join("state.json"), "{}").unwrap();
    says(&collect(&file, &steps).output().unwrap(), FAILURE, &["cannot be continued", "--restart"]);
    let restarted = lines(collect(&file, &["topology"]).arg("--restart"));
    assert!(restarted[0].starts_with("topology: done"), "{restarted:?}");
}

#[test]
fn wrong_collections_are_errors() {
    fails(&["report", "--collect", "/nowhere/mine.json"], FAILURE, &["cannot write the collection"]);
    fails(
        &["report", "--collect", "mine.json", "--only", "all"],
        USAGE,
        &["no step all", "topology, doctor"],
    );
    fails(&["report", "--add", "/nowhere.json"], FAILURE, &["cannot read the collection /nowhere.json"]);
    fails(&["report", "--collect", "a", "--add", "b"], USAGE, &["cannot be used with"]);
    fails(
        &["report", "--collect", "a", "--storage", "/nowhere"],
        FAILURE,
        &["cannot use /nowhere for a measurement of storage"],
    );
    fails(
        &["report", "--collect", "a", "--storage", ".", "--only", "submit"],
        USAGE,
        &["--storage is for the step calibrate"],
    );
    fails(&["report", "--quick"], USAGE, &["required arguments"]);
    for option in
        [&["--quick"][..], &["--restart"], &["--minutes", "5"], &["--only", "submit"], &["--storage", "."]]
    {
        fails(&[&["report", "--out", "a"], option].concat(), USAGE, &["cannot be used with"]);
    }
}

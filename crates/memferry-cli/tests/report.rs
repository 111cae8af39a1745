//! `memferry report`: its files, its mistakes, and its page in a browser.

#[allow(dead_code, reason = "a part of it is enough here")]
mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use support::{FAILURE, USAGE, fails, memferry, prints, says, text};

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
fn mistakes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "mine").unwrap();
    for target in [&file, &file.join("below"), Path::new("/proc/nowhere")] {
        says(&report(target, &[]), FAILURE, &["the report cannot be written to", "choose --out DIR"]);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    // What cannot be meant writes nothing.
    let taken = directory.path().join("taken");
    fs::create_dir_all(taken.join("kept")).unwrap();
    says(&report(&taken, &["--machine", "nonesuch"]), USAGE, &["nonesuch"]);
    says(&report(&taken, &["--results", "/nowhere"]), FAILURE, &["/nowhere is no directory", "--results"]);
    assert_eq!(fs::read_dir(&taken).unwrap().count(), 1);

    let figure = file.to_str().unwrap();
    fails(&["report"], USAGE, &["required arguments"]);
    fails(&["report", "--figure", figure], USAGE, &["required arguments"]);
    fails(
        &["report", "--figure", figure, "--svg", "-"],
        FAILURE,
        &["cannot be drawn", "no figure of a report"],
    );
    fails(
        &["report", "--figure", "/nowhere.csv", "--svg", "-"],
        FAILURE,
        &["cannot read the figure /nowhere.csv"],
    );
}

/// A browser, or why there is none to test with.
fn chromium(arguments: &[&str]) -> Option<Output> {
    let profile = tempfile::tempdir().unwrap();
    let profile = format!("--user-data-dir={}", profile.path().display());
    // No sandbox: it needs namespaces that containers and root do not have. Nothing but our own page is shown.
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
            let why = "chromium is missing; `cargo xtask setup` installs it";
            assert!(std::env::var_os("CI").is_none(), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// What the browser's console would show.
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

    // As wide as a phone, it is not to be scrolled sideways. Browsers have a least width of their own, frames have not.
    let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
    let frame = format!(
        "<!doctype html><iframe width=400 height=800 srcdoc=\"{escaped}\" onload=\"document.title = \
         this.contentDocument.documentElement.scrollWidth + ' of ' + this.contentWindow.innerWidth\"></iframe>"
    );
    fs::write(directory.path().join("phone.html"), frame).unwrap();
    let output = chromium(&["--dump-dom", &url("phone.html")]).unwrap();
    let dom = text(&output.stdout);
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split("</title>").next());
    let (width, room) = title.and_then(|title| title.split_once(" of ")).expect("the frame tells its width");
    let [width, room] = [width, room].map(|number| number.parse::<u32>().unwrap());
    assert!(width <= room && room <= 400, "{width} of {room}");
}

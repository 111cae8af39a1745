//! `memferry report`: its files, its errors, and its page in a browser.

#[allow(dead_code, reason = "a part of it is enough here")]
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use memferry_testing::{Needs, skip};

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

use memferry::topology::NodeId;
use memferry_bench::papers::{Data, benchmark};

use super::super::session::or;
use super::*;

fn options(toml: &str) -> Options {
    toml::from_str(toml).unwrap()
}

fn axes(options: &Options) -> Result<Axes> {
    options.axes((benchmark("submit").unwrap().axes)(true), <[Way]>::to_vec)
}

#[test]
fn the_command_line_comes_before_the_file() {
    let file = options("sizes = ['64KiB', 4096]\nbatches = [8]\nquick = true\non = 'emulated'");
    let line = options(
        "sizes = ['1 MiB']\nroutes = ['none', 'push-pull']\ntargets = ['any', 8]\ndata = ['cached']\n\
                        priorities = ['any', '15-1']\nread-buffers = ['96-4']",
    );
    let both = or(&line, &file).unwrap();
    let axes = axes(&both).unwrap();
    assert_eq!((axes.sizes_bytes, axes.batches), (vec![1 << 20], vec![8]));
    assert_eq!(axes.routes, [None, Some(Route::PushPull)]);
    assert_eq!(axes.targets, [None, Some(NodeId(8))]);
    assert_eq!((axes.data, axes.priorities), (vec![Data::Cached], vec![None, Some((15, 1))]));
    assert_eq!(axes.read_buffers, [Some((96, 4))]);
    assert_eq!((both.on().unwrap(), both.effort(On::Machine)), (On::Emulated, RunLength::QUICK));
}

/// Of every option.
#[test]
fn nothing_of_the_file_comes_before_the_command_line() {
    for (key, line, file) in [
        ("ways", "['core']", "['shared']"),
        ("operations", "['crc']", "['fill']"),
        ("sizes", "[1]", "[2]"),
        ("batches", "[1]", "[2]"),
        ("submitters", "[1]", "[2]"),
        ("depths", "[1]", "[2]"),
        ("queues", "[1]", "[2]"),
        ("entries", "[1]", "[2]"),
        ("engines", "[1]", "[2]"),
        ("routes", "['single']", "['all']"),
        ("sources", "[1]", "[2]"),
        ("targets", "[1]", "[2]"),
        ("pages", "['huge']", "['touched']"),
        ("data", "['memory']", "['cached']"),
        ("priorities", "['1-2']", "['2-1']"),
        ("read-buffers", "['1-2']", "['2-1']"),
        ("working-sets", "['1MiB']", "['2MiB']"),
        ("iterations", "1", "2"),
        ("calibration", "'a'", "'b'"),
    ] {
        let record = |options: Options| {
            options.record(On::Machine, &axes(&options).unwrap(), &options.effort(On::Machine)).to_string()
        };
        let [line, file] = [line, file].map(|value| options(&format!("{key} = {value}")));
        let (own, others) = (record(line.clone()), record(file.clone()));
        assert_ne!(own, others, "{key}");
        assert_eq!(record(or(&line, &file).unwrap()), own, "{key}");
        assert_eq!(record(or(&Options::default(), &file).unwrap()), others, "{key}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    for (toml, words) in [
        ("sizes = ['big']", ["--sizes", "big"]),
        ("batches = [0]", ["--batches", "from 1 on"]),
        ("ways = ['bus']", ["--ways", "dedicated"]),
        ("operations = ['sort']", ["--operations", "compare-pattern"]),
        ("targets = ['x']", ["--targets", "number"]),
        ("pages = []", ["--pages", "no values"]),
        ("data = ['l2']", ["--data", "cached-source"]),
        ("priorities = ['16-1']", ["--priorities", "15-1"]),
        ("priorities = ['3']", ["--priorities", "15-1"]),
        ("read-buffers = ['0-96']", ["--read-buffers", "96-16"]),
    ] {
        let error = axes(&options(toml)).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{toml}: {error}");
    }
    assert!(toml::from_str::<Options>("size = [1]").unwrap_err().to_string().contains("size"));
}

#[test]
fn places() {
    assert_eq!(options("").on().unwrap(), On::Machine);
    assert_eq!(options("machine = 'spr-56c'").on().unwrap(), On::Model);
    assert!(options("on = 'machine'\nmachine = 'spr-56c'").on().is_err());
    assert!(options("on = 'model'").on().is_err());
    assert!(options("iterations = 0").on().is_err() && options("iterations = 1000000").on().is_err());
    assert_eq!(options("on = 'emulated'\nmachine = 'spr-56c'").on().unwrap(), On::Emulated);
}

//! TPC-H queries over Parquet files with the page cache dropped: DataFusion's reader and memferry's in turns.
//!
//! `cargo run -p memferry-bench-query --example cold_files -- DIRECTORY SCALE PAIRS [QUERY ...]`
//!
//! Writes the tables to DIRECTORY if they are missing. Dropping the page cache needs root. A query is a number of TPC-H, or
//! SQL. `MEMFERRY_SET="memferry.read_ahead=false,..."` changes settings of both sides.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::physical_plan::collect;
use datafusion::prelude::SessionContext;
use memferry::topology::Machine;
use memferry_bench_query::{answers_equal, layout, tpch, tpch_tables};
use memferry_query::files::{self, FileReport};
use memferry_query::{SessionOptions, TieredTable, Tiers, session};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, scale, pairs, queries @ ..] = arguments.as_slice() else {
        return Err("usage: cold_files DIRECTORY SCALE PAIRS [QUERY ...]".into());
    };
    let (directory, scale, pairs) = (Path::new(directory), scale.parse::<f64>()?, pairs.parse::<usize>()?);
    if !directory.join("lineitem.parquet").exists() {
        write(directory, scale).await?;
    }
    let tiers = Tiers::builder(Arc::new(Machine::discover()?)).build()?;
    let options = SessionOptions { tiers: Some(Arc::clone(&tiers)), ..SessionOptions::default() };
    for query in queries {
        let sql = match query.parse::<usize>() {
            Ok(number) => tpch::query(number, scale),
            Err(_) => query.clone(),
        };
        let mut sides = [vec![], vec![]];
        let mut answers = [vec![], vec![]];
        for pair in 0..pairs {
            let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                let context = session(&options);
                settings(&context, side == 1).await?;
                register(&context, directory).await?;
                tiers.cache().clear();
                drop_page_cache()?;
                let (before, start) = (bytes_read()?, Instant::now());
                let plan = context.sql(&sql).await?.create_physical_plan().await?;
                let batches = collect(Arc::clone(&plan), context.task_ctx()).await?;
                let run = (start.elapsed(), bytes_read()? - before);
                sides[side].push(run);
                answers[side] = batches;
                if side == 1 && pair + 1 == pairs {
                    println!("    {:?}", FileReport::of(plan.as_ref()));
                }
            }
        }
        answers_equal(&answers[0], &answers[1])?;
        let [plain, ours] = sides.map(median);
        println!(
            "{query}: DataFusion {:.0} ms {} MB, memferry {:.0} ms {} MB, ratio {:.2}",
            plain.0.as_secs_f64() * 1e3,
            plain.1 / 1_000_000,
            ours.0.as_secs_f64() * 1e3,
            ours.1 / 1_000_000,
            plain.0.as_secs_f64() / ours.0.as_secs_f64()
        );
    }
    Ok(())
}

async fn settings(context: &SessionContext, ours: bool) -> Result<(), Box<dyn Error>> {
    let mut settings = vec![format!("memferry.read_files={ours}")];
    settings.extend(std::env::var("MEMFERRY_SET").iter().flat_map(|list| list.split(',')).map(str::to_owned));
    for setting in settings {
        context.sql(&format!("SET {setting}")).await?.collect().await?;
    }
    Ok(())
}

async fn register(context: &SessionContext, directory: &Path) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).ok_or("a file name that is not UTF-8")?;
        files::register(context, name, path.to_str().ok_or("a path that is not UTF-8")?).await?;
    }
    Ok(())
}

async fn write(directory: &Path, scale: f64) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(directory)?;
    let tiers = Tiers::builder(Arc::new(Machine::discover()?)).build()?;
    for (name, data) in tpch_tables(scale, &layout(&tiers, 1), &())? {
        let context = session(&SessionOptions::default());
        context.register_table(&name, Arc::new(TieredTable::try_new(Arc::new(data), Arc::clone(&tiers))?))?;
        let path = directory.join(format!("{name}.parquet"));
        let sql = format!(
            "COPY {name} TO '{}' STORED AS PARQUET OPTIONS ('format.max_row_group_size' 131072, \
             'format.compression' 'snappy')",
            path.display()
        );
        context.sql(&sql).await?.collect().await?;
        eprintln!("{}: {} bytes", path.display(), fs::metadata(&path)?.len());
    }
    Ok(())
}

fn drop_page_cache() -> std::io::Result<()> {
    std::process::Command::new("sync").status()?;
    fs::write("/proc/sys/vm/drop_caches", "3")
}

/// Bytes that this process caused to be fetched from the disk. Source: proc(5), /proc/pid/io.
fn bytes_read() -> Result<u64, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    Ok(line.ok_or("/proc/self/io has no read_bytes")?.parse()?)
}

fn median(mut runs: Vec<(Duration, u64)>) -> (Duration, u64) {
    runs.sort_unstable();
    runs[runs.len() / 2]
}

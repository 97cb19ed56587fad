//! Decoding of the API server's bytes into objects, compared with parsers that make trees.

use std::hint::black_box;
use std::time::Duration;

use anyhow::Context as _;
use kube::api::{DynamicObject, ObjectList, WatchEvent};
use serde_json::Value;

use crate::clock::seconds_of;
use crate::report::{Row, median};
use crate::{Bench, pods};

/// Number of objects in a page.
const PAGE_LEN: usize = 500;

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let (rounds, time) = (bench.pick(5, 1), Duration::from_millis(bench.pick(300, 20)));
    for (managed_fields, size) in [(true, "7 KB"), (false, "5 KB")] {
        let list = pods::list(PAGE_LEN, managed_fields);
        let lines: Vec<_> = (0..PAGE_LEN).map(|at| pods::watch_line(at, 5000, managed_fields)).collect();
        let line_bytes: usize = lines.iter().map(String::len).sum();
        let mut decoder = pods::decoder();
        let page = decoder.list(list.as_bytes())?;
        anyhow::ensure!(page.objects.len() == PAGE_LEN && page.skipped.is_empty(), "the page was not taken");

        let mut ours = || drop(black_box(decoder.list(list.as_bytes())));
        let mut tree = || drop(black_box(serde_json::from_str::<Value>(&list)));
        let mut dynamic = || drop(black_box(serde_json::from_str::<ObjectList<DynamicObject>>(&list)));
        let works: [&mut dyn FnMut(); 3] = [&mut ours, &mut tree, &mut dynamic];
        report(bench, &format!("list page, 500 pods of {size}"), rates(works, list.len(), rounds, time)?);

        serde_json::from_str::<WatchEvent<DynamicObject>>(&lines[0]).context("not a watch event to kube")?;
        let mut ours = || lines.iter().for_each(|line| drop(black_box(decoder.watch_line(line.as_bytes()))));
        let mut tree = || {
            for line in &lines {
                drop(black_box(serde_json::from_str::<Value>(line)));
            }
        };
        let mut dynamic = || {
            for line in &lines {
                drop(black_box(serde_json::from_str::<WatchEvent<DynamicObject>>(line)));
            }
        };
        let works: [&mut dyn FnMut(); 3] = [&mut ours, &mut tree, &mut dynamic];
        report(bench, &format!("watch lines, pods of {size}"), rates(works, line_bytes, rounds, time)?);
    }
    Ok(())
}

fn report(bench: &mut Bench, case: &str, [ours, tree, dynamic]: [f64; 3]) {
    let row = || Row::new("decode", case).value("decoded", ours, "MB/s");
    bench.report.add(row().against("serde_json::Value", tree));
    bench.report.add(row().against("kube DynamicObject", dynamic));
}

/// Megabytes for each second of CPU time: the candidates run in turn, and the median of the rounds counts.
fn rates(
    mut works: [&mut dyn FnMut(); 3],
    bytes: usize,
    rounds: usize,
    time: Duration,
) -> anyhow::Result<[f64; 3]> {
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..rounds {
        for (rates, work) in rates.iter_mut().zip(&mut works) {
            rates.push(bytes as f64 / seconds_of(work, time)? / 1e6);
        }
    }
    Ok(rates.map(median))
}

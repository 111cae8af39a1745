//! A column in pieces on all domains, summed by tasks that claim the pieces of their own domain first.
//!
//! ```sh
//! cargo run -p memferry-schedule --example domains
//! ```

use std::error::Error;
use std::sync::Arc;

use memferry::topology::Machine;
use memferry_schedule::{Binding, Domains, Scheduler, Stealing, claims};

const PIECES: usize = 240;

fn main() -> Result<(), Box<dyn Error>> {
    let domains = Domains::of(&Machine::discover()?)?;
    let scheduler = Scheduler::start(domains.clone(), Binding::Opportunistic)?;

    // Two thirds of the pieces are at home in the first domain: without stealing, its workers would be the last.
    let homes: Vec<usize> =
        (0..PIECES).map(|piece| if piece % 3 < 2 { 0 } else { piece % domains.len() }).collect();
    let column: Arc<Vec<Vec<u64>>> = Arc::new((0..PIECES).map(|_| (0..1 << 14).collect()).collect());

    // As many tasks for each domain as it has CPUs.
    let workers: Vec<usize> =
        domains.iter().enumerate().flat_map(|(index, domain)| vec![index; domain.cpus.len()]).collect();
    let tasks: Vec<_> = claims(&domains, Stealing::Neighbour, &workers, &homes)
        .into_iter()
        .map(|mut claimer| {
            let column = Arc::clone(&column);
            scheduler.spawn(Some(claimer.domain()), async move {
                let sum: u64 = claimer.by_ref().map(|claim| column[claim.item].iter().sum::<u64>()).sum();
                (claimer.domain(), sum, claimer.counts())
            })
        })
        .collect();

    let mut sum = 0;
    for task in tasks {
        let (domain, part, counts) = scheduler.block_on(task)?;
        println!(
            "domain {domain}: {} pieces of its own, {} of its socket, {} of others",
            counts.own, counts.same_socket, counts.other_socket
        );
        sum += part;
    }
    println!("the sum is {sum}");
    Ok(())
}

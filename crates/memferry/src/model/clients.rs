//! Closed-loop clients, which wait for a query before they send the next: scans of columns on several nodes.
//!
//! Source: Greinsmark, "Effective Task Scheduling of In-Memory Databases on a Sub-NUMA Processor Topology" (2020), 5.1.

use crate::topology::NodeId;

use super::ModelError;
use super::hardware::Hardware;
use super::traffic::{Fairness, Mover, Traffic};

/// Columns that a query scans at the same time as its other parts.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Part {
    /// The node whose CPUs scan.
    pub cpus: NodeId,
    /// The node where the columns are.
    pub node: NodeId,
    /// Number of columns.
    pub columns_count: usize,
}

/// Queries of each client; all are equally fast here.
const QUERIES_PER_CLIENT: usize = 4;

/// Limit of clients: the computation takes longer with each.
const CLIENTS_MAX: usize = 4096;

/// Queries per second.
///
/// # Errors
/// [`ModelError::Unknown`], [`Node`](ModelError::Node), [`Scenario`](ModelError::Scenario) for queries without
/// reads, or too many clients.
pub fn queries_per_s(
    hardware: &Hardware,
    clients_count: usize,
    column_bytes: f64,
    parts: &[Part],
) -> Result<f64, ModelError> {
    let parts: Vec<&Part> = parts.iter().filter(|part| part.columns_count > 0).collect();
    if parts.is_empty() || clients_count == 0 || column_bytes <= 0.0 {
        return Err(ModelError::Scenario { what: "its clients read nothing".into() });
    }
    if clients_count > CLIENTS_MAX {
        let what = format!("it has {clients_count} clients; use at most {CLIENTS_MAX}");
        return Err(ModelError::Scenario { what });
    }
    let mut traffic = Traffic::new(hardware, Fairness::default());
    let mut clients = vec![(QUERIES_PER_CLIENT, 0); clients_count];
    let send = |traffic: &mut Traffic<usize>, client: usize| -> Result<(), ModelError> {
        for part in &parts {
            let (node, memory) = (hardware.position(part.cpus)?, hardware.position(part.node)?);
            hardware.memory_rate(memory)?;
            if hardware.memories[node].cpus_count == 0 {
                return Err(ModelError::Scenario { what: format!("node {} has no CPUs", part.cpus) });
            }
            let columns = part.columns_count as f64;
            let mover = Mover::Cpus { node, threads_count: columns, speed: 1.0, rate_max: f64::INFINITY };
            traffic.read(mover, memory, columns * column_bytes, client);
        }
        Ok(())
    };
    for client in 0..clients_count {
        send(&mut traffic, client)?;
    }
    while let Some(client) = traffic.next() {
        let (queries_left, parts_done) = &mut clients[client];
        *parts_done += 1;
        if *parts_done == parts.len() {
            (*queries_left, *parts_done) = (*queries_left - 1, 0);
            if *queries_left > 0 {
                send(&mut traffic, client)?;
            }
        }
    }
    Ok((clients_count * QUERIES_PER_CLIENT) as f64 / traffic.now_s())
}

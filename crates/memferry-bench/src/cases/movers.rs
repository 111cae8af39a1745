//! Movers of a workload's bytes: the core itself, or a client of DSA queues.

use memferry_dsa::software::{CrcMode, crc32c};
use memferry_dsa::{Batch, Client, Request};

use super::CaseError;

/// Copies of equal lengths: sources and targets.
pub type Copies<'a> = Vec<(&'a [u8], &'a mut [u8])>;

/// Executes the movement of a workload, and returns when it is complete.
pub trait Mover {
    /// Copies each source to its target.
    ///
    /// # Errors
    /// [`CaseError::Move`]
    fn copy(&self, copies: Copies<'_>) -> Result<(), CaseError>;

    /// The CRC-32C of each region.
    ///
    /// # Errors
    /// [`CaseError::Move`]
    fn digest(&self, data: &[&[u8]]) -> Result<Vec<u32>, CaseError>;

    /// Fills each target with zeros.
    ///
    /// # Errors
    /// [`CaseError::Move`]
    fn zero(&self, targets: Vec<&mut [u8]>) -> Result<(), CaseError>;
}

/// The core that runs the workload.
#[derive(Copy, Clone, Debug, Default)]
pub struct Core;

impl Mover for Core {
    fn copy(&self, copies: Copies<'_>) -> Result<(), CaseError> {
        copies.into_iter().for_each(|(source, target)| target.copy_from_slice(source));
        Ok(())
    }

    fn digest(&self, data: &[&[u8]]) -> Result<Vec<u32>, CaseError> {
        Ok(data.iter().map(|data| crc32c(0, data, CrcMode::default())).collect())
    }

    fn zero(&self, targets: Vec<&mut [u8]>) -> Result<(), CaseError> {
        targets.into_iter().for_each(|target| target.fill(0));
        Ok(())
    }
}

/// One request, or a batch of several.
impl Mover for Client {
    fn copy(&self, mut copies: Copies<'_>) -> Result<(), CaseError> {
        if let [(source, target)] = &mut copies[..] {
            return Ok(self.run(Request::copy(*source, &mut **target).into_cache())?);
        }
        let mut batch = Batch::new();
        let tickets: Vec<_> = (copies.iter_mut())
            .map(|(source, target)| batch.add(Request::copy(*source, &mut **target).into_cache()))
            .collect();
        let outcomes = self.run_batch(batch)?;
        Ok(tickets.iter().try_for_each(|ticket| outcomes.get(ticket))?)
    }

    fn digest(&self, data: &[&[u8]]) -> Result<Vec<u32>, CaseError> {
        if let [data] = data {
            return Ok(vec![self.run(Request::crc(0, *data))?]);
        }
        let mut batch = Batch::new();
        let tickets: Vec<_> = data.iter().map(|data| batch.add(Request::crc(0, *data))).collect();
        let outcomes = self.run_batch(batch)?;
        Ok(tickets.iter().map(|ticket| outcomes.get(ticket)).collect::<Result<_, _>>()?)
    }

    fn zero(&self, mut targets: Vec<&mut [u8]>) -> Result<(), CaseError> {
        if let [target] = &mut targets[..] {
            return Ok(self.run(Request::fill(0, &mut **target))?);
        }
        let mut batch = Batch::new();
        let tickets: Vec<_> =
            targets.iter_mut().map(|target| batch.add(Request::fill(0, &mut **target))).collect();
        let outcomes = self.run_batch(batch)?;
        Ok(tickets.iter().try_for_each(|ticket| outcomes.get(ticket))?)
    }
}

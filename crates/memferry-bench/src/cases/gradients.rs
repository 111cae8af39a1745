//! Zeroing of gradients before an iteration of training.
//!
//! Frameworks add gradients up in vectors that are zero at the beginning of each iteration. The tensors are those of one
//! layer of BERT-large: projections of 1024 to 1024, two matrices of 1024 by 4096, and their biases.
//!
//! Source: Kuper et al. (2024), section 5 and appendix A, which print no number of it.

use super::host::check;
use super::{CaseError, Host, Samples};

/// Parameters of the tensors of a layer.
const TENSORS: [usize; 12] = [
    1 << 20, // query, key, value, output
    1 << 20,
    1 << 20,
    1 << 20,
    1 << 22, // the two matrices of the feed-forward part
    1 << 22,
    1024, // biases
    1024,
    1024,
    1024,
    4096,
    1024,
];
const PARAMETER_BYTES: usize = size_of::<f32>();

/// The gradients of one layer.
#[derive(Debug)]
pub struct Gradients {
    tensors: Vec<Vec<u8>>,
}

impl Gradients {
    /// Gradients with tensors of the publication's model, divided by `part`.
    pub fn new(part: usize) -> Gradients {
        let zeros = |parameters: usize| vec![0; (parameters / part).max(1) * PARAMETER_BYTES];
        Gradients { tensors: TENSORS.into_iter().map(zeros).collect() }
    }

    /// Bytes of all tensors.
    pub fn size_bytes(&self) -> usize {
        self.tensors.iter().map(Vec::len).sum()
    }

    fn zero(&mut self, host: &Host) -> Result<(), CaseError> {
        host.mover().zero(self.tensors.iter_mut().map(|tensor| &mut tensor[..]).collect())
    }
}

/// Zeroes the gradients before each of so many iterations.
///
/// # Errors
/// [`CaseError`], also if a gradient is not zero.
pub fn zeroed(host: &Host, gradients: &mut Gradients, iterations: usize) -> Result<Samples, CaseError> {
    let mut samples = Samples::default();
    for iteration in 0..iterations {
        // The iteration before has left its gradients.
        gradients.tensors.iter_mut().for_each(|tensor| tensor.fill(iteration as u8 | 1));
        host.sample(&mut samples, 1, || gradients.zero(host))?;
        let is_zero = gradients.tensors.iter().flatten().all(|&byte| byte == 0);
        check("gradients", is_zero, || format!("a gradient of iteration {iteration} is not zero"))?;
    }
    Ok(samples)
}

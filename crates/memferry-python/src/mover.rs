//! Movers: engines that copy.

use std::collections::BTreeMap;
use std::sync::Arc;

use memferry::mover::{CopyOptions, DsaEngine, DsaOptions, EngineStats, Mover};
use memferry::topology::NodeId;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::buffer::Buffer;
use crate::error::{Closable, failed, wrong};
use crate::machine::PyMachine;
use crate::transfer::{PyTransfer, Value};

/// Copies memory of Python objects, without the interpreter.
#[pyclass(frozen, name = "Mover", module = "memferry")]
pub(crate) struct PyMover(Closable<Mover>);

impl PyMover {
    pub(crate) fn get(&self) -> PyResult<Mover> {
        self.0.get()
    }
}

#[pymethods]
impl PyMover {
    /// The CPU engines of `machine`, and its DSA devices if they are usable.
    #[new]
    #[pyo3(signature = (machine=None, *, cpu_workers=None))]
    fn new(py: Python<'_>, machine: Option<&PyMachine>, cpu_workers: Option<usize>) -> PyResult<Self> {
        let machine = match machine {
            Some(machine) => machine.0.clone(),
            None => PyMachine::discover()?.0,
        };
        let mover = py.detach(|| {
            let mut builder = Mover::builder(machine);
            if let Some(workers) = cpu_workers {
                builder = builder.cpu_workers(workers);
            }
            for engine in DsaEngine::discover(&DsaOptions::default()).unwrap_or_default() {
                builder = builder.engine(Arc::new(engine));
            }
            builder.build()
        });
        Ok(Self(Closable::new("mover", mover.map_err(failed)?)))
    }

    /// Starts a copy of `source` to `target`, of equal size.
    #[pyo3(signature = (source, target, *, source_node=None, target_node=None))]
    fn copy(
        &self,
        source: &Bound<'_, PyAny>,
        target: &Bound<'_, PyAny>,
        source_node: Option<u32>,
        target_node: Option<u32>,
    ) -> PyResult<PyTransfer> {
        let mover = self.get()?;
        for node in [source_node, target_node].into_iter().flatten() {
            mover.machine().node(NodeId(node)).map_err(wrong)?;
        }
        let (source, target) = Buffer::pair(source, target)?;
        let node = |node: Option<u32>| node.map(NodeId);
        let options = CopyOptions {
            source_node: node(source_node),
            target_node: node(target_node),
            ..CopyOptions::default()
        };
        let copy = mover.copy(source, target, options);
        Ok(PyTransfer::follow(Box::pin(async move {
            match copy.await {
                Ok((source, target, report)) => Ok(Value::Copied(report.bytes(), Some((source, target)))),
                Err(error) => Err(error.error.to_string()),
            }
        })))
    }

    /// Operations, bytes and errors of all engines so far.
    fn stats(&self) -> PyResult<BTreeMap<&'static str, u64>> {
        let engines = self.get()?.stats().engines;
        let sum = |count: fn(&EngineStats) -> u64| engines.iter().map(count).sum();
        Ok([
            ("operations", sum(|engine| engine.operations)),
            ("bytes", sum(|engine| engine.bytes)),
            ("errors", sum(|engine| engine.errors)),
        ]
        .into())
    }

    /// Ends the use of the mover. Copies in flight go on.
    fn close(&self, py: Python<'_>) {
        self.0.close(py);
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

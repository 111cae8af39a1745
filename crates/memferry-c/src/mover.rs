//! Movers: engines that execute operations.

use std::sync::Arc;

use memferry::mover::{DsaEngine, DsaOptions, Mover};
use memferry::topology::Machine;

use crate::emulator::{Devices, mf_emulator};
use crate::error::{Error, mf_status};
use crate::handles::{Object, insert, remove, reserve};
use crate::machine::{check_out, mf_machine, put};
use crate::operation::{Starter, mf_operation, mf_result, mf_route_value, route};
use crate::thread::call;
use crate::transfer::{Transfer, mf_transfer};

/// A mover. 0 is none. Free it with `mf_mover_free`.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_mover {
    /// The handle.
    pub id: u64,
}

impl Object for Mover {
    const KIND: u64 = 3;
    const NAME: &'static str = "mover";
}

/// The devices of a mover. CPU engines are always there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum mf_devices {
    /// The DSA devices of this machine, if it has usable ones.
    MF_DEVICES_AUTO = 0,
    /// None.
    MF_DEVICES_NONE = 1,
    /// The DSA devices of this machine; without a usable one, building the mover fails and says why.
    MF_DEVICES_SYSTEM = 2,
}

/// Options of a mover. All zero: the devices of this machine, the default route.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_mover_options {
    /// A value of `mf_devices`.
    pub devices: u32,
    /// A value of `mf_route`.
    pub route: mf_route_value,
    /// Threads of each CPU engine; 0 for the default.
    pub cpu_workers: u32,
    /// Emulated devices in addition, or 0.
    pub emulator: mf_emulator,
}

/// Counters of a mover, summed over its engines.
#[derive(Copy, Clone, Debug)]
#[repr(C)]
pub struct mf_mover_stats {
    /// Number of engines.
    pub engines_count: u64,
    /// Completed operations, parts of split copies counted each.
    pub operations: u64,
    /// Completed bytes.
    pub bytes: u64,
    /// Operations that an engine handed to the CPU.
    pub fallbacks: u64,
    /// Failed operations.
    pub errors: u64,
}

/// Builds a mover. NULL options are all zero.
///
/// # Safety
/// `options` is NULL or valid, `mover` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_mover_create(
    machine: mf_machine,
    options: *const mf_mover_options,
    mover: *mut mf_mover,
) -> mf_status {
    call(|call| {
        let machine = call.get::<Arc<Machine>>(machine.id)?;
        check_out(mover, "mover")?;
        let default =
            mf_mover_options { devices: 0, route: 0, cpu_workers: 0, emulator: mf_emulator { id: 0 } };
        // SAFETY: promised by the caller.
        let options = unsafe { options.as_ref() }.copied().unwrap_or(default);
        let mut builder = Mover::builder(machine.clone());
        if let Some(route) = route(options.route)? {
            builder = builder.route(route);
        }
        if options.cpu_workers > 0 {
            builder = builder.cpu_workers(options.cpu_workers as usize);
        }
        if options.emulator.id != 0 {
            for (index, device) in call.get::<Devices>(options.emulator.id)?.0.iter().enumerate() {
                let name = format!("emulated{index}");
                let engine =
                    DsaEngine::new(vec![device.portal(0)], DsaOptions { name, ..DsaOptions::default() })?;
                builder = builder.engine(Arc::new(engine));
            }
        }
        let found = match options.devices {
            0 => DsaEngine::discover(&DsaOptions::default()).unwrap_or_default(),
            1 => Vec::new(),
            2 => DsaEngine::discover(&DsaOptions::default())?,
            other => {
                return Err(Error::argument(format!("{other} is not a value of mf_devices")));
            }
        };
        for engine in found {
            builder = builder.engine(Arc::new(engine));
        }
        let id = insert(builder.build()?)?;
        // SAFETY: promised by the caller.
        unsafe { put(mover, "mover", mf_mover { id }) }
    })
}

/// Frees a mover. Operations in flight go on, and caches keep it.
#[unsafe(no_mangle)]
pub extern "C" fn mf_mover_free(mover: mf_mover) -> mf_status {
    call(|_| remove::<Mover>(mover.id, |_| None).map(drop))
}

/// Starts an operation and never waits. Its buffers stay untouched until the completion.
///
/// Writes the transfer to `transfer`. This may be NULL if the operation has a callback: then no handle is made. An error
/// means that nothing was started and the callback will not be called.
///
/// The transfer is written before the callback is called, and nothing that was passed is used after it: the callback may
/// free the transfer, and its memory.
///
/// # Safety
/// The pointers of the operation are valid for its sizes until the completion, and nobody else accesses its targets.
/// `transfer` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_mover_submit(
    mover: mf_mover,
    operation: *const mf_operation,
    transfer: *mut mf_transfer,
) -> mf_status {
    call(|call| {
        let mover = call.get::<Mover>(mover.id)?;
        // SAFETY: promised by the caller.
        let operation = unsafe { operation.as_ref() };
        let operation = operation.ok_or_else(|| Error::argument("operation is NULL; pass an operation"))?;
        if operation.callback.is_none() {
            check_out(transfer, "transfer")?;
        }
        // Before the start: afterwards the buffers are in use.
        let handle = if transfer.is_null() { None } else { Some(reserve()?) };
        // SAFETY: promised by the caller.
        let finish = unsafe { operation.start(Starter::Mover(mover)) }?;
        let started = Transfer::new(finish, operation.callback, operation.context);
        if let Some(handle) = handle {
            // SAFETY: promised by the caller.
            unsafe { transfer.write(mf_transfer { id: handle.fill(started.clone()) }) };
        }
        // Last: the callback may free what the caller has passed.
        started.advance();
        Ok(())
    })
}

/// Starts `count` operations together: cheaper than one by one if they are small.
///
/// Writes their transfers to `transfers`, all of them before the first callback is called. They run in any order, none may
/// use the result of another, and the options of the first one (nodes, flags except those of CRCs, route) count for all. An
/// error means that none was started.
///
/// # Safety
/// That of `mf_mover_submit`; `operations` and `transfers` have `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_mover_submit_batch(
    mover: mf_mover,
    operations: *const mf_operation,
    count: usize,
    transfers: *mut mf_transfer,
) -> mf_status {
    call(|call| {
        let mover = call.get::<Mover>(mover.id)?;
        if count == 0 {
            return Ok(());
        }
        if operations.is_null() {
            return Err(Error::argument("operations is NULL; pass an array"));
        }
        check_out(transfers, "transfers")?;
        // SAFETY: promised by the caller.
        let operations = unsafe { std::slice::from_raw_parts(operations, count) };
        // Before the start: afterwards the buffers are in use.
        let handles = (0..count).map(|_| reserve()).collect::<Result<Vec<_>, Error>>()?;
        let mut batch = mover.batch(operations[0].options()?);
        let mut finishes = Vec::with_capacity(count);
        for (index, operation) in operations.iter().enumerate() {
            // SAFETY: promised by the caller. After an error the batch is dropped, which starts nothing.
            let finish = unsafe { operation.start(Starter::Batch(&mut batch)) };
            finishes.push(
                finish.map_err(|error| Error::new(error.status(), format!("operation {index}: {error}")))?,
            );
        }
        batch.submit();
        let mut started = Vec::with_capacity(count);
        for (index, (finish, handle)) in finishes.into_iter().zip(handles).enumerate() {
            let operation = &operations[index];
            let transfer = Transfer::new(finish, operation.callback, operation.context);
            // SAFETY: `index` is below `count`.
            unsafe { transfers.add(index).write(mf_transfer { id: handle.fill(transfer.clone()) }) };
            started.push(transfer);
        }
        // Last: a callback may free what the caller has passed.
        started.iter().for_each(Transfer::advance);
        Ok(())
    })
}

/// Executes an operation and waits for it. Writes its result, unless `result` is NULL, and returns its status.
///
/// The operation has no callback. Not in a completion callback.
///
/// # Safety
/// The pointers of the operation are valid for its sizes, and nobody else accesses its targets. `result` is NULL or valid
/// for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_mover_run(
    mover: mf_mover,
    operation: *const mf_operation,
    result: *mut mf_result,
) -> mf_status {
    call(|call| {
        let mover = call.get::<Mover>(mover.id)?;
        call.may_block()?;
        // SAFETY: promised by the caller.
        let operation = unsafe { operation.as_ref() };
        let operation = operation.ok_or_else(|| Error::argument("operation is NULL; pass an operation"))?;
        if operation.callback.is_some() {
            return Err(Error::argument("mf_mover_run returns the result; set callback to NULL"));
        }
        // SAFETY: promised by the caller.
        let finish = unsafe { operation.start(Starter::Mover(mover)) }?;
        // SAFETY: promised by the caller.
        unsafe { Transfer::new(finish, None, std::ptr::null_mut()).wait(result) }
    })
}

/// Waits until all operations that were started before are complete. Not in a completion callback.
#[unsafe(no_mangle)]
pub extern "C" fn mf_mover_drain(mover: mf_mover) -> mf_status {
    call(|call| {
        call.may_block()?;
        let mover = call.get::<Mover>(mover.id)?;
        Ok(mover.drain().wait().map(drop).map_err(|error| error.error)?)
    })
}

/// Writes the counters of a mover.
///
/// # Safety
/// `stats` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_mover_get_stats(mover: mf_mover, stats: *mut mf_mover_stats) -> mf_status {
    call(|call| {
        let engines = call.get::<Mover>(mover.id)?.stats().engines;
        let sum = |count: fn(&memferry::mover::EngineStats) -> u64| engines.iter().map(count).sum();
        let counted = mf_mover_stats {
            engines_count: engines.len() as u64,
            operations: sum(|engine| engine.operations),
            bytes: sum(|engine| engine.bytes),
            fallbacks: sum(|engine| engine.fallbacks),
            errors: sum(|engine| engine.errors),
        };
        // SAFETY: promised by the caller.
        unsafe { put(stats, "stats", counted) }
    })
}

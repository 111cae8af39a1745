//! The trace: descriptors and their completions as lines of JSON.
//!
//! ```text
//! {"event":"descriptor", ...}   an engine dispatches a descriptor, or starts a member of a batch
//! {"event":"completion", ...}   it completes; a second line if its record could not be written
//! ```
//!
//! | field | content |
//! |---|---|
//! | `time_ns`, `submitted_ns` | since the emulation began |
//! | `process`, `thread` | the submitter |
//! | `id` | the same in a descriptor and its completion; unique for a process and device |
//! | `batch`, `member` | for a member: the batch's `id`, and the index in its list |
//! | `way` | `enqcmd`, `movdir64b` or `write` |
//! | `operands`, `results` | the fields that the operation has, by name; addresses and patterns in hexadecimal |
//! | `duration_ns` | since the submission; for a member, since its start |
//! | `record` | `written`, `lost`, or `not wanted` |
//! | `raw` | the 64 bytes of the descriptor, the 32 of the record |

mod channel;
mod decode;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};

use memferry_dsa::Completion;
use serde::Serialize;

pub(super) use self::channel::Channels;
use self::decode::{Hex, Operands, Results, flag_names, operation_name};
use super::{Client, Devices};
use crate::device::job::Origin;

/// Writes the lines of one client and device.
pub(crate) struct Trace {
    devices: Devices,
    process: u32,
    device: u32,
    /// `None` after a write has failed.
    file: Option<File>,
    failed: Failed,
    started: HashMap<Key, Started>,
    ids: u64,
    line: Vec<u8>, // kept for its memory
}

type Failed = Box<dyn FnMut(io::Error) + Send>;

/// The key of a descriptor in a device: its position in the order of dispatch, and its index in a batch.
type Key = (u64, Option<u16>);

/// A descriptor in flight.
#[derive(Clone, Copy)]
struct Started {
    id: u64,
    since_ns: u64,
}

/// The fate of a completion record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RecordFate {
    Written,
    Lost,
    #[serde(rename = "not wanted")]
    NotWanted,
}

/// The instruction or system call of a submission.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SubmitMethod {
    Enqcmd,
    Movdir64b,
    Write,
}

/// The submitter of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Submitter {
    pub(super) way: SubmitMethod,
    pub(super) thread: u32,
}

impl Submitter {
    const WAYS: [SubmitMethod; 3] = [SubmitMethod::Enqcmd, SubmitMethod::Movdir64b, SubmitMethod::Write];

    /// 33:32 the way, 31:0 the thread.
    pub(super) fn to_word(self) -> u64 {
        (self.way as u64) << 32 | u64::from(self.thread)
    }

    fn from_word(word: u64) -> Submitter {
        Submitter { way: Submitter::WAYS[(word >> 32) as usize % Submitter::WAYS.len()], thread: word as u32 }
    }
}

#[derive(Serialize)]
struct DescriptorLine<'a> {
    event: &'static str,
    time_ns: u64,
    process: u32,
    device: u32,
    id: u64,
    queue: &'a str,
    #[serde(flatten)]
    from: From,
    operation: &'static str,
    opcode: u8,
    flags: Vec<String>,
    pasid: u32,
    privileged: bool,
    completion_address: Hex,
    interrupt_handle: u16,
    operands: Operands<'a>,
    raw: String,
}

/// The origin of a descriptor: a submission or a batch.
#[derive(Serialize)]
#[serde(untagged)]
enum From {
    Submission { thread: u32, way: SubmitMethod, submitted_ns: u64 },
    Batch { batch: Option<u64>, member: Option<u16> },
}

#[derive(Serialize)]
struct CompletionLine<'a> {
    event: &'static str,
    time_ns: u64,
    process: u32,
    device: u32,
    id: Option<u64>,
    queue: &'a str,
    operation: &'static str,
    duration_ns: Option<u64>,
    status: u8,
    meaning: String,
    bytes_completed: u32,
    results: Results<'a>,
    record: RecordFate,
    raw: String,
}

impl Trace {
    pub(super) fn new(client: &Client, device: usize, file: File, failed: Failed) -> Trace {
        Trace {
            devices: client.devices().clone(),
            process: client.process(),
            device: client.devices().device_number(device),
            file: Some(file),
            failed,
            started: HashMap::new(),
            ids: 0,
            line: Vec::new(),
        }
    }

    /// Traces a descriptor that an engine has dispatched.
    pub(crate) fn submission(&mut self, origin: &Origin, queue: &str, submitted_ns: u64, by: u64) {
        let Submitter { way, thread } = Submitter::from_word(by);
        let from = From::Submission { thread, way, submitted_ns };
        self.descriptor(origin, queue, submitted_ns, from);
    }

    /// Traces a member of a batch that starts.
    pub(crate) fn member(&mut self, origin: &Origin, queue: &str) {
        let batch = self.started.get(&(origin.sequence, None)).map(|started| started.id);
        let from = From::Batch { batch, member: origin.member.map(|member| member.index) };
        self.descriptor(origin, queue, self.devices.now_ns(), from);
    }

    fn descriptor(&mut self, origin: &Origin, queue: &str, since_ns: u64, from: From) {
        self.ids += 1;
        self.started.insert(key(origin), Started { id: self.ids, since_ns });
        let descriptor = &origin.descriptor;
        let line = DescriptorLine {
            event: "descriptor",
            time_ns: self.devices.now_ns(),
            process: self.process,
            device: self.device,
            id: self.ids,
            queue,
            from,
            operation: operation_name(descriptor),
            opcode: descriptor.operation_code(),
            flags: flag_names(descriptor.flags(), descriptor),
            pasid: descriptor.pasid(),
            privileged: descriptor.is_privileged(),
            completion_address: Hex(descriptor.completion_address().0),
            interrupt_handle: descriptor.interrupt_handle(),
            operands: Operands(descriptor),
            raw: decode::bytes(&descriptor.to_bytes()),
        };
        self.write(&line);
    }

    /// Traces the completion of a descriptor.
    pub(crate) fn completion(
        &mut self,
        origin: &Origin,
        queue: &str,
        completion: &Completion,
        record: RecordFate,
    ) {
        let started = self.started.get(&key(origin)).copied();
        let time_ns = self.devices.now_ns();
        let line = CompletionLine {
            event: "completion",
            time_ns,
            process: self.process,
            device: self.device,
            id: started.map(|started| started.id),
            queue,
            operation: operation_name(&origin.descriptor),
            duration_ns: started.map(|started| time_ns.saturating_sub(started.since_ns)),
            status: completion.status_byte(),
            meaning: completion.status.to_string(),
            bytes_completed: completion.bytes_completed,
            results: Results { descriptor: &origin.descriptor, completion },
            record,
            raw: decode::bytes(&completion.to_bytes()),
        };
        self.write(&line);
    }

    /// Forgets a descriptor after its last line.
    pub(crate) fn forget(&mut self, origin: &Origin) {
        self.started.remove(&key(origin));
    }

    fn write(&mut self, line: &impl Serialize) {
        let Some(file) = &mut self.file else { return };
        self.line.clear();
        let written = serde_json::to_writer(&mut self.line, line).map_err(io::Error::from).and_then(|()| {
            self.line.push(b'\n');
            // After a partial line, another process' line would follow on the same line.
            match file.write(&self.line)? {
                count if count == self.line.len() => Ok(()),
                _ => Err(io::ErrorKind::WriteZero.into()),
            }
        });
        if let Err(error) = written {
            self.file = None;
            (self.failed)(error);
        }
    }
}

fn key(origin: &Origin) -> Key {
    (origin.sequence, origin.member.map(|member| member.index))
}

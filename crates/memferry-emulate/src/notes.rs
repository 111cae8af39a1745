//! Notes for the user about programs that open a queue and cannot load the preload library.
//!
//! The kernel refuses the mapping of such a program without asking this process, so the note comes when the queue is
//! opened. The file of the program is examined in a thread of its own: a hostile program may lie on a file system that
//! never answers, and no thread that serves requests may wait for it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use memferry_dsa::system::QueueId;
use memferry_dsa_emulator::procfs;

use crate::program::Program;

/// How long a program waits for its queue meanwhile: enough for a file on a slow disk. Without a wait, a short program
/// would be gone before it is examined.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Most programs that get a note, so that a program that executes many others does not fill the terminal.
const NOTES_MAX: usize = 16;

/// The programs that have got a note.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Inner>);

#[derive(Default)]
struct Inner {
    noted: Mutex<HashSet<PathBuf>>,
    /// Set while a thread examines a program. Another one that opens a queue then gets no note.
    is_busy: AtomicBool,
}

impl Notes {
    /// Prints a note if the program of a process, which has opened a queue and waits for it, cannot load the library.
    pub(crate) fn opened(&self, queue: QueueId, process: u32) {
        // Relaxed: the flag only excludes a second thread.
        if self.0.is_busy.swap(true, Ordering::Relaxed) {
            return;
        }
        let (done, is_done) = mpsc::channel();
        let notes = self.clone();
        let examine = move || {
            notes.examine(queue, process);
            notes.0.is_busy.store(false, Ordering::Relaxed);
            let _ = done.send(()); // nobody waits any longer
        };
        match thread::Builder::new().name("notes".to_owned()).spawn(examine) {
            Ok(_) => _ = is_done.recv_timeout(WAIT_MAX),
            Err(_) => self.0.is_busy.store(false, Ordering::Relaxed),
        }
    }

    fn examine(&self, queue: QueueId, process: u32) {
        let Some((path, note)) = Program::note_of_process(process) else { return };
        let mut noted = self.0.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < NOTES_MAX && noted.insert(path) {
            eprintln!("memferry: note: {} ({process}) opens {queue}: {note}", procfs::name(process));
        }
    }
}

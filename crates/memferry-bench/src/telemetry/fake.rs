//! A kernel for tests: files in a temporary directory, scripted counters, and groups with the rules of resctrl.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry_dsa::internals::system::{Directory, Files, Owner};
use tempfile::TempDir;

use super::kernel::{Counter, Kernel, Reading};
use super::pmu::Encoding;

/// A kernel whose files and counters a test writes. Stricter than a real one: only events that were set can be opened. Clones
/// are the same kernel.
#[derive(Clone)]
pub struct FakeKernel {
    files: Arc<FakeFiles>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    counters: BTreeMap<(Encoding, u32), Reading>,
    counters_refusal: Option<i32>,
    groups_refusal: Option<i32>,
}

struct FakeFiles {
    directory: Directory,
    root: TempDir,
    refused: Mutex<BTreeSet<String>>,
    owners: Mutex<BTreeMap<String, u32>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FakeKernel {
    /// A kernel without files.
    ///
    /// # Panics
    /// If no temporary directory can be made.
    #[allow(clippy::new_without_default)]
    pub fn new() -> FakeKernel {
        let root = tempfile::tempdir().expect("temporary directories can be made");
        let directory = Directory::below(root.path());
        let files = FakeFiles { directory, root, refused: Mutex::default(), owners: Mutex::default() };
        FakeKernel { files: Arc::new(files), state: Arc::default() }
    }

    /// The path of a file.
    pub fn path(&self, file: &str) -> PathBuf {
        self.files.root.path().join(file)
    }

    /// Writes a file, and makes its directory.
    ///
    /// # Panics
    /// If it cannot.
    pub fn write(&self, file: &str, content: &str) {
        let path = self.path(file);
        let directory = path.parent().expect("a file is in a directory");
        fs::create_dir_all(directory)
            .and_then(|()| fs::write(&path, content))
            .expect("the file can be written");
    }

    /// Removes a file.
    ///
    /// # Panics
    /// If it cannot.
    pub fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).expect("the file can be removed");
    }

    /// Refuses reading a file, as if this user lacked the permission.
    pub fn refuse_reading(&self, file: &str) {
        locked(&self.files.refused).insert(file.to_owned());
    }

    /// Gives a file or directory to a user, with the mode 0755. Others have no owner that can be read.
    pub fn own(&self, file: &str, user: u32) {
        locked(&self.files.owners).insert(file.to_owned(), user);
    }

    /// Sets what a counter reads from now on; the event can be opened on this CPU.
    pub fn set(&self, event: Encoding, cpu: u32, reading: Reading) {
        locked(&self.state).counters.insert((event, cpu), reading);
    }

    /// The events that can be opened, with their CPUs.
    pub fn events(&self) -> Vec<(Encoding, u32)> {
        locked(&self.state).counters.keys().copied().collect()
    }

    /// Refuses all counters with this error number from now on.
    pub fn refuse_counters(&self, error: i32) {
        locked(&self.state).counters_refusal = Some(error);
    }

    /// Refuses new groups with this error number from now on.
    pub fn refuse_groups(&self, error: i32) {
        locked(&self.state).groups_refusal = Some(error);
    }
}

impl Kernel for FakeKernel {
    fn files(&self) -> &dyn Files {
        &*self.files
    }

    fn open_counter(&self, event: &Encoding, cpu: u32) -> io::Result<Box<dyn Counter>> {
        let state = locked(&self.state);
        if let Some(error) = state.counters_refusal {
            return Err(io::Error::from_raw_os_error(error));
        }
        if !state.counters.contains_key(&(*event, cpu)) {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(Box::new(FakeCounter { state: Arc::clone(&self.state), event: *event, cpu }))
    }

    /// Makes the directory with the files of its parent's `mon_data`, all 0.
    fn make_group(&self, path: &str) -> io::Result<()> {
        if let Some(error) = locked(&self.state).groups_refusal {
            return Err(io::Error::from_raw_os_error(error));
        }
        let group = self.path(path);
        fs::create_dir(&group)?;
        fs::write(group.join("tasks"), "")?;
        let parent = group.parent().and_then(|groups| groups.parent()).ok_or(ErrorKind::NotFound)?;
        for domain in fs::read_dir(parent.join("mon_data"))? {
            let domain = domain?;
            let own = group.join("mon_data").join(domain.file_name());
            fs::create_dir_all(&own)?;
            for event in fs::read_dir(domain.path())? {
                fs::write(own.join(event?.file_name()), "0\n")?;
            }
        }
        Ok(())
    }

    fn join_group(&self, path: &str, thread: u32) -> io::Result<()> {
        let mut tasks = fs::OpenOptions::new().append(true).open(self.path(path).join("tasks"))?;
        writeln!(tasks, "{thread}")
    }

    fn remove_group(&self, path: &str) -> io::Result<()> {
        fs::remove_dir_all(self.path(path))
    }
}

impl Files for FakeFiles {
    fn name(&self) -> String {
        self.directory.name()
    }

    fn head(&self, path: &str, size_bytes_max: usize) -> io::Result<Vec<u8>> {
        if locked(&self.refused).contains(path) {
            return Err(ErrorKind::PermissionDenied.into());
        }
        self.directory.head(path, size_bytes_max)
    }

    fn entries(&self, directory: &str) -> io::Result<Vec<String>> {
        self.directory.entries(directory)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        self.directory.link(path)
    }

    fn owner(&self, path: &str) -> io::Result<Owner> {
        let user = locked(&self.owners).get(path).copied().ok_or(ErrorKind::NotFound)?;
        Ok(Owner { mode: 0o755, user, group: user, is_device: false })
    }
}

struct FakeCounter {
    state: Arc<Mutex<State>>,
    event: Encoding,
    cpu: u32,
}

impl Counter for FakeCounter {
    fn read(&self) -> io::Result<Reading> {
        let state = locked(&self.state);
        if let Some(error) = state.counters_refusal {
            return Err(io::Error::from_raw_os_error(error));
        }
        state.counters.get(&(self.event, self.cpu)).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }
}

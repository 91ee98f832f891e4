//! A context: one device, its tuning records, and the kernels compiled so far.

use crate::program::{Ready, ReadyKey};
use crate::{Buffer, Element, Error};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_device::{CacheState, Device, DeviceInfo, Mark, Program, isolate};
use tilewright_tune::Records;

/// Which records a context reads and writes.
///
/// ```
/// use tilewright::{Budget, Context, Gemm, Options, Origin, RecordsAt, Scalar};
///
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let file = folder.path().join("records.sqlite");
/// // Another context finds in the file what this one tuned.
/// let options = Options { device: Some("emu".into()), records: RecordsAt::File(file), ..Options::default() };
/// let open = || Context::with(options.clone());
/// open()?.gemm(Gemm::new(Scalar::F32, 4, 4, 4))?.tune(Budget::trials(2))?;
/// assert_eq!(open()?.gemm(Gemm::new(Scalar::F32, 4, 4, 4))?.choice()?.1, Origin::Recorded);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RecordsAt {
    /// The user's: the file that the environment variable `TILEWRIGHT_RECORDS` names, else `records.sqlite` in the user's
    /// data folder. In a build without the feature `records`, as [`RecordsAt::Memory`].
    #[default]
    Default,
    /// This file; created where there is none.
    File(PathBuf),
    /// None on disk: what is tuned is forgotten with the context.
    Memory,
}

/// Where candidates of a search run, and plans that are looked at before their first use.
///
/// ```
/// use tilewright::{Context, Options, RecordsAt, Trials};
///
/// // A plug-in has no program of its own that could be a worker.
/// let options = Options { trials: Trials::InProcess, device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// let context = Context::with(options)?;
/// context.set_trials(Trials::default());
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trials {
    /// In a worker process, which a crash or a hang costs instead of this one: [`Program::find`] says which program that is. Without one,
    /// tuning fails, and so does the preparation of a plan that nobody has looked at. The emulator, which cannot crash, runs them in this
    /// process.
    #[default]
    Worker,
    /// As [`Trials::Worker`], in a worker process of this program.
    WorkerOf(Program),
    /// In this process, on the context's own device: a candidate that crashes takes the device with it.
    InProcess,
}

/// How a context is opened.
///
/// ```
/// use tilewright::{Context, Options, RecordsAt};
///
/// let options = Options {
///     device: Some("emu".into()),
///     records: RecordsAt::Memory,
///     // Plans may use at most 1 MiB of device memory beside the operands.
///     workspace: Some(1 << 20),
///     ..Options::default()
/// };
/// let context = Context::with(options)?;
/// assert!(!context.info().is_measured());
///
/// let unknown = Options { device: Some("cuda:99".into()), ..Options::default() };
/// assert!(Context::with(unknown).is_err());
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Device, as [`tilewright_device::open`] takes it; `None` is the most capable one here.
    pub device: Option<String>,
    /// Compiler, cache and deadline of the device.
    pub device_options: tilewright_device::Options,
    /// Tuning records.
    pub records: RecordsAt,
    /// Device memory in bytes that plans may use for copies and partial sums, where a problem allows more.
    pub workspace: Option<u64>,
    /// Allow sums by atomic additions: results then vary in their last bits from run to run.
    pub allow_atomics: bool,
    /// Leave out plans in which NaN, infinities or overflow become other values than IEEE 754 has.
    pub ieee: bool,
    /// What runs that are tuned or timed find in the last-level cache, and which recorded times plans are chosen by.
    pub cache: CacheState,
    /// Where candidates run when something is tuned.
    pub trials: Trials,
}

/// A device with records and compiled kernels. Clones share all of it.
///
/// ```
/// use tilewright::{Context, Gemm, Options, RecordsAt, Scalar};
///
/// let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// let context = Context::with(options)?;
/// assert_eq!(context.info().id, "emu");
/// let x = context.upload(&[1.0f32, 2.0])?;
/// assert_eq!(x.download()?, [1.0, 2.0]);
///
/// // Operations of one context share compiled kernels.
/// let product = || context.gemm(Gemm::new(Scalar::F32, 2, 2, 2));
/// (product()?.prepare()?, product()?.prepare()?);
/// assert_eq!(context.programs(), 1);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub device: Arc<dyn Device>,
    pub records: Records,
    pub options: Options,
    pub ready: Mutex<HashMap<ReadyKey, Arc<Ready>>>,
    pub workspace: Mutex<Option<tilewright_device::Buffer>>,
    pub(crate) trials: Mutex<TrialsAt>,
}

/// Where candidates run.
pub(crate) struct TrialsAt {
    pub(crate) chosen: Trials,
    /// The worker process's device, once something was tuned there.
    pub(crate) device: Option<Arc<dyn Device>>,
}

impl Inner {
    /// The device that trials run on: this one in a worker process, unless the options or the device say otherwise.
    pub fn trial_device(&self) -> Result<Arc<dyn Device>, Error> {
        let info = self.device.info();
        let mut trials = self.trials.lock().unwrap_or_else(PoisonError::into_inner);
        let program = match &trials.chosen {
            Trials::InProcess => return Ok(self.device.clone()),
            _ if !info.is_measured() => return Ok(self.device.clone()),
            Trials::Worker => Program::find(&info.id)?,
            Trials::WorkerOf(program) => program.clone(),
        };
        if let Some(device) = &trials.device {
            return Ok(device.clone());
        }
        let device = isolate(&self.device, &program, &self.options.device_options)?;
        Ok(trials.device.insert(device).clone())
    }
}

impl Context {
    /// The most capable device of this machine (the emulator where there is no other) with the user's records.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::Records`].
    pub fn new() -> Result<Context, Error> {
        Context::with(Options::default())
    }
    /// A device by name: `cuda:0`, `opencl:0`, `hip:0`, `emu`, `emu:gfx942`.
    ///
    /// # Errors
    /// [`Error::Device`] if there is no such device, with how to get it; [`Error::Records`].
    pub fn open(device: &str) -> Result<Context, Error> {
        Context::with(Options { device: Some(device.into()), ..Options::default() })
    }
    /// A context with all options.
    ///
    /// # Errors
    /// As [`Context::open`].
    pub fn with(options: Options) -> Result<Context, Error> {
        let device = match &options.device {
            Some(spec) => tilewright_device::open_with(spec, &options.device_options)?,
            None => tilewright_device::default_device(&options.device_options)?,
        };
        Context::on(device, options)
    }
    /// This device, with the other options.
    pub(crate) fn on(device: Arc<dyn Device>, options: Options) -> Result<Context, Error> {
        let records = match &options.records {
            RecordsAt::Default if cfg!(feature = "records") => Records::open(default_records())?,
            RecordsAt::File(path) => Records::open(path)?,
            RecordsAt::Default | RecordsAt::Memory => Records::in_memory()?,
        };
        let (ready, workspace) = (Mutex::default(), Mutex::default());
        let trials = Mutex::new(TrialsAt { chosen: options.trials.clone(), device: None });
        Ok(Context { inner: Arc::new(Inner { device, records, options, ready, workspace, trials }) })
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.inner.device.info()
    }
    /// Where candidates run from now on, in place of [`Options::trials`].
    pub fn set_trials(&self, trials: Trials) {
        *self.inner.trials.lock().unwrap_or_else(PoisonError::into_inner) = TrialsAt { chosen: trials, device: None };
    }
    /// The device itself.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }
    /// The tuning records.
    pub fn records(&self) -> &Records {
        &self.inner.records
    }

    /// Device memory for `len` elements with undefined content.
    ///
    /// # Errors
    /// [`Error::Device`] if there is not enough.
    pub fn alloc<T: Element>(&self, len: u64) -> Result<Buffer<T>, Error> {
        Buffer::alloc(&self.inner.device, len)
    }
    /// Device memory with a copy of these elements.
    ///
    /// # Errors
    /// [`Error::Device`] if there is not enough memory.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<Buffer<T>, Error> {
        let mut buffer = self.alloc(data.len() as u64)?;
        buffer.write(data)?;
        Ok(buffer)
    }
    /// Waits for everything started on the device.
    ///
    /// # Errors
    /// What the work ran into.
    pub fn sync(&self) -> Result<(), Error> {
        Ok(self.inner.device.sync()?)
    }

    /// A mark after all work started so far. The mark says when this work is done; later work does not delay it.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn mark(&self) -> Result<Box<dyn Mark>, Error> {
        Ok(self.inner.device.mark()?)
    }

    /// Number of programs compiled and kept.
    pub fn programs(&self) -> usize {
        self.inner.ready.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Workspace of at least this many bytes, shared by all operations: work on a device runs in one order.
    pub(crate) fn workspace(&self, bytes: u64) -> Result<Option<tilewright_device::Buffer>, Error> {
        if bytes == 0 {
            return Ok(None);
        }
        let mut held = self.inner.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = held.as_ref().filter(|b| b.bytes() >= bytes) {
            return Ok(Some(buffer.clone()));
        }
        // The old one may still be in use: wait before it is freed.
        self.inner.device.sync()?;
        *held = None;
        let buffer = self.inner.device.alloc(bytes)?;
        *held = Some(buffer.clone());
        Ok(Some(buffer))
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.info().id).field("records", &self.inner.records.path()).finish()
    }
}

/// The user's records file: `TILEWRIGHT_RECORDS`, else `records.sqlite` in the user's data folder, else in the current one.
pub fn default_records() -> PathBuf {
    if let Some(path) = std::env::var_os("TILEWRIGHT_RECORDS").filter(|p| !p.is_empty()) {
        return PathBuf::from(path);
    }
    let folder = directories::ProjectDirs::from("", "", "tilewright").map(|d| d.data_dir().to_path_buf());
    folder.unwrap_or_default().join("records.sqlite")
}

//! The emulator as a device: always there, checks everything, measures no time.

use crate::device::{Backend, DeviceKind, check_launches, within};
use crate::options::Options;
use crate::{Buffer, Compiled, Device, DeviceError, DeviceInfo, Launch, LaunchArg, Resources, Timing};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tilewright_emu::{ArgValue, Buffer as Memory, EmuError, Pool, Program, Queue};
use tilewright_ir::{Kernel, Target};

/// What `emu` alone plays.
pub(crate) const DEFAULT_ARCH: &str = Target::NVIDIA;

/// Largest buffer, and bytes of all of them that may be written. This machine may have less: its memory is taken as it is written.
const MAX_BUFFER: u64 = 64 << 30;

/// Describes the emulator playing an architecture.
pub(crate) fn describe(id: &str, arch: &str) -> Result<DeviceInfo, DeviceError> {
    let target = Target::by_arch(arch).ok_or_else(|| DeviceError::BadSpec {
        spec: id.into(),
        reason: format!("the emulator plays {}", Target::known().join(", ")),
    })?;
    Ok(DeviceInfo {
        id: id.into(),
        name: format!("tilewright emulator, as {arch}"),
        backend: Backend::Emulator,
        kind: DeviceKind::Emulated,
        target,
        fingerprint: format!("emulator {}", env!("CARGO_PKG_VERSION")),
        memory_bytes: MAX_BUFFER,
        max_buffer_bytes: MAX_BUFFER,
    })
}

/// Opens the emulator: `emu` or `emu:ARCH`.
pub(crate) fn open(spec: &str, arch: &str, options: &Options) -> Result<Arc<dyn Device>, DeviceError> {
    let info = describe(spec, arch)?;
    let mut options = options.emulator.clone();
    options.wave = info.target.wave;
    Ok(Arc::new(Emulator { id: spec.into(), info, options, pool: Pool::new(MAX_BUFFER), order: Mutex::new(()) }))
}

struct Emulator {
    id: Arc<str>,
    info: DeviceInfo,
    options: tilewright_emu::Options,
    pool: Pool,
    /// Held by whatever uses memory: all of it runs in one order, whichever thread it comes from.
    order: Mutex<()>,
}

impl Emulator {
    fn failed(&self, entry: &str) -> impl Fn(EmuError) -> DeviceError {
        let (device, entry) = (self.info.id.clone(), entry.to_string());
        move |error| match error {
            EmuError::OutOfMemory { wanted, used } => DeviceError::OutOfMemory {
                device: device.clone(),
                bytes: wanted,
                reason: format!("emulated memory takes {used} already, and this machine has no more"),
            },
            error => DeviceError::Emulation { device: device.clone(), entry: entry.clone(), error: Box::new(error) },
        }
    }
    /// Waits until nothing else uses memory.
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn memory<'a>(&self, buffer: &'a Buffer) -> Result<&'a Memory, DeviceError> {
        buffer.memory::<Memory>(&self.info.id)
    }
}

impl Device for Emulator {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn identity(&self) -> Option<crate::Identity> {
        Some(crate::Identity(crate::identity::Found::Id(self.info.id.clone())))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<Compiled>, DeviceError> {
        if kernel.text.is_some() {
            let reason = "the emulator runs the kernel language, not source text: take an OpenCL, CUDA or HIP device".to_string();
            return Err(DeviceError::BadLaunch { device: self.info.id.clone(), entry: kernel.name.clone(), reason });
        }
        // Printing shows the user what a real device would get, and validates for the target played.
        let source = tilewright_ir::print(kernel, &self.info.target)
            .map_err(|e| DeviceError::Invalid { device: self.info.id.clone(), invalid: Box::new(e) })?;
        let program = Program::new(kernel, &self.options).map_err(self.failed(&kernel.name))?;
        Ok(Arc::new(Compiled {
            device: self.id.clone(),
            entry: source.entry,
            source: source.text,
            args: kernel.args.clone(),
            threads: kernel.threads,
            follows: kernel.follows,
            resources: Resources { shared_bytes: Some(kernel.shared_bytes()), ..Resources::default() },
            log: String::new(),
            cached: false,
            binary: Arc::new(program),
        }))
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer, DeviceError> {
        let no_room = |reason: &str| DeviceError::OutOfMemory { device: self.info.id.clone(), bytes, reason: reason.into() };
        if bytes > MAX_BUFFER {
            return Err(no_room("the emulator's largest buffer is 64 GiB"));
        }
        let size = usize::try_from(bytes).map_err(|_| no_room("more than this machine can address"))?;
        let memory =
            Memory::new_in(&self.pool, size).map_err(|_| no_room("this machine has not even room for its page table"))?;
        Ok(Buffer::new(self.id.clone(), Arc::new(memory), 256, bytes))
    }

    fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        buffer.check_range(offset, data.len() as u64)?;
        let _turn = self.turn();
        self.memory(buffer)?.write((buffer.offset() + offset) as usize, data).map_err(self.failed(""))
    }

    fn read(&self, buffer: &Buffer, offset: u64, data: &mut [u8]) -> Result<(), DeviceError> {
        buffer.check_range(offset, data.len() as u64)?;
        let _turn = self.turn();
        self.memory(buffer)?.read((buffer.offset() + offset) as usize, data).map_err(self.failed(""))
    }

    fn fill(&self, buffer: &Buffer, byte: u8) -> Result<(), DeviceError> {
        let memory = self.memory(buffer)?;
        let _turn = self.turn();
        let chunk = vec![byte; buffer.bytes().min(1 << 20) as usize];
        let mut at = 0;
        while at < buffer.bytes() {
            let now = (buffer.bytes() - at).min(chunk.len() as u64);
            memory.write((buffer.offset() + at) as usize, &chunk[..now as usize]).map_err(self.failed(""))?;
            at += now;
        }
        Ok(())
    }

    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        check_launches(&self.info, launches)?;
        let _turn = self.turn();
        let mut queue = Queue::default();
        for launch in launches {
            let entry = launch.kernel.entry();
            let Some(program) = launch.kernel.binary::<Program>(&self.info.id) else {
                let reason = format!("the kernel was compiled for {}", launch.kernel.device());
                return Err(DeviceError::BadLaunch { device: self.info.id.clone(), entry: entry.into(), reason });
            };
            let args = launch
                .args
                .iter()
                .zip(launch.kernel.args())
                .map(|(arg, declared)| {
                    Ok(match arg {
                        LaunchArg::Buffer(b) => ArgValue::Buffer { buffer: self.memory(b)?.clone(), offset: b.offset() as usize },
                        LaunchArg::Map { memory, extent } => ArgValue::Map {
                            buffer: self.memory(memory)?.clone(),
                            offset: memory.offset() as usize,
                            extent: match &declared.kind {
                                tilewright_ir::ArgKind::TensorMap(map) => within(map, extent).to_vec(),
                                _ => Vec::new(),
                            },
                        },
                        LaunchArg::I32(v) => match declared.kind {
                            tilewright_ir::ArgKind::Scalar(tilewright_ir::Scalar::U32) => ArgValue::U32(*v as u32),
                            _ => ArgValue::I32(*v),
                        },
                        LaunchArg::I64(v) => ArgValue::I64(*v),
                        LaunchArg::F32(v) => ArgValue::F32(*v),
                        LaunchArg::F64(v) => ArgValue::F64(*v),
                    })
                })
                .collect::<Result<Vec<_>, DeviceError>>()?;
            queue.run(program, launch.grid, &args).map_err(self.failed(entry))?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), DeviceError> {
        drop(self.turn());
        Ok(())
    }

    fn time(&self, _launches: &[Launch], _timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        Err(DeviceError::NotTimed { device: self.info.id.clone() })
    }
}

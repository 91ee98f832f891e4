//! Foreign work on an OpenCL device's queue.

use super::device::{ClDevice, Memory, Queue};
use crate::native::{Native, NativeHandles, refused, times};
use crate::{Buffer, DeviceError, Timing};

impl Native for ClDevice {
    fn handles(&self) -> NativeHandles {
        NativeHandles::OpenCl {
            context: self.context.handle.get() as usize,
            device: self.context.found.id() as usize,
            queue: self.commands.get() as usize,
        }
    }

    fn memory(&self, buffer: &Buffer) -> Result<usize, DeviceError> {
        Ok(buffer.memory::<Memory>(&self.info.id)?.handle.get() as usize)
    }

    fn run(&self, enqueue: &mut dyn FnMut() -> Result<(), String>) -> Result<(), DeviceError> {
        let mut queue = self.queue()?;
        self.wait(&mut queue)?;
        queue.entry = "a library's kernel".into();
        let queued = enqueue();
        self.marker(&mut queue)?;
        self.wait(&mut queue)?;
        refused(&self.info.id, queued)
    }

    fn time(&self, enqueue: &mut dyn FnMut() -> Result<(), String>, timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        let sweep = self.sweep.launch(self)?;
        let mut queue = self.queue()?;
        times(&self.info.id, timing, enqueue, |foreign| {
            let mut work = |queue: &mut Queue| {
                queue.entry = "a library's kernel".into();
                foreign();
                Ok(())
            };
            self.timed(&mut queue, &sweep, timing.cache, &mut work)
        })
    }
}

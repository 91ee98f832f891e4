//! Foreign work on a GPU device's stream.

use super::{Driver, GpuDevice, Memory, Queue};
use crate::native::{Native, NativeHandles, times};
use crate::{Buffer, DeviceError, Timing};

impl<D: Driver> Native for GpuDevice<D> {
    fn handles(&self) -> NativeHandles {
        self.context.driver.native()
    }

    fn memory(&self, buffer: &Buffer) -> Result<usize, DeviceError> {
        Ok((buffer.memory::<Memory<D>>(&self.info.id)?.address + buffer.offset()) as usize)
    }

    fn time(&self, enqueue: &mut dyn FnMut() -> Result<(), String>, timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        let sweep = self.sweep.launch(self)?;
        let driver = self.driver()?;
        let mut queue = self.queue();
        times(&self.info.id, timing, enqueue, |foreign| {
            self.wait(&driver, &mut queue)?;
            let mut work = |queue: &mut Queue| {
                queue.entry = "a library's kernel".into();
                foreign();
                Ok(())
            };
            let span = self.timed(&driver, &mut queue, (&sweep, timing.cache), &mut work)?;
            self.wait(&driver, &mut queue)?;
            self.span(&driver, &mut queue, span)
        })
    }
}

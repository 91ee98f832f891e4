//! Foreign work on a GPU device's stream.

use super::{Driver, GpuDevice, LIBRARY, Memory, Queue};
use crate::native::{Native, NativeHandles, refused, times};
use crate::{Buffer, DeviceError, Timing};

impl<D: Driver> Native for GpuDevice<D> {
    fn handles(&self) -> NativeHandles {
        self.context.driver.native()
    }

    fn memory(&self, buffer: &Buffer) -> Result<usize, DeviceError> {
        Ok((buffer.memory::<Memory<D>>(&self.info.id)?.address + buffer.offset()) as usize)
    }

    fn run(&self, enqueue: &mut dyn FnMut() -> Result<(), String>) -> Result<(), DeviceError> {
        let driver = self.driver()?;
        let mut queue = self.queue();
        self.wait(&driver, &mut queue)?;
        queue.entry = LIBRARY.into();
        let queued = enqueue();
        self.wait(&driver, &mut queue)?;
        refused(&self.info.id, queued)
    }

    fn time(&self, enqueue: &mut dyn FnMut() -> Result<(), String>, timing: &Timing) -> Result<Vec<f64>, DeviceError> {
        let sweep = self.sweep.launch(self)?;
        self.hold()?;
        let driver = self.driver()?;
        let mut queue = self.queue();
        self.run_first(&driver, &mut queue, std::slice::from_ref(&sweep))?;
        times(&self.info.id, timing, enqueue, |foreign| {
            self.wait(&driver, &mut queue)?;
            let mut work = |queue: &mut Queue| {
                queue.entry = LIBRARY.into();
                foreign();
                Ok(())
            };
            let span = self.timed(&driver, &mut queue, &sweep, timing.cache, &mut work)?;
            self.wait(&driver, &mut queue)?;
            self.span(&driver, &mut queue, span)
        })
    }
}

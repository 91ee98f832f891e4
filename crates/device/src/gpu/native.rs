//! Foreign work on a GPU device's stream.

use super::{Driver, GpuDevice, Memory, Queue};
use crate::native::{Native, NativeHandles};
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
        let mut times = Vec::with_capacity(timing.repeats as usize);
        for _ in 0..timing.repeats {
            self.wait(driver, &mut queue)?;
            let mut refused = None;
            let mut work = |queue: &mut Queue| {
                queue.entry = "a library's kernel".into();
                if refused.is_none() {
                    refused = enqueue().err();
                }
                Ok(())
            };
            let span = self.timed(driver, &mut queue, (&sweep, timing.cache), &mut work)?;
            self.wait(driver, &mut queue)?;
            let elapsed = self.span(driver, &mut queue, span)?;
            if let Some(reason) = refused {
                return Err(DeviceError::Api { device: self.info.id.clone(), call: "a library", reason });
            }
            times.push(elapsed);
        }
        Ok(times)
    }
}

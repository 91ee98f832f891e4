//! Foreign work on a GPU device's stream.

use super::{Driver, GpuDevice, Memory};
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
        let driver = self.driver()?;
        let mut queue = self.queue();
        queue.entry = "a library's kernel".into();
        let flush = if timing.flush_l2 { Some(self.flush_buffer(driver, &mut queue)?) } else { None };
        let mut times = Vec::with_capacity(timing.repeats as usize);
        for _ in 0..timing.repeats {
            self.wait(driver, &mut queue)?;
            if let Some(buffer) = &flush {
                self.fill_stream(driver, buffer, 0)?;
            }
            let (start, end) = (self.take_event(driver, &mut queue)?, self.take_event(driver, &mut queue)?);
            driver.record(start).map_err(|f| self.failed(f, &queue.entry))?;
            let done = enqueue();
            driver.record(end).map_err(|f| self.failed(f, &queue.entry))?;
            self.wait(driver, &mut queue)?;
            let elapsed = driver.elapsed_us(start, end).map_err(|f| self.failed(f, &queue.entry))?;
            queue.events.extend([start, end]);
            done.map_err(|reason| DeviceError::Api { device: self.info.id.clone(), call: "a library", reason })?;
            times.push(elapsed);
        }
        Ok(times)
    }
}
